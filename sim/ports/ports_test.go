package ports

import (
	"errors"
	"net"
	"strings"
	"testing"
)

func listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

func reserve(t *testing.T, size int) *Row {
	t.Helper()
	r, err := Reserve(listen, "127.0.0.1", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	return r
}

func take(t *testing.T, r *Row) []net.Listener {
	t.Helper()
	ls, err := r.Take()
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

func TestARowIsBoundAndBoundAgain(t *testing.T) {
	r := reserve(t, 5)
	for range 2 {
		ls := take(t, r)
		if len(ls) != 5 || r.Size() != 5 {
			t.Fatalf("%d listeners", len(ls))
		}
		for i, l := range ls {
			if l.Addr().(*net.TCPAddr).Port != r.Base()+i || i == 0 && l.Addr().String() != r.Address() {
				t.Errorf("listener %d is on %v, the row begins at %d, %s", i, l.Addr(), r.Base(), r.Address())
			}
			if _, err := listen(l.Addr().String()); err == nil {
				t.Errorf("%v was free", l.Addr())
			}
			_ = l.Close()
		}
	}
}

func TestBindAFixedPort(t *testing.T) {
	free := reserve(t, 1)
	free.Release()
	r, err := Bind(listen, "localhost", free.Base())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if r.Base() != free.Base() || strings.HasPrefix(r.Address(), "localhost") {
		t.Errorf("it is bound as %s", r.Address())
	}
	if _, err := Bind(listen, "127.0.0.1", r.Base()); err == nil {
		t.Error("a taken port is no error")
	}
}

func TestAReleasedRowIsFree(t *testing.T) {
	r := reserve(t, 3)
	r.Release()
	for _, l := range take(t, r) {
		_ = l.Close()
	}
}

func TestATakenPortFreesTheOthers(t *testing.T) {
	r := reserve(t, 3)
	r.Release()
	other, err := listen(net.JoinHostPort("127.0.0.1", "0"))
	if err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
	last := take(t, r)
	_, _ = last[0].Close(), last[1].Close()
	if _, err := r.Take(); err == nil {
		t.Fatal("a taken port is no error")
	}
	_ = last[2].Close()
	for _, l := range take(t, r) {
		_ = l.Close()
	}
}

func TestNoRow(t *testing.T) {
	full := func(address string) (net.Listener, error) {
		if !strings.HasSuffix(address, ":0") {
			return nil, errors.New("taken")
		}
		return listen(address)
	}
	if _, err := Reserve(full, "127.0.0.1", 2); err == nil || !strings.Contains(err.Error(), "no 2 neighbouring") {
		t.Errorf("%v", err)
	}
	if _, err := Reserve(listen, "nowhere.invalid", 1); err == nil {
		t.Error("a host that is not there is no error")
	}
}

func TestARowEndsAtTheLastPort(t *testing.T) {
	asked := 0
	high := func(string) (net.Listener, error) {
		asked++
		return atEnd{}, nil
	}
	if _, err := Reserve(high, "127.0.0.1", 2); err == nil || asked != attempts {
		t.Errorf("%v after %d", err, asked)
	}
}

// atEnd is a listener on the last port.
type atEnd struct{ net.Listener }

func (atEnd) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 65_535} }
func (atEnd) Close() error   { return nil }

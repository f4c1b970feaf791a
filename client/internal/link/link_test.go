package link

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A link that is closed leaves no connection behind, not even one that was on
// its way.
func TestClosedLinkKeepsNothing(t *testing.T) {
	held, heldFar := net.Pipe()
	late, lateFar := net.Pipe()
	defer heldFar.Close()
	defer lateFar.Close()
	var l *Link
	dials := 0
	l = New("http://a", nil, func(ctx context.Context, _, _ string) (net.Conn, error) {
		if dials++; dials == 1 {
			return held, nil
		}
		l.Close()
		<-ctx.Done()
		return late, nil
	})
	if c, err := l.connect(context.Background(), "tcp", "a:80"); c != held || err != nil {
		t.Fatalf("connect returned %v, %v", c, err)
	}
	if _, err := l.connect(context.Background(), "tcp", "a:80"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("connect returned %v", err)
	}
	for name, c := range map[string]net.Conn{"held": held, "late": late} {
		if err := c.SetDeadline(time.Time{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the %s connection is open", name)
		}
	}
}

// FuzzAddress: an address that is taken is dialled as an HTTP URL and carries
// nothing but a place.
func FuzzAddress(f *testing.F) {
	for _, a := range []string{"http://a", "https://[::1]:7400/x/", "http://a%41", "http://u@a", "HTTP://a", "http://a/#", "http://:"} {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		if CheckAddress(a) != nil {
			return
		}
		r, err := http.NewRequest(http.MethodPost, strings.TrimRight(a, "/")+"/x.Y/Z", http.NoBody)
		if err != nil {
			t.Fatalf("%q is taken: %v", a, err)
		}
		if r.URL.User != nil || r.URL.RawQuery != "" || r.URL.Hostname() == "" || !strings.HasSuffix(r.URL.Path, "/x.Y/Z") {
			t.Fatalf("%q becomes %v", a, r.URL)
		}
	})
}

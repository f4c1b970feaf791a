package owner

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func files(t *testing.T) Files {
	t.Helper()
	f, err := FilesIn(t.TempDir(), "127.0.0.1:30000")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestFilesArePrivateAndByEngine(t *testing.T) {
	base := t.TempDir()
	a, errA := FilesIn(base, "127.0.0.1:30000")
	b, errB := FilesIn(base, "127.0.0.1:30000")
	c, errC := FilesIn(base, "127.0.0.1:30001")
	if err := errors.Join(errA, errB, errC); err != nil {
		t.Fatal(err)
	}
	if a != b || a.Lock == c.Lock || a.Socket == c.Socket || a.Lock == a.Socket {
		t.Errorf("files %+v, %+v, %+v", a, b, c)
	}
	if got := mode(t, filepath.Dir(a.Lock)); got != 0o700 {
		t.Errorf("the folder has mode %o", got)
	}
}

// The names of the loopback interface are of one engine; other addresses of it,
// ports and hosts are of others.
func TestNamesOfTheLoopbackInterfaceAreOneEngine(t *testing.T) {
	base := t.TempDir()
	of := func(origin string) Files {
		f, err := FilesIn(base, origin)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	want := of("127.0.0.1:30000")
	for _, origin := range []string{"localhost:30000", "LOCALHOST:30000", "localhost.:30000", "[::1]:30000", "[::ffff:127.0.0.1]:30000"} {
		if of(origin) != want {
			t.Errorf("%s has other files", origin)
		}
	}
	for _, origin := range []string{"localhost:30001", "127.0.0.2:30000", "engine:30000", "localhost"} {
		if of(origin) == want {
			t.Errorf("%s has the same files", origin)
		}
	}
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	base := t.TempDir()
	f, err := FilesIn(base, "o")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(f.Lock)
	refused := func(name, want string) {
		t.Helper()
		if _, err := FilesIn(base, "o"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	refused("open folder", "0700")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	refused("link", "is no folder")
	if _, err := FilesIn(filepath.Join(base, "missing"), "o"); err == nil {
		t.Error("a base that is not there is taken")
	}
	if _, err := FilesIn(mkdir(t, base, strings.Repeat("x", 100)), "o"); err == nil || !strings.Contains(err.Error(), "path of the socket") {
		t.Errorf("long path: error %v", err)
	}
}

func mkdir(t *testing.T, elems ...string) string {
	t.Helper()
	dir := filepath.Join(elems...)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLockIsOfOne(t *testing.T) {
	f := files(t)
	held, err := tryLock(f.Lock)
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	if other, err := tryLock(f.Lock); other != nil || err != nil {
		t.Errorf("%v, %v while it is held", other, err)
	}
	if got := mode(t, f.Lock); got != 0o600 {
		t.Errorf("the lock has mode %o", got)
	}
	held.free()
	next, err := tryLock(f.Lock)
	if err != nil || next == nil {
		t.Fatal(next, err)
	}
	next.free()
}

func TestLockThatWasReplacedIsNoticed(t *testing.T) {
	f := files(t)
	held, err := tryLock(f.Lock)
	if err != nil {
		t.Fatal(err)
	}
	defer held.free()
	if err := held.check(f.Lock); err != nil {
		t.Errorf("error %v of a good lock", err)
	}
	if err := os.Remove(f.Lock); err != nil {
		t.Fatal(err)
	}
	if err := held.check(f.Lock); !errors.Is(err, ErrReplaced) {
		t.Errorf("error %v of a removed lock", err)
	}
	other, err := tryLock(f.Lock)
	if err != nil || other == nil {
		t.Fatal(other, err)
	}
	defer other.free()
	if err := held.check(f.Lock); !errors.Is(err, ErrReplaced) {
		t.Errorf("error %v of a replaced lock", err)
	}
}

func TestSocketOfADeadOwnerIsReplaced(t *testing.T) {
	f := files(t)
	if err := os.WriteFile(f.Socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := listen(f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if got := mode(t, f.Socket); got != 0o600 {
		t.Errorf("the socket has mode %o", got)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_ = c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("unix", f.Socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := <-accepted; err != nil {
		t.Errorf("a process of this user: %v", err)
	}
}

func TestTableGoesThereAndBack(t *testing.T) {
	now := time.Now()
	line := `{"targets":[{"target":"192.0.2.1:1","report_interval_ms":100,"lease_left_ms":1500},{"target":"[::1]:2","report_interval_ms":9223372036854775807,"lease_left_ms":9223372036854775807}]}`
	leases, err := parseTable([]byte(line), now)
	if err != nil || len(leases) != 2 {
		t.Fatal(leases, err)
	}
	var targets []push.Target
	for addr, l := range leases {
		targets = append(targets, push.Target{Addr: addr, Interval: l.interval, Expires: l.expires})
	}
	targets = append(targets, push.Target{Addr: targets[0].Addr, Interval: 1, Expires: now}) // over
	back := tableOf(targets, now)
	if len(back.Targets) != 2 {
		t.Fatalf("table %+v", back)
	}
	for _, r := range back.Targets {
		most, longest := push.MaxDuration.Milliseconds(), push.MaxLease.Milliseconds()
		if r.Target.Port() == 1 && (r.IntervalMs != 100 || r.LeaseMs != 1500) || r.Target.Port() == 2 && (r.IntervalMs != most || r.LeaseMs != longest) {
			t.Errorf("row %+v", r)
		}
	}
}

func TestTableRefusesRows(t *testing.T) {
	for _, line := range []string{
		"", "x", `{"targets":[{}]}`, `{"targets":[{"target":"h:1","report_interval_ms":1,"lease_left_ms":1}]}`,
		`{"targets":[{"target":"192.0.2.1:0","report_interval_ms":1,"lease_left_ms":1}]}`,
		`{"targets":[{"target":"192.0.2.1:1","report_interval_ms":0,"lease_left_ms":1}]}`,
		`{"targets":[{"target":"192.0.2.1:1","report_interval_ms":1,"lease_left_ms":-1}]}`,
	} {
		if leases, err := parseTable([]byte(line), time.Now()); err == nil {
			t.Errorf("%s is %v", line, leases)
		}
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte(`{"targets":[{"target":"192.0.2.1:1","report_interval_ms":100,"lease_left_ms":1500}]}`))
	f.Add([]byte(`{"targets":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		now := time.Now()
		leases, err := parseTable(line, now)
		for addr, l := range leases {
			if err != nil || !addr.IsValid() || l.interval <= 0 || l.interval > push.MaxDuration || !l.expires.After(now) || l.expires.Sub(now) > push.MaxLease {
				t.Fatalf("%q is %v, %v", line, leases, err)
			}
		}
	})
}

func TestRefusalsOfTheOwnerAreKept(t *testing.T) {
	if f := refusal(501, []byte(`{"object":"error","message":"use native","code":501}`)); f.Status != 501 || f.Message != "use native" {
		t.Errorf("%+v", f)
	}
	for _, answer := range []string{"", "x", "{}"} {
		if f := refusal(500, []byte(answer)); f.Status != 500 || f.Message != "the process that owns the engine answered 500" {
			t.Errorf("%q: %+v", answer, f)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Options{Files: files(t)}); err == nil {
		t.Error("a seat without a node is made")
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// The plane of these tests changes enough to fill the windows of a watcher
// that does not read.
var busy = []string{"--engines=40", "--ranks=32"}

// bystander is a watcher that reads, and says how long it ever waited.
type bystander struct {
	stop func() (longest time.Duration, workers int)
}

func (p *plane) bystander() bystander {
	ctx, cancel := context.WithCancel(p.t.Context())
	var longest time.Duration
	v := &view{}
	last := time.Now()
	ended := make(chan error, 1)
	go func() {
		ended <- watchWith(ctx, p.client(), func(m *message) error {
			longest = max(longest, time.Since(last))
			last = time.Now()
			return v.apply(m)
		})
	}()
	return bystander{func() (time.Duration, int) {
		cancel()
		if err := <-ended; ctx.Err() == nil {
			p.t.Error("the bystander:", err)
		}
		return longest, v.fresh()
	}}
}

// gone waits until the plane has n watchers, and returns how long it took.
func (p *plane) gone(n float64, within time.Duration) time.Duration {
	p.t.Helper()
	began := time.Now()
	for limit := time.After(within); p.metric("loadplane_api_watchers") > n; {
		select {
		case <-limit:
			p.t.Fatalf("%v watchers after %v, want %v", p.metric("loadplane_api_watchers"), within, n)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return time.Since(began)
}

// undisturbed checks that a bystander got a message at least every few
// heartbeats, and that all engines are still heard.
func undisturbed(t *testing.T, b bystander) {
	t.Helper()
	longest, fresh := b.stop()
	if longest > 4*time.Second {
		t.Errorf("another watcher waited %v for a message", longest)
	}
	if fresh != 40 {
		t.Errorf("%d of 40 engines are fresh", fresh)
	}
	t.Logf("another watcher waited %v at most", longest.Round(time.Millisecond))
}

// A watcher process that is stopped disturbs neither ingest nor other
// watchers, and is gone once its window is full and a write times out.
func TestStoppedWatcherProcess(t *testing.T) {
	_, workers := fleet(t, busy...)
	p := serve(t, "--workers-file="+workers, "--report-interval=200ms")
	p.until(20*time.Second, "all engines", func(v *view) bool { return v.fresh() == 40 })
	other := p.bystander()
	frozen := start(t, "watch", "-o", "json", "--server=http://"+p.api)
	frozen.next(frozen.out, func(line string) bool { return strings.Contains(line, "full") })
	if err := frozen.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Logf("the stopped watcher was gone after %v", p.gone(1, 40*time.Second).Round(time.Millisecond))
	undisturbed(t, other)
}

// TestBug59WatcherBehindADroppedLink holds that a watcher whose link drops
// packets is gone by a ping that nobody answers.
func TestBug59WatcherBehindADroppedLink(t *testing.T) {
	_, workers := fleet(t, busy...)
	p := serve(t, "--workers-file="+workers, "--report-interval=200ms")
	p.until(20*time.Second, "all engines", func(v *view) bool { return v.fresh() == 40 })
	other := p.bystander()
	link := newLink(t, p.api)
	behind := start(t, "watch", "-o", "json", "--server=http://"+link.addr)
	behind.next(behind.out, func(line string) bool { return strings.Contains(line, "full") })
	link.drop()
	took := p.gone(1, 30*time.Second)
	t.Logf("the watcher behind the link was gone after %v", took.Round(time.Millisecond))
	// A write times out after 5 s, a ping after 10 s and 5 s.
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	undisturbed(t, other)
}

// link forwards connections until it is told to drop everything: from then on
// it neither reads nor closes, as a network does that loses all packets.
type link struct {
	addr    string
	mu      sync.Mutex
	dropped chan struct{}
	drop    func()
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{addr: ln.Addr().String(), dropped: make(chan struct{})}
	l.drop = sync.OnceFunc(func() { close(l.dropped) })
	var conns []net.Conn
	t.Cleanup(func() {
		_ = ln.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			l.mu.Lock()
			conns = append(conns, near, far)
			l.mu.Unlock()
			go l.carry(near, far)
			go l.carry(far, near)
		}
	}()
	return l
}

func (l *link) carry(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-l.dropped:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// The same over a real link between network namespaces, whose far end goes
// down without a word.
func TestWatcherInANamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root; the dropped link above is tested in user space")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the command ip is missing; the dropped link above is tested in user space")
	}
	ns := newNamespaces(t)
	_, workers := fleet(t, busy...)
	p := serveOn(t, [3]string{ns.near + ":0", "127.0.0.1:0", "127.0.0.1:0"},
		"--workers-file="+workers, "--report-interval=200ms", "--insecure-allow-plaintext=api")
	p.until(20*time.Second, "all engines", func(v *view) bool { return v.fresh() == 40 })
	other := p.bystander()
	behind := startAs(t, exec.Command("ip", "netns", "exec", ns.name, program, "watch", "-o", "json", "--server=http://"+p.api))
	behind.next(behind.out, func(line string) bool { return strings.Contains(line, "full") })
	ns.run("netns", "exec", ns.name, "ip", "link", "set", ns.far, "down")
	t.Logf("the watcher was gone after %v", p.gone(1, 30*time.Second).Round(time.Millisecond))
	undisturbed(t, other)
}

// namespaces are this one and another, with a link between them.
type namespaces struct {
	t         *testing.T
	name, far string
	// near is the address of this end.
	near string
}

func newNamespaces(t *testing.T) *namespaces {
	t.Helper()
	id := os.Getpid() % 10000
	ns := &namespaces{t: t, name: fmt.Sprintf("lp%d", id), far: fmt.Sprintf("lpb%d", id), near: "10.213.77.1"}
	here := fmt.Sprintf("lpa%d", id)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", here).Run()
		_ = exec.Command("ip", "netns", "del", ns.name).Run()
	})
	ns.run("netns", "add", ns.name)
	ns.run("link", "add", here, "type", "veth", "peer", "name", ns.far)
	ns.run("link", "set", ns.far, "netns", ns.name)
	ns.run("addr", "add", ns.near+"/30", "dev", here)
	ns.run("link", "set", here, "up")
	ns.run("netns", "exec", ns.name, "ip", "addr", "add", "10.213.77.2/30", "dev", ns.far)
	ns.run("netns", "exec", ns.name, "ip", "link", "set", ns.far, "up")
	return ns
}

func (ns *namespaces) run(args ...string) {
	ns.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		ns.t.Skipf("no network namespaces here: ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// 20,000 watches opened and closed on a quiet plane leave nothing behind.
func TestOpenAndCloseLeaveNothing(t *testing.T) {
	p := serve(t, "--worker=http://127.0.0.1:1,dialect=none")
	p.until(5*time.Second, "the listed worker", func(v *view) bool { return len(v.workers) == 1 })
	before := p.metric("go_goroutines")
	const each = 2500
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() { openAndClose(t, p.client(), each) })
	}
	clients.Wait()
	p.gone(0, 10*time.Second)
	// The clients' own connections stay for a while.
	for limit := time.After(20 * time.Second); p.metric("go_goroutines") > before+60; {
		select {
		case <-limit:
			t.Fatalf("%v goroutines, %v before", p.metric("go_goroutines"), before)
		case <-time.After(200 * time.Millisecond):
		}
	}
	t.Logf("%v goroutines before, %v after", before, p.metric("go_goroutines"))
}

func openAndClose(t *testing.T, c loadplanev1connect.SnapshotServiceClient, n int) {
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.WatchSnapshots(ctx, &loadplanev1.WatchSnapshotsRequest{})
		if err == nil && i%2 == 0 && !stream.Receive() { // half of them leave unread
			err = errors.Join(errors.New("no first message"), stream.Err())
		}
		cancel()
		if err != nil {
			t.Errorf("watch %d: %v", i, err)
			return
		}
		_ = stream.Close()
	}
}

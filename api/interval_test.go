package api_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

func TestMinIntervalIsClampedAndEchoed(t *testing.T) {
	for _, c := range []struct {
		asked, want uint32
	}{{0, 0}, {1, 1}, {250, 250}, {1000, 1000}, {5000, 1000}, {1<<32 - 1, 1000}} {
		t.Run(fmt.Sprint(c.asked), func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.add(newWorker("a:1"))
				p.after(settle)
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{MinIntervalMs: c.asked})
				for range 2 {
					if got := s.next().GetMinIntervalMs(); got != c.want {
						p.Errorf("echoed %d, want %d", got, c.want)
					}
				}
			})
		})
	}
}

// TestMinIntervalSpacesData changes a worker every 20 ms. Data comes at least
// the interval apart and with the newest state; heartbeats go on in between,
// and name what is held.
func TestMinIntervalSpacesData(t *testing.T) {
	const every = 700 * time.Millisecond
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 1, 1)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{
			MinIntervalMs: uint32(every.Milliseconds()), HeartbeatIntervalMs: 200, ClientId: "router-1",
		})
		s.full()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := uint64(2); ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					p.report("a:1", n, int64(n), 1)
				}
			}
		}()
		last, beats := time.Now(), 0
		for data := 0; data < 20; {
			m := s.next()
			if m.GetMinIntervalMs() != uint32(every.Milliseconds()) {
				p.Errorf("echoed %d", m.GetMinIntervalMs())
			}
			if m.GetDelta() == nil {
				beats++
				if len(m.GetLiveness().GetWorkers()) != 0 {
					p.Error("a heartbeat before a change carries receipts")
				}
				continue
			}
			data++
			if gap := time.Since(last); gap < every || gap > every+100*time.Millisecond {
				p.Errorf("data after %v", gap)
			}
			if m.GetCursor().GetVersion() < p.version()-1 || len(m.GetLiveness().GetWorkers()) != 1 {
				p.Errorf("version %d at %d, receipts %v", m.GetCursor().GetVersion(), p.version(), m.GetLiveness())
			}
			last = time.Now()
		}
		if beats < 2*20 {
			p.Errorf("%d heartbeats", beats)
		}
		close(stop)
		<-stopped
	})
}

// TestBug17ExpiryIsNotLaterThanTheInterval lets a worker turn stale under
// watchers of different intervals, with a change just before, or long ago.
func TestBug17ExpiryIsNotLaterThanTheInterval(t *testing.T) {
	for _, every := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
		for client := range 5 {
			t.Run(fmt.Sprint(every, " ", client), func(t *testing.T) {
				inBubble(t, nil, func(p *plane) {
					p.add(newWorker("a:1"), newWorker("b:1"))
					p.report("a:1", 1, 1, 1)
					at := time.Now()
					p.report("b:1", 1, 1, 1)
					p.after(settle)
					s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{MinIntervalMs: uint32(every.Milliseconds()), ClientId: fmt.Sprint("router-", client)})
					s.full()
					p.after(staleAfter - time.Duration(client)*5*time.Millisecond - settle)
					p.report("b:1", 2, 2, 1)
					for s.view().Worker("a:1").GetFreshness() != pb.Freshness_FRESHNESS_STALE {
						s.next()
					}
					if late := time.Since(at) - staleAfter; late < 0 || late > every {
						p.Errorf("told %v after the edge", late)
					}
				})
			})
		}
	}
}

// TestWorkerThatCameBeforeItsDataWasDueHasItsReceipt adds a worker while data
// is held back: its receipt comes with it.
func TestWorkerThatCameBeforeItsDataWasDueHasItsReceipt(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 1, 1)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{MinIntervalMs: 900, HeartbeatIntervalMs: 100})
		s.full()
		p.add(newWorker("b:1"))
		p.report("b:1", 1, 1, 1)
		for s.next().GetDelta() == nil {
		}
		if w := s.view().Worker("b:1"); !s.view().Valid(w, time.Now()) {
			p.Error("the new worker has no receipt")
		}
	})
}

// TestIntervalIsRaisedForManyWatchers opens so many that they could get more
// messages than the plane sends.
func TestIntervalIsRaisedForManyWatchers(t *testing.T) {
	inBubble(t, func(s *setup) { s.store.Settle = time.Millisecond }, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		c := p.snapshots()
		first := p.watch(c, &pb.WatchSnapshotsRequest{})
		if got := first.full().GetMinIntervalMs(); got != 0 {
			p.Errorf("one watcher: %d", got)
		}
		var last *stream
		for range 120 {
			last = p.watch(c, &pb.WatchSnapshotsRequest{})
			last.full()
		}
		// 121 watchers at 20,000 a second are 6.05 ms.
		if got := last.heartbeat().GetMinIntervalMs(); got != 10 {
			p.Errorf("121 watchers: %d, want 10", got)
		}
		if got := first.heartbeat().GetMinIntervalMs(); got != 10 {
			p.Errorf("the first of 121: %d, want 10", got)
		}
	})
}

// TestSlowReaderGetsALongerInterval reads a large view slowly, and then fast.
func TestSlowReaderGetsALongerInterval(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 0, 512)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{MinIntervalMs: 20})
		s.full()
		slowest := uint32(0)
		for n := range uint64(60) {
			p.report("a:1", n+2, int64(n+1), 512)
			p.after(100 * time.Millisecond)
			if n%5 > 0 {
				continue
			}
			slowest = max(slowest, s.next().GetMinIntervalMs())
		}
		if slowest <= 20 || slowest > 160 {
			p.Errorf("echoed %d to a slow reader", slowest)
		}
		for n := range uint64(300) {
			p.report("a:1", n+100, int64(n%2), 1)
			p.after(0)
			if s.next().GetMinIntervalMs() == 20 && n > 30 {
				return
			}
		}
		p.Error("the interval did not ease off")
	})
}

// TestSlowClientIsRefused has the watches of one client cut; another client is
// let in, and the first one too, a minute later.
func TestSlowClientIsRefused(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		for range 4 {
			p.cutOff("router-1")
		}
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: "router-2"}).full()
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}).full()
		refused := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: "router-1"})
		if refused.Receive() {
			p.Fatal("let in")
		}
		wantCode(p, refused.Err(), connect.CodeResourceExhausted)
		if pause := retryDelay(p, refused.Err()); pause < 10*time.Second || pause > 30*time.Second {
			p.Errorf("to wait %v", pause)
		}
		p.after(time.Minute)
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: "router-1"}).full()
	})
}

// TestSlowAddressIsRefused has the lines of one address cut: without a name it
// is the address that is refused.
func TestSlowAddressIsRefused(t *testing.T) {
	counted := func(s *setup) { s.api.Exempt = func(netip.Addr) bool { return false } }
	inBubbleBehind(t, counted, func(l net.Listener) net.Listener { return addressed{l} }, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 0, 512)
		p.after(settle)
		for range 4 {
			conn, err := p.dial(p.Context())
			if err != nil {
				p.Fatal(err)
			}
			if _, err := io.WriteString(conn, "GET /v1/load_monitor/watch HTTP/1.1\r\nHost: plane\r\n\r\n"); err != nil {
				p.Fatal(err)
			}
			p.after(6 * time.Second)
			_ = conn.Close()
		}
		a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/watch")
		pause, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.StatusCode != http.StatusTooManyRequests || err != nil || pause < 10 || pause > 30 || decode(p, a.body)["reason"] != "slow_client" {
			p.Errorf("%d, Retry-After %q: %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
		}
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: "router-1"}).full()
	})
}

// retryDelay returns how long a refusal says to wait.
func retryDelay(p *plane, err error) time.Duration {
	p.Helper()
	var rpc *connect.Error
	if !errors.As(err, &rpc) || len(rpc.Details()) != 1 {
		p.Fatalf("no detail in %v", err)
	}
	detail, err := rpc.Details()[0].Value()
	if err != nil {
		p.Fatal(err)
	}
	info, ok := detail.(*errdetails.RetryInfo)
	if !ok {
		p.Fatalf("detail %v", detail)
	}
	return info.GetRetryDelay().AsDuration()
}

// addressed makes the connections of a listener come from an address.
type addressed struct{ net.Listener }

// Accept waits for the next connection.
func (l addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return from{c}, nil
}

// from is a connection from an address that is not on loopback.
type from struct{ net.Conn }

// RemoteAddr returns the address.
func (from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9} }

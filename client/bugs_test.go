package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/client/internal/retry"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// Reports come every second, give or take 300 ms, for ten minutes: nothing
// turns stale. When they stop, the entry stays with its age.
func TestBug17NoStaleFlips(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		end := time.Now().Add(10 * time.Minute)
		p.answer(func(ctx context.Context, _ opening, s *sender) error {
			m, _ := p.next(0)
			for i := 0; ; i++ {
				now := m.GetServerClockMs()
				m.Liveness = &pb.Liveness{Workers: []*pb.WorkerLiveness{{Row: 1, ReceivedMs: now, ValidUntilMs: now + 3000}}}
				if time.Now().After(end) {
					m.Liveness = nil
				}
				if err := s.Send(m); err != nil {
					return err
				}
				select {
				case <-time.After(time.Second + time.Duration(i%7-3)*100*time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				m, _ = p.next(1)
			}
		})
		watcher, _ := n.watch(t, hosts("a"))
		wait(beat / 2)
		for time.Now().Before(end) {
			wait(100 * time.Millisecond)
			if v, _ := watcher.View(); v.Freshness(v.Worker("a"), time.Now()) != pb.Freshness_FRESHNESS_FRESH {
				age, _ := v.ReportAge(v.Worker("a"), time.Now())
				t.Fatalf("not fresh with a report of %v", age)
			}
		}
		wait(10 * time.Second)
		v, _ := watcher.View()
		a := v.Worker("a")
		if age, ok := v.ReportAge(a, time.Now()); !ok || age < 9*time.Second || v.Freshness(a, time.Now()) != pb.Freshness_FRESHNESS_STALE {
			t.Errorf("freshness %v with a report of %v", v.Freshness(a, time.Now()), age)
		}
		if s := watcher.Status(); s.Reconnects() != 0 {
			t.Errorf("status %+v", s)
		}
	})
}

// A worker that never reported is told apart from an idle one.
func TestBug28NeverReported(t *testing.T) {
	missing := w(1, "a", 1)
	missing.Freshness, missing.FreshnessReason = pb.Freshness_FRESHNESS_MISSING, "no_report"
	idle := w(2, "b", 2)
	idle.Aggregate = &pb.Aggregate{TotalRequests: proto.Int64(0)}
	var r Replica
	v := apply(t, &r, heard(full(3, missing, idle), time.Second, 2))
	a, b := v.Worker("a"), v.Worker("b")
	if v.Freshness(a, start) != pb.Freshness_FRESHNESS_MISSING || v.Freshness(b, start) != pb.Freshness_FRESHNESS_FRESH {
		t.Errorf("freshness %v and %v", v.Freshness(a, start), v.Freshness(b, start))
	}
	_, received := v.ReceivedAt(a)
	_, sampled := v.SampledAt(a)
	_, valid := v.ValidUntil(a)
	_, age := v.ReportAge(a, start)
	if v.Receipt(a) != nil || received || sampled || valid || age || v.Valid(a, start) {
		t.Error("a worker that was never heard has a time")
	}
	if a.GetAggregate() != nil || b.GetAggregate().TotalRequests == nil {
		t.Error("never reported and idle look alike")
	}
}

// Every worker has a receipt and a sample time of its own, on the router's
// clock, so that what the router sent later can be told from what is counted.
func TestBug29SampleTimes(t *testing.T) {
	const wall = 1_700_000_000_000 // the engines' clocks are elsewhere
	m := heard(full(3, w(1, "a", 1), w(2, "b", 2), w(3, "c", 4), w(4, "d", 8), w(5, "e", 16)), time.Second, 1, 2, 3, 4, 5)
	times := []struct {
		received       uint64
		oldest, report *int64
		// sampled is before start; ok says that it is known.
		sampled time.Duration
		ok      bool
	}{
		{100_000, proto.Int64(wall - 250), proto.Int64(wall), 250 * time.Millisecond, true},
		{99_200, proto.Int64(wall + 5_000_000), proto.Int64(wall + 5_000_030), 830 * time.Millisecond, true},
		{99_900, proto.Int64(wall + 7), proto.Int64(wall), 100 * time.Millisecond, true},
		{99_900, nil, proto.Int64(wall), 0, false},
		{99_900, proto.Int64(wall), nil, 0, false},
	}
	for i, c := range times {
		l := m.Liveness.Workers[i]
		l.ReceivedMs, l.OldestSampleUnixMs, l.ReportUnixMs = c.received, c.oldest, c.report
	}
	var r Replica
	v := apply(t, &r, m)
	for i, x := range v.Workers() {
		want := times[i]
		received, ok := v.ReceivedAt(x)
		if ago := start.Sub(received); !ok || ago != time.Duration(100_000-want.received)*time.Millisecond {
			t.Errorf("%s was received %v ago", x.GetWorkerId(), ago)
		}
		sampled, ok := v.SampledAt(x)
		if ok != want.ok || ok && start.Sub(sampled) != want.sampled {
			t.Errorf("%s was sampled %v ago, known: %t", x.GetWorkerId(), start.Sub(sampled), ok)
		}
	}
	// A report of a alone moves a alone.
	before := v
	beat := heard(heartbeat(3, 31), time.Second, 1)
	beat.Liveness.Workers[0].ReceivedMs = 100_000
	v, err := r.Apply(beat, start.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range v.Workers()[1:] {
		was, _ := before.ReceivedAt(x)
		if is, ok := v.ReceivedAt(x); !ok || !is.Equal(was) {
			t.Errorf("%s moved from %v to %v", x.GetWorkerId(), was, is)
		}
	}
	// The least delayed message maps the clock, and nothing is from the future.
	t.Run("a receipt after the arrival", func(t *testing.T) {
		var r Replica
		m := heard(full(3, w(1, "a", 1)), time.Second, 1)
		m.Liveness.Workers[0].ReceivedMs = m.ServerClockMs + 50
		v := apply(t, &r, m)
		if at, _ := v.ReceivedAt(v.Worker("a")); !at.Equal(start) {
			t.Errorf("received %v after the arrival", at.Sub(start))
		}
	})
}

// A quiet watch of 15 minutes whose connection is pinged lives.
func TestBug60QuietWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		const quiet = 25 * time.Second // longer than the time until a ping is answered
		p := n.newPlane(t, "a", "l").up()
		p.answer(func(ctx context.Context, _ opening, s *sender) error {
			for sent := uint64(0); ; sent = 1 {
				m, _ := p.next(sent)
				m.HeartbeatIntervalMs = uint32(quiet.Milliseconds())
				if err := s.Send(m); err != nil {
					return err
				}
				select {
				case <-time.After(quiet):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		watcher, _ := n.watch(t, hosts("a"))
		wait(15 * time.Minute)
		if s := watcher.Status(); s.Reconnects() != 0 || s.Messages["heartbeat"] != 15*60/25 {
			t.Errorf("status %+v", s)
		}
		// A dead connection is found by a ping, long before the watchdog.
		n.lose()
		wait(10*time.Second + 5*time.Second + time.Second)
		if s := watcher.Status(); s.LastCause != CauseUnreachable {
			t.Errorf("status %+v", s)
		}
		n.heal()
		wait(2*firstMessage + retry.LastWindow)
		if !watcher.Status().Connected() {
			t.Error("not connected")
		}
	})
}

// deaf is a transport that does not heed the context of a request.
type deaf struct {
	calls chan struct{}
	give  chan struct{}
	next  http.RoundTripper
}

func (d *deaf) RoundTrip(r *http.Request) (*http.Response, error) {
	d.calls <- struct{}{}
	<-d.give
	if d.next == nil {
		return nil, errDown
	}
	return d.next.RoundTrip(r)
}

// The user cancels while nothing answers: Run, which the helper of these tests
// holds to a second, returns.
func TestBug61CancelWhileBlackHoled(t *testing.T) {
	t.Run("a stream", func(t *testing.T) {
		inBubble(t, func(t *testing.T, n *network) {
			n.newPlane(t, "a", "l").up()
			watcher, stop := n.watch(t, hosts("a"))
			wait(time.Second)
			n.lose()
			stop()
			if s := watcher.Status(); s.Reconnects() != 0 {
				t.Errorf("status %+v", s)
			}
		})
	})
	t.Run("a dial", func(t *testing.T) {
		inBubble(t, func(t *testing.T, n *network) {
			n.lose()
			_, stop := n.watch(t, hosts("a"))
			wait(time.Second)
			stop()
			if n.dialed()["a:80"] != 1 {
				t.Errorf("dialled %v", n.dialed())
			}
		})
	})
	t.Run("a wait", func(t *testing.T) {
		inBubble(t, func(t *testing.T, n *network) {
			watcher, stop := n.watch(t, hosts("a"))
			wait(time.Minute)
			stop()
			if watcher.Status().Reconnects() < 10 {
				t.Errorf("status %+v", watcher.Status())
			}
		})
	})
	t.Run("a token", func(t *testing.T) {
		inBubble(t, func(t *testing.T, n *network) {
			give := make(chan struct{})
			o := hosts("a")
			o.Token = func(context.Context) (string, error) {
				<-give
				return "", errDown
			}
			_, stop := n.watch(t, o)
			wait(time.Second)
			stop()
			close(give)
			synctest.Wait()
		})
	})
}

// An HTTP client that never returns holds a few goroutines, not one for every
// attempt; when it gives way, the watcher goes on.
func TestBug61DeafHTTPClient(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		n.newPlane(t, "a", "l").up()
		d := &deaf{calls: make(chan struct{}, 100), give: make(chan struct{})}
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: protocols, DialContext: n.dial}
		t.Cleanup(transport.CloseIdleConnections)
		d.next = transport
		o := hosts("a")
		o.HTTPClient = &http.Client{Transport: d, Timeout: time.Minute}
		watcher, stop := n.watch(t, o)
		wait(10 * time.Minute)
		if got := len(d.calls); got != 4 {
			t.Errorf("%d calls", got)
		}
		if s := watcher.Status(); !errors.Is(s.LastError, ErrStuck) || s.Ended[CauseSilent] != 4 {
			t.Errorf("status %+v", s)
		}
		close(d.give)
		wait(2 * time.Minute)
		s := watcher.Status()
		if !s.Connected() || s.Reconnects() > 5 {
			t.Errorf("status %+v", s)
		}
		stop()
	})
}

// Ten thousand watches are opened and cancelled: before the dial, within it,
// when the plane is asked, and when the view is there. The next one still
// connects, and no goroutine is left.
func TestBug61OpenCancelCycles(t *testing.T) {
	cycles := 10_000
	if raceEnabled || testing.Short() {
		cycles = 1_000 // the detector makes them ten times slower
	}
	n := newNetwork()
	p := n.newPlane(t, "a", "l").up()
	var cancel context.CancelFunc
	at := 0
	p.answer(func(ctx context.Context, o opening, s *sender) error {
		if at == 2 {
			cancel()
		}
		return p.serve(ctx, o, s)
	})
	watcher, err := NewWatcher(hosts("a"))
	if err != nil {
		t.Fatal(err)
	}
	watcher.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if at == 1 {
			cancel()
		}
		return n.dial(ctx, network, address)
	}
	for i := range cycles {
		var ctx context.Context
		at = i % 4
		ctx, cancel = context.WithCancel(context.Background())
		switch _, stale := watcher.View(); at {
		case 0:
			cancel()
		case 3:
			go func() {
				<-stale
				cancel()
			}()
		}
		if err := watcher.Run(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	if len(watcher.slots) != 0 {
		t.Errorf("%d streams are left", len(watcher.slots))
	}
	at = 0
	_, stale := watcher.View()
	run(t, watcher)
	<-stale
}

// A watch for a worker that was just removed is answered at once: the view is
// there and the worker is not in it.
func TestBug62RemovedWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l")
		p.workers = nil
		p.up()
		o := hosts("a")
		o.Filter = &pb.Filter{WorkerIds: []string{"gone"}}
		watcher, _ := n.watch(t, o)
		began := time.Now()
		v, stale := watcher.View()
		for ; v == nil; v, stale = watcher.View() {
			<-stale
		}
		if v.Worker("gone") != nil || len(v.Workers()) != 0 || time.Since(began) != 0 {
			t.Errorf("view %v after %v", v, time.Since(began))
		}
		wait(time.Minute)
		if s := watcher.Status(); s.Reconnects() != 0 || s.Messages["heartbeat"] != 60 {
			t.Errorf("status %+v", s)
		}
	})
}

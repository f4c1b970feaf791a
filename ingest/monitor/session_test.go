package monitor

import (
	"slices"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestReportsReachTheStore: an engine of either generation is fresh at once and
// stays so, its lease is renewed, and one session is enough for a minute.
func TestReportsReachTheStore(t *testing.T) {
	for name, newer := range map[string]bool{"older engine": false, "newer engine": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, honest(newer), func(p *plane, e *engine) {
				after(50 * time.Millisecond)
				got, _, d := p.entry(testWorker)
				if got.Freshness != store.Fresh || len(got.Ranks) != 2 || got.Load.Source != "process-1" {
					t.Fatalf("%s (%s), %d ranks", got.Freshness, got.Reason, len(got.Ranks))
				}
				if v, ok := got.Ranks[1].Count(store.NumUsedTokens); v != 120_000 || !ok {
					t.Errorf("used tokens are %d %v", v, ok)
				}
				if d.Registration != string(registry.StateRegistered) || d.RegistrationError != "" {
					t.Errorf("shown as %q, %q", d.Registration, d.RegistrationError)
				}
				if st := p.stream(testWorker); st.Peer != testPort {
					t.Errorf("the peer is %s", st.Peer)
				}
				after(time.Minute)
				p.want(store.Fresh, e.next(0).SequenceId-1)
				if n := len(e.arrivals(isKeepAlive)); n != 12 || e.opened() != 1 {
					t.Errorf("%d keep-alives in %d sessions", n, e.opened())
				}
				m := p.monitor.metrics
				accepted := testutil.ToFloat64(m.accepted)
				if accepted < 59 || accepted > 64 || testutil.ToFloat64(m.keepAlives) != 12 || testutil.ToFloat64(m.sessions) != 1 ||
					testutil.ToFloat64(m.overRate) != 0 || testutil.ToFloat64(m.bytes) < 5000 || testutil.CollectAndCount(m.refused) != 0 {
					t.Errorf("%v reports were accepted, or another metric is off", accepted)
				}
			})
		})
	}
}

func TestRegisterSaysWhatIsWanted(t *testing.T) {
	inBubble(t, honest(true), func(_ *plane, e *engine) {
		after(time.Second)
		list := e.arrivals(isRegister)
		if len(list) != 1 {
			t.Fatalf("%d register frames", len(list))
		}
		if r := list[0].frame.GetRegister(); r.RouterId != testRouter || r.ReportIntervalMs != 1000 || r.LeaseTtlMs != testLease.Milliseconds() {
			t.Errorf("registered with %v", r)
		}
	})
}

// TestGrantsAreClamped counts the keep-alives of five minutes for grants that
// make no sense or are hostile.
func TestGrantsAreClamped(t *testing.T) {
	for _, tt := range []struct {
		name         string
		lease, renew int64
		every        time.Duration
		odd          float64
	}{
		{"as engines do", 15_000, 5_000, 5 * time.Second, 0},
		{"1 ms of a second", 1_000, 1, time.Second, 0},
		{"1 ms of 15 s", 15_000, 1, time.Second, 0},
		{"2 ms and 1 ms", 2, 1, time.Second, 0},
		{"late renewal", 15_000, 14_000, 7500 * time.Millisecond, 0},
		{"renewal after the lease", 15_000, 15_000, 5 * time.Second, 1},
		{"no renewal", 15_000, 0, 5 * time.Second, 1},
		{"negative renewal", 15_000, -1, 5 * time.Second, 1},
		{"no lease", 0, 5_000, 5 * time.Second, 1},
		{"negative lease", -1 << 63, -1 << 63, 5 * time.Second, 1},
		{"huge lease", 1<<63 - 1, 1<<63 - 2, time.Minute, 0},
		{"huge lease, no renewal", 1<<63 - 1, 0, time.Minute, 1},
		{"huge lease, 1 ms", 1<<63 - 1, 1, time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
				if _, err := e.recv(s); err != nil {
					return err
				}
				if err := s.Send(registered(tt.lease, tt.renew)); err != nil {
					return err
				}
				go func() { _ = e.drain(s) }()
				return e.reports(s, time.Second)
			}, func(p *plane, e *engine) {
				const span = 5 * time.Minute
				after(span + 100*time.Millisecond)
				if n, want := len(e.arrivals(isKeepAlive)), int(span/tt.every); n != want {
					t.Errorf("%d keep-alives in %s, want %d", n, span, want)
				}
				if n := testutil.ToFloat64(p.monitor.metrics.oddGrants); n != tt.odd || e.opened() != 1 {
					t.Errorf("%v odd grants in %d sessions", n, e.opened())
				}
				p.want(store.Fresh, 301)
			})
		})
	}
}

// reports sends a report at an interval until the session ends.
func (e *engine) reports(s pb.LoadMonitorService_MonitorServer, interval time.Duration) error {
	for {
		if err := s.Send(report(e.next(1))); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// TestClaimsAreIgnored: identity is from discovery only.
func TestClaimsAreIgnored(t *testing.T) {
	claims := []*pb.Worker{
		nil, {}, {WorkerAddr: "http://10.0.0.2:30000", WorkerType: pb.WorkerType_WORKER_TYPE_DECODE},
		{WorkerAddr: string(make([]byte, 300)), WorkerType: 9},
	}
	model := string(make([]byte, 300))
	claims = append(claims, &pb.Worker{WorkerAddr: "x", Model: &model, Zone: &model})
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for _, w := range claims {
			r := e.next(1)
			r.Worker = w
			if err := s.Send(report(r)); err != nil {
				return err
			}
		}
		return e.drain(s)
	}, func(p *plane, _ *engine) {
		after(time.Second)
		p.want(store.Fresh, uint64(len(claims)))
		if e, _, _ := p.entry(testWorker); e.Worker.Role == store.RoleDecode || e.Worker.Zone != "" {
			t.Errorf("the worker became %+v", e.Worker)
		}
	})
}

// TestStopIsSaid: a plane that stops, and a worker that is removed, leave no
// session behind in the engine.
func TestStopIsSaid(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		after(time.Second)
		began := time.Now()
		p.stop()
		p.runs.Wait()
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("an engine that stops at once was waited for %s", took)
		}
		if n := len(e.arrivals(isStop)); n != 1 || p.failed(endStopped) != 1 {
			t.Errorf("%d stop frames, %d counted", n, p.failed(endStopped))
		}
	})
}

// TestStopIsBounded: an engine that does not care is not waited for.
func TestStopIsBounded(t *testing.T) {
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		return e.reports(s, time.Second)
	}, func(p *plane, _ *engine) {
		after(1500 * time.Millisecond)
		began := time.Now()
		p.stop()
		p.runs.Wait()
		if took := time.Since(began); took != stopFor {
			t.Errorf("stopped after %s", took)
		}
	})
}

// TestDefiniteAnswers: what makes the registry leave an engine alone, and what
// is borne.
func TestDefiniteAnswers(t *testing.T) {
	for _, tt := range []struct {
		code   codes.Code
		reason store.Reason
		final  bool
	}{
		{codes.Unimplemented, registry.ReasonUnsupported, true},
		{codes.Unauthenticated, registry.ReasonAuth, true},
		{codes.PermissionDenied, registry.ReasonAuth, true},
		{codes.Unavailable, registry.ReasonConnectFailed, false},
		{codes.DeadlineExceeded, registry.ReasonConnectFailed, false},
		{codes.Internal, registry.ReasonEngineError, false},
		{codes.NotFound, registry.ReasonEngineError, false},
		{codes.OK, ReasonSessionEnded, false},
	} {
		t.Run(tt.code.String(), func(t *testing.T) {
			inBubble(t, func(*engine, pb.LoadMonitorService_MonitorServer) error {
				return status.Error(tt.code, "no")
			}, func(p *plane, e *engine) {
				after(30 * time.Second)
				got, _, d := p.entry(testWorker)
				if got.Freshness != store.Missing || got.Reason != tt.reason || d.RegistrationError == "" {
					t.Errorf("%s (%s), %+v", got.Freshness, got.Reason, d)
				}
				if ends := p.ended(); (len(ends) > 0) != tt.final || tt.final && ends[0] != tt.reason {
					t.Errorf("returned %q", ends)
				}
				// Full jitter up to 5 s: never often, and never given up.
				if n := e.opened(); tt.final && n != 1 || !tt.final && (n < 6 || n > 60) {
					t.Errorf("%d sessions in 30 s", n)
				}
				if tt.final != (d.Registration == string(registry.StateParked)) {
					t.Errorf("shown as %s", d.Registration)
				}
			})
		})
	}
}

// TestRestartedEngine: an engine that shuts down with UNAVAILABLE and comes back
// is heard soon, as another source instance from its own first sequence.
func TestRestartedEngine(t *testing.T) {
	inBubble(t, honest(true), func(p *plane, e *engine) {
		after(5 * time.Second)
		e.server.Stop()
		<-e.done
		after(testStale + time.Second)
		if got, _, d := p.entry(testWorker); got.Freshness != store.Stale || d.Registration != string(registry.StateFailing) {
			t.Errorf("%s (%s), shown as %s", got.Freshness, got.Reason, d.Registration)
		}
		e.set(func(e *engine) { e.source, e.seq, e.done = "process-2", 0, make(chan struct{}) })
		e.start()
		after(maxBackoff + 10*time.Millisecond)
		if st := p.stream(testWorker); st.Source != "process-2" || !slices.Equal(st.Retired, []string{"process-1"}) {
			t.Errorf("%+v", st)
		}
		if got, _, d := p.entry(testWorker); got.Freshness != store.Fresh || d.Registration != string(registry.StateRegistered) {
			t.Errorf("%s (%s), shown as %s", got.Freshness, got.Reason, d.Registration)
		}
		if ends := p.ended(); len(ends) != 0 {
			t.Errorf("returned %q", ends)
		}
	})
}

// TestConnectionsAreOpenedLessOften: from 200 ms up to 5 s, and soon again once
// a session lasted.
func TestConnectionsAreOpenedLessOften(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		after(2 * time.Second)
		e.set(func(e *engine) { e.down = true })
		e.server.Stop()
		<-e.done
		before := len(p.net.dialled())
		at := time.Now()
		after(time.Minute)
		dials := p.net.dialled()[before:]
		// The mean of the waits is half of their bounds.
		if n := len(dials); n < 15 || n > 60 || dials[0].Sub(at) > minBackoff {
			t.Errorf("%d connections in a minute, the first after %s", n, dials[0].Sub(at))
		}
		for i := 1; i < len(dials); i++ {
			if gap := dials[i].Sub(dials[i-1]); gap > maxBackoff {
				t.Errorf("a gap of %s", gap)
			}
		}
	})
}

// TestSilenceIsGivenUp: an engine that reported and is away for a lease may be
// asked anew what it offers; one that never reported is up to the registry.
func TestSilenceIsGivenUp(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		after(2 * time.Second)
		e.set(func(e *engine) { e.down = true })
		e.server.Stop()
		<-e.done
		after(testLease - 2*time.Second)
		if ends := p.ended(); len(ends) != 0 {
			t.Errorf("returned %q early", ends)
		}
		after(2*time.Second + 2*maxBackoff)
		if ends := p.ended(); !slices.Equal(ends, []store.Reason{registry.ReasonConnectFailed}) {
			t.Errorf("returned %q", ends)
		}
		after(time.Hour)
		if ends := p.ended(); len(ends) != 1 {
			t.Errorf("returned %q", ends)
		}
	})
}

// TestNoReporterPort: the reason is shown until discovery or the engine says
// which port it is.
func TestNoReporterPort(t *testing.T) {
	facts := &facts{}
	inBubbleWith(t, func(r *registry.Options, _ *Options) {
		r.Workers, r.Prober = []string{testWorker + ",dialect=monitor"}, facts
	}, func(p *plane) {
		e := p.net.add(testPort, honest(true))
		p.run()
		after(time.Second)
		if got, _, _ := p.entry(testWorker); got.Reason != ReasonNoReporterPort || e.opened() != 0 {
			t.Errorf("reason %s, %d sessions", got.Reason, e.opened())
		}
		facts.port.Store(31000)
		after(time.Minute)
		if got, _, _ := p.entry(testWorker); got.Freshness != store.Fresh || e.opened() != 1 {
			t.Errorf("%s (%s), %d sessions", got.Freshness, got.Reason, e.opened())
		}
		if n := p.failed(ReasonNoReporterPort); n > 12 {
			t.Errorf("looked %d times", n)
		}
	})
}

// portless returns why there is no session where no port is known.
func portless(t *testing.T) (why *fault) {
	engines := make(capture)
	inBubbleWith(t, func(r *registry.Options, _ *Options) {
		r.Workers = []string{testWorker + ",dialect=monitor"}
		r.Dialers = map[store.Dialect]registry.Dialer{store.DialectMonitor: engines}
	}, func(p *plane) {
		p.run()
		why = (&loop{monitor: p.monitor, engine: <-engines}).session(p.t.Context())
	})
	return why
}

// TestReporterComesBackElsewhere: an engine that is gone from where it was is
// asked where it is, and not once for each attempt.
func TestReporterComesBackElsewhere(t *testing.T) {
	facts := &facts{}
	facts.port.Store(31000)
	inBubbleWith(t, func(r *registry.Options, _ *Options) {
		r.Workers, r.Prober = []string{testWorker + ",dialect=monitor"}, facts
	}, func(p *plane) {
		first, second := p.net.add(testPort, honest(true)), p.net.add("10.0.0.1:31001", honest(true))
		second.source, second.seq = "process-2", 1000
		p.run()
		after(3 * time.Second)
		asked := facts.asked.Load()
		first.set(func(e *engine) { e.down = true })
		first.server.Stop()
		facts.port.Store(31001)
		after(5 * time.Second)
		if got, _, _ := p.entry(testWorker); got.Freshness != store.Fresh || got.Load.Source != "process-2" {
			t.Errorf("%s (%s) by %s", got.Freshness, got.Reason, got.Load.Source)
		}
		if n := facts.asked.Load() - asked; n < 1 || n > 3 {
			t.Errorf("asked %d times", n)
		}
	})
}

// TestBug48ReporterPortChanges: a session goes where the engine says that its
// load reporter is now.
func TestBug48ReporterPortChanges(t *testing.T) {
	facts := &facts{}
	facts.port.Store(31000)
	inBubbleWith(t, func(r *registry.Options, _ *Options) {
		r.Workers, r.Prober = []string{testWorker + ",dialect=monitor"}, facts
	}, func(p *plane) {
		first, second := p.net.add(testPort, honest(true)), p.net.add("10.0.0.1:31001", honest(true))
		second.source, second.seq = "process-3", 1000
		p.run()
		after(3 * time.Second)
		if first.opened() == 0 || second.opened() != 0 {
			t.Fatalf("%d and %d sessions", first.opened(), second.opened())
		}
		// The process is another one each time, so that it is asked what it is.
		for _, source := range []string{"process-2", "process-3"} {
			first.set(func(e *engine) { e.source, e.down = source, true })
			first.server.Stop()
			<-first.done
			first.set(func(e *engine) { e.down, e.done = false, make(chan struct{}) })
			first.start()
			after(time.Second)
			facts.port.Store(31001)
		}
		after(time.Minute)
		if got, _, _ := p.entry(testWorker); got.Freshness != store.Fresh || second.opened() != 1 {
			t.Errorf("%s (%s), %d sessions at the new port", got.Freshness, got.Reason, second.opened())
		}
		if n := len(first.arrivals(isStop)); n != 1 || p.failed(endMoved) != 1 {
			t.Errorf("%d stop frames at the old port, %d counted as moved", n, p.failed(endMoved))
		}
	})
}

// TestPrefillThroughputIsKnownOnceSent: in the next session as well.
func TestPrefillThroughputIsKnownOnceSent(t *testing.T) {
	values := []float64{0, 12.5, 0}
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for _, v := range values {
			r := e.next(1)
			r.Ranks[0].PrefillThroughput = v
			if err := s.Send(report(r)); err != nil {
				return err
			}
			<-time.After(time.Second)
		}
		e.set(func(e *engine) { values = []float64{0, 0, 0} })
		return nil
	}, func(p *plane, _ *engine) {
		known := func() bool {
			e, _, _ := p.entry(testWorker)
			return e.Ranks[0].Has(store.PrefillThroughput)
		}
		for i, want := range []bool{false, true, true, true} {
			after(50 * time.Millisecond)
			if known() != want {
				t.Errorf("step %d: known is %v", i, !want)
			}
			<-time.After(950 * time.Millisecond)
		}
	})
}

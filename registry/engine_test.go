package registry

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// dialled runs body with an engine of the poll dialect that the test works
// with itself.
func dialled(t *testing.T, worker string, body func(p *plane, e *Engine)) {
	t.Helper()
	engines := make(chan *Engine, 16)
	s := &script{serve: func(ctx context.Context, e *Engine, _ int) store.Reason {
		select {
		case engines <- e:
		default:
		}
		<-ctx.Done()
		return ""
	}}
	scripted(t, s, []string{worker + ",dialect=poll"}, func(p *plane) { body(p, <-engines) })
}

func TestTarget(t *testing.T) {
	dialled(t, testWorker+"/base,model=m,interval=500ms,max_running=9,token_file=/t", func(p *plane, e *Engine) {
		p.opts.CAFile = "/general"
		want := Target{
			ID: testWorker, URL: testWorker + "/base", Origin: testOrigin, Interval: 500 * time.Millisecond,
			Models: []string{"m"}, MaxRunning: 9, TokenFile: "/t", CAFile: "/general",
			Line: p.workers[testWorker].line, Patience: testStale / 2, Lease: testLease,
		}
		if got := e.Target(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		p.workers[testWorker].learnFacts(&Finding{Facts: Facts{DPSize: 4}})
		p.rediscover(testWorker + "/base,model=n,dialect=poll")
		want.Models, want.MaxRunning, want.TokenFile, want.Interval = []string{"n"}, 0, "", testInterval
		want.Facts.DPSize = 4
		if got := e.Target(); !reflect.DeepEqual(got, want) {
			t.Errorf("after discovery changed: got %+v, want %+v", got, want)
		}
	})
}

// TestReporterPort: the port of discovery goes before that of the engine, and
// both before the general one.
func TestReporterPort(t *testing.T) {
	for name, c := range map[string]struct {
		setting string
		facts   int
		want    int
	}{
		"key":               {",reporter_port=1001,label.reporter_port=1002", 1003, 1001},
		"label":             {",label.reporter_port=1002", 1003, 1002},
		"engine":            {"", 1003, 1003},
		"general":           {"", 0, 1004},
		"of another worker": {",label.port=1002", 0, 1004},
	} {
		t.Run(name, func(t *testing.T) {
			dialled(t, testWorker+c.setting, func(p *plane, e *Engine) {
				p.opts.ReporterPort = 1004
				p.workers[testWorker].learnFacts(&Finding{Facts: Facts{ReporterPort: c.facts}})
				if got := e.Target().ReporterPort; got != c.want {
					t.Errorf("port %d, want %d", got, c.want)
				}
			})
		})
	}
}

// TestDialerIsWoken by a change of discovery, and by what the engine says of
// its reporters, once each.
func TestDialerIsWoken(t *testing.T) {
	dialled(t, testWorker, func(p *plane, e *Engine) {
		w := p.workers[testWorker]
		for _, step := range []struct {
			name   string
			change func()
			wakes  bool
		}{
			{"port", func() { w.learnFacts(&Finding{Facts: Facts{ReporterPort: 7}}) }, true},
			{"same port", func() { w.learnFacts(&Finding{Facts: Facts{ReporterPort: 7}}) }, false},
			{"sockets", func() { w.learnFacts(&Finding{Facts: Facts{LoadStat: LoadStat{Port: 5, Ranks: 2}}}) }, true},
			{"version", func() { w.learnFacts(&Finding{Facts: Facts{Version: "2"}}) }, false},
			{"none any more", func() { w.learnFacts(&Finding{Complete: true}) }, true},
			{"discovery", func() { p.rediscover(testWorker + ",dialect=poll,zone=z") }, true},
		} {
			step.change()
			select {
			case <-e.Changed():
				if !step.wakes {
					t.Errorf("%s woke the dialer", step.name)
				}
			default:
				if step.wakes {
					t.Errorf("%s did not wake the dialer", step.name)
				}
			}
		}
	})
}

// TestTargetOfAWorkerOfItsOwn: its credentials go before the general ones.
func TestTargetOfAWorkerOfItsOwn(t *testing.T) {
	dialled(t, testWorker+",token_file=/own/token,ca_file=/own/ca", func(p *plane, e *Engine) {
		p.opts.TokenFile, p.opts.CAFile = "/general/token", "/general/ca"
		if got := e.Target(); got.TokenFile != "/own/token" || got.CAFile != "/own/ca" {
			t.Errorf("got %q and %q", got.TokenFile, got.CAFile)
		}
	})
}

// TestBug48PortChanges: the dialer goes to the port that discovery names now.
func TestBug48PortChanges(t *testing.T) {
	var mu sync.Mutex
	var urls []string
	s := &script{serve: func(ctx context.Context, e *Engine, _ int) store.Reason {
		mu.Lock()
		urls = append(urls, e.Target().URL)
		mu.Unlock()
		<-ctx.Done()
		return ""
	}}
	scripted(t, s, []string{"http://10.0.0.1:30000,id=w,dialect=poll"}, func(p *plane) {
		p.after(time.Second)
		p.rediscover("http://10.0.0.1:30001,id=w,dialect=poll")
		p.after(testInterval)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"http://10.0.0.1:30000", "http://10.0.0.1:30001"}; !slices.Equal(urls, want) {
			t.Errorf("served %q, want %q", urls, want)
		}
	})
}

func TestOpenLeavesTheReportInTheStore(t *testing.T) {
	dialled(t, testWorker, func(p *plane, e *Engine) {
		b, err := e.Open("p1", otherPeer, p.load("p1", 1))
		if err != nil {
			t.Fatal(err)
		}
		p.settle()
		w, live := p.entry(testWorker)
		st, _, _ := p.st.Inspect(w.Row)
		if w.Load == nil || live.Sequence != 1 || st.Peer != otherPeer.String() || st.Source != "p1" {
			t.Errorf("entry %+v, receipt %+v, stream %+v", w, live, st)
		}
		if err := b.Admit(p.load("p1", 2)); err != nil {
			t.Error(err)
		}
		b.Close()
		p.settle()
		if w, live = p.entry(testWorker); w.Load == nil || live.Sequence != 2 {
			t.Errorf("after Close: entry %+v, receipt %+v", w, live)
		}
	})
}

// TestOpenFollowsTheRulesOfSources: takeover, return and sequence are those of
// pushed streams.
func TestOpenFollowsTheRulesOfSources(t *testing.T) {
	dialled(t, testWorker, func(p *plane, e *Engine) {
		open := func(source string, sequence uint64) error {
			_, err := e.Open(source, testPeer, p.load(source, sequence))
			return err
		}
		for _, source := range []string{"p1", "p2"} {
			if err := open(source, 1); err != nil {
				t.Fatal(err)
			}
		}
		wantRefusal(t, open("p1", 2), ReasonRetired, false)
		wantRefusal(t, open("p2", 1<<40), ReasonSequenceJump, true)
		p.after(testStale)
		if err := open("p1", 2); err != nil {
			t.Error(err)
		}
		if got := testutil.ToFloat64(p.metrics.flaps); got != 1 {
			t.Errorf("%v flaps", got)
		}
	})
}

func TestOpenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *plane)
		want   store.Reason
	}{
		"draining": {func(p *plane) { p.Drain() }, ReasonShuttingDown},
		"removed":  {func(p *plane) { p.rediscover() }, ReasonWorkerRemoved},
		"replaced": {func(p *plane) { p.rediscover(testWorker + ",dialect=push") }, ReasonIdentityChanged},
	} {
		t.Run(name, func(t *testing.T) {
			dialled(t, testWorker, func(p *plane, e *Engine) {
				b, err := e.Open("p1", testPeer, p.load("p1", 1))
				if err != nil {
					t.Fatal(err)
				}
				c.change(p)
				<-b.Ended()
				wantRefusal(t, b.Err(), c.want, false)
				_, err = e.Open("p1", testPeer, p.load("p1", 2))
				wantRefusal(t, err, c.want, false)
			})
		})
	}
}

// TestOpenOutOfTurn: a dialer whose dialect is not in force changes nothing.
func TestOpenOutOfTurn(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPush))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.net.add(testOrigin, always(200, goodAnswer))
		p.after(time.Second)
		e := &Engine{w: p.workers[testWorker], dialect: store.DialectPoll}
		_, err := e.Open("p1", testPeer, p.load("p1", 1))
		wantRefusal(t, err, ReasonSuperseded, false)
		e.Show(Way{State: StatePolling, Interval: time.Second})
		if d := p.wantState(StateRegistered, 200); d.PollInterval != 0 {
			t.Errorf("diagnostics %+v", d)
		}
		p.wantDialect(store.DialectPush, "push: offered (asked)")
	})
}

// TestPushIsRefusedWherePollIsConfigured: only an open dialect yields.
func TestPushIsRefusedWherePollIsConfigured(t *testing.T) {
	dialled(t, testWorker, func(p *plane, _ *Engine) {
		_, err := p.Bind(claim("s1"), p.load("s1", 1))
		wantRefusal(t, err, ReasonDialectMismatch, false)
		p.wantDialect(store.DialectPoll, "poll: configured")
	})
}

// TestShow: what operators see of the way, and the reason of a worker that was
// never heard.
func TestShow(t *testing.T) {
	dialled(t, testWorker, func(p *plane, e *Engine) {
		e.Show(Way{State: StateFailing, Reason: ReasonEngineError, Err: errors.New("the engine answered 503"), Status: 503, Interval: 2 * time.Second})
		d := p.wantState(StateFailing, 503)
		w, _ := p.entry(testWorker)
		if d.PollInterval != 2*time.Second || d.RegistrationError != "the engine answered 503" || w.Reason != ReasonEngineError {
			t.Errorf("diagnostics %+v, reason %s", d, w.Reason)
		}
		e.Show(Way{State: StatePolling, Status: 200})
		d = p.diagnostics(testWorker)
		w, _ = p.entry(testWorker)
		if d.Registration != string(StatePolling) || d.RegistrationError != "" || d.PollInterval != 2*time.Second || w.Reason != store.ReasonNoReport {
			t.Errorf("diagnostics %+v, reason %s", d, w.Reason)
		}
		if n := testutil.ToFloat64(p.metrics.registrations.WithLabelValues(string(StatePolling))); n != 1 {
			t.Errorf("%v polling", n)
		}
		if n := testing.AllocsPerRun(100, func() { e.Show(Way{State: StatePolling, Status: 200}) }); n != 0 {
			t.Errorf("%v allocations to show what is shown", n)
		}
		e.Refuse(&Refusal{Reason: ReasonSequenceJump, Message: "of a test"})
		if d = p.diagnostics(testWorker); d.Refused != 1 || d.LastRefusalDetail != "of a test" {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

// TestPollNoEngine: the five minutes of a worker that refuses connections are
// those of a registration.
func TestPollNoEngine(t *testing.T) {
	dialled(t, testWorker, func(p *plane, e *Engine) {
		refused := Way{State: StateFailing, Reason: ReasonConnectFailed, Err: &syscallError{}}
		for _, want := range []store.Reason{ReasonConnectFailed, store.ReasonNoEngine} {
			e.Show(refused)
			p.settle()
			if w, _ := p.entry(testWorker); w.Reason != want {
				t.Errorf("reason %s, want %s", w.Reason, want)
			}
			p.after(noEngineFor)
		}
		e.Show(Way{State: StatePolling, Status: 200})
		p.settle()
		if w, _ := p.entry(testWorker); w.Reason != store.ReasonNoReport {
			t.Errorf("after it came: %s", w.Reason)
		}
	})
}

// syscallError wraps a refused connection as a dialer's client does.
type syscallError struct{}

func (*syscallError) Error() string { return "no connection" }
func (*syscallError) Unwrap() error { return syscall.ECONNREFUSED }

// TestConfiguredDialerIsServedAgain: what follows each reason that a dialer
// returns.
func TestConfiguredDialerIsServedAgain(t *testing.T) {
	for reason, c := range map[store.Reason]struct {
		state RegistrationState
		after time.Duration
	}{
		ReasonAuth: {StateParked, parkFor}, ReasonUnsupported: {StateParked, parkFor},
		ReasonSuperseded: {StateRetrying, minBackoff}, "": {StateRetrying, minBackoff},
	} {
		t.Run("reason "+string(reason), func(t *testing.T) {
			s := &script{serve: func(ctx context.Context, e *Engine, n int) store.Reason {
				if n == 0 {
					e.Show(Way{State: StateFailing, Reason: reason, Err: errors.New("answered 401"), Status: 401})
					return reason
				}
				<-ctx.Done()
				return ""
			}}
			scripted(t, s, []string{testWorker + ",dialect=poll"}, func(p *plane) {
				if d := p.wantState(c.state, 401); d.RegistrationError != "answered 401" {
					t.Errorf("diagnostics %+v", d)
				}
				p.after(2 * parkFor)
				served := s.times(&s.served)
				if len(served) != 2 || served[1].Sub(served[0]) < c.after*4/5 || served[1].Sub(served[0]) > c.after*6/5 {
					t.Errorf("served at %v, want again after %s", served, c.after)
				}
			})
		})
	}
}

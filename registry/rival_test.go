package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// dialerFunc is a dialer that acts as a test says.
type dialerFunc func(ctx context.Context, e *Engine) store.Reason

func (f dialerFunc) Serve(ctx context.Context, e *Engine) store.Reason { return f(ctx, e) }

// sender is a dialer whose engine reports on its own after a delay, and may
// become silent.
type sender struct {
	p      *plane
	source string
	delay  time.Duration
	// reason ends each session after the delay, where it is set.
	reason store.Reason
	silent atomic.Bool

	begun, running atomic.Int32
}

func (s *sender) Serve(ctx context.Context, e *Engine) store.Reason {
	s.begun.Add(1)
	s.running.Add(1)
	defer s.running.Add(-1)
	e.Show(Way{State: StatePending, Detail: "session"})
	if !await(ctx, s.delay, nil) {
		return ""
	}
	if s.reason != "" {
		return s.reason
	}
	var b *Binding
	defer func() {
		if b != nil {
			b.Close()
		}
	}()
	for q := uint64(s.p.clock.Now()); ; q++ {
		switch {
		case s.silent.Load():
		case b == nil:
			opened, err := e.Open(s.source, testPeer, s.p.load(s.source, q))
			if err != nil {
				return reasonOf(err)
			}
			b = opened
			e.Show(Way{State: StateSubscribed, Detail: "reports", Renewal: 5 * time.Second})
		default:
			if err := b.Admit(s.p.load(s.source, q)); err != nil {
				return reasonOf(err)
			}
		}
		if !await(ctx, e.Target().Interval, nil) {
			return ""
		}
	}
}

// beside runs body like scripted, with dialers of monitor and loadstat.
func beside(t *testing.T, s *script, others map[store.Dialect]Dialer, body func(p *plane)) {
	t.Helper()
	besideOf(t, s, others, testWorker, body)
}

func besideOf(t *testing.T, s *script, others map[store.Dialect]Dialer, worker string, body func(p *plane)) {
	t.Helper()
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Prober, o.Dialers = []string{worker}, s, map[store.Dialect]Dialer{store.DialectPoll: s}
		for d, dialer := range others {
			o.Dialers[d] = dialer
		}
	}, func(p *plane) {
		p.net.report = func(origin string) {
			if origin == testOrigin {
				_, _ = p.Bind(claim("pushed"), p.load("pushed", uint64(p.clock.Now())))
			}
		}
		s.plane, s.change = p, make(chan struct{})
		for _, dialer := range others {
			if one, ok := dialer.(*sender); ok {
				one.p = p
			}
		}
		p.runAll()
		body(p)
	})
}

// laterOffers answers the first probe by first, and all others by then.
func laterOffers(first, then []Offer) func(context.Context, Target, int) Finding {
	return func(_ context.Context, _ Target, n int) Finding {
		if n == 0 {
			return Finding{Complete: true, Offers: first}
		}
		return Finding{Complete: true, Offers: then}
	}
}

// noGap lets d pass and fails where the worker was not heard for more than an
// interval.
func (p *plane) noGap(d time.Duration) {
	p.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		p.after(100 * time.Millisecond)
		e, live := p.entry(testWorker)
		if live == nil || p.clock.Now().Sub(live.Received) > testInterval+2*testSettle {
			p.t.Fatalf("not heard since %+v by %s", live, e.Worker.Dialect)
		}
	}
}

const (
	monitor  = store.DialectMonitor
	loadstat = store.DialectLoadstat
	poll     = store.DialectPoll
	push     = store.DialectPush
)

// TestPreferredDialectTurnsUp while the engine is polled: it takes over once it
// is heard, and until then the polling goes on.
func TestPreferredDialectTurnsUp(t *testing.T) {
	for _, d := range []store.Dialect{monitor, loadstat} {
		for cause, turnUp := range map[string]func(p *plane, s *script){
			"asked again after a minute": func(p *plane, _ *script) { p.noGap(parkFor - time.Second) },
			"the engine says its port": func(p *plane, _ *script) {
				p.workers[testWorker].learnFacts(&Finding{Facts: Facts{ReporterPort: 9}})
			},
			"the engine says its sockets": func(p *plane, _ *script) {
				p.workers[testWorker].learnFacts(&Finding{Facts: Facts{LoadStat: LoadStat{Port: 9, Ranks: 1}}})
			},
		} {
			t.Run(d.String()+": "+cause, func(t *testing.T) {
				s := &script{probe: laterOffers(
					[]Offer{unclear(d, ReasonEngineError), offered(poll)},
					[]Offer{offered(d)},
				)}
				one := &sender{source: "one", delay: 3 * time.Second}
				beside(t, s, map[store.Dialect]Dialer{d: one}, func(p *plane) {
					turnUp(p, s)
					p.noGap(2500 * time.Millisecond)
					p.wantHeard("polled-a")
					p.wantDialect(poll, d.String()+": offered (asked); poll: offered (asked)")
					p.noGap(2 * time.Second)
					p.wantHeard("one")
					p.wantDialect(d, d.String()+": offered (reports); poll: offered (asked)")
					dg := p.wantWay(StateSubscribed)
					if next := dg.NextRegistration.Sub(p.clock.Now()); next <= 0 || next > 5*time.Second {
						t.Errorf("the next renewal is in %s", next)
					}
					p.noGap(time.Minute)
					if one.begun.Load() != 1 || s.sessions() != 1 || s.probes() != 2 || p.refusals(ReasonSuperseded) != 1 {
						t.Errorf("%d sessions on trial, %d of poll, %d probes, %v superseded",
							one.begun.Load(), s.sessions(), s.probes(), p.refusals(ReasonSuperseded))
					}
				})
			})
		}
	}
}

// wantWay checks the state that is shown.
func (p *plane) wantWay(state RegistrationState) store.Diagnostics {
	p.t.Helper()
	d := p.diagnostics(testWorker)
	if d.Registration != string(state) {
		p.t.Errorf("state %s, want %s", d.Registration, state)
	}
	return d
}

// TestTrialInVain ends, is told of, and leaves the polling alone. One that gave
// no definite answer is repeated.
func TestTrialInVain(t *testing.T) {
	for name, c := range map[string]struct {
		one    *sender
		why    string
		trials int32
	}{
		"never heard":           {&sender{delay: time.Hour}, "no_report", 2},
		"does not have it":      {&sender{delay: time.Second, reason: ReasonUnsupported}, "unsupported", 1},
		"refuses":               {&sender{delay: time.Second, reason: ReasonAuth}, "auth", 1},
		"spoken for":            {&sender{delay: time.Second, reason: ReasonRetired}, "retired", 2},
		"just another instance": {&sender{delay: time.Second, reason: ReasonInstanceChanged}, "instance_changed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
			beside(t, s, map[store.Dialect]Dialer{monitor: c.one}, func(p *plane) {
				p.noGap(parkFor + 6*time.Second)
				p.wantHeard("polled-a")
				p.wantDialect(poll, "monitor: "+c.why+" (tried after asked); poll: offered (asked)")
				p.wantWay(StatePolling)
				if c.one.running.Load() != 0 {
					t.Error("the trial goes on")
				}
				p.noGap(parkFor + 6*time.Second)
				if n := c.one.begun.Load(); n != c.trials || s.sessions() != 1 {
					t.Errorf("%d trials, want %d; %d sessions of poll", n, c.trials, s.sessions())
				}
			})
		})
	}
}

// TestTrialTellsWhatItsDialerShowed.
func TestTrialTellsWhatItsDialerShowed(t *testing.T) {
	s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
	one := dialerFunc(func(ctx context.Context, e *Engine) store.Reason {
		e.Show(Way{State: StateFailing, Reason: ReasonConnectFailed, Err: errors.New("no route")})
		<-ctx.Done()
		return ""
	})
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.noGap(parkFor + time.Second)
		p.wantWay(StatePolling)
		p.noGap(5 * time.Second)
		p.wantDialect(poll, "monitor: connect_failed (tried after asked); poll: offered (asked)")
	})
}

// TestTrialsComeInOrder: monitor, push and loadstat are tried one after the
// other.
func TestTrialsComeInOrder(t *testing.T) {
	s := &script{probe: laterOffers(
		[]Offer{unclear(monitor, ReasonEngineError), unclear(push, ReasonEngineError), unclear(loadstat, ReasonEngineError), offered(poll)},
		[]Offer{offered(monitor), offered(push), offered(loadstat)},
	)}
	first := &sender{delay: 2 * time.Second, reason: ReasonUnsupported}
	last := &sender{source: "last", delay: time.Second}
	beside(t, s, map[store.Dialect]Dialer{monitor: first, loadstat: last}, func(p *plane) {
		e := p.net.add(testOrigin, always(404, ""))
		p.noGap(parkFor + time.Second)
		if first.begun.Load() != 1 || e.count() != 0 || last.begun.Load() != 0 {
			t.Errorf("%d, %d, %d at first", first.begun.Load(), e.count(), last.begun.Load())
		}
		p.noGap(3 * time.Second)
		if first.begun.Load() != 1 || e.count() != 1 || last.begun.Load() != 1 {
			t.Errorf("%d, %d, %d at last", first.begun.Load(), e.count(), last.begun.Load())
		}
		p.wantHeard("last")
		p.wantDialect(loadstat, "monitor: unsupported (tried after asked); push: unsupported (tried after asked); loadstat: offered (reports); poll: offered (asked)")
	})
}

// TestStreamComesDuringATrial: it takes over from both, and the late first
// report of the trial changes nothing.
func TestStreamComesDuringATrial(t *testing.T) {
	s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
	var late error
	stubborn := dialerFunc(func(ctx context.Context, e *Engine) store.Reason {
		<-ctx.Done()
		_, late = e.Open("late", testPeer, s.plane.load("late", 1))
		e.Show(Way{State: StateSubscribed})
		return ""
	})
	beside(t, s, map[store.Dialect]Dialer{monitor: stubborn}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		e.mute.Store(true)
		p.noGap(parkFor + time.Second)
		p.bindAs("s1", 1)
		p.after(time.Second)
		wantRefusal(t, late, ReasonSuperseded, false)
		p.wantHeard("s1")
		p.wantDialect(push, "push: the engine's stream came unasked")
		p.wantWay(StateRegistered)
	})
}

// TestEngineChangesDuringATrial: the trial ends, and the engine is asked anew.
func TestEngineChangesDuringATrial(t *testing.T) {
	s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		if n == 0 {
			go func() { <-s.change; stop() }()
		}
		s.plane.poll(ctx, e, n)
		return ReasonInstanceChanged
	}
	one := &sender{source: "one", delay: 4 * time.Second}
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.noGap(parkFor + 2*time.Second)
		close(s.change)
		p.noGap(3 * time.Second)
		p.wantHeard("polled-b")
		if one.begun.Load() != 2 || one.running.Load() != 1 || s.probes() != 3 {
			t.Errorf("%d trials begun, %d run, %d probes", one.begun.Load(), one.running.Load(), s.probes())
		}
		p.noGap(2 * time.Second)
		p.wantHeard("one")
	})
}

// TestSilentEngineIsProbedAnew: an engine that came back without its reporter
// is found by the next dialect.
func TestSilentEngineIsProbedAnew(t *testing.T) {
	for _, d := range []store.Dialect{monitor, loadstat} {
		t.Run(d.String(), func(t *testing.T) {
			var lost atomic.Bool
			s := &script{probe: func(context.Context, Target, int) Finding {
				o := offered(d)
				if lost.Load() {
					o = absent(d, ReasonUnsupported)
				}
				return Finding{Complete: true, Offers: []Offer{o, offered(poll)}}
			}}
			one := &sender{source: "one"}
			beside(t, s, map[store.Dialect]Dialer{d: one}, func(p *plane) {
				p.noGap(2 * time.Minute)
				if one.begun.Load() != 1 || s.probes() != 1 {
					t.Errorf("%d sessions, %d probes while it is heard", one.begun.Load(), s.probes())
				}
				one.silent.Store(true)
				lost.Store(true)
				p.after(testStale - testInterval - time.Millisecond)
				p.wantDialect(d, d.String()+": offered (reports); poll: offered (asked)")
				p.after(testInterval + 2*testSettle)
				p.wantHeard("polled-a")
				p.wantDialect(poll, d.String()+": no_report (tried after reports); poll: offered (asked)")
				p.noGap(minReturn + time.Second)
				p.wantDialect(poll, d.String()+": unsupported (asked); poll: offered (asked)")
				if one.running.Load() != 0 {
					t.Error("the silent session goes on")
				}
			})
		})
	}
}

// TestConfiguredDialectStays however silent the engine is.
func TestConfiguredDialectStays(t *testing.T) {
	for _, d := range []store.Dialect{monitor, loadstat} {
		t.Run(d.String(), func(t *testing.T) {
			s := &script{probe: offers(offered(push), offered(poll))}
			one := &sender{source: "one"}
			besideOf(t, s, map[store.Dialect]Dialer{d: one}, testWorker+",dialect="+d.String(), func(p *plane) {
				p.noGap(2 * time.Second)
				one.silent.Store(true)
				p.after(10 * time.Minute)
				p.wantDialect(d, d.String()+": configured")
				if s.probes()+s.sessions() != 0 || one.begun.Load() != 1 {
					t.Errorf("%d probes, %d polls, %d sessions", s.probes(), s.sessions(), one.begun.Load())
				}
				one.silent.Store(false)
				p.after(2 * time.Second)
				p.wantHeard("one")
			})
		})
	}
}

// TestDialerOnTrialIsWoken by changes, before and after it took over.
func TestDialerOnTrialIsWoken(t *testing.T) {
	s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
	var mu sync.Mutex
	var zones []string
	one := dialerFunc(func(ctx context.Context, e *Engine) store.Reason {
		for {
			select {
			case <-ctx.Done():
				return ""
			case <-e.Changed():
			}
			mu.Lock()
			zones = append(zones, fmt.Sprint(e.Target().Models))
			if len(zones) == 2 {
				_, _ = e.Open("one", testPeer, s.plane.load("one", 1))
			}
			mu.Unlock()
		}
	})
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.noGap(parkFor + time.Second)
		for i := range 4 {
			p.rediscover(fmt.Sprintf("%s,model=m%d", testWorker, i))
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"[m0]", "[m1]", "[m2]", "[m3]"}; !slices.Equal(zones, want) {
			t.Errorf("woken for %q, want %q", zones, want)
		}
		if e, _ := p.entry(testWorker); e.Worker.Dialect != monitor {
			t.Errorf("dialect %s", e.Worker.Dialect)
		}
	})
}

// TestTrialsInRandomOrder lets trials be heard at any time, the last moment
// too, and streams come between: the load of the engine never stops, and one
// dialect is in force.
func TestTrialsInRandomOrder(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		s := &script{probe: offers(unclear(monitor, ReasonEngineError), unclear(loadstat, ReasonEngineError), offered(poll))}
		s.probe = func(_ context.Context, target Target, _ int) Finding {
			list := []Offer{offered(monitor), offered(loadstat), offered(poll)}
			if target.Using == store.DialectUnspecified {
				list = []Offer{unclear(monitor, ReasonEngineError), unclear(loadstat, ReasonEngineError), offered(poll)}
			}
			return Finding{Complete: true, Offers: list}
		}
		var mu sync.Mutex
		delay := func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return []time.Duration{0, time.Second, trialFor(testInterval), trialFor(testInterval) - 1, time.Hour}[rnd.IntN(5)]
		}
		run := func(source string) Dialer {
			return dialerFunc(func(ctx context.Context, e *Engine) store.Reason {
				one := &sender{p: s.plane, source: source, delay: delay()}
				ctx, stop := context.WithTimeout(ctx, 20*time.Second)
				defer stop()
				if reason := one.Serve(ctx, e); reason != "" {
					return reason
				}
				return ReasonInstanceChanged
			})
		}
		beside(t, s, map[store.Dialect]Dialer{monitor: run("m"), loadstat: run("l")}, func(p *plane) {
			w := p.workers[testWorker]
			for range 400 {
				mu.Lock()
				d, stir := time.Duration(rnd.IntN(3000))*time.Millisecond, rnd.IntN(4) == 0
				mu.Unlock()
				if stir {
					poke(w.back)
				}
				p.after(d)
				p.settle()
				w.mu.Lock()
				if w.bound != nil && w.bound.claim.dialect != w.turn {
					t.Errorf("seed %d: a stream of %s is bound, %s has the turn", seed, w.bound.claim.dialect, w.turn)
				}
				if n := len(w.engines); n > 2 {
					t.Errorf("seed %d: %d dialers run", seed, n)
				}
				if w.bound == nil && w.turn != store.DialectUnspecified && p.clock.Now().Sub(w.accepted) > 40*time.Second {
					t.Errorf("seed %d: nothing is bound, %s has the turn", seed, w.turn)
				}
				w.mu.Unlock()
			}
			p.after(2 * time.Minute)
			if _, live := p.entry(testWorker); p.clock.Now().Sub(live.Received) > 20*time.Second {
				t.Errorf("seed %d: last heard %s ago", seed, p.clock.Now().Sub(live.Received))
			}
		})
	}
}

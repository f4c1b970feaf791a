package registry

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// TestSilentReporterLeavesTheEngineToTheOthers: an engine that can be polled is
// heard again soon after its reporter is not, whether its stream is open or
// not.
func TestSilentReporterLeavesTheEngineToTheOthers(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(b *Binding)
		most time.Duration
	}{
		"open stream":   {func(*Binding) {}, testStale + 500*time.Millisecond},
		"closed stream": {(*Binding).Close, testStale/2 + 500*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			scripted(t, &script{probe: offers(offered(poll))}, []string{testWorker}, func(p *plane) {
				p.after(time.Second)
				b := p.bindLease(p.register(func(reg *Registration) { reg.TTL = time.Minute }), "s1", 1)
				p.wantHeard("s1")
				c.end(b)
				p.after(c.most)
				p.wantHeard("polled-b")
				p.noGap(30 * time.Second)
			})
		})
	}
}

// TestReporterThatDripsDoesNotWin against a dialect that is heard; one that
// keeps its interval wins in the end.
func TestReporterThatDripsDoesNotWin(t *testing.T) {
	scripted(t, &script{probe: offers(offered(poll))}, []string{testWorker}, func(p *plane) {
		l := p.register(func(reg *Registration) { reg.TTL = time.Minute })
		p.bindLease(l, "s1", 1)
		p.after(testStale + time.Second)
		turns := p.refusals(ReasonSuperseded)
		for q := range uint64(20) {
			_, err := p.tryBindLease(l, "s1", 2+q)
			wantRefusal(t, err, ReasonUnsteady, true)
			p.noGap(12 * time.Second)
			if q%4 == 0 {
				if _, err := p.renew(l, func(reg *Registration) { reg.TTL = time.Minute }); err != nil {
					t.Fatal(err)
				}
			}
		}
		p.wantDialect(poll, "poll: offered (asked)")
		if n := p.refusals(ReasonSuperseded); n != turns {
			t.Errorf("the turn changed %v times", n-turns)
		}
		var err error
		began := time.Now()
		for q := uint64(30); ; q++ {
			if _, err = p.tryBindLease(l, "s1", q); err == nil {
				break
			}
			if time.Since(began) > 2*testStale {
				t.Fatalf("steady for %s: %v", time.Since(began), err)
			}
			p.noGap(testInterval)
		}
		if steady := time.Since(began); steady < testStale {
			t.Errorf("believed after %s", steady)
		}
		p.settle()
		p.wantDialect(store.DialectNative, "native: a reporter registered")
	})
}

// TestDoubtGrows where a reporter is silent again and again.
func TestDoubtGrows(t *testing.T) {
	var u doubt
	now := store.Instant(1)
	for i, want := range []time.Duration{testStale, 2 * testStale, 4 * testStale, 8 * testStale, 16 * testStale, maxDoubt, maxDoubt} {
		u.begin(now, testStale)
		if u.span != want {
			t.Errorf("doubt %d lasts for %s, want %s", i, u.span, want)
		}
		u.end(now)
		now = now.Add(time.Minute)
	}
	u.begin(now.Add(forgiveAfter), testStale)
	if u.span != testStale {
		t.Errorf("a doubt after long lasts for %s", u.span)
	}
}

// TestReporterThatResumesFirst keeps the turn, where nothing else was heard.
func TestReporterThatResumesFirst(t *testing.T) {
	s := &script{probe: offers(offered(poll))}
	var away atomic.Bool
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		if away.Load() {
			e.Show(Way{State: StateFailing, Reason: ReasonConnectFailed, Err: syscall.ECONNREFUSED})
			<-ctx.Done()
			return ""
		}
		return s.plane.poll(ctx, e, n)
	}
	away.Store(true)
	scripted(t, s, []string{testWorker}, func(p *plane) {
		b := p.bindLease(p.register(func(reg *Registration) { reg.TTL = time.Minute }), "s1", 1)
		p.after(testStale + time.Second)
		for q := range uint64(10) {
			if err := b.Admit(p.load("s1", 2+q)); err != nil {
				t.Fatal(err)
			}
			p.after(testInterval)
			p.wantHeard("s1")
		}
		p.wantDialect(store.DialectNative, "native: a reporter registered")
		if w := p.workers[testWorker]; !w.hasTurn(store.DialectNative) {
			t.Error("the reporter is heard and has not the turn")
		}
	})
}

// TestRefusedWayIsReplacedSoon: an engine whose reporter refuses connections for
// longer than a restart takes, and that answers otherwise, is heard in the other
// way, and the reporter is tried again later.
func TestRefusedWayIsReplacedSoon(t *testing.T) {
	for _, d := range []store.Dialect{monitor, loadstat} {
		t.Run(d.String(), func(t *testing.T) {
			s := &script{probe: offers(offered(d), offered(poll))}
			var refuses atomic.Bool
			var sequence atomic.Uint64
			one := dialerFunc(func(ctx context.Context, e *Engine) store.Reason {
				p := s.plane
				var b *Binding
				for {
					q := sequence.Add(1)
					switch {
					case refuses.Load():
						if b != nil {
							b.Close()
							b = nil
						}
						e.Show(Way{State: StateFailing, Reason: ReasonConnectFailed, Err: syscall.ECONNREFUSED})
					case b == nil:
						opened, err := e.Open("one", testPeer, p.load("one", q))
						if err != nil {
							return reasonOf(err)
						}
						b = opened
						e.Show(Way{State: StateRegistered})
					default:
						_ = b.Admit(p.load("one", q))
					}
					if !await(ctx, testInterval/2, nil) {
						if b != nil {
							b.Close()
						}
						return ""
					}
				}
			})
			beside(t, s, map[store.Dialect]Dialer{d: one}, func(p *plane) {
				p.noGap(10 * time.Second)
				p.wantHeard("one")
				grace := p.workers[testWorker].grace()
				refuses.Store(true)
				p.after(grace / 2) // as a restart takes
				refuses.Store(false)
				p.after(2 * grace)
				p.wantHeard("one")
				refuses.Store(true)
				p.after(grace + time.Second)
				p.wantHeard("polled-a")
				p.noGap(2 * time.Minute)
				refuses.Store(false)
				p.noGap(parkFor + time.Second)
				p.wantHeard("one")
				if p.workers[testWorker].hasTurn(poll) {
					t.Error("still polled")
				}
			})
		})
	}
}

// TestSilentWayThatResumes keeps the turn: what was tried beside it ends.
func TestSilentWayThatResumes(t *testing.T) {
	s := &script{probe: offers(offered(monitor), offered(poll))}
	var tried atomic.Int32
	var over atomic.Bool
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		tried.Add(1)
		<-ctx.Done()
		over.Store(true)
		return ""
	}
	one := &sender{source: "one"}
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.after(10 * time.Second)
		one.silent.Store(true)
		p.after(testStale + time.Second)
		if tried.Load() != 1 || over.Load() {
			t.Errorf("tried %d times beside the silent one, over %v", tried.Load(), over.Load())
		}
		one.silent.Store(false)
		p.after(testStale)
		p.noGap(time.Minute)
		if !over.Load() || tried.Load() != 1 {
			t.Errorf("tried %d times, over %v", tried.Load(), over.Load())
		}
		p.wantHeard("one")
	})
}

// TestSilentWayAsksWhatElseThereIs where nothing else is known to be offered.
func TestSilentWayAsksWhatElseThereIs(t *testing.T) {
	s := &script{probe: laterOffers(
		[]Offer{offered(monitor), absent(poll, ReasonUnsupported)},
		[]Offer{absent(monitor, ReasonUnsupported), offered(poll)},
	)}
	one := &sender{source: "one"}
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.noGap(10 * time.Second)
		one.silent.Store(true)
		p.after(testStale + 100*time.Millisecond)
		p.wantHeard("polled-a")
		p.noGap(time.Minute)
		p.wantDialect(poll, "monitor: unsupported (asked); poll: offered (asked)")
	})
}

// TestPolledEngineIsLookedAt: a polled engine that begins to name its reporter
// without a failed request is heard by it.
func TestPolledEngineIsLookedAt(t *testing.T) {
	var moved atomic.Bool
	s := &script{
		probe: func(_ context.Context, target Target, _ int) Finding {
			o := absent(monitor, ReasonUnsupported)
			if moved.Load() {
				o = offered(monitor)
			}
			return Finding{Complete: true, Offers: []Offer{o, offered(poll)}}
		},
		facts: func(context.Context, Target, int) Finding {
			f := Finding{Complete: true}
			if moved.Load() {
				f.Facts.ReporterPort = 9
			}
			return f
		},
	}
	one := &sender{source: "one"}
	beside(t, s, map[store.Dialect]Dialer{monitor: one}, func(p *plane) {
		p.noGap(5 * time.Second)
		moved.Store(true)
		p.noGap(wonderEach*6/5 + time.Second)
		p.wantHeard("one")
		if n := s.asks(); n > 3 {
			t.Errorf("asked %d times", n)
		}
	})
}

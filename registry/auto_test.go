package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestAutoTakesTheFirstOfferThatWorks: which dialect is in force 7 s after the
// start, and why.
func TestAutoTakesTheFirstOfferThatWorks(t *testing.T) {
	const push, poll = store.DialectPush, store.DialectPoll
	both := []Offer{offered(push), offered(poll)}
	for name, c := range map[string]struct {
		offers []Offer
		answer func(int) string
		mute   bool
		want   store.Dialect
		why    string
		posts  int
	}{
		"push works":               {both, always(200, goodAnswer), false, push, "push: offered (asked); poll: offered (asked)", 2},
		"push is absent":           {[]Offer{absent(push, ReasonUnsupported), offered(poll)}, always(200, goodAnswer), false, poll, "push: unsupported (asked); poll: offered (asked)", 0},
		"bug 46: push needs a key": {both, always(401, ""), false, poll, "push: auth (tried after asked); poll: offered (asked)", 1},
		"push is gone":             {both, always(404, ""), false, poll, "push: unsupported (tried after asked); poll: offered (asked)", 1},
		"push cannot work":         {both, always(501, ""), false, poll, "push: unsupported (tried after asked); poll: offered (asked)", 1},
		"nothing is pushed":        {both, always(200, goodAnswer), true, poll, "push: no_report (tried after asked); poll: offered (asked)", 2},
		"the engine fails":         {both, always(503, ""), false, poll, "push: engine_error (tried after asked); poll: offered (asked)", -1},
		"no dialer":                {[]Offer{offered(store.DialectMonitor), offered(poll)}, nil, false, poll, "monitor: unsupported (not available here); poll: offered (asked)", 0},
		"poll is preferred":        {[]Offer{offered(poll), offered(push)}, always(200, goodAnswer), false, poll, "poll: offered (asked); push: offered (asked)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: offers(c.offers...)}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				e := p.net.add(testOrigin, c.answer)
				e.mute.Store(c.mute)
				p.after(7 * time.Second)
				p.wantDialect(c.want, c.why)
				if got := e.count(); got != c.posts && c.posts >= 0 {
					t.Errorf("%d registration calls, want %d", got, c.posts)
				}
				if s.probes() != 1 {
					t.Errorf("%d probes of an engine that is heard", s.probes())
				}
				if got := testutil.ToFloat64(p.metrics.dialects.WithLabelValues(c.want.String())); got != 1 {
					t.Errorf("%v changes to %s counted", got, c.want)
				}
				if c.want == poll {
					p.wantHeard("polled-a")
				}
			})
		})
	}
}

func TestAutoTellsNoEngineALoopbackAddress(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPush), offered(store.DialectPoll))}
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Prober, o.ReportAddress = []string{testWorker}, s, netip.MustParseAddr("127.0.0.1")
		o.Dialers = map[store.Dialect]Dialer{store.DialectPoll: s}
	}, func(p *plane) {
		s.plane = p
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.runAll()
		p.after(time.Second)
		p.wantDialect(store.DialectPoll, "push: loopback_address (tried after asked); poll: offered (asked)")
		if e.count() != 0 {
			t.Errorf("%d calls", e.count())
		}
	})
}

// TestAutoStateBeforeTheFirstChoice: the dialect is auto until something was
// heard.
func TestAutoStateBeforeTheFirstChoice(t *testing.T) {
	s := &script{probe: func(ctx context.Context, _ Target, _ int) Finding {
		<-ctx.Done()
		return Finding{}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.wantDialect(store.DialectUnspecified, "")
		if d := p.diagnostics(testWorker); d.Registration != string(StateProbing) {
			t.Errorf("state %s", d.Registration)
		}
		if got := testutil.ToFloat64(p.metrics.registrations.WithLabelValues(string(StateProbing))); got != 1 {
			t.Errorf("%v probing", got)
		}
	})
}

// TestBug46EngineThatWantsAKeyIsParked: the reason is shown, and the engine is
// asked again after a minute or when discovery changes the worker.
func TestBug46EngineThatWantsAKeyIsParked(t *testing.T) {
	s := &script{
		probe: offers(absent(store.DialectPush, ReasonUnsupported), offered(store.DialectPoll)),
		serve: func(context.Context, *Engine, int) store.Reason { return ReasonAuth },
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		d := p.wantState(StateParked, 0)
		if e, _ := p.entry(testWorker); e.Reason != ReasonAuth || e.Worker.Dialect != store.DialectUnspecified {
			t.Errorf("reason %s, dialect %s", e.Reason, e.Worker.Dialect)
		}
		if d.DialectWhy != "push: unsupported (asked); poll: auth (tried after asked)" {
			t.Errorf("why %q", d.DialectWhy)
		}
		p.after(parkFor - time.Second)
		if s.probes() != 1 {
			t.Errorf("%d probes in a minute", s.probes())
		}
		p.after(2 * time.Second)
		p.rediscover(testWorker + ",zone=z")
		if s.probes() != 3 {
			t.Errorf("%d probes, want one after a minute and one after discovery changed", s.probes())
		}
	})
}

// TestBug67OnlyDefiniteAnswersAreRemembered: an engine that gives no definite
// answer is asked again with back-off, for as long as it takes.
func TestBug67OnlyDefiniteAnswersAreRemembered(t *testing.T) {
	var up atomic.Bool
	s := &script{probe: func(context.Context, Target, int) Finding {
		if up.Load() {
			return Finding{Complete: true, Offers: []Offer{offered(store.DialectPush), offered(store.DialectPoll)}}
		}
		return Finding{Offers: []Offer{unclear(store.DialectPush, ReasonEngineError), unclear(store.DialectPoll, ReasonConnectFailed)}}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(2 * time.Minute)
		times := s.times(&s.probed)
		last := time.Duration(0)
		for i := range len(times) - 1 {
			gap := times[i+1].Sub(times[i])
			if gap < 160*time.Millisecond || gap > 6*time.Second || gap < last*3/4 {
				t.Errorf("gap %d is %s after %s", i, gap, last)
			}
			last = min(gap, 4*time.Second)
		}
		p.net.add(testOrigin, always(200, goodAnswer))
		up.Store(true)
		p.after(6 * time.Second)
		p.wantDialect(store.DialectPush, "push: offered (asked); poll: offered (asked)")
	})
}

// TestBug67AFailureDemotesNobodyForEver: an engine whose push offer was not
// clear is polled meanwhile, and pushes when it can. The polling goes on until
// its stream is there.
func TestBug67AFailureDemotesNobodyForEver(t *testing.T) {
	s := &script{probe: func(_ context.Context, _ Target, n int) Finding {
		push := unclear(store.DialectPush, ReasonEngineError)
		if n >= 2 {
			push = offered(store.DialectPush)
		}
		return Finding{Complete: true, Offers: []Offer{push, offered(store.DialectPoll)}}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.net.add(testOrigin, always(200, goodAnswer))
		for range 2 {
			p.after(parkFor - time.Second)
			p.wantHeard("polled-a")
			p.after(time.Second)
		}
		p.wantHeard("pushed")
		p.wantDialect(store.DialectPush, "push: the engine's stream came unasked")
		if s.probes() != 3 || s.sessions() != 1 {
			t.Errorf("%d probes, %d sessions", s.probes(), s.sessions())
		}
	})
}

// TestBug67DefiniteAnswerIsRemembered: an engine without a push reporter is
// not asked for it while it is polled.
func TestBug67DefiniteAnswerIsRemembered(t *testing.T) {
	s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported), offered(store.DialectPoll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(10 * time.Minute)
		p.wantHeard("polled-a")
		if s.probes() != 1 || s.sessions() != 1 {
			t.Errorf("%d probes, %d sessions", s.probes(), s.sessions())
		}
	})
}

// TestBug67NewImageIsProbed: another process is asked anew what it is and
// offers, while its load goes on.
func TestBug67NewImageIsProbed(t *testing.T) {
	for name, offer := range map[string]struct {
		push Offer
		want store.Dialect
		last string
	}{
		"the same engine":        {absent(store.DialectPush, ReasonUnsupported), store.DialectPoll, "polled-b"},
		"with a push reporter":   {offered(store.DialectPush), store.DialectPush, "pushed"},
		"of a push that is slow": {unclear(store.DialectPush, ReasonConnectFailed), store.DialectPoll, "polled-b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			s.probe = func(_ context.Context, _ Target, n int) Finding {
				push := absent(store.DialectPush, ReasonUnsupported)
				if n > 0 {
					push = offer.push
				}
				return Finding{Complete: true, Offers: []Offer{push, offered(store.DialectPoll)}}
			}
			s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
				if n > 0 {
					return s.plane.poll(ctx, e, n)
				}
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				go func() { <-s.change; stop() }()
				s.plane.poll(ctx, e, n)
				return ReasonInstanceChanged
			}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				p.net.add(testOrigin, always(200, goodAnswer))
				p.after(time.Minute)
				asked := s.asks()
				close(s.change)
				p.settle()
				p.wantHeard(offer.last)
				p.after(settleFacts)
				if s.probes() != 2 || s.asks() != asked+1 {
					t.Errorf("%d probes and %d questions after the change", s.probes()-1, s.asks()-asked)
				}
				if e, _ := p.entry(testWorker); e.Worker.Dialect != offer.want {
					t.Errorf("dialect %s, want %s", e.Worker.Dialect, offer.want)
				}
			})
		})
	}
}

// TestReconsideredBesideADialect: while a dialect is in use, the engine is
// asked about those preferred to it, and what is known of the others stays.
func TestReconsideredBesideADialect(t *testing.T) {
	var mu sync.Mutex
	var using []store.Dialect
	s := &script{probe: func(_ context.Context, target Target, n int) Finding {
		mu.Lock()
		using = append(using, target.Using)
		mu.Unlock()
		f := Finding{Complete: true, Facts: Facts{Version: "1"}, Offers: []Offer{unclear(store.DialectPush, ReasonEngineError)}}
		if target.Using == store.DialectUnspecified {
			f.Offers = append(f.Offers, offered(store.DialectPoll))
		} else {
			f.Facts = Facts{}
		}
		return f
	}, facts: func(context.Context, Target, int) Finding { return saying(Facts{Version: "1"}) }}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(2*parkFor + time.Second)
		p.wantHeard("polled-a")
		p.wantDialect(store.DialectPoll, "push: engine_error (asked); poll: offered (asked)")
		mu.Lock()
		defer mu.Unlock()
		if want := []store.Dialect{store.DialectUnspecified, store.DialectPoll, store.DialectPoll}; !slices.Equal(using, want) {
			t.Errorf("asked beside %v, want %v", using, want)
		}
		if d := p.diagnostics(testWorker); d.EngineVersion != "1" || s.asks() > 2 {
			t.Errorf("version %q, %d questions", d.EngineVersion, s.asks())
		}
	})
}

// TestPolledEngineIsRegisteredInLine: an engine that is polled is not asked to
// push while another request is under way.
func TestPolledEngineIsRegisteredInLine(t *testing.T) {
	s := &script{probe: func(_ context.Context, _ Target, n int) Finding {
		push := unclear(store.DialectPush, ReasonEngineError)
		if n > 0 {
			push = offered(store.DialectPush)
		}
		return Finding{Complete: true, Offers: []Offer{push, offered(store.DialectPoll)}}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		leave, err := p.keeper(testOrigin).line.Join(p.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.after(parkFor + time.Second)
		if e.count() != 0 {
			t.Error("registered beside another request")
		}
		leave()
		p.settle()
		p.wantHeard("pushed")
	})
}

// TestSearchIsTakenUpWhereItEnded: the next probe, and the dialer, begin behind
// the page that timed out last.
func TestSearchIsTakenUpWhereItEnded(t *testing.T) {
	var begun []string
	s := &script{probe: func(_ context.Context, target Target, n int) Finding {
		begun = append(begun, target.Behind)
		o := unclear(store.DialectPoll, ReasonConnectFailed)
		if n > 0 {
			o = offered(store.DialectPoll)
		}
		return Finding{Complete: true, Behind: fmt.Sprint("/", n), Offers: []Offer{o}}
	}}
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		begun = append(begun, e.Target().Behind)
		return s.plane.poll(ctx, e, n)
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(2 * time.Second)
		if want := []string{"", "/0", "/1"}; !slices.Equal(begun, want) {
			t.Errorf("begun behind %q, want %q", begun, want)
		}
	})
}

// TestPushWhilePolled: a stream that comes takes over in place, and the dialer
// stops.
func TestPushWhilePolled(t *testing.T) {
	s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported), offered(store.DialectPoll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		e.mute.Store(true)
		p.after(3 * time.Second)
		p.wantHeard("polled-a")
		before, _ := p.entry(testWorker)
		asks := s.asks()
		p.bindAs("pushed", 1)
		p.after(settleFacts + testSettle)
		after, _ := p.entry(testWorker)
		if after.Row != before.Row || after.Load.Source != "pushed" || after.Worker.Dialect != store.DialectPush {
			t.Errorf("row %d became %d, entry %+v", before.Row, after.Row, after)
		}
		if p.refusals(ReasonSuperseded) != 1 || e.count() != 1 || s.asks() != asks+1 {
			t.Errorf("%v superseded, %d calls, %d questions", p.refusals(ReasonSuperseded), e.count(), s.asks()-asks)
		}
		if d := p.wantState(StateRegistered, 200); d.Refused != 0 || d.PollInterval != 0 {
			t.Errorf("diagnostics %+v", d)
		}
		p.after(testLease / 2)
		if s.sessions() != 1 || s.probes() != 1 {
			t.Errorf("%d sessions, %d probes", s.sessions(), s.probes())
		}
	})
}

// TestStreamsBindAfterARestart: an engine that pushes comes back by itself,
// whatever the plane has asked by then, in any role.
func TestStreamsBindAfterARestart(t *testing.T) {
	var probing atomic.Int32
	s := &script{probe: func(ctx context.Context, _ Target, _ int) Finding {
		probing.Add(1)
		defer probing.Add(-1)
		<-ctx.Done()
		return Finding{}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		if probing.Load() != 1 {
			t.Fatal("no probe runs")
		}
		c := claim("before")
		c.Role = store.RolePrefill
		b, err := p.Bind(c, p.load("before", 700))
		if err != nil {
			t.Fatal(err)
		}
		p.settle()
		w, live := p.entry(testWorker)
		if w.Worker.Dialect != store.DialectPush || w.Worker.Role != store.RolePrefill || live == nil {
			t.Errorf("worker %+v, receipt %+v", w.Worker, live)
		}
		p.after(settleFacts)
		if e.count() != 1 || probing.Load() != 0 || s.asks() != 1 {
			t.Errorf("%d calls, %d probes run, %d questions", e.count(), probing.Load(), s.asks())
		}
		if err := b.Admit(p.load("before", 701)); err != nil {
			t.Error(err)
		}
		c.Role = store.RoleDecode
		_, err = p.Bind(c, p.load("before", 702))
		wantRefusal(t, err, ReasonRoleMismatch, false)
	})
}

// TestQuietPushEngineIsProbed: an engine that was heard by push is asked anew
// when it is silent and its registration fails; at once where it says that it
// has no reporter.
func TestQuietPushEngineIsProbed(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		after  time.Duration
	}{
		"fails": {reply(503, ""), testLease}, "has no reporter": {reply(404, ""), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var gone atomic.Bool
			s := &script{probe: func(context.Context, Target, int) Finding {
				push := offered(store.DialectPush)
				if gone.Load() {
					push = absent(store.DialectPush, ReasonUnsupported)
				}
				return Finding{Complete: true, Offers: []Offer{push, offered(store.DialectPoll)}}
			}}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				p.net.add(testOrigin, func(int) string {
					if gone.Load() {
						return c.answer
					}
					return reply(200, goodAnswer)
				})
				p.after(time.Second)
				p.wantHeard("pushed")
				b := p.bindAs("pushed", uint64(p.clock.Now())+1)
				gone.Store(true)
				b.Close()
				p.after(c.after - time.Second)
				if c.after > 0 && s.probes() != 1 {
					t.Errorf("%d probes too early", s.probes())
				}
				p.after(7 * time.Second)
				p.wantHeard("polled-a")
				p.wantDialect(store.DialectPoll, "push: unsupported (asked); poll: offered (asked)")
				if s.probes() != 2 {
					t.Errorf("%d probes", s.probes())
				}
			})
		})
	}
}

// TestAcceptedButSilentPush: an engine that was heard, accepts and reports no
// more is used by its next offer, whether its stream is bound or not. Where
// that does not work either, it comes back to push.
func TestAcceptedButSilentPush(t *testing.T) {
	for name, c := range map[string]struct {
		bound bool
		poll  Offer
	}{
		"the stream is gone":    {false, offered(store.DialectPoll)},
		"the stream is silent":  {true, offered(store.DialectPoll)},
		"nothing can be polled": {false, absent(store.DialectPoll, ReasonUnsupported)},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: offers(offered(store.DialectPush), c.poll)}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				e := p.net.add(testOrigin, always(200, goodAnswer))
				p.after(time.Second)
				p.wantHeard("pushed")
				e.mute.Store(true)
				if !c.bound {
					p.bindAs("pushed", uint64(p.clock.Now())+1).Close()
				}
				p.after(2*testLease + 6*time.Second)
				if c.poll.Verdict == VerdictOffered {
					p.wantHeard("polled-a")
					return
				}
				e.mute.Store(false)
				p.after(6 * time.Second)
				p.wantHeard("pushed")
			})
		})
	}
}

// TestSlowTrial has a dialer that shows its first answer late. It is given the
// time, which is bounded.
func TestSlowTrial(t *testing.T) {
	for name, c := range map[string]struct {
		first, second time.Duration
		heard         bool
	}{
		"heard after 12 s":           {12 * time.Second, 0, true},
		"heard in the second round":  {8 * time.Second, 3 * time.Second, true},
		"of no use after all":        {8 * time.Second, 7 * time.Second, false},
		"does not come back in time": {40 * time.Second, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: offers(offered(store.DialectPoll))}
			s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
				for _, d := range []time.Duration{c.first, c.second} {
					select {
					case <-ctx.Done():
						return ""
					case <-time.After(d):
					}
					e.Show(Way{State: StateFailing, Reason: ReasonEngineError, Err: errors.New("busy")})
				}
				return s.plane.poll(ctx, e, n)
			}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				p.after(maxTrial + time.Second)
				if one := s.sessions() == 1; one != c.heard {
					t.Errorf("%d sessions", s.sessions())
				}
			})
		})
	}
}

// TestShortRefusalOfAnEngineThatWasHeard is asked about again with back-off;
// a lasting one parks the worker.
func TestShortRefusalOfAnEngineThatWasHeard(t *testing.T) {
	for name, setting := range map[string]string{"auto": "", "configured": ",dialect=poll"} {
		t.Run(name, func(t *testing.T) {
			var refuses atomic.Bool
			s := &script{probe: func(context.Context, Target, int) Finding {
				o := offered(store.DialectPoll)
				if refuses.Load() {
					o = absent(store.DialectPoll, ReasonAuth)
				}
				return Finding{Complete: true, Offers: []Offer{o}}
			}}
			s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
				if refuses.Load() {
					return ReasonAuth
				}
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				go func() { <-s.change; stop() }()
				s.plane.poll(ctx, e, n)
				return ReasonAuth
			}
			scripted(t, s, []string{testWorker + setting}, func(p *plane) {
				p.after(10 * time.Second)
				refuses.Store(true)
				close(s.change)
				s.change = make(chan struct{})
				p.after(20 * time.Second)
				if d := p.diagnostics(testWorker); d.Registration != string(StateRetrying) {
					t.Errorf("state %s", d.Registration)
				}
				refuses.Store(false)
				p.after(7 * time.Second)
				if _, live := p.entry(testWorker); p.clock.Now().Sub(live.Received) > testInterval+testSettle {
					t.Errorf("heard %s ago", p.clock.Now().Sub(live.Received))
				}
				refuses.Store(true)
				close(s.change)
				p.after(parkFor + 10*time.Second)
				if d := p.diagnostics(testWorker); d.Registration != string(StateParked) {
					t.Errorf("state %s", d.Registration)
				}
			})
		})
	}
}

// TestParkedWorkerWakesForItsCredentials in whichever dialect.
func TestParkedWorkerWakesForItsCredentials(t *testing.T) {
	for name, setting := range map[string]string{"auto": "", "poll": ",dialect=poll", "push": ",dialect=push"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported), offered(store.DialectPoll))}
			s.serve = func(context.Context, *Engine, int) store.Reason { return ReasonAuth }
			scripted(t, s, []string{testWorker + ",token_file=" + file + setting}, func(p *plane) {
				e := p.net.add(testOrigin, always(401, ""))
				p.after(20 * time.Second)
				if s.sessions()+e.count() != 1 {
					t.Fatalf("%d sessions, %d calls before", s.sessions(), e.count())
				}
				if err := os.WriteFile(file, []byte("another"), 0o600); err != nil {
					t.Fatal(err)
				}
				p.after(lookEach + time.Second)
				if s.sessions()+e.count() != 2 {
					t.Errorf("%d sessions, %d calls", s.sessions(), e.count())
				}
				p.after(20 * time.Second)
				if s.sessions()+e.count() != 2 {
					t.Errorf("%d sessions, %d calls of one change", s.sessions(), e.count())
				}
			})
		})
	}
}

// TestDialerSaysWhatItReads: the shown cause follows.
func TestDialerSaysWhatItReads(t *testing.T) {
	s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported), offered(store.DialectPoll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		e := &Engine{w: p.keepers[testOrigin], dialect: store.DialectPoll}
		for _, detail := range []string{"GET /a", "GET /b"} {
			e.Show(Way{State: StatePolling, Status: 200, Detail: detail})
			p.settle()
			p.wantDialect(store.DialectPoll, "push: unsupported (asked); poll: offered ("+detail+")")
		}
	})
}

// TestFactsAreAskedForAfterALongFailure of whatever kind.
func TestFactsAreAskedForAfterALongFailure(t *testing.T) {
	for name, c := range map[string]struct {
		length time.Duration
		asks   int
	}{"short": {testStale - time.Second, 0}, "long": {testStale, 1}} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: offers(offered(store.DialectPoll))}
			scripted(t, s, []string{testWorker}, func(p *plane) {
				p.after(10 * time.Second)
				before := s.asks()
				e := &Engine{w: p.keepers[testOrigin], dialect: store.DialectPoll}
				e.Show(Way{State: StateFailing, Reason: ReasonEngineError, Err: errors.New("502"), Status: 502})
				p.after(c.length)
				e.Show(Way{State: StatePolling, Status: 200})
				p.after(2 * settleFacts)
				if s.asks() != before+c.asks {
					t.Errorf("%d questions, want %d", s.asks()-before, c.asks)
				}
			})
		})
	}
}

// TestRoleThatAlternates: an address that leads to a prefill and a decode
// engine by turns changes the identity of its worker once a minute at most,
// and a role that stays is taken up in the end.
func TestRoleThatAlternates(t *testing.T) {
	var settled atomic.Bool
	s := &script{probe: offers(offered(store.DialectPoll))}
	s.facts = func(_ context.Context, _ Target, n int) Finding {
		role := store.RoleDecode
		if n%2 == 0 && !settled.Load() {
			role = store.RolePrefill
		}
		return Finding{Complete: true, Facts: Facts{Role: role}}
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		rows := map[uint64]bool{}
		for range 60 {
			p.workers[testWorker].wonderNow()
			p.after(5 * time.Second)
			e, _ := p.entry(testWorker)
			rows[uint64(e.Row)] = true
		}
		if len(rows) < 3 || len(rows) > 8 {
			t.Errorf("%d identities in five minutes", len(rows))
		}
		settled.Store(true)
		p.after(2 * time.Minute)
		if e, _ := p.entry(testWorker); e.Worker.Role != store.RoleDecode {
			t.Errorf("role %s", e.Worker.Role)
		}
	})
}

// TestRefusalsOfOneWorkerAreLoggedOnceAMinute, each reason by itself, across
// identities; all are counted.
func TestRefusalsOfOneWorkerAreLoggedOnceAMinute(t *testing.T) {
	var text strings.Builder
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Logger = []string{testWorker}, slog.New(slog.NewTextHandler(&text, nil))
	}, func(p *plane) {
		p.runAll()
		for i := range 150 {
			if i == 75 {
				p.rediscover(testWorker + ",role=decode")
			}
			e := &Engine{w: p.workers[testWorker]}
			e.Refuse(&Refusal{Reason: ReasonRetired})
			e.Refuse(&Refusal{Reason: ReasonPeerMismatch})
			p.after(time.Second)
		}
		if n := p.refusals(ReasonRetired); n != 150 {
			t.Errorf("%v counted", n)
		}
	})
	for _, reason := range []store.Reason{ReasonRetired, ReasonPeerMismatch} {
		if n := strings.Count(text.String(), "reason="+string(reason)); n != 3 {
			t.Errorf("%d lines of %s in 150 s", n, reason)
		}
	}
}

// TestAutoNoEngine: a worker that was never heard and refuses connections for
// five minutes is out of coverage, and back when it answers.
func TestAutoNoEngine(t *testing.T) {
	s := &script{probe: func(context.Context, Target, int) Finding {
		return Finding{Offers: []Offer{unclear(store.DialectPush, ReasonConnectFailed), unclear(store.DialectPoll, ReasonConnectFailed)}}
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(noEngineFor - 10*time.Second)
		if e, _ := p.entry(testWorker); e.Reason != ReasonConnectFailed {
			t.Errorf("before five minutes: %s", e.Reason)
		}
		p.after(20 * time.Second)
		if e, _ := p.entry(testWorker); e.Reason != store.ReasonNoEngine {
			t.Errorf("after five minutes: %s", e.Reason)
		}
		p.net.add(testOrigin, always(503, ""))
		p.after(6 * time.Second)
		if e, _ := p.entry(testWorker); e.Reason != ReasonConnectFailed {
			t.Errorf("after it came: %s", e.Reason)
		}
	})
}

// TestBackFromRefusing: an engine that refused connections is asked anew what
// it offers when it answers again.
func TestBackFromRefusing(t *testing.T) {
	s := &script{
		probe: func(_ context.Context, _ Target, n int) Finding {
			push := absent(store.DialectPush, ReasonUnsupported)
			if n > 0 {
				push = offered(store.DialectPush)
			}
			return Finding{Complete: true, Offers: []Offer{push, offered(store.DialectPoll)}}
		},
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.net.add(testOrigin, always(200, goodAnswer))
		e := &Engine{w: p.keepers[testOrigin], dialect: store.DialectPoll}
		p.after(time.Second)
		e.Show(Way{State: StateFailing, Reason: ReasonConnectFailed, Err: syscall.ECONNREFUSED})
		p.after(time.Second)
		if s.probes() != 1 {
			t.Error("probed while it refuses connections")
		}
		e.Show(Way{State: StatePolling, Status: 200})
		p.settle()
		p.wantHeard("pushed")
	})
}

// TestThousandAutoWorkers: engines that never answer a probe delay none of the
// others.
func TestThousandAutoWorkers(t *testing.T) {
	const total, stuck = 1000, 100
	name := func(i int) string { return fmt.Sprintf("http://10.1.%d.%d:1", i/250, i%250) }
	var workers []string
	for i := range total {
		workers = append(workers, name(i))
	}
	s := &script{probe: func(ctx context.Context, target Target, _ int) Finding {
		if i := slices.Index(workers, target.ID); i%(total/stuck) == 0 {
			<-ctx.Done()
			return Finding{}
		}
		return Finding{Complete: true, Offers: []Offer{offered(store.DialectPoll)}}
	}}
	scripted(t, s, workers, func(p *plane) {
		p.after(total / spreadBatch * spreadStep)
		p.settle()
		heard := 0
		st, _ := p.st.Current()
		for _, e := range st.Entries {
			if e.Load != nil {
				heard++
			}
		}
		if heard != total-stuck {
			t.Errorf("%d workers are heard at once, want %d", heard, total-stuck)
		}
	})
}

// TestWhySaysEveryDialect holds the text to its form and bound.
func TestWhySaysEveryDialect(t *testing.T) {
	long := offered(store.DialectPoll)
	long.Detail = strings.Repeat("x", 4096)
	c := &chooser{offers: []Offer{absent(store.DialectPush, ReasonAuth), long}}
	if got := c.why(); !strings.HasPrefix(got, "push: auth (asked); poll: offered (xx") || len(got) > 400 {
		t.Errorf("%d bytes: %.80s", len(got), got)
	}
	if got := c.telling(); got != ReasonAuth {
		t.Errorf("telling %s", got)
	}
	c.offers[0].Reason = ReasonUnsupported
	if got := c.telling(); got != ReasonUnsupported {
		t.Errorf("telling %s", got)
	}
	c.offers = nil
	if got := c.telling(); got != store.ReasonNoReport || c.undecided(store.DialectPoll) {
		t.Errorf("telling %s", got)
	}
}

// TestLastingFaultLogsLittle: a worker that goes from one failing state to the
// next makes no line for each.
func TestLastingFaultLogsLittle(t *testing.T) {
	var lines strings.Builder
	s := &script{
		probe: offers(offered(store.DialectPush), offered(store.DialectPoll)),
		serve: func(ctx context.Context, e *Engine, _ int) store.Reason {
			e.Show(Way{State: StateFailing, Reason: ReasonConnectFailed, Err: syscall.ECONNREFUSED})
			<-ctx.Done()
			return ""
		},
	}
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Prober = []string{testWorker}, s
		o.Dialers = map[store.Dialect]Dialer{store.DialectPoll: s}
		o.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	}, func(p *plane) {
		p.runAll()
		p.after(10 * time.Minute)
		if s.probes() < 30 {
			t.Errorf("%d probes", s.probes())
		}
	})
	if n := strings.Count(lines.String(), "\n"); n < 8 || n > 25 {
		t.Errorf("%d lines in ten minutes:\n%s", n, &lines)
	}
}

// TestHandoversInRandomOrder lets streams come and go while offers change and
// sessions end: the dialect in force is that of the bound stream, and the
// engine is heard again when it settles.
func TestHandoversInRandomOrder(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		var pushes, refused atomic.Bool
		s := &script{}
		s.probe = func(context.Context, Target, int) Finding {
			push, poll := offered(store.DialectPush), offered(store.DialectPoll)
			if !pushes.Load() {
				push = absent(store.DialectPush, ReasonUnsupported)
			}
			if refused.Load() {
				push, poll = unclear(store.DialectPush, ReasonConnectFailed), unclear(store.DialectPoll, ReasonConnectFailed)
			}
			return Finding{Complete: true, Offers: []Offer{push, poll}}
		}
		s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
			if n%5 == 4 {
				return ReasonInstanceChanged
			}
			ctx, stop := context.WithTimeout(ctx, 20*time.Second)
			defer stop()
			s.plane.poll(ctx, e, n%26)
			return ReasonInstanceChanged
		}
		scripted(t, s, []string{testWorker}, func(p *plane) {
			p.net.add(testOrigin, func(int) string {
				if pushes.Load() {
					return reply(200, goodAnswer)
				}
				return reply(404, "")
			})
			var streams []*Binding
			for range 300 {
				switch rnd.IntN(6) {
				case 0:
					pushes.Store(!pushes.Load())
				case 1:
					refused.Store(!refused.Load())
				case 2, 3:
					if b, err := p.Bind(claim("live"), p.load("live", uint64(p.clock.Now()))); err == nil {
						streams = append(streams, b)
					}
				default:
					for _, b := range streams {
						b.Close()
					}
					streams = nil
				}
				p.after(time.Duration(rnd.IntN(9000)) * time.Millisecond)
				p.settle()
				w := p.workers[testWorker]
				w.mu.Lock()
				if w.bound != nil && w.bound.claim.dialect != w.def.Dialect {
					t.Errorf("seed %d: a stream of %s is bound, %s is in force", seed, w.bound.claim.dialect, w.def.Dialect)
				}
				w.mu.Unlock()
			}
			for _, b := range streams {
				b.Close()
			}
			pushes.Store(false)
			refused.Store(false)
			p.after(time.Minute)
			e, live := p.entry(testWorker)
			if e.Worker.Dialect != store.DialectPoll || p.clock.Now().Sub(live.Received) > 2*testInterval {
				t.Errorf("seed %d: dialect %s, last heard %s ago", seed, e.Worker.Dialect, p.clock.Now().Sub(live.Received))
			}
		})
	}
}

// TestDiscoveryKeepsTheChosenDialect: a change in place, by discovery or by
// facts, does not undo the choice.
func TestDiscoveryKeepsTheChosenDialect(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPoll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		before, _ := p.entry(testWorker)
		p.rediscover(testWorker + ",zone=z")
		p.workers[testWorker].learnFacts(&Finding{Facts: Facts{Models: []string{"m"}}})
		p.after(settleFacts + testSettle)
		e := p.wantEngine(store.RoleRegular, "m")
		if e.Worker.Dialect != store.DialectPoll || e.Worker.Zone != "z" || e.Row != before.Row {
			t.Errorf("worker %+v", e.Worker)
		}
		if p.rediscover(testWorker + ",dialect=push"); s.sessions() != 1 {
			t.Errorf("%d sessions", s.sessions())
		}
		if e, _ = p.entry(testWorker); e.Row == before.Row || e.Worker.Dialect != store.DialectPush {
			t.Errorf("a configured dialect kept the identity: %+v", e.Worker)
		}
	})
}

// TestTurnStaysWithABoundStream: push gives its turn away only when its stream
// is gone or silent.
func TestTurnStaysWithABoundStream(t *testing.T) {
	s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		w := p.workers[testWorker]
		if w.pass(store.DialectPoll, store.DialectPush) {
			t.Error("a turn was passed by a dialect that has none")
		}
		p.bindAs("s1", 1)
		if w.pass(store.DialectPush, store.DialectUnspecified) {
			t.Error("push gave its turn away while it is heard")
		}
		p.after(testLease + time.Millisecond)
		if !w.pass(store.DialectPush, store.DialectUnspecified) {
			t.Error("a silent stream keeps the turn")
		}
	})
}

// TestRefusedWhileHeard: an engine that pushes and refuses registrations is
// heard on; when its stream ends, it is asked at once what it offers.
func TestRefusedWhileHeard(t *testing.T) {
	s := &script{probe: offers(absent(store.DialectPush, ReasonUnsupported), absent(store.DialectPoll, ReasonUnsupported))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(404, ""))
		b := p.bindAs("s1", 1)
		for q := range uint64(40) {
			_ = b.Admit(p.load("s1", 2+q))
			p.after(testInterval)
		}
		p.wantHeard("s1")
		if s.probes() != 1 || e.count() < 2 || e.count() > 4 {
			t.Errorf("%d probes, %d calls while it is heard", s.probes(), e.count())
		}
		b.Close()
		p.after(endGrace + minBackoff + testSettle)
		if s.probes() != 2 {
			t.Errorf("%d probes after its stream ended", s.probes())
		}
	})
}

// TestRestlessEngineIsSpared: one report and a refusal, again and again, make
// no loop without a pause.
func TestRestlessEngineIsSpared(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPoll))}
	s.serve = func(_ context.Context, e *Engine, n int) store.Reason {
		b, err := e.Open(fmt.Sprint("p", n), testPeer, s.plane.load(fmt.Sprint("p", n), 1))
		if err == nil {
			b.Close()
		}
		return ReasonUnsupported
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(10 * time.Second)
		if n := s.probes(); n < 40 || n > 52 {
			t.Errorf("%d probes in 10 s, want one in %s", n, minBackoff)
		}
	})
}

// TestTrialBeginsWhenTheEngineAccepts: an engine that was busy first is given
// the whole time to be heard.
func TestTrialBeginsWhenTheEngineAccepts(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPush), offered(store.DialectPoll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		began := time.Now()
		e := p.net.add(testOrigin, func(int) string {
			if time.Since(began) < 2*time.Second {
				return reply(503, "busy")
			}
			return reply(200, goodAnswer)
		})
		e.mute.Store(true)
		p.after(6500 * time.Millisecond)
		if s.sessions() != 0 {
			t.Error("given up before its time")
		}
		e.mute.Store(false)
		p.bindAs("s1", 1)
		p.wantDialect(store.DialectPush, "push: offered (asked); poll: offered (asked)")
	})
}

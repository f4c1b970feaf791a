package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
)

// saying returns a finding that is complete.
func saying(f Facts) Finding { return Finding{Facts: f, Complete: true} }

// wantEngine checks what discovery and the engine say together.
func (p *plane) wantEngine(role store.Role, models ...string) *store.Entry {
	p.t.Helper()
	e, _ := p.entry(testWorker)
	if e.Worker.Role != role || !slices.Equal(e.Worker.Models, models) {
		p.t.Errorf("role %s, models %q, want %s, %q", e.Worker.Role, e.Worker.Models, role, models)
	}
	return e
}

// TestBug52FactsAreAskedUntilKnown: an engine that answers 503 for 20 s after
// it was discovered gets its role and model without a change of discovery.
func TestBug52FactsAreAskedUntilKnown(t *testing.T) {
	for _, dialect := range []string{"auto", "push", "poll"} {
		t.Run(dialect, func(t *testing.T) {
			var began time.Time
			answer := func(context.Context, Target, int) Finding {
				if time.Since(began) < 20*time.Second {
					return Finding{Facts: Facts{Family: "sglang"}}
				}
				return saying(Facts{Family: "sglang", Version: "0.5.3", Models: []string{"m"}, Role: store.RolePrefill})
			}
			s := &script{facts: answer, probe: func(ctx context.Context, target Target, n int) Finding {
				f := answer(ctx, target, n)
				f.Offers = []Offer{offered(store.DialectPoll)}
				return f
			}}
			synctestNow(t, &began)
			scripted(t, s, []string{testWorker + ",dialect=" + dialect}, func(p *plane) {
				row := p.wantEngine(store.RoleRegular).Row
				p.after(40 * time.Second)
				e := p.wantEngine(store.RolePrefill, "m")
				if e.Row != row {
					t.Error("a role that was only assumed changed the identity")
				}
				if d := p.diagnostics(testWorker); d.Engine != "sglang" || d.EngineVersion != "0.5.3" {
					t.Errorf("diagnostics %+v", d)
				}
				asked := s.times(&s.asked)
				for i := 1; i < len(asked); i++ {
					if gap := asked[i].Sub(asked[i-1]); gap != min(minAsk<<(i-1), maxAsk) {
						t.Errorf("asked again after %s", gap)
					}
				}
				if n := len(asked); n < 5 || n > 6 {
					t.Errorf("asked %d times", n)
				}
				p.after(time.Hour)
				more, least, most := s.asks()-len(asked), 0, 0
				if dialect == "auto" {
					// One that is polled is looked at about once a minute.
					least, most = 49, 76
				}
				if more < least || more > most {
					t.Errorf("asked %d times in an hour although all is known", more)
				}
			})
		})
	}
}

// synctestNow sets the time at which a bubble begins.
func synctestNow(t *testing.T, at *time.Time) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { *at = time.Now() })
}

// TestModelsOfAnEngineAreBounded: a list without end is cut.
func TestModelsOfAnEngineAreBounded(t *testing.T) {
	var models []string
	for i := range maxListed + 9 {
		models = append(models, fmt.Sprintf("m%03d", i))
	}
	s := &script{facts: func(context.Context, Target, int) Finding { return saying(Facts{Models: models}) }}
	scripted(t, s, []string{testWorker + ",dialect=poll"}, func(p *plane) {
		p.after(2*settleFacts + testSettle)
		p.wantEngine(store.RoleRegular, models[:maxListed]...)
	})
}

// TestFactsAreAskedOnceForEachSource: another instance is asked once what it
// is, however often the dialer begins anew.
func TestFactsAreAskedOnceForEachSource(t *testing.T) {
	s := &script{probe: offers(offered(store.DialectPoll))}
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		ctx, stop := context.WithTimeout(ctx, 10*time.Second)
		defer stop()
		s.plane.poll(ctx, e, n/2)
		return ReasonInstanceChanged
	}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(41 * time.Second)
		if s.sessions() != 5 || s.asks() != 2 {
			t.Errorf("%d questions about 3 instances of %d sessions", s.asks(), s.sessions())
		}
	})
}

// TestDiscoveryOverridesFacts: what discovery names stands, whatever the
// engine says.
func TestDiscoveryOverridesFacts(t *testing.T) {
	s := &script{probe: func(context.Context, Target, int) Finding {
		f := saying(Facts{Models: []string{"served"}, Role: store.RoleDecode})
		f.Offers = []Offer{offered(store.DialectPoll)}
		return f
	}}
	const named = testWorker + ",role=prefill,model=alias"
	scripted(t, s, []string{named}, func(p *plane) {
		p.after(time.Second)
		row := p.wantEngine(store.RolePrefill, "alias").Row
		p.rediscover(testWorker + ",role=prefill")
		if e := p.wantEngine(store.RolePrefill, "served"); e.Row != row {
			t.Error("models changed the identity")
		}
		p.rediscover(testWorker + ",role=prefill,model=other")
		p.wantEngine(store.RolePrefill, "other")
		p.rediscover(testWorker)
		if e := p.wantEngine(store.RoleDecode, "served"); e.Row == row {
			t.Error("another role kept the identity")
		}
		p.after(time.Second)
		p.wantHeard("polled-b")
		if s.probes() != 2 {
			t.Errorf("%d probes, want one for each identity", s.probes())
		}
	})
}

// TestFactsChangeARoleThatWasKnown: an engine that comes back in another role
// is another worker; its facts and those before are told apart.
func TestFactsChangeARoleThatWasKnown(t *testing.T) {
	role := store.RolePrefill
	s := &script{facts: func(context.Context, Target, int) Finding {
		return saying(Facts{Family: "sglang", Role: role})
	}}
	scripted(t, s, []string{testWorker + ",dialect=push"}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		e.mute.Store(true)
		p.after(time.Second)
		c := claim("s1")
		c.Role = store.RolePrefill
		first, err := p.Bind(c, p.load("s1", 1))
		if err != nil {
			t.Fatal(err)
		}
		row := p.wantEngine(store.RolePrefill).Row
		role = store.RoleDecode
		c.Source = "s2" // the role that it claims is the one that discovery knows
		b, err := p.Bind(c, p.load("s2", 1))
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, first.Err(), ReasonSuperseded, false)
		p.after(2*settleFacts + testSettle)
		if e := p.wantEngine(store.RoleDecode); e.Row == row || e.Load != nil {
			t.Error("the identity did not change")
		}
		wantRefusal(t, b.Err(), ReasonIdentityChanged, false)
		if d := p.diagnostics(testWorker); d.Engine != "sglang" {
			t.Errorf("the new identity forgot the facts: %+v", d)
		}
	})
}

// TestClaimedRoleYieldsToFacts: the role of a stream stands while nothing else
// is known.
func TestClaimedRoleYieldsToFacts(t *testing.T) {
	s := &script{facts: func(_ context.Context, _ Target, n int) Finding {
		if n == 0 {
			return Finding{}
		}
		return saying(Facts{Role: store.RoleDecode})
	}}
	scripted(t, s, []string{testWorker + ",dialect=push"}, func(p *plane) {
		c := claim("s1")
		c.Role = store.RolePrefill
		b, err := p.Bind(c, p.load("s1", 1))
		if err != nil {
			t.Fatal(err)
		}
		p.settle()
		p.wantEngine(store.RolePrefill)
		p.after(3 * time.Second)
		p.wantEngine(store.RoleDecode)
		wantRefusal(t, b.Err(), ReasonIdentityChanged, false)
		_, err = p.Bind(c, p.load("s1", 2))
		wantRefusal(t, err, ReasonRoleMismatch, false)
		p.rediscover()
		p.rediscover(testWorker + ",dialect=push")
		p.workers[testWorker].learnFacts(&Finding{Facts: Facts{Role: store.RoleDecode}})
		_, err = p.Bind(c, p.load("s1", 3)) // before discovery took it up
		wantRefusal(t, err, ReasonRoleMismatch, false)
	})
}

// TestNothingIsAskedOfNone: a worker of dialect none, or a duplicate, is left
// alone.
func TestNothingIsAskedOfNone(t *testing.T) {
	s := &script{}
	workers := []string{testWorker + ",dialect=none", testWorker + ",id=z", "http://10.0.0.2:1,dialect=none,id=b"}
	scripted(t, s, workers, func(p *plane) {
		p.after(time.Minute)
		if n := len(s.asked) + len(s.probed) + len(s.served); n != 0 {
			t.Errorf("asked %v, probed %v, served %v", s.asked, s.probed, s.served)
		}
	})
}

// TestFactsFillGaps: an answer that is not complete takes nothing away.
func TestFactsFillGaps(t *testing.T) {
	full := Facts{
		Family: "vllm", Version: "1", Models: []string{"a"}, Role: store.RoleDecode, DPSize: 2, CapacityTokens: 3, MaxRunning: 4,
		ReporterPort: 5, LoadStat: LoadStat{Port: 6},
	}
	if got := (Facts{}).Or(&full); !reflect.DeepEqual(got, full) {
		t.Errorf("got %+v", got)
	}
	if got := full.Or(&Facts{Family: "x", Models: []string{"b"}}); !reflect.DeepEqual(got, full) {
		t.Errorf("got %+v", got)
	}
	for i := range reflect.TypeFor[Facts]().NumField() {
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Errorf("%s is not held to it", reflect.TypeFor[Facts]().Field(i).Name)
		}
	}
}

// TestBug63SlowQuestionDelaysNobody: while an engine takes 30 s to say what it
// is, another one appears; the first is removed meanwhile and does not come
// back by its late answer.
func TestBug63SlowQuestionDelaysNobody(t *testing.T) {
	const other = "http://10.0.0.2:1"
	s := &script{probe: func(_ context.Context, target Target, _ int) Finding {
		if target.ID == testWorker {
			<-time.After(30 * time.Second) // whatever the context says
		}
		f := saying(Facts{Models: []string{"late"}, Role: store.RoleDecode})
		f.Offers = []Offer{offered(store.DialectPoll)}
		return f
	}}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		p.after(time.Second)
		p.rediscover(testWorker, other)
		p.settle()
		if e, _ := p.entry(other); e == nil || e.Load == nil {
			t.Fatalf("the other worker is not heard: %+v", e)
		}
		p.rediscover(other)
		before, _ := p.st.Current()
		p.after(time.Minute)
		if e, _ := p.entry(testWorker); e != nil {
			t.Errorf("the removed worker came back: %+v", e.Worker)
		}
		if after, _ := p.st.Current(); len(after.Entries) != len(before.Entries) {
			t.Errorf("%d workers", len(after.Entries))
		}
		p.rediscover(testWorker, other)
		if e := p.wantEngine(store.RoleRegular); e.Load != nil {
			t.Error("the new life knows what the old one heard")
		}
	})
}

// TestBug63OrderInRandomRuns adds, changes and removes workers 10,000 times
// while their engines answer late: what is shown is always the last list.
func TestBug63OrderInRandomRuns(t *testing.T) {
	steps := 10_000
	if testing.Short() {
		steps = 500
	}
	late := rand.New(rand.NewPCG(3, 4))
	s := &script{}
	slow := func(ctx context.Context, target Target, n int) Finding {
		s.mu.Lock()
		d := time.Duration(late.IntN(300)) * time.Millisecond
		s.mu.Unlock()
		<-time.After(d)
		f := saying(Facts{Models: []string{target.ID}, Role: store.Role(1 + n%3)})
		f.Offers = []Offer{offered(store.DialectPoll)}
		return f
	}
	s.probe, s.facts = slow, slow
	scripted(t, s, nil, func(p *plane) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for range steps {
			var values, want []string
			for i := range 5 {
				if rnd.IntN(3) > 0 {
					zone := fmt.Sprint("z", rnd.IntN(3))
					want = append(want, fmt.Sprintf("http://10.2.0.%d:1 %s", i, zone))
					values = append(values, strings.Replace(want[len(want)-1], " ", ",zone=", 1))
				}
			}
			p.rediscover(values...)
			var got []string
			st, _ := p.st.Current()
			for _, e := range st.Entries {
				got = append(got, e.Worker.ID+" "+e.Worker.Zone)
				if m := e.Worker.Models; len(m) > 1 || (len(m) == 1 && m[0] != e.Worker.ID) {
					t.Fatalf("%s has the models %q", e.Worker.ID, m)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("listed %q, want %q", got, want)
			}
		}
	})
}

// TestBug24ShortAnswerRemovesNothing: an engine that does not answer all for a
// while keeps what it said before, and its identity.
func TestBug24ShortAnswerRemovesNothing(t *testing.T) {
	good := Facts{Family: "sglang", Version: "1", Models: []string{"m"}, Role: store.RolePrefill}
	s := &script{facts: func(_ context.Context, _ Target, n int) Finding {
		if n > 0 && n < 4 {
			return Finding{Facts: Facts{Family: "sglang"}}
		}
		return saying(good)
	}}
	scripted(t, s, []string{testWorker + ",dialect=poll"}, func(p *plane) {
		p.after(2*settleFacts + testSettle)
		row := p.wantEngine(store.RolePrefill, "m").Row
		p.workers[testWorker].wonderNow()
		before, _ := p.st.Current()
		p.after(20 * time.Second)
		if e := p.wantEngine(store.RolePrefill, "m"); e.Row != row || s.asks() != 5 {
			t.Errorf("row %d became %d after %d questions", row, e.Row, s.asks())
		}
		if after, _ := p.st.Current(); len(after.Tombstones) != len(before.Tombstones) {
			t.Errorf("%d tombstones became %d", len(before.Tombstones), len(after.Tombstones))
		}
	})
}

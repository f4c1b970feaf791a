package registry

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// declared returns the values of the constants of one type in reason.go.
func declared(t *testing.T, typeName string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := ""
		switch typ := spec.Type.(type) {
		case *ast.SelectorExpr:
			name = typ.Sel.Name
		case *ast.Ident:
			name = typ.Name
		}
		if name == typeName {
			word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			words = append(words, word)
		}
		return true
	})
	slices.Sort(words)
	return words
}

// refusalScenes provoke each reason of a refusal in a running plane of
// testWorker.
func refusalScenes() map[store.Reason]func(p *plane) error {
	bindWith := func(change func(*Claim)) func(p *plane) error {
		return func(p *plane) error {
			c := claim("s1")
			change(&c)
			_, err := p.Bind(c, p.load("s1", 1))
			return err
		}
	}
	rebind := func(source string) func(p *plane) error {
		return func(p *plane) error {
			b := p.bindAs("s1", 1)
			p.bindAs(source, 1)
			return b.Err()
		}
	}
	rediscover := func(values ...string) func(p *plane) error {
		return func(p *plane) error {
			b := p.bindAs("s1", 1)
			p.discover(values...)
			return b.Err()
		}
	}
	return map[store.Reason]func(p *plane) error{
		ReasonBadAddress:    bindWith(func(c *Claim) { c.Addr = "http://" }),
		ReasonUnknownWorker: bindWith(func(c *Claim) { c.Addr = "http://10.0.0.9:1" }),
		ReasonRoleMismatch:  bindWith(func(c *Claim) { c.Role = store.RoleUnspecified }),
		ReasonPeerMismatch:  bindWith(func(c *Claim) { c.Peer = otherPeer }),
		ReasonShuttingDown: func(p *plane) error {
			p.Drain()
			return bindWith(func(*Claim) {})(p)
		},
		ReasonNotSynced: func(p *plane) error {
			p.mu.Lock()
			p.synced, p.keepers = false, nil // as before the first reconcile
			p.mu.Unlock()
			return bindWith(func(*Claim) {})(p)
		},
		ReasonDialectMismatch: func(p *plane) error {
			p.discover(testWorker + ",dialect=none")
			return bindWith(func(*Claim) {})(p)
		},
		store.ReasonDuplicateOrigin: func(p *plane) error {
			p.discover(testWorker+",dialect=none,id=a", testWorker+",id=b")
			return bindWith(func(*Claim) {})(p)
		},
		ReasonRetired: func(p *plane) error {
			p.bindAs("s1", 1)
			p.bindAs("s2", 1)
			return bindWith(func(*Claim) {})(p)
		},
		ReasonSequenceJump: func(p *plane) error { return p.bindAs("s1", 1).Admit(p.load("s1", 1<<40)) },
		ReasonClaimChanged: func(p *plane) error { return p.bindAs("s1", 1).Check(claim("s2")) },
		ReasonSuperseded:   rebind("s2"),
		ReasonWorkerRemoved: func(p *plane) error {
			return rediscover()(p)
		},
		ReasonIdentityChanged: rediscover(testWorker + ",role=decode"),
	}
}

// leaseScenes provoke each reason of a registration in a running plane without
// workers.
func leaseScenes() map[store.Reason]func(p *plane) error {
	registerWith := func(change func(p *plane, reg *Registration)) func(p *plane) error {
		return func(p *plane) error {
			_, err := p.tryRegister(func(reg *Registration) { change(p, reg) })
			return err
		}
	}
	return map[store.Reason]func(p *plane) error{
		ReasonBadRegistration: registerWith(func(_ *plane, reg *Registration) { reg.Spec.URL = "ftp://a" }),
		ReasonUnknownLease:    registerWith(func(_ *plane, reg *Registration) { reg.LeaseID = "x" }),
		ReasonRegistrationOff: registerWith(func(p *plane, _ *Registration) { p.opts.Registration = RegistrationOff }),
		ReasonTooManyWorkers: registerWith(func(p *plane, reg *Registration) {
			p.opts.MaxWorkers = 1
			p.register(nil)
			reg.Spec.URL = "http://10.0.0.1:2"
		}),
		ReasonTooManyLeases: registerWith(func(p *plane, reg *Registration) {
			p.opts.MaxLeasesPerAddress = 1
			p.register(nil)
			reg.Spec.URL = "http://10.0.0.1:2"
		}),
		ReasonLeaseHeld: registerWith(func(p *plane, _ *Registration) { p.bindLease(p.register(nil), "s1", 1) }),
		ReasonLeaseExpired: func(p *plane) error {
			b := p.bindLease(p.register(nil), "s1", 1)
			p.after(testLease)
			return b.Err()
		},
	}
}

// callScenes provoke each reason of a failed registration.
func callScenes() map[store.Reason]func(int) string {
	return map[store.Reason]func(int) string{
		ReasonConnectFailed: func(int) string { return "" },
		ReasonAuth:          always(401, ""),
		ReasonUnsupported:   always(404, ""),
		ReasonConflict:      always(409, ""),
		ReasonRedirected:    always(307, ""),
		ReasonRejected:      always(400, ""),
		ReasonEngineError:   always(503, ""),
	}
}

// TestEveryReasonIsProvoked fails for a declared reason without a scene.
func TestEveryReasonIsProvoked(t *testing.T) {
	provoked := map[string]bool{}
	for reason, scene := range refusalScenes() {
		t.Run(string(reason), func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				p.run()
				wantRefusal(t, scene(p), reason, reason == ReasonSequenceJump)
				if got := p.refusals(reason); got != 1 {
					t.Errorf("counted %v times, want once", got)
				}
			})
		})
		provoked[string(reason)] = true
	}
	for reason, scene := range leaseScenes() {
		t.Run(string(reason), func(t *testing.T) {
			registered(t, func(p *plane) {
				wantRefusal(t, scene(p), reason, false)
				if got := p.refusals(reason); got != 1 {
					t.Errorf("counted %v times, want once", got)
				}
			})
		})
		provoked[string(reason)] = true
	}
	provoked[string(ReasonUnsteady)] = t.Run("unsteady", provokeUnsteady)
	for reason, answer := range callScenes() {
		t.Run(string(reason), func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				p.net.add(testOrigin, answer)
				p.run()
				if e, _ := p.entry(testWorker); e.Reason != reason {
					t.Errorf("the worker shows %s", e.Reason)
				}
				if got := testutil.ToFloat64(p.metrics.calls.WithLabelValues(string(reason))); got != 1 {
					t.Errorf("counted %v times, want once", got)
				}
			})
		})
		provoked[string(reason)] = true
	}
	provoked[string(ReasonOldSequence)] = t.Run("old_sequence", provokeOldSequence)
	provoked[string(ReasonBadAnswer)] = t.Run("bad_answer", provokeBadAnswer)
	provoked[string(ReasonLoopbackAddress)] = t.Run("loopback_address", provokeLoopbackAddress)
	provoked[string(ReasonInstanceChanged)] = t.Run("instance_changed", provokeInstanceChanged)
	provoked[string(ReasonEgressDenied)] = t.Run("egress_denied", provokeEgressDenied)
	provoked[string(ReasonCredential)] = t.Run("credential", provokeCredential)
	for _, word := range declared(t, "Reason") {
		if !provoked[word] {
			t.Errorf("no scene provokes %s", word)
		}
	}
}

// provokeUnsteady: a reporter that was silent comes back to an engine that is
// polled.
func provokeUnsteady(t *testing.T) {
	scripted(t, &script{probe: offers(offered(store.DialectPoll))}, []string{testWorker}, func(p *plane) {
		l := p.register(nil)
		p.bindLease(l, "s1", 1)
		p.after(testStale + time.Second)
		_, err := p.tryBindLease(l, "s1", 2)
		wantRefusal(t, err, ReasonUnsteady, true)
		if got := p.refusals(ReasonUnsteady); got != 1 {
			t.Errorf("counted %v times, want once", got)
		}
	})
}

func provokeOldSequence(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		if err := p.bindAs("s1", 1).Admit(p.load("s1", 1)); err != nil || p.refusals(ReasonOldSequence) != 1 {
			t.Errorf("err %v, counted %v times", err, p.refusals(ReasonOldSequence))
		}
	})
}

func provokeBadAnswer(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.net.add(testOrigin, always(200, "{}"))
		p.run()
		d := p.diagnostics(testWorker)
		if d.Registration != string(StateRegistered) || d.RegistrationError == "" ||
			testutil.ToFloat64(p.metrics.calls.WithLabelValues(string(ReasonBadAnswer))) != 1 {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

// provokeEgressDenied: a source leads the plane to itself.
func provokeEgressDenied(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.dial = egress.DefaultDial
		p.list(b)
		p.list(a, "http://127.0.0.1:1,guarded")
		e, _ := p.entry("http://127.0.0.1:1")
		if calls := testutil.ToFloat64(p.metrics.calls.WithLabelValues(string(ReasonEgressDenied))); e.Reason != ReasonEgressDenied || calls != 1 {
			t.Errorf("the worker shows %s after %v calls", e.Reason, calls)
		}
	})
}

func provokeCredential(t *testing.T) {
	inBubble(t, []string{testWorker + ",token_file=/nonexistent/token"}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		if w, _ := p.entry(testWorker); w.Reason != ReasonCredential || e.count() != 0 {
			t.Errorf("the worker shows %s after %d calls", w.Reason, e.count())
		}
	})
}

// TestEveryStateIsReached fails for a declared state that no scene shows.
func TestEveryStateIsReached(t *testing.T) {
	reached := map[string]bool{}
	for state, answer := range map[RegistrationState]func(int) string{
		StateRegistered: always(200, goodAnswer), StateRetrying: always(503, ""),
		StateConflict: always(409, ""), StateParked: always(404, ""), StatePending: nil,
	} {
		inBubble(t, []string{testWorker, "http://10.0.0.2:1,dialect=none"}, func(p *plane) {
			p.net.add(testOrigin, answer)
			p.run()
			for _, id := range []string{testWorker, "http://10.0.0.2:1"} {
				reached[p.diagnostics(id).Registration] = true
			}
			if got := p.diagnostics(testWorker).Registration; got != string(state) {
				t.Errorf("state %s, want %s", got, state)
			}
			p.after(time.Millisecond)
		})
	}
	for _, state := range []RegistrationState{StateProbing, StatePolling, StateSubscribed, StateFailing} {
		reached[reachDialled(t, state)] = true
	}
	if got := slices.Sorted(maps.Keys(reached)); !slices.Equal(got, declared(t, "RegistrationState")) {
		t.Errorf("reached %v, declared %v", got, declared(t, "RegistrationState"))
	}
}

// provokeLoopbackAddress: an engine on another host is not sent to itself.
func provokeLoopbackAddress(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.ReportAddress = []string{testWorker}, netip.MustParseAddr("127.0.0.1")
	}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		if shown, _ := p.entry(testWorker); e.count() != 0 || shown.Reason != ReasonLoopbackAddress {
			t.Errorf("called %d times, shown as %s", e.count(), shown.Reason)
		}
		p.wantState(StateParked, 0)
	})
}

// provokeInstanceChanged: another process is asked anew what it is, and served
// on at once.
func provokeInstanceChanged(t *testing.T) {
	s := &script{}
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		if n == 0 {
			ctx, stop := context.WithTimeout(ctx, time.Minute)
			defer stop()
			s.plane.poll(ctx, e, n)
			return ReasonInstanceChanged
		}
		return s.plane.poll(ctx, e, n)
	}
	scripted(t, s, []string{testWorker + ",dialect=poll"}, func(p *plane) {
		p.after(time.Minute)
		if s.sessions() != 2 || s.asks() != 1 {
			t.Errorf("%d sessions, %d questions at once", s.sessions(), s.asks())
		}
		p.after(settleFacts)
		if s.asks() != 2 {
			t.Errorf("%d questions", s.asks())
		}
	})
}

// reachDialled returns the word that operators see where a dialer shows a
// state, or where the engine is being probed.
func reachDialled(t *testing.T, state RegistrationState) (word string) {
	s := &script{
		serve: func(ctx context.Context, e *Engine, _ int) store.Reason {
			e.Show(Way{State: state})
			<-ctx.Done()
			return ""
		},
		probe: func(ctx context.Context, _ Target, _ int) Finding {
			<-ctx.Done()
			return Finding{}
		},
	}
	worker := testWorker + ",dialect=poll"
	if state == StateProbing {
		worker = testWorker
	}
	scripted(t, s, []string{worker}, func(p *plane) { word = p.diagnostics(testWorker).Registration })
	if word != string(state) {
		t.Errorf("state %s, want %s", word, state)
	}
	return word
}

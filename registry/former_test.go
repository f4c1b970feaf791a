package registry

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// TestBug16FormerInstances: who spoke for one UID does not speak for another one
// at the address for a lease, whatever discovery says in between.
func TestBug16FormerInstances(t *testing.T) {
	const pod = testWorker + ",dialect=push,id=ns/a"
	for name, c := range map[string]struct {
		steps    [][]string
		accepted bool
	}{
		"another UID":             {steps: [][]string{{pod + ",uid=2"}}},
		"two UIDs later":          {steps: [][]string{{pod + ",uid=2"}, {pod + ",uid=3"}}},
		"absent from one list":    {steps: [][]string{{}, {pod + ",uid=2"}}},
		"another name":            {steps: [][]string{{testWorker + ",dialect=push,id=ns/b,uid=2"}}},
		"another path":            {steps: [][]string{{testWorker + "/v1,dialect=push,id=ns/a,uid=2"}}},
		"moved, and another here": {steps: [][]string{{"http://10.0.0.9:1,dialect=push,id=ns/a,uid=1", testWorker + ",dialect=push,id=ns/b,uid=2"}}},
		"its UID again":           {steps: [][]string{{pod + ",uid=2"}, {pod + ",uid=1"}}, accepted: true},
		"its UID by another name": {steps: [][]string{{testWorker + ",dialect=push,id=ns/b,uid=1"}}, accepted: true},
		"UID not known":           {steps: [][]string{{}, {pod}}, accepted: true},
	} {
		t.Run(name, func(t *testing.T) {
			sourced(t, func(p *plane, a, b *teller) {
				p.list(b)
				p.list(a, pod+",uid=1")
				p.bindAs("s0", 1)
				p.bindAs("s1", 1)
				for _, values := range c.steps {
					p.list(a, values...)
				}
				for _, source := range []string{"s1", "s0"} {
					_, err := p.Bind(claim(source), p.load(source, 2))
					if c.accepted {
						if err != nil {
							t.Error(err)
						}
						return // s0 is superseded
					}
					wantRefusal(t, err, ReasonRetired, false)
				}
				p.after(testLease)
				if _, err := p.Bind(claim("s1"), p.load("s1", 3)); err != nil {
					t.Errorf("an instance with a fixed name is refused for ever: %v", err)
				}
			})
		})
	}
}

// TestBug16FormerInstanceOfALease: an instance does not speak by a lease either,
// nor after its worker was there by a lease alone for long.
func TestBug16FormerInstanceOfALease(t *testing.T) {
	const old, other = testWorker + ",dialect=native,id=ns/a,uid=1", testWorker + ",id=ns/b,uid=2,dialect=native"
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		l := p.register(nil)
		p.list(a, old)
		p.list(a)
		stream := p.bindLease(l, "s1", 1)
		for i := range uint64(30) {
			p.after(time.Second)
			if err := stream.Admit(p.load("s1", 2+i)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.renew(l, nil); err != nil {
				t.Fatal(err)
			}
		}
		p.list(a, other)
		wantRefusal(t, stream.Err(), ReasonIdentityChanged, false)
		_, err := p.tryBindLease(p.register(nil), "s1", 90)
		wantRefusal(t, err, ReasonRetired, false)
	})
}

func TestFormersAreBounded(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var f formers
		add := func(origin int, uid string) {
			f.add(&departure{origin: fmt.Sprint(origin), uid: uid, sources: []string{"s"}, until: time.Now().Add(time.Minute)}, 10)
		}
		for i := range 100 {
			add(i%7, fmt.Sprint(i))
		}
		held := 0
		for _, at := range f.byOrigin {
			held += len(at)
		}
		if len(f.queue) != 10 || held != 10 || len(f.byOrigin) != 7 {
			t.Errorf("%d departures, %d by %d origins", len(f.queue), held, len(f.byOrigin))
		}
		if !f.bar("1", "new", "s") || f.bar("1", "new", "other") || f.bar("1", "", "s") || f.bar("9", "new", "s") {
			t.Error("the wrong ones are barred")
		}
		<-time.After(time.Minute)
		if f.bar("1", "new", "s") {
			t.Error("it is barred for ever")
		}
		if add(8, "8"); len(f.queue) != 1 || len(f.byOrigin) != 1 {
			t.Errorf("%d departures of %d origins are kept for ever", len(f.queue), len(f.byOrigin))
		}
	})
}

// TestBug16LeaseEndsWithItsPod: what another engine's reporter said does not stay
// at the address, and does not keep the new one's reporter out.
func TestBug16LeaseEndsWithItsPod(t *testing.T) {
	const pod, other = testWorker + ",dialect=native,id=ns/a", testWorker + ",dialect=native,id=ns/b"
	for name, c := range map[string]struct {
		// first says that it registered before it was listed.
		first bool
		steps [][2]string
		ends  bool
	}{
		"another UID":              {steps: [][2]string{{pod + ",uid=1"}, {pod + ",uid=2"}}, ends: true},
		"address of another pod":   {steps: [][2]string{{pod + ",uid=1"}, {other + ",uid=2"}}, ends: true},
		"another name":             {steps: [][2]string{{pod}, {other}}, ends: true},
		"another UID, and absent":  {first: true, steps: [][2]string{{pod + ",uid=1"}, {}, {pod + ",uid=2"}}, ends: true},
		"UID not known in between": {steps: [][2]string{{pod + ",uid=1"}, {pod}, {pod + ",uid=2"}}, ends: true},
		"named by another source":  {steps: [][2]string{{"", pod + ",uid=1"}, {testWorker + ",id=x", pod + ",uid=1"}}},
		"listed after it":          {first: true, steps: [][2]string{{pod + ",uid=1"}}},
		"absent for one list":      {first: true, steps: [][2]string{{pod + ",uid=1"}, {}, {pod + ",uid=1"}}},
		"UID known late":           {steps: [][2]string{{pod}, {pod + ",uid=1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			sourced(t, func(p *plane, a, b *teller) {
				list := func(step [2]string) {
					for i, source := range []*teller{a, b} {
						p.list(source, specTexts(step[i])...)
					}
				}
				list([2]string{})
				if !c.first {
					list(c.steps[0])
				}
				l := p.register(func(reg *Registration) {
					reg.Spec.Models, reg.Spec.Zone, reg.Engine = []string{"old"}, "old", "old"
				})
				p.bindLease(l, "s1", 1)
				for _, step := range c.steps {
					list(step)
				}
				p.check(t, l, c.ends)
			})
		})
	}
}

// TestLeaseBegunAnewEndsWithItsPod: one that brings nothing new is known to be for
// the worker as well.
func TestLeaseBegunAnewEndsWithItsPod(t *testing.T) {
	const pod = testWorker + ",dialect=native,id=ns/a"
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, pod+",uid=1")
		p.list(b)
		l := p.register(nil)
		p.after(settleFacts + testSettle)
		if err := p.Deregister(l.ID, testPeer); err != nil {
			t.Fatal(err)
		}
		l = p.register(nil)
		p.list(a, pod+",uid=2")
		_, err := p.tryBindLease(l, "s1", 1)
		wantRefusal(t, err, ReasonUnknownLease, false)
	})
}

// TestLeaseEndsWithItsDialect: nothing of what a reporter said stays at a worker
// that is listed as one that pushes.
func TestLeaseEndsWithItsDialect(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		l := p.register(func(reg *Registration) { reg.Spec.Models = []string{"old"} })
		p.list(a, testWorker+",dialect=push")
		if e, _ := p.entry(testWorker); e.Worker.Models != nil || p.leaseEvents(leaseWithdrawn) != 1 {
			t.Errorf("%+v, %v withdrawn", e.Worker, p.leaseEvents(leaseWithdrawn))
		}
		_, err := p.tryBindLease(l, "s1", 1)
		wantRefusal(t, err, ReasonUnknownLease, false)
	})
}

// specTexts returns one value as a list; none for no value.
func specTexts(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// check says whether a lease that should have ended, or not, left anything.
func (p *plane) check(t *testing.T, l Lease, ends bool) {
	t.Helper()
	w := p.keeper(testOrigin)
	e, _ := p.entry(w.id)
	d := p.diagnostics(w.id)
	shown := e.Worker.Models != nil || e.Worker.Zone != "" || d.Engine != "" || d.LeaseExpires != 0
	if shown == ends || (p.leaseEvents(leaseWithdrawn) == 1) != ends {
		t.Errorf("%+v, %+v, %v withdrawn", e.Worker, d, p.leaseEvents(leaseWithdrawn))
	}
	_, err := p.tryBindLease(l, "s2", 2)
	if !ends {
		if err != nil {
			t.Error(err)
		}
		return
	}
	wantRefusal(t, err, ReasonUnknownLease, false)
	_, err = p.renew(l, nil)
	wantRefusal(t, err, ReasonUnknownLease, false)
	p.bindLease(p.register(nil), "new", 1)
	if p.leases.Len() != 1 || len(p.tenants) != 1 || len(p.crowd) != 0 {
		t.Errorf("%d leases, %d tenants, crowd %v", p.leases.Len(), len(p.tenants), p.crowd)
	}
}

// TestLodgerGivesWayToItsName: a listed worker has the id of one that registered.
func TestLodgerGivesWayToItsName(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		l := p.register(nil)
		p.list(a, "http://10.0.0.2:1,id="+testWorker)
		if e, _ := p.entry(testWorker); p.listed() != 1 || e.Worker.Origin != "10.0.0.2:1" || e.Worker.DiscoveredBy != "alpha" {
			t.Errorf("%d workers, %+v", p.listed(), e.Worker)
		}
		_, err := p.tryBindLease(l, "s1", 1)
		wantRefusal(t, err, ReasonUnknownLease, false)
	})
}

// TestDuplicateHasNoTenant: what a reporter says is of the worker that keeps the
// origin.
func TestDuplicateHasNoTenant(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		p.register(func(reg *Registration) { reg.Spec.Models = []string{"m"} })
		p.list(a, testWorker+",id=x,dialect=native", testWorker+",id=y,dialect=native")
		keeper, _ := p.entry("x")
		other, _ := p.entry("y")
		if len(keeper.Worker.Models) != 1 || !other.Worker.Duplicate || other.Worker.Models != nil {
			t.Errorf("%+v and %+v", keeper.Worker, other.Worker)
		}
	})
}

// TestListedWorkersComeFirst: those that registered by themselves make room.
func TestListedWorkersComeFirst(t *testing.T) {
	for name, c := range map[string]struct {
		limit, want int
	}{"no room": {2, 2}, "room": {3, 3}} {
		t.Run(name, func(t *testing.T) {
			sourcedWith(t, func(o *Options) { o.MaxWorkers = c.limit }, func(p *plane, a, b *teller) {
				p.list(a)
				p.list(b)
				l := p.register(nil)
				p.list(a, "http://10.0.0.2:1", "http://10.0.0.3:1")
				_, err := p.tryBindLease(l, "s1", 1)
				var why *Refusal
				if gone := errors.As(err, &why) && why.Reason == ReasonUnknownLease; p.listed() != c.want || gone != (c.want == 2) {
					t.Errorf("%d workers, %v", p.listed(), err)
				}
				_, err = p.tryRegister(at("10.0.0.8", 1))
				wantRefusal(t, err, ReasonTooManyWorkers, false)
			})
		})
	}
}

// TestFactsAreAskedForWithinTheGuard: questions to a guarded worker are as
// restricted as its loop, and end with it.
func TestFactsAreAskedForWithinTheGuard(t *testing.T) {
	const guarded = "http://127.0.0.1:1,guarded"
	var asked chan error
	var a *teller
	s := &script{probe: offers(offered(store.DialectPoll)), facts: func(ctx context.Context, _ Target, _ int) Finding {
		conn, err := egress.DefaultDial(ctx, "tcp", "127.0.0.1:1")
		if err == nil {
			conn.Close()
		}
		asked <- err
		<-ctx.Done()
		asked <- ctx.Err()
		return Finding{}
	}}
	inBubbleWith(t, func(o *Options) {
		a, asked = newTeller("alpha"), make(chan error, 2)
		o.Sources, o.Prober, o.Dialers = []Source{a}, s, map[store.Dialect]Dialer{store.DialectPoll: s}
	}, func(p *plane) {
		s.plane = p
		p.runAll()
		p.list(a, guarded)
		p.keeper("127.0.0.1:1").wonderNow()
		p.after(settleFacts + testSettle)
		if err := <-asked; !errors.Is(err, egress.ErrDenied) {
			t.Errorf("connecting: %v", err)
		}
		if p.list(a); len(asked) != 1 {
			t.Error("the question goes on without its worker")
		}
	})
}

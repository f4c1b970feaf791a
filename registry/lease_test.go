package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// registration is that of testWorker by a reporter on its host.
func registration() Registration {
	return Registration{Spec: WorkerSpec{URL: testWorker}, Peer: testPeer}
}

// register registers testWorker or fails the test.
func (p *plane) register(change func(*Registration)) Lease {
	p.t.Helper()
	l, err := p.tryRegister(change)
	if err != nil {
		p.t.Fatalf("Register: %v", err)
	}
	p.settle()
	return l
}

func (p *plane) tryRegister(change func(*Registration)) (Lease, error) {
	reg := registration()
	if change != nil {
		change(&reg)
	}
	return p.Register(p.t.Context(), reg)
}

// renew registers with the id of a lease.
func (p *plane) renew(l Lease, change func(*Registration)) (Lease, error) {
	return p.tryRegister(func(reg *Registration) {
		reg.LeaseID = l.ID
		if change != nil {
			change(reg)
		}
	})
}

func (p *plane) tryBindLease(l Lease, source string, sequence uint64) (*Binding, error) {
	return p.BindLease(l.ID, Claim{Addr: "ignored", Role: store.RoleDecode, Source: source, Peer: testPeer}, p.load(source, sequence))
}

// bindLease binds the stream of a lease or fails the test.
func (p *plane) bindLease(l Lease, source string, sequence uint64) *Binding {
	p.t.Helper()
	b, err := p.tryBindLease(l, source, sequence)
	if err != nil {
		p.t.Fatalf("BindLease(%s, %d): %v", source, sequence, err)
	}
	p.settle()
	return b
}

func (p *plane) leaseEvents(e leaseEvent) float64 {
	return testutil.ToFloat64(p.metrics.leaseEvents.WithLabelValues(string(e)))
}

// listed returns the number of workers.
func (p *plane) listed() int {
	st, _ := p.st.Current()
	return len(st.Entries)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// registered runs body with a plane in which no worker is discovered.
func registered(t *testing.T, body func(p *plane)) {
	t.Helper()
	inBubble(t, nil, func(p *plane) {
		p.runAll()
		body(p)
	})
}

func TestRegisteredWorkerLivesAsLongAsItsLease(t *testing.T) {
	registered(t, func(p *plane) {
		before, _ := p.st.Current()
		l := p.register(func(reg *Registration) {
			reg.Spec.Models, reg.Spec.Role, reg.Spec.Zone = []string{"m"}, store.RolePrefill, "eu"
			reg.Spec.Labels = map[string]string{"team": "x"}
			reg.Engine, reg.Version = "vllm", "0.9"
		})
		after, _ := p.st.Current()
		if want := (Grant{testInterval, 2 * testStale, 2 * testStale / 3}); l.Grant != want || l.WorkerID != testWorker || len(l.ID) != 32 {
			t.Errorf("lease %+v", l)
		}
		e, _ := p.entry(testWorker)
		w := e.Worker
		if after.Version != before.Version+1 || w.DiscoveredBy != "registration" || w.Dialect != store.DialectNative ||
			w.Role != store.RolePrefill || w.Zone != "eu" || w.Labels["team"] != "x" || w.Interval != testInterval ||
			!slices.Equal(w.Models, []string{"m"}) || e.Reason != store.ReasonNoReport {
			t.Errorf("version %d became %d, worker %+v, reason %s", before.Version, after.Version, w, e.Reason)
		}
		d := p.diagnostics(testWorker)
		if d.Registration != string(StateRegistered) || d.Engine != "vllm" || d.EngineVersion != "0.9" ||
			d.DialectWhy != "native: it registered itself" {
			t.Errorf("diagnostics %+v", d)
		}
		wantIn(t, p, d.LeaseExpires, 2*testStale-3*testSettle, 2*testStale)
		wantIn(t, p, d.NextRegistration, 2*testStale/3-3*testSettle, 2*testStale/3)
		_, brief, _ := p.Granted(l.ID)
		b := p.bindLease(l, "s1", 7)
		d = p.diagnostics(testWorker)
		wantIn(t, p, d.LeaseExpires, testLease-5*testSettle, testLease)
		wantIn(t, p, d.NextRegistration, testLease/3-5*testSettle, testLease/3)
		if g, _, _ := p.Granted(l.ID); g != (Grant{testInterval, testLease, testLease / 3}) || !isClosed(brief) {
			t.Errorf("granted %+v once it streams, told %v", g, isClosed(brief))
		}
		if e, live := p.entry(testWorker); e.Load == nil || live.Sequence != 7 {
			t.Errorf("entry %+v", e)
		}
		if err := b.Admit(p.load("s1", 8)); err != nil {
			t.Error(err)
		}
		_, changed, err := p.Granted(l.ID)
		if err != nil || isClosed(changed) {
			t.Errorf("granted: %v", err)
		}
		p.after(testLease - 5*testSettle)
		if p.listed() != 1 || isClosed(b.Ended()) || isClosed(changed) {
			t.Error("ended before its time")
		}
		before, _ = p.st.Current()
		p.after(6 * testSettle)
		wantRefusal(t, b.Err(), ReasonLeaseExpired, false)
		if after, _ := p.st.Current(); after.Version != before.Version+1 || len(after.Entries) != 0 {
			t.Errorf("version %d became %d, %d workers", before.Version, after.Version, len(after.Entries))
		}
		if !isClosed(changed) || p.leaseEvents(leaseExpired) != 1 || testutil.ToFloat64(p.metrics.leases) != 0 ||
			testutil.ToFloat64(p.metrics.workers) != 0 || testutil.ToFloat64(p.metrics.bound) != 0 {
			t.Errorf("%v expired, %v held", p.leaseEvents(leaseExpired), testutil.ToFloat64(p.metrics.leases))
		}
		for _, state := range []RegistrationState{StateRegistered, StatePending} {
			if n := testutil.ToFloat64(p.metrics.registrations.WithLabelValues(string(state))); n != 0 {
				t.Errorf("%v %s", n, state)
			}
		}
	})
}

// wantIn checks that an instant lies ahead by least to most.
func wantIn(t *testing.T, p *plane, at store.Instant, least, most time.Duration) {
	t.Helper()
	if in := at.Sub(p.clock.Now()); in < least || in > most {
		t.Errorf("due in %s, want %s to %s", in, least, most)
	}
}

// TestRenewalKeepsTheWorker and its stream, however long it goes on.
func TestRenewalKeepsTheWorker(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(nil)
		b := p.bindLease(l, "s1", 1)
		l.Grant, _, _ = p.Granted(l.ID)
		first, _ := p.entry(testWorker)
		version := first.Version
		for q := range uint64(20) {
			p.after(l.Grant.RenewAfter)
			again, err := p.renew(l, nil)
			if err != nil || again != l {
				t.Fatalf("renewed as %+v, %v", again, err)
			}
			if err := b.Admit(p.load("s1", 2+q)); err != nil {
				t.Fatal(err)
			}
		}
		p.settle()
		e, _ := p.entry(testWorker)
		if e.Row != first.Row || isClosed(b.Ended()) || e.Worker != first.Worker {
			t.Errorf("row %d became %d, version %d %d", first.Row, e.Row, version, e.Version)
		}
		if p.leaseEvents(leaseRenewed) != 20 || p.leaseEvents(leaseGranted) != 1 {
			t.Errorf("%v renewed, %v granted", p.leaseEvents(leaseRenewed), p.leaseEvents(leaseGranted))
		}
		wantIn(t, p, p.diagnostics(testWorker).NextRegistration, l.Grant.RenewAfter-5*testSettle, l.Grant.RenewAfter)
	})
}

// TestRenewalWithOtherFacts changes models, zone and labels in place; another
// role is another identity, which the reporter's stream follows.
func TestRenewalWithOtherFacts(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(func(reg *Registration) { reg.Spec.Role = store.RolePrefill })
		b := p.bindLease(l, "s1", 1)
		first, _ := p.entry(testWorker)
		change := func(reg *Registration) {
			reg.Spec.Role, reg.Spec.Models, reg.Spec.Zone = store.RolePrefill, []string{"b", "a"}, "z"
			reg.Spec.Labels = map[string]string{"a": "b"}
		}
		if _, err := p.renew(l, change); err != nil {
			t.Fatal(err)
		}
		p.settle()
		e, _ := p.entry(testWorker)
		if e.Row != first.Row || e.Load == nil || e.Worker.Zone != "z" || e.Worker.Labels["a"] != "b" ||
			!slices.Equal(e.Worker.Models, []string{"a", "b"}) || isClosed(b.Ended()) {
			t.Errorf("worker %+v", e.Worker)
		}
		again, err := p.renew(l, func(reg *Registration) { reg.Spec.Role = store.RoleDecode })
		if err != nil || again.ID != l.ID {
			t.Fatalf("%+v, %v", again, err)
		}
		p.settle()
		wantRefusal(t, b.Err(), ReasonIdentityChanged, false)
		e, _ = p.entry(testWorker)
		if e.Row == first.Row || e.Load != nil || e.Worker.Role != store.RoleDecode || p.listed() != 1 {
			t.Errorf("entry %+v", e)
		}
		p.bindLease(l, "s1", 2)
		if e, _ = p.entry(testWorker); e.Load == nil {
			t.Error("the lease does not speak for the new identity")
		}
		if _, err = p.renew(l, func(reg *Registration) { reg.Spec.URL = "https://10.0.0.1:30000" }); err != nil {
			t.Fatal(err)
		}
		p.settle()
		if e, _ = p.entry("https://10.0.0.1:30000"); e == nil || p.listed() != 1 {
			t.Errorf("another scheme: %d workers", p.listed())
		}
	})
}

func TestDeregister(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(nil)
		b := p.bindLease(l, "s1", 1)
		wantRefusal(t, p.Deregister(l.ID, otherPeer), ReasonPeerMismatch, false)
		if isClosed(b.Ended()) {
			t.Error("another peer ended the lease")
		}
		if err := p.Deregister(l.ID, testPeer); err != nil {
			t.Fatal(err)
		}
		p.settle()
		wantRefusal(t, b.Err(), ReasonLeaseExpired, false)
		if p.listed() != 0 || p.leaseEvents(leaseReturned) != 1 {
			t.Errorf("%d workers", p.listed())
		}
		wantRefusal(t, p.Deregister(l.ID, testPeer), ReasonUnknownLease, false)
	})
}

// TestBug20NothingResurrectsARemovedWorker: late reports of an old lease, its
// renewal and its stream come to nothing.
func TestBug20NothingResurrectsARemovedWorker(t *testing.T) {
	for name, end := range map[string]func(p *plane, l Lease){
		"expired":       func(p *plane, _ Lease) { p.after(testLease) },
		"given back":    func(p *plane, l Lease) { _ = p.Deregister(l.ID, testPeer) },
		"not listed":    func(p *plane, _ Lease) { p.rediscover() },
		"other dialect": func(p *plane, _ Lease) { p.rediscover(testWorker + ",dialect=none") },
	} {
		t.Run(name, func(t *testing.T) {
			var listing []string
			if name == "not listed" || name == "other dialect" {
				listing = []string{testWorker + ",dialect=native"}
			}
			inBubble(t, listing, func(p *plane) {
				p.runAll()
				l := p.register(nil)
				b := p.bindLease(l, "s1", 1)
				end(p, l)
				p.settle()
				want := 0
				if name == "other dialect" {
					want = 1
				}
				before, _ := p.st.Current()
				if err := b.Admit(p.load("s1", 2)); err == nil {
					t.Error("a late report was taken")
				}
				_, err := p.tryBindLease(l, "s2", 1)
				wantRefusal(t, err, ReasonUnknownLease, false)
				if _, err = p.renew(l, nil); err == nil {
					t.Error("an old lease was renewed")
				}
				_, _, err = p.Granted(l.ID)
				wantRefusal(t, err, ReasonUnknownLease, false)
				p.settle()
				if after, _ := p.st.Current(); after.Version != before.Version || len(after.Entries) != want || p.leases.Len() != 0 {
					t.Errorf("version %d became %d with %d workers", before.Version, after.Version, len(after.Entries))
				}
			})
		})
	}
}

// TestBug23TwoReportersOneOwner: of two reporters of one engine the first stays
// the owner while it is heard, whatever the second does, and that is told. When
// the first is silent the second takes over.
func TestBug23TwoReportersOneOwner(t *testing.T) {
	for name, listing := range map[string][]string{
		"registered only": nil, "listed": {testWorker + ",dialect=native"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, listing, func(p *plane) {
				p.runAll()
				first := p.register(nil)
				b := p.bindLease(first, "a", 1)
				for q := range uint64(60) {
					p.after(testInterval)
					_ = b.Admit(p.load("a", 2+q))
					_, err := p.tryRegister(func(reg *Registration) { reg.Spec.Zone = "other" })
					wantRefusal(t, err, ReasonLeaseHeld, false)
					_, err = p.renew(Lease{ID: "guess"}, nil)
					wantRefusal(t, err, ReasonLeaseHeld, false)
					if q%4 == 0 {
						if _, err := p.renew(first, nil); err != nil {
							t.Fatal(err)
						}
					}
				}
				p.settle()
				e, _ := p.entry(testWorker)
				if e.Load.Source != "a" || e.Worker.Zone != "" || isClosed(b.Ended()) {
					t.Errorf("source %s, zone %q", e.Load.Source, e.Worker.Zone)
				}
				d := p.diagnostics(testWorker)
				if d.LastRefusal != ReasonLeaseHeld || d.Refused != 120 || p.refusals(ReasonLeaseHeld) != 120 {
					t.Errorf("diagnostics %+v, %v counted", d, p.refusals(ReasonLeaseHeld))
				}
				p.after(testStale)
				second := p.register(nil)
				wantRefusal(t, b.Err(), ReasonSuperseded, false)
				if second.ID == first.ID || p.leaseEvents(leaseReplaced) != 1 || p.leases.Len() != 1 {
					t.Errorf("%v replaced, %d held", p.leaseEvents(leaseReplaced), p.leases.Len())
				}
				p.bindLease(second, "b", 1)
				_, err := p.tryBindLease(first, "a", 99)
				wantRefusal(t, err, ReasonUnknownLease, false)
				_, err = p.renew(first, nil)
				wantRefusal(t, err, ReasonLeaseHeld, false)
				p.settle()
				after, _ := p.entry(testWorker)
				if after.Row != e.Row || after.Load.Source != "b" {
					t.Errorf("row %d became %d, source %s", e.Row, after.Row, after.Load.Source)
				}
			})
		})
	}
}

// TestLeaseIsReplacedWhereNoStreamIsBound: a reporter that was restarted need
// not wait.
func TestLeaseIsReplacedWhereNoStreamIsBound(t *testing.T) {
	registered(t, func(p *plane) {
		first := p.register(nil)
		second := p.register(nil)
		p.bindLease(second, "s1", 1).Close()
		third := p.register(nil)
		if first.ID == second.ID || second.ID == third.ID || p.leases.Len() != 1 || p.listed() != 1 {
			t.Errorf("%d leases, %d workers", p.leases.Len(), p.listed())
		}
		p.bindLease(third, "s1", 2)
	})
}

// TestRegistrationIsRefused: what is refused is counted, and changes nothing.
func TestRegistrationIsRefused(t *testing.T) {
	long := strings.Repeat("x", 257)
	bad := func(change func(*Registration)) func(p *plane) error {
		return func(p *plane) error {
			_, err := p.tryRegister(change)
			return err
		}
	}
	for name, c := range map[string]struct {
		try  func(p *plane) error
		want store.Reason
	}{
		"no URL":           {bad(func(reg *Registration) { reg.Spec.URL = "" }), ReasonBadRegistration},
		"user in the URL":  {bad(func(reg *Registration) { reg.Spec.URL = "http://a:b@10.0.0.1:1" }), ReasonBadRegistration},
		"role":             {bad(func(reg *Registration) { reg.Spec.Role = 9 }), ReasonBadRegistration},
		"model":            {bad(func(reg *Registration) { reg.Spec.Models = []string{long} }), ReasonBadRegistration},
		"models":           {bad(func(reg *Registration) { reg.Spec.Models = numbered(65) }), ReasonBadRegistration},
		"zone":             {bad(func(reg *Registration) { reg.Spec.Zone = "a\nb" }), ReasonBadRegistration},
		"label":            {bad(func(reg *Registration) { reg.Spec.Labels = map[string]string{"": "x"} }), ReasonBadRegistration},
		"port label":       {bad(func(reg *Registration) { reg.Spec.Labels = map[string]string{"reporter_port": "x"} }), ReasonBadRegistration},
		"engine":           {bad(func(reg *Registration) { reg.Engine = "a\x00" }), ReasonBadRegistration},
		"version":          {bad(func(reg *Registration) { reg.Version = long }), ReasonBadRegistration},
		"negative life":    {bad(func(reg *Registration) { reg.TTL = -1 }), ReasonBadRegistration},
		"unknown lease":    {bad(func(reg *Registration) { reg.LeaseID = "x" }), ReasonUnknownLease},
		"another host":     {bad(func(reg *Registration) { reg.Peer = otherPeer }), ReasonPeerMismatch},
		"unknown name":     {bad(func(reg *Registration) { reg.Spec.URL = "http://engine:1" }), ReasonNotSynced},
		"listed elsewhere": {bad(func(reg *Registration) { reg.Spec.URL = "http://10.0.0.2:1" }), ReasonPeerMismatch},
		"taken id":         {bad(func(reg *Registration) { reg.Spec.URL = "http://10.0.0.1:5" }), ReasonUnknownWorker},
		"pushes":           {bad(func(reg *Registration) { reg.Spec.URL = "http://10.0.0.1:6" }), ReasonDialectMismatch},
		"draining": {func(p *plane) error {
			p.Drain()
			return bad(nil)(p)
		}, ReasonShuttingDown},
		"not synced": {func(p *plane) error {
			p.mu.Lock()
			p.synced = false
			p.mu.Unlock()
			return bad(nil)(p)
		}, ReasonNotSynced},
		"off": {func(p *plane) error {
			p.opts.Registration = RegistrationOff
			return bad(nil)(p)
		}, ReasonRegistrationOff},
		"known only": {func(p *plane) error {
			p.opts.Registration = RegistrationKnown
			return bad(nil)(p)
		}, ReasonUnknownWorker},
		"too many": {func(p *plane) error {
			p.opts.MaxWorkers = p.listed()
			return bad(nil)(p)
		}, ReasonTooManyWorkers},
	} {
		t.Run(name, func(t *testing.T) {
			listing := []string{"http://10.0.0.2:1,dialect=native", "http://10.0.0.3:1,dialect=none,id=http://10.0.0.1:5", "http://10.0.0.1:6,dialect=push"}
			inBubble(t, listing, func(p *plane) {
				p.runAll()
				before, _ := p.st.Current()
				wantRefusal(t, c.try(p), c.want, false)
				p.settle()
				if after, _ := p.st.Current(); after.Version != before.Version || p.leases.Len() != 0 {
					t.Errorf("version %d became %d, %d leases", before.Version, after.Version, p.leases.Len())
				}
				if p.refusals(c.want) != 1 {
					t.Errorf("counted %v times", p.refusals(c.want))
				}
			})
		})
	}
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("m", i))
	}
	return names
}

// TestKnownWorkersMayRegister where no others may.
func TestKnownWorkersMayRegister(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Registration, o.Dialers = []string{testWorker + ",dialect=native"}, RegistrationKnown, nil
	}, func(p *plane) {
		p.runAll()
		if d := p.wantWay(StatePending); d.DialectWhy != "native: configured" || d.LeaseExpires != 0 {
			t.Errorf("diagnostics %+v", d)
		}
		l := p.register(func(reg *Registration) { reg.TTL = 5 * time.Second })
		p.wantWay(StateRegistered)
		b := p.bindLease(l, "s1", 1)
		p.after(5 * time.Second)
		wantRefusal(t, b.Err(), ReasonLeaseExpired, false)
		d := p.wantWay(StatePending)
		e, _ := p.entry(testWorker)
		if d.LeaseExpires != 0 || d.NextRegistration != 0 || e.Load == nil || e.Worker.DiscoveredBy != "flag" {
			t.Errorf("diagnostics %+v, entry %+v", d, e)
		}
	})
}

// TestListingStandsBeforeTheRegistration: what it leaves open is taken from the
// registration, and stays once the lease ended.
func TestListingStandsBeforeTheRegistration(t *testing.T) {
	inBubble(t, []string{testWorker + ",dialect=native,zone=listed,label.a=listed"}, func(p *plane) {
		p.runAll()
		first, _ := p.entry(testWorker)
		p.register(func(reg *Registration) {
			reg.Spec.Zone, reg.Spec.Models, reg.TTL = "own", []string{"m"}, 5*time.Second
			reg.Spec.Labels = map[string]string{"a": "own", "b": "own"}
		})
		for range 2 {
			p.after(settleFacts)
			e, _ := p.entry(testWorker)
			if w := e.Worker; w.Zone != "listed" || w.Labels["a"] != "listed" || w.Labels["b"] != "own" ||
				!slices.Equal(w.Models, []string{"m"}) || w.DiscoveredBy != "flag" || e.Row != first.Row {
				t.Errorf("worker %+v", w)
			}
			p.after(5 * time.Second)
		}
		p.rediscover(testWorker + ",dialect=native,model=listed")
		p.register(func(reg *Registration) { reg.Spec.Models, reg.Spec.Role = []string{"m"}, store.RoleDecode })
		p.after(settleFacts + testSettle)
		p.wantEngine(store.RoleDecode, "listed")
	})
}

// TestReconciliationKeepsRegisteredWorkers: a change of what is listed drops
// none of them, and a listing of theirs takes over in place where the identity
// is the same.
func TestReconciliationKeepsRegisteredWorkers(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(nil)
		b := p.bindLease(l, "s1", 1)
		first, _ := p.entry(testWorker)
		same := func(by string, workers int) {
			t.Helper()
			p.after(settleFacts)
			e, _ := p.entry(testWorker)
			if e == nil || e.Row != first.Row || e.Load == nil || isClosed(b.Ended()) || e.Worker.DiscoveredBy != by || p.listed() != workers {
				t.Fatalf("entry %+v of %d workers, want it by %s", e, p.listed(), by)
			}
		}
		p.rediscover("http://10.0.0.7:1,dialect=none")
		same("registration", 2)
		p.rediscover(testWorker + ",dialect=native,zone=z")
		same("flag", 1)
		if e, _ := p.entry(testWorker); e.Worker.Zone != "z" || p.diagnostics(testWorker).DialectWhy != "native: configured" {
			t.Errorf("worker %+v", e.Worker)
		}
		if _, err := p.renew(l, nil); err != nil {
			t.Error(err)
		}
		same("flag", 1)
		p.rediscover()
		same("registration", 1)
		p.rediscover(testWorker + ",dialect=native,id=w") // it is another one
		wantRefusal(t, b.Err(), ReasonIdentityChanged, false)
		_, err := p.tryBindLease(l, "s1", 2)
		wantRefusal(t, err, ReasonUnknownLease, false)
		again := p.bindLease(p.register(nil), "s1", 2)
		if e, _ := p.entry("w"); e == nil || e.Load == nil || p.listed() != 1 {
			t.Errorf("it cannot register again: %d workers", p.listed())
		}
		p.rediscover()
		wantRefusal(t, again.Err(), ReasonWorkerRemoved, false)
		p.bindLease(p.register(nil), "s1", 3)
		p.after(testLease)
		if p.listed() != 0 {
			t.Error("it outlived its lease")
		}
	})
}

// TestHostNameIsResolved where the peer is not known to be one of its
// addresses, in bounded time.
func TestHostNameIsResolved(t *testing.T) {
	registered(t, func(p *plane) {
		var asked atomic.Int32
		p.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			asked.Add(1)
			if host == "slow" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if host != "engine" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}, nil
		}
		named := func(host string) func(*Registration) {
			return func(reg *Registration) { reg.Spec.URL = "http://" + host + ":30000" }
		}
		l := p.register(named("engine"))
		p.bindLease(l, "s1", 1)
		for range 3 {
			if _, err := p.renew(l, named("engine")); err != nil {
				t.Fatal(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		_, err := p.tryRegister(func(reg *Registration) { named("engine")(reg); reg.Peer = otherPeer })
		wantRefusal(t, err, ReasonPeerMismatch, false)
		began := time.Now()
		_, err = p.tryRegister(named("slow"))
		wantRefusal(t, err, ReasonNotSynced, false)
		if took := time.Since(began); took != p.opts.CallTimeout {
			t.Errorf("took %s", took)
		}
		p.opts.OriginOnly = true
		asked.Store(0)
		p.register(func(reg *Registration) { named("other")(reg); reg.Peer = otherPeer })
		if asked.Load() != 0 {
			t.Error("asked although the address does not count")
		}
	})
}

// TestListedPeersMayRegister for the worker whose setting names them.
func TestListedPeersMayRegister(t *testing.T) {
	inBubble(t, []string{testWorker + ",dialect=native,peers=10.9.9.0/24"}, func(p *plane) {
		p.runAll()
		l := p.register(func(reg *Registration) { reg.Peer = otherPeer })
		if _, err := p.BindLease(l.ID, Claim{Source: "s", Peer: otherPeer}, p.load("s", 1)); err != nil {
			t.Error(err)
		}
		_, err := p.BindLease(l.ID, Claim{Source: "s", Peer: netip.MustParseAddrPort("10.9.8.1:1")}, p.load("s", 2))
		wantRefusal(t, err, ReasonPeerMismatch, false)
	})
}

// TestLeaseFollowsTheRulesOfSources: takeover, return and sequence are those of
// pushed streams.
func TestLeaseFollowsTheRulesOfSources(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(nil)
		first := p.bindLease(l, "a", 5)
		second := p.bindLease(l, "b", 1)
		wantRefusal(t, first.Err(), ReasonSuperseded, false)
		_, err := p.tryBindLease(l, "a", 6)
		wantRefusal(t, err, ReasonRetired, false)
		_, err = p.tryBindLease(l, "b", 1<<40)
		wantRefusal(t, err, ReasonSequenceJump, true)
		if err := second.Check(Claim{Source: "b", Addr: "anything"}); err != nil {
			t.Error(err)
		}
		wantRefusal(t, second.Check(Claim{Source: "c"}), ReasonClaimChanged, false)
		p.Drain()
		_, err = p.tryBindLease(l, "b", 2)
		wantRefusal(t, err, ReasonShuttingDown, false)
	})
}

// TestGrantsUnderLoad: 10 reports per second are allowed; 20 reporters want one
// each. Open streams are told, and what is shown follows.
func TestGrantsUnderLoad(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxReportsPerSecond, o.StaleAfter = 10, 30*time.Second }, func(p *plane) {
		p.runAll()
		of := func(i int) func(*Registration) {
			return func(reg *Registration) {
				reg.Spec.URL = fmt.Sprintf("http://10.0.0.1:%d", 1+i)
				reg.Interval = time.Second
			}
		}
		speak := func(i int) Lease {
			l := p.register(of(i))
			if _, err := p.BindLease(l.ID, Claim{Source: fmt.Sprint(i), Peer: testPeer}, p.load(fmt.Sprint(i), 1)); err != nil {
				t.Fatal(err)
			}
			p.settle()
			return l
		}
		first := speak(0)
		_, changed, err := p.Granted(first.ID)
		if err != nil {
			t.Fatal(err)
		}
		leases := []Lease{first}
		for i := range 19 {
			leases = append(leases, speak(1+i))
			if i == 8 && isClosed(changed) {
				t.Error("told of a change below the limit")
			}
		}
		g, changed2, err := p.Granted(first.ID)
		if err != nil || !isClosed(changed) || isClosed(changed2) || g.Interval < 2*time.Second || g.Interval > 2300*time.Millisecond {
			t.Errorf("granted %+v, %v, told %v", g, err, isClosed(changed))
		}
		sum := 0.0
		for i, l := range leases {
			g, _, err := p.Granted(l.ID)
			if err != nil {
				t.Fatal(err)
			}
			e, _ := p.entry(l.WorkerID)
			if e.Worker.Interval != g.Interval {
				t.Errorf("worker %d shows %s, granted %s", i, e.Worker.Interval, g.Interval)
			}
			sum += 1 / g.Interval.Seconds()
		}
		if sum > 10 || testutil.ToFloat64(p.metrics.leaseLoad) < 2 {
			t.Errorf("%v reports per second, factor %v", sum, testutil.ToFloat64(p.metrics.leaseLoad))
		}
		for _, l := range leases[1:] {
			if err := p.Deregister(l.ID, testPeer); err != nil {
				t.Fatal(err)
			}
		}
		p.settle()
		if g, _, _ = p.Granted(first.ID); g.Interval != time.Second || !isClosed(changed2) {
			t.Errorf("granted %+v once they are gone", g)
		}
		if e, _ := p.entry(first.WorkerID); e.Worker.Interval != time.Second {
			t.Errorf("the worker shows %s", e.Worker.Interval)
		}
	})
}

// TestLeasesThatEndTogether are one version.
func TestLeasesThatEndTogether(t *testing.T) {
	registered(t, func(p *plane) {
		for i := range 50 {
			if _, err := p.tryRegister(func(reg *Registration) { reg.Spec.URL = fmt.Sprintf("http://10.0.0.1:%d", 1+i) }); err != nil {
				t.Fatal(err)
			}
		}
		p.after(2*testStale - time.Second) // the warming is over
		before, _ := p.st.Current()
		p.after(time.Second + testSettle)
		if after, _ := p.st.Current(); len(before.Entries) != 50 || len(after.Entries) != 0 || after.Version != before.Version+1 {
			t.Errorf("%d workers became %d in %d versions", len(before.Entries), len(after.Entries), after.Version-before.Version)
		}
	})
}

// TestNativeStreamOfAnOpenDialect takes the turn from any other dialect, keeps
// it while it is heard, and gives it back.
func TestNativeStreamOfAnOpenDialect(t *testing.T) {
	const why = "native: a reporter registered"
	for name, c := range map[string]struct {
		offers []Offer
		want   store.Dialect
		source string
	}{
		"from poll": {[]Offer{absent(push, ReasonUnsupported), offered(poll)}, poll, "polled"},
		"from push": {[]Offer{offered(push), offered(poll)}, push, "pushed"},
	} {
		for _, end := range []string{"silent", "lease given back"} {
			t.Run(name+", "+end, func(t *testing.T) {
				s := &script{probe: offers(c.offers...)}
				scripted(t, s, []string{testWorker}, func(p *plane) {
					engine := p.net.add(testOrigin, always(200, goodAnswer))
					p.after(2 * time.Second)
					if e, _ := p.entry(testWorker); e.Worker.Dialect != c.want {
						t.Fatalf("dialect %s at first", e.Worker.Dialect)
					}
					l := p.register(func(reg *Registration) { reg.TTL = time.Minute })
					b := p.bindLease(l, "s1", 1)
					p.wantWay(StateRegistered)
					p.after(minBackoff)
					calls := engine.count()
					for q := range uint64(40) {
						p.after(testInterval)
						_ = b.Admit(p.load("s1", 2+q))
						_, err := p.Bind(claim("pushed"), p.load("pushed", uint64(p.clock.Now())))
						wantRefusal(t, err, ReasonLeaseHeld, false)
					}
					p.settle()
					p.wantHeard("s1")
					p.wantDialect(store.DialectNative, why)
					if engine.count() != calls || isClosed(b.Ended()) {
						t.Errorf("%d calls while it is heard, %v", engine.count()-calls, b.Err())
					}
					if end == "silent" {
						p.after(testStale - testInterval)
						p.wantDialect(store.DialectNative, why)
						p.after(2 * time.Second)
					} else {
						_ = p.Deregister(l.ID, testPeer)
						wantRefusal(t, b.Err(), ReasonLeaseExpired, false)
						p.after(testStale + time.Second)
					}
					if e, _ := p.entry(testWorker); e.Worker.Dialect != c.want || !strings.HasPrefix(e.Load.Source, c.source) {
						t.Errorf("dialect %s, source %s, want %s again", e.Worker.Dialect, e.Load.Source, c.want)
					}
				})
			})
		}
	}
}

// TestNativeStreamThatReconnects keeps its turn.
func TestNativeStreamThatReconnects(t *testing.T) {
	s := &script{probe: offers(offered(poll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		l := p.register(func(reg *Registration) { reg.TTL = time.Minute })
		for q := range uint64(5) {
			b := p.bindLease(l, "s1", q)
			p.after(time.Second)
			b.Close()
			p.after(testStale/2 - 2*testSettle)
		}
		if e, _ := p.entry(testWorker); e.Worker.Dialect != store.DialectNative || s.probes() > 1 {
			t.Errorf("dialect %s, %d probes", e.Worker.Dialect, s.probes())
		}
	})
}

// TestLeaseOfAWorkerWhoseRoleChanges: the new identity is reported for by the
// same lease.
func TestLeaseOfAWorkerWhoseRoleChanges(t *testing.T) {
	s := &script{probe: offers(offered(poll))}
	scripted(t, s, []string{testWorker}, func(p *plane) {
		l := p.register(func(reg *Registration) { reg.Spec.Role = store.RolePrefill })
		p.after(settleFacts)
		first := p.bindLease(l, "s1", 1)
		p.wantEngine(store.RolePrefill)
		p.rediscover(testWorker + ",role=decode")
		wantRefusal(t, first.Err(), ReasonIdentityChanged, false)
		if d := p.diagnostics(testWorker); d.LeaseExpires == 0 {
			t.Error("the lease is not shown")
		}
		p.bindLease(l, "s1", 2)
		p.after(time.Second)
		p.wantEngine(store.RoleDecode)
		if e, _ := p.entry(testWorker); e.Worker.Dialect != store.DialectNative || e.Load == nil {
			t.Errorf("entry %+v", e)
		}
	})
}

// TestRegistrationsInRandomOrder beside changes of what is listed: every lease
// has its worker, and every worker is listed or has its lease.
func TestRegistrationsInRandomOrder(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		inBubbleWith(t, func(o *Options) { o.MaxReportsPerSecond = 4 }, func(p *plane) {
			p.runAll()
			url := func(i int) string { return fmt.Sprintf("http://10.0.0.1:%d", 1+i) }
			leases := map[int]Lease{}
			for range 600 {
				i := rnd.IntN(8)
				switch rnd.IntN(6) {
				case 0:
					var values []string
					for k := range 8 {
						if rnd.IntN(3) == 0 {
							values = append(values, url(k)+",dialect="+[]string{"native", "push", "none", "native,role=decode"}[rnd.IntN(4)])
						}
					}
					p.rediscover(values...)
				case 1:
					_ = p.Deregister(leases[i].ID, testPeer)
				case 2:
					_, _ = p.tryBindLease(leases[i], fmt.Sprint("s", rnd.IntN(3)), uint64(p.clock.Now()))
				default:
					l, err := p.tryRegister(func(reg *Registration) {
						reg.Spec.URL, reg.Spec.Role = url(i), store.Role(rnd.IntN(3))
						reg.TTL = time.Duration(rnd.IntN(20)) * time.Second
						if rnd.IntN(2) == 0 {
							reg.LeaseID = leases[i].ID
						}
					})
					if err == nil {
						leases[i] = l
					}
				}
				p.after(time.Duration(rnd.IntN(1500)) * time.Millisecond)
				p.checkTenants()
			}
			p.rediscover()
			p.after(11 * time.Minute)
			if p.listed() != 0 || testutil.ToFloat64(p.metrics.leases) != 0 || testutil.ToFloat64(p.metrics.bound) != 0 {
				t.Errorf("seed %d: %d workers, %v leases are left", seed, p.listed(), testutil.ToFloat64(p.metrics.leases))
			}
		})
	}
}

// checkTenants holds leases and workers to each other.
func (p *plane) checkTenants() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tenants) != p.leases.Len() {
		p.t.Fatalf("%d tenants, %d leases", len(p.tenants), p.leases.Len())
	}
	for origin, t := range p.tenants {
		w := p.keepers[origin]
		if w == nil || !w.registers() || p.leases.Of(origin) != t.lease || w.lease != t.lease.ID || p.workers[w.id] != w {
			p.t.Fatalf("%s: tenant %+v, worker %+v", origin, t, w)
		}
	}
	for _, w := range p.workers {
		if w.unlisted() && p.tenants[w.origin] == nil {
			p.t.Fatalf("%s has no lease and is not listed", w.id)
		}
		if b := w.bound; b != nil && b.claim.lease != "" && p.leases.Get(b.claim.lease) == nil {
			p.t.Fatalf("%s is spoken for by a lease that ended", w.id)
		}
	}
}

// FuzzRegistrable: what a reporter may say is within the limits of the worker
// flag, and names the worker as that does.
func FuzzRegistrable(f *testing.F) {
	f.Add("http://a:1", "m", "eu", "team", "x", uint8(2))
	f.Add("https://[::1]", "", "", "", "", uint8(9))
	f.Add("HTTP://A/b/", "\n", "z", "reporter_port", "0", uint8(0))
	f.Fuzz(func(t *testing.T, url, model, zone, label, value string, role uint8) {
		in := WorkerSpec{URL: url, Models: []string{model}, Zone: zone, Labels: map[string]string{label: value}, Role: store.Role(role)}
		out, err := in.registrable()
		if err != nil {
			return
		}
		want, err := ParseWorkerFlag(url)
		if err != nil && !strings.Contains(url, ",") {
			t.Fatalf("%q: %v", url, err)
		}
		if err == nil && (out.ID != want.ID || out.Origin != want.Origin || out.URL != want.URL) {
			t.Fatalf("%q became %+v, want %+v", url, out, want)
		}
		if checkText(model, maxModelBytes) != nil || checkText(label, maxZoneBytes) != nil || role > uint8(store.RoleDecode) {
			t.Fatalf("%+v was taken", in)
		}
	})
}

// TestConcurrentRegistrations has reporters of a few engines register, bind,
// renew and leave at once while leases end and discovery changes.
func TestConcurrentRegistrations(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.MaxReportsPerSecond = 3 }, func(p *plane) {
		p.runAll()
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				url := fmt.Sprintf("http://10.0.0.1:%d", 1+i%6)
				var l Lease
				for n := range uint64(200) {
					next, err := p.tryRegister(func(reg *Registration) {
						reg.Spec.URL, reg.LeaseID, reg.TTL = url, l.ID, time.Second
					})
					if l = next; err != nil {
						l = Lease{}
					}
					_, _ = p.tryBindLease(l, fmt.Sprint("s", i), n)
					_, _, _ = p.Granted(l.ID)
					if n%9 == 0 {
						_ = p.Deregister(l.ID, testPeer)
					}
					<-time.After(time.Duration(n%4) * 500 * time.Millisecond)
				}
			})
		}
		for i := range 20 {
			p.rediscover(fmt.Sprintf("http://10.0.0.1:%d,dialect=native", 1+i%6))
			p.after(time.Second)
			p.checkTenants()
		}
		all.Wait()
		p.rediscover()
		p.after(time.Minute)
		if p.listed() != 0 || p.leases.Len() != 0 {
			t.Errorf("%d workers and %d leases are left", p.listed(), p.leases.Len())
		}
	})
}

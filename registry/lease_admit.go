package registry

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/loadplane/loadplane/registry/lease"
	"github.com/loadplane/loadplane/store"
)

// maxVersionBytes bounds the kind and the version of an engine.
const maxVersionBytes = 128

// tenant is what a lease was granted for. It is guarded by Registry.mu.
type tenant struct {
	lease *lease.Lease
	// spec is the engine as it was registered last, and engine and version what
	// it is said to be.
	spec            WorkerSpec
	engine, version string
	// alone says that no discovery listed the worker when the lease began: it is
	// there for as long as the lease is.
	alone bool
	// from is the address that it was registered from.
	from netip.Prefix
	// id and uid are those of the worker that discovery listed last at the
	// origin while the lease lasts; empty for none.
	id, uid string
}

// of says whether a listing is of the engine that the lease is for: of the same
// UID, or, where not both are known, of the same id.
func (t *tenant) of(f *found) bool {
	if t.uid != "" && f.UID != "" {
		return t.uid == f.UID
	}
	return t.id == "" || t.id == f.ID
}

// listed notes under which names discovery lists the engine.
func (t *tenant) listed(id, uid string) { t.id, t.uid = id, cmp.Or(uid, t.uid) }

// found returns the tenant's worker as discovery would list it.
func (t *tenant) found() found {
	f := found{WorkerSpec: t.spec, by: byRegistration}
	f.UID = t.uid
	f.Interval = t.lease.Grant.Interval
	return f
}

// newBook returns the book of leases that the options ask for.
func (o *Options) newBook() *lease.Book {
	return lease.NewBook(lease.Limits{
		TTL: o.Lease, BriefTTL: 2 * o.StaleAfter, MaxInterval: o.StaleAfter / 3, MaxRate: o.MaxReportsPerSecond,
	})
}

// applicant is a registration that was examined.
type applicant struct {
	*Registration
	spec WorkerSpec
	// addrs are the addresses of the host, where they had to be asked for.
	addrs []netip.Addr
}

// examine checks a registration by the rules of the worker flag.
func (r *Registry) examine(reg *Registration) (*applicant, *Refusal) {
	a := &applicant{Registration: reg}
	spec, err := reg.Spec.registrable()
	for _, text := range []string{reg.Engine, reg.Version} {
		if err == nil && text != "" {
			err = checkText(text, maxVersionBytes)
		}
	}
	if err == nil && (reg.TTL < 0 || reg.Interval < 0) {
		err = fmt.Errorf("lease %s or interval %s is negative", reg.TTL, reg.Interval)
	}
	if err != nil {
		return a, &Refusal{Reason: ReasonBadRegistration, Message: err.Error()}
	}
	a.spec = spec
	return a, nil
}

// registrable returns what a reporter may say of its engine.
func (s *WorkerSpec) registrable() (WorkerSpec, error) {
	n, err := NewSpec(s.URL)
	if err != nil {
		return n, err
	}
	if s.Role > store.RoleDecode {
		return n, fmt.Errorf("role: there is no role %d", s.Role)
	}
	n.Role, n.Dialect = s.Role, store.DialectNative
	if err := n.addModels(s.Models); err != nil {
		return n, fmt.Errorf("model: %w", err)
	}
	if s.Zone != "" {
		if err := n.Set("zone", s.Zone); err != nil {
			return n, fmt.Errorf("zone: %w", err)
		}
	}
	for name, value := range s.Labels {
		if err := n.setLabel(name, value); err != nil {
			return n, fmt.Errorf("label: %w", err)
		}
	}
	return n, nil
}

// addressesOf asks for the addresses of an applicant's host, in bounded time,
// where the peer is not known to be one of them.
func (r *Registry) addressesOf(ctx context.Context, a *applicant) []netip.Addr {
	w := r.keeper(a.spec.Origin)
	if w == nil {
		w = r.stranger(a.spec.Origin)
	}
	if r.opts.Registration == RegistrationOff || w.vouch(a.Peer.Addr(), nil) == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, r.opts.CallTimeout)
	defer stop()
	return w.resolve(ctx)
}

// stranger stands for a worker that is not there.
func (r *Registry) stranger(origin string) *worker {
	w := &worker{reg: r, origin: origin}
	w.addrs = literalAddrs(w.host())
	return w
}

// vouch says whether a peer may speak for the worker, whose addresses are found
// where these were asked for.
func (w *worker) vouch(peer netip.Addr, found []netip.Addr) *Refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(found, peer.Unmap().WithZone("")) {
		w.addrs = found
	}
	if len(w.addrs) == 0 {
		w.addrs = found
	}
	return w.checkPeer(peer)
}

// admit begins or renews the lease of an applicant.
func (r *Registry) admit(a *applicant) (Lease, []ended, *Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countStreams()
	w, t := r.keepers[a.spec.Origin], r.tenants[a.spec.Origin]
	if why := r.mayRegister(a, w, t); why != nil {
		return Lease{}, nil, why
	}
	var d store.Discovery
	var streams []ended
	t, streams = r.grant(a, w, t)
	w, more := r.house(t, &d)
	r.balance(&d)
	_ = w.vouch(a.Peer.Addr(), a.addrs) // it was held to it before
	w.lodge(t)
	r.apply(&d)
	poke(r.recounted)
	if r.leases.Next() == t.lease {
		poke(r.leased)
	}
	return Lease{ID: t.lease.ID, WorkerID: w.id, Grant: Grant(t.lease.Grant)}, append(streams, more...), nil
}

// mayRegister says why an applicant is refused; nil where it is not. w is the
// worker of its origin and t who holds it, nil for none.
func (r *Registry) mayRegister(a *applicant, w *worker, t *tenant) *Refusal {
	mine := t != nil && t.lease.ID == a.LeaseID
	switch {
	case r.draining:
		return shuttingDown()
	case r.opts.Registration == RegistrationOff:
		return &Refusal{Reason: ReasonRegistrationOff, Message: "registration is off here"}
	case !r.synced:
		return &Refusal{Reason: ReasonNotSynced, Message: "discovery is not complete yet"}
	case w == nil:
		if why := r.mayJoin(a); why != nil {
			return why
		}
		w = r.stranger(a.spec.Origin)
	case w.noEngine:
		return noEngine(w)
	case !w.registers():
		return &Refusal{Reason: ReasonDialectMismatch, Message: "the worker's dialect is " + w.dialect.String()}
	}
	if why := w.vouch(a.Peer.Addr(), a.addrs); why != nil {
		return why
	}
	switch {
	case mine:
		return nil
	case t != nil && w.heardBy(t.lease.ID):
		return leaseHeld()
	case t == nil && a.LeaseID != "":
		return unknownLease()
	case t == nil && r.leases.Len() >= r.opts.MaxWorkers:
		return tooManyWorkers()
	case t == nil && r.keepers[a.spec.Origin] == nil:
		return r.crowded(a)
	}
	return nil
}

// mayJoin says why a worker that discovery does not list is not added.
func (r *Registry) mayJoin(a *applicant) *Refusal {
	switch {
	case r.opts.Registration == RegistrationKnown:
		return &Refusal{Reason: ReasonUnknownWorker, Message: "no worker has the origin " + a.spec.Origin}
	case r.workers[a.spec.ID] != nil:
		return &Refusal{Reason: ReasonUnknownWorker, Message: "the worker " + a.spec.ID + " has another origin"}
	case len(r.workers) >= r.opts.MaxWorkers:
		return tooManyWorkers()
	}
	return nil
}

func tooManyWorkers() *Refusal {
	return &Refusal{Reason: ReasonTooManyWorkers, Message: "there are as many workers as are allowed"}
}

// registers says whether the worker may be reported for by a lease.
func (w *worker) registers() bool {
	return !w.noEngine && (w.dialect == store.DialectNative || w.dialect == store.DialectUnspecified)
}

// heardBy says whether the stream of a lease is bound and was heard within
// StaleAfter.
func (w *worker) heardBy(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound != nil && w.bound.claim.lease == id && w.reg.clock.Now().Sub(w.accepted) < w.reg.opts.StaleAfter
}

// grant renews the lease of an applicant, or gives it one in the place of that
// of t, nil for none, and ends the stream of that.
func (r *Registry) grant(a *applicant, w *worker, t *tenant) (*tenant, []ended) {
	now := time.Now()
	alone := w == nil || (t != nil && t.alone)
	wish := lease.Wish{TTL: a.TTL, Interval: cmp.Or(a.Interval, r.usualInterval(w)), Brief: alone}
	if t != nil && t.lease.ID == a.LeaseID {
		r.leases.Renew(t.lease, wish, now)
		t.spec, t.engine, t.version = a.spec, a.Engine, a.Version
		r.metrics.tenancy(leaseRenewed)
		return t, nil
	}
	var streams []ended
	if t != nil {
		r.crowd.leave(t)
		streams = w.vacate(t.lease.ID, superseded())
		r.metrics.tenancy(leaseReplaced)
	}
	t = &tenant{
		lease: r.leases.Begin(a.spec.Origin, wish, now), alone: alone,
		spec: a.spec, engine: a.Engine, version: a.Version, from: from(a.Peer.Addr()),
	}
	r.tenants[a.spec.Origin] = t
	r.crowd.enter(t)
	r.metrics.tenancy(leaseGranted)
	return t, streams
}

// usualInterval is that at which a worker is to be reported for where its
// reporter wants none.
func (r *Registry) usualInterval(w *worker) time.Duration {
	if w == nil {
		return r.opts.ReportInterval
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.def.DiscoveredBy == byRegistration {
		return r.opts.ReportInterval
	}
	return w.def.Interval
}

// house returns the worker of a tenant: the one that is listed, which takes over
// what its listing leaves open, or one that is there by the lease.
func (r *Registry) house(t *tenant, d *store.Discovery) (*worker, []ended) {
	old := r.keepers[t.spec.Origin]
	if old != nil && !old.unlisted() {
		t.listed(old.id, old.assume(&t.spec))
		return old, nil
	}
	f := t.found()
	w, fresh := r.place(&f, d)
	if !fresh {
		return w, nil
	}
	var streams []ended
	if old != nil {
		streams = r.evict(old, gone(true), d)
	}
	r.workers[w.id], r.keepers[w.origin] = w, w
	r.metrics.workers.Set(float64(len(r.workers)))
	w.expect()
	return w, streams
}

// assume takes over what a reporter says of a listed worker, and returns the
// worker's UID.
func (w *worker) assume(spec *WorkerSpec) (uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.registered == nil || !reflect.DeepEqual(*w.registered, *spec) {
		own := *spec
		w.registered = &own
		poke(w.reg.learned)
	}
	return w.uid
}

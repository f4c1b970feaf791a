package registry

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/loadplane/loadplane/store"
)

// RegistrationRule says who may register itself.
type RegistrationRule uint8

// The rules.
const (
	// RegistrationOpen lets every peer register an engine on its own address.
	RegistrationOpen RegistrationRule = iota
	// RegistrationKnown lets only workers register that discovery lists.
	RegistrationKnown
	// RegistrationOff lets nobody.
	RegistrationOff
)

// Registration is what a reporter asks for. It is a plain value.
type Registration struct {
	// LeaseID is the lease to renew; empty begins one.
	LeaseID string
	// Spec is the engine as the reporter names it: URL, role, models, zone and
	// labels; the other fields are ignored.
	Spec WorkerSpec
	// TTL and Interval are those that are wanted; 0 leaves them to the plane.
	TTL, Interval time.Duration
	// Engine and Version are the kind and the version of the engine; empty for
	// unknown.
	Engine, Version string
	// Peer is the remote address of the connection.
	Peer netip.AddrPort
}

// attrs say in the log who asks for what.
func (reg *Registration) attrs() []slog.Attr {
	return []slog.Attr{slog.String("url", cut(reg.Spec.URL)), slog.String("peer", reg.Peer.String())}
}

// Lease is what a reporter was granted. It is a plain value.
type Lease struct {
	// ID is the secret name of the lease.
	ID string
	// WorkerID is the worker that is reported for.
	WorkerID string
	// Grant is what it was granted.
	Grant Grant
}

// Grant is what a reporter is allowed. It is a plain value and comparable.
type Grant struct {
	// Interval is that of reports.
	Interval time.Duration
	// TTL is the life of the lease from its last renewal, RenewAfter when to
	// renew it.
	TTL, RenewAfter time.Duration
}

// Register begins or renews the lease of a reporter that registers itself. The
// URL's origin names the worker: one that discovery lists is reported for as
// it is listed, another is added until the lease ends. The peer has to be
// allowed to speak for it as a pushing engine has. Nothing changes when the
// error is a *Refusal.
//
// A worker has one lease. It goes to another reporter when its reporter is not
// bound, or was not heard for StaleAfter. The wanted TTL is held to at least
// four intervals and 1 s, and at most ten minutes; the interval to at least
// 10 ms and at most a third of StaleAfter, and it is raised under load.
func (r *Registry) Register(ctx context.Context, reg Registration) (Lease, error) {
	a, why := r.examine(&reg)
	var l Lease
	var streams []ended
	if why == nil {
		a.addrs = r.addressesOf(ctx, a)
		l, streams, why = r.admit(a)
	}
	for _, e := range streams {
		r.refuse(e.w, e.why)
	}
	if why != nil {
		r.refuse(r.keeper(a.spec.Origin), why, reg.attrs()...)
		return Lease{}, why
	}
	return l, nil
}

// keeper returns the worker of an origin; nil for none.
func (r *Registry) keeper(origin string) *worker {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keepers[origin]
}

// Deregister ends a lease, and with it the stream that speaks by it and the
// worker that only the lease added. An unknown lease is a *Refusal.
func (r *Registry) Deregister(id string, peer netip.AddrPort) error {
	w, streams, why := r.giveBack(id, peer)
	for _, e := range streams {
		r.refuse(e.w, e.why)
	}
	if why != nil {
		r.refuse(w, why, slog.String("peer", peer.String()))
		return why
	}
	return nil
}

func (r *Registry) giveBack(id string, peer netip.AddrPort) (*worker, []ended, *Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.leases.Get(id)
	if l == nil {
		return nil, nil, unknownLease()
	}
	t := r.tenants[l.Holder]
	w := r.keepers[l.Holder]
	if why := w.vouch(peer.Addr(), nil); why != nil {
		return w, nil, why
	}
	var d store.Discovery
	streams := r.release(t, endOf("the reporter gave its lease back"), &d)
	r.metrics.tenancy(leaseReturned)
	r.apply(&d)
	return w, streams, nil
}

// BindLease is Bind for the stream of a lease. The worker is that of the
// lease; Claim.Addr and Claim.Role are ignored.
func (r *Registry) BindLease(id string, c Claim, first *store.Load) (*Binding, error) {
	r.mu.RLock()
	b, w, why := r.bindLease(id, &c, first)
	r.mu.RUnlock()
	return r.bound(b, w, why, &c)
}

// bindLease binds the stream of a lease. The caller holds r.mu for reading.
func (r *Registry) bindLease(id string, c *Claim, first *store.Load) (*Binding, *worker, *Refusal) {
	l := r.leases.Get(id)
	switch {
	case r.draining:
		return nil, nil, shuttingDown()
	case l == nil:
		return nil, nil, unknownLease()
	}
	w, t := r.keepers[l.Holder], r.tenants[l.Holder]
	c.Addr, c.Role = w.url, store.RoleUnspecified
	w.mu.Lock()
	why := w.checkPeer(c.Peer.Addr())
	if why == nil {
		why = w.unsteady(first.Received)
	}
	var b *Binding
	if why == nil {
		b, why = w.take(bid{Claim: *c, origin: w.origin, dialect: store.DialectNative, lease: id}, first)
	}
	w.mu.Unlock()
	if why == nil {
		w.lodge(t)
	}
	return b, w, why
}

// Granted returns what a lease is granted now, and a channel that closes when
// that changed or the lease ended; a *Refusal says that it did.
func (r *Registry) Granted(id string) (Grant, <-chan struct{}, error) {
	g, changed := r.grantOf(id)
	if changed == nil {
		why := unknownLease()
		r.refuse(nil, why)
		return Grant{}, nil, why
	}
	return g, changed, nil
}

// grantOf returns a nil channel for no lease.
func (r *Registry) grantOf(id string) (Grant, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	l := r.leases.Get(id)
	if l == nil {
		return Grant{}, nil
	}
	return Grant(l.Grant), l.Changed()
}

func unknownLease() *Refusal {
	return &Refusal{Reason: ReasonUnknownLease, Message: "the lease is not known, or not any more"}
}

func leaseHeld() *Refusal {
	return &Refusal{Reason: ReasonLeaseHeld, Message: "another reporter holds the lease of the worker, and is heard"}
}

func endOf(message string) *Refusal {
	return &Refusal{Reason: ReasonLeaseExpired, Message: message}
}

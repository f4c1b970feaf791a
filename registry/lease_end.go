package registry

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/loadplane/loadplane/registry/lease"
	"github.com/loadplane/loadplane/store"
)

// byRegistration is how a worker was discovered that only registered itself.
const byRegistration = "registration"

// idleCheck is how long the watch of leases sleeps where there is none.
const idleCheck = time.Hour

// lodgers returns the workers that are there by a lease and not listed, sorted
// by id, as far as there is room beside those that are. The caller holds r.mu.
func (r *Registry) lodgers(listed []found) []found {
	if len(r.tenants) == 0 {
		return nil
	}
	ids, origins := make(map[string]bool, len(listed)), make(map[string]bool, len(listed))
	for i := range listed {
		ids[listed[i].ID], origins[listed[i].Origin] = true, true
	}
	var beside []found
	for t := range maps.Values(r.tenants) {
		if t.alone && !ids[t.spec.ID] && !origins[t.spec.Origin] {
			beside = append(beside, t.found())
		}
	}
	slices.SortFunc(beside, func(a, b found) int { return cmp.Compare(a.ID, b.ID) })
	if room := max(0, r.opts.MaxWorkers-len(listed)); len(beside) > room {
		r.roll.room.Do(func() {
			r.log.Warn("workers that registered make room for listed ones", "limit", r.opts.MaxWorkers, "dropped", len(beside)-room)
		})
		beside = beside[:room]
	}
	return beside
}

// turnOut ends the leases for whose origin discovery lists another engine than
// the one that they are for, or one that is not reported for by leases, and
// returns the streams that it ended. The caller holds r.mu for writing.
func (r *Registry) turnOut(want []found, d *store.Discovery) (streams []ended) {
	if len(r.tenants) == 0 {
		return nil
	}
	for i := range want {
		f := &want[i]
		t := r.tenants[f.Origin]
		if t == nil || f.duplicate || f.by == byRegistration {
			continue
		}
		if t.of(f) && r.leasable(f) {
			t.listed(f.ID, f.UID)
			continue
		}
		streams = append(streams, r.terminate(t, gone(true), d)...)
		r.metrics.tenancy(leaseWithdrawn)
	}
	return streams
}

// leasable says whether a listed worker will be one that registers.
func (r *Registry) leasable(f *found) bool {
	open := f.Dialect == store.DialectUnspecified && r.opts.Prober != nil
	return !f.NoEngine && (open || f.Dialect == store.DialectNative)
}

// recall adds to what is remembered of a listed worker what its reporter says.
// The caller holds r.mu.
func (r *Registry) recall(f *found, m *memory) {
	if f.by == byRegistration || f.duplicate {
		m.registered = nil
		return
	}
	if t := r.tenants[f.Origin]; t != nil {
		m.registered = &t.spec
	}
}

// keepTenants ends the leases whose worker is gone, or is not one for leases
// any more. The caller holds r.mu for writing.
func (r *Registry) keepTenants(d *store.Discovery) {
	for origin, t := range r.tenants {
		if w := r.keepers[origin]; w != nil && w.registers() {
			continue
		}
		r.leases.End(t.lease)
		delete(r.tenants, origin)
		r.crowd.leave(t)
		r.metrics.tenancy(leaseWithdrawn)
	}
	r.balance(d)
}

// release ends a lease, its stream, and the worker that is there by it alone.
// It returns the streams that ended. The caller holds r.mu for writing.
func (r *Registry) release(t *tenant, why *Refusal, d *store.Discovery) []ended {
	streams := r.terminate(t, why, d)
	r.balance(d)
	return streams
}

// terminate is release without what follows for the intervals of other leases.
func (r *Registry) terminate(t *tenant, why *Refusal, d *store.Discovery) []ended {
	r.leases.End(t.lease)
	delete(r.tenants, t.spec.Origin)
	r.crowd.leave(t)
	w := r.keepers[t.spec.Origin]
	streams := w.vacate(t.lease.ID, why)
	if w.unlisted() {
		streams = append(streams, r.evict(w, why, d)...)
		delete(r.drained, w.id)
		poke(r.recounted)
		r.metrics.workers.Set(float64(len(r.workers)))
	} else if w.dialect == store.DialectNative {
		w.show(Way{State: StatePending})
	}
	return streams
}

// evict removes a worker that is there by a lease, and returns the stream that
// it ended.
func (r *Registry) evict(w *worker, why *Refusal, d *store.Discovery) (streams []ended) {
	if w.end(why) {
		streams = append(streams, ended{w, why})
	}
	w.stop()
	r.depart(w)
	delete(r.workers, w.id)
	delete(r.keepers, w.origin)
	d.Removed = append(d.Removed, w.slot)
	return streams
}

// vacate takes a lease from the worker, and the right to speak from its stream.
func (w *worker) vacate(id string, why *Refusal) (streams []ended) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.bound; b != nil && b.claim.lease == id && w.detach(why) {
		w.slot.Bind(w.stream(""))
		streams = append(streams, ended{w, why})
	}
	if w.lease == id {
		w.lease = ""
		w.slot.Diagnose(func(d *store.Diagnostics) { d.LeaseExpires = 0 })
	}
	poke(w.early)
	return streams
}

// unlisted says that the worker is there by a lease alone.
func (w *worker) unlisted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.def.DiscoveredBy == byRegistration
}

// expect shows a worker of the native dialect, which has no loop.
func (w *worker) expect() {
	w.stop = w.hide
	w.show(Way{State: StatePending})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.explainNative()
}

// explainNative shows why a worker of the native dialect is one. The caller
// holds w.mu.
func (w *worker) explainNative() {
	why := "native: configured"
	if w.def.DiscoveredBy == byRegistration {
		why = "native: it registered itself"
	}
	w.explain(why)
}

// lodge shows the lease of a tenant at its worker.
func (w *worker) lodge(t *tenant) {
	w.mu.Lock()
	w.lease = t.lease.ID
	native := w.dialect == store.DialectNative || w.turn == store.DialectNative
	tell := w.facts.Family == ""
	w.mu.Unlock()
	expires := w.reg.clock.Now().Add(time.Until(t.lease.Due))
	w.slot.Diagnose(func(d *store.Diagnostics) {
		d.LeaseExpires = expires
		if tell {
			d.Engine, d.EngineVersion = t.engine, t.version
		}
	})
	if native {
		renewal := t.lease.Due.Add(t.lease.Grant.RenewAfter - t.lease.Grant.TTL)
		w.show(Way{State: StateRegistered, Renewal: time.Until(renewal)})
	}
}

// balance makes the intervals of all leases those of the load as it is now. The
// caller holds r.mu for writing.
func (r *Registry) balance(d *store.Discovery) {
	for _, l := range r.leases.Balance() {
		if u, ok := r.keepers[l.Holder].pace(l); ok {
			d.Updated = append(d.Updated, u)
		}
	}
	r.metrics.leases.Set(float64(r.leases.Len()))
	r.metrics.leaseLoad.Set(r.leases.Load())
}

// pace shows the interval of a lease at a worker that is there by it alone.
func (w *worker) pace(l *lease.Lease) (u store.Update, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.def.DiscoveredBy != byRegistration || w.def.Interval == l.Grant.Interval {
		return u, false
	}
	def := *w.def
	def.Interval = l.Grant.Interval
	w.def, w.spec.Interval = &def, def.Interval
	return store.Update{Slot: w.slot, Worker: &def}, true
}

// apply hands a change to the store, where there is one.
func (r *Registry) apply(d *store.Discovery) {
	if changes(d) {
		r.opts.Store.Apply(*d)
	}
}

// watchLeases ends each lease when it is due, until ctx ends.
func (r *Registry) watchLeases(ctx context.Context) {
	for await(ctx, r.endLeases(), r.leased) {
	}
}

// endLeases ends the leases that are due, by one change of the store, takes up
// by which of the others streams speak, and returns the time until it is to be
// called again.
func (r *Registry) endLeases() time.Duration {
	r.mu.Lock()
	r.countStreams()
	var d store.Discovery
	var streams []ended
	next := r.leases.Next()
	for ; next != nil && !next.Due.After(time.Now()); next = r.leases.Next() {
		t := r.tenants[next.Holder]
		streams = append(streams, r.release(t, endOf("the lease was not renewed in time"), &d)...)
		r.metrics.tenancy(leaseExpired)
	}
	wait := idleCheck
	if next != nil {
		wait = time.Until(next.Due)
	}
	if in, more := r.leases.Fade(time.Now()); more {
		wait = min(wait, in)
	}
	r.balance(&d)
	r.apply(&d)
	r.mu.Unlock()
	for _, e := range streams {
		r.refuse(e.w, e.why)
	}
	return wait
}

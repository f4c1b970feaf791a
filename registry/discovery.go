package registry

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// Registrations that begin together are spread: so many in each step.
const spreadBatch, spreadStep = 64, 20 * time.Millisecond

// found is a spec with what the whole of discovery says of it.
type found struct {
	WorkerSpec
	by        string
	duplicate bool
}

// starter begins the loop of a worker after a delay.
type starter func(w *worker, delay time.Duration)

// readSources reads the flags and, for the first time, the file.
func (r *Registry) readSources() error {
	for _, value := range r.opts.Workers {
		s, err := ParseWorkerFlag(value)
		if err == nil {
			err = r.checkSpec(&s)
		}
		if err != nil {
			return fmt.Errorf("worker %q: %w", cut(value), err)
		}
		r.sources.flags = append(r.sources.flags, s)
	}
	if err := checkUnique(r.sources.flags); err != nil {
		return err
	}
	r.sources.flagsAt = r.clock.Now()
	if r.opts.WorkersFile == "" {
		return nil
	}
	if _, err := r.readFile(); err != nil {
		return fmt.Errorf("workers_file (--workers-file) %s: %w", r.opts.WorkersFile, err)
	}
	return nil
}

// checkSpec says why a worker cannot be had here.
func (r *Registry) checkSpec(s *WorkerSpec) error {
	if err := r.checkDialect(s.Dialect); err != nil {
		return err
	}
	return r.checkPace(s.Interval)
}

func (r *Registry) checkDialect(d store.Dialect) error {
	switch d {
	case store.DialectUnspecified, store.DialectPush, store.DialectNative, store.DialectNone:
		return nil
	}
	if r.opts.Dialers[d] == nil {
		return fmt.Errorf("dialect: %s is not available here", d)
	}
	return nil
}

// checkPace says why a worker cannot be reported for at an interval; 0 is the
// general one.
func (r *Registry) checkPace(d time.Duration) error {
	switch {
	case d == 0:
		return nil
	case d < minInterval:
		return fmt.Errorf("interval %s is below %s", d, minInterval)
	}
	return r.opts.checkInterval(d)
}

// readFile reads the workers file and says whether its list was replaced. On
// an error the last list stays.
func (r *Registry) readFile() (changed bool, err error) {
	src := &r.sources
	data, err := egress.ReadBounded(r.opts.WorkersFile, maxFileBytes)
	if err != nil {
		src.broken = err
		return false, err
	}
	if src.data != nil && src.broken == nil && bytes.Equal(data, src.data) {
		src.fileAt = r.clock.Now()
		return false, nil
	}
	specs, err := parseWorkers(data)
	for i := range specs {
		if err == nil {
			err = r.checkSpec(&specs[i])
		}
	}
	if src.broken = err; err != nil {
		return false, err
	}
	src.file, src.data, src.fileAt = specs, data, r.clock.Now()
	return true, nil
}

// discover reconciles once and then at every change of what discovery says,
// until ctx ends.
func (r *Registry) discover(ctx context.Context, start starter) {
	f := &follower{r: r, start: start}
	if r.opts.WorkersFile != "" {
		var err error
		if f.watch, err = newFileWatch(r.opts.WorkersFile); err != nil {
			r.log.Warn("workers file cannot be watched", "error", err)
		}
		defer f.watch.close()
		ticker := time.NewTicker(recheckFile)
		defer ticker.Stop()
		f.recheck = ticker.C
		r.reload()
	}
	f.begin()
	r.reconcile(start)
	for f.next(ctx) {
	}
}

// reload reads the workers file again, keeps the outcome for operators, and
// says whether there is a new list.
func (r *Registry) reload() bool {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	changed, err := r.readFile()
	r.noteSources()
	if err != nil {
		r.metrics.fileErrors.Inc()
		r.metrics.fileFailing.Set(1)
		if times, tell := r.roll.file.tell(err.Error()); tell {
			r.log.Error("workers file not used, last list kept", "file", r.opts.WorkersFile, "error", cut(err.Error()), "times", times)
		}
		return false
	}
	r.metrics.fileFailing.Set(0)
	if r.roll.file.over() {
		r.log.Info("workers file used again", "file", r.opts.WorkersFile, "workers", len(r.sources.file))
	}
	return changed
}

// definition is what is known of a worker by discovery and by its engine.
type definition struct {
	spec WorkerSpec
	// def is what the store shows.
	def *store.Worker
	// dialect is the configured one; DialectUnspecified is auto.
	dialect store.Dialect
	// roleKnown says that the role of def is more than assumed.
	roleKnown bool
}

// define joins a spec with what is remembered of the worker.
func (r *Registry) define(f *found, m memory) definition {
	d := definition{spec: f.WorkerSpec, dialect: f.Dialect}
	reg := m.registered
	if reg == nil {
		reg = &WorkerSpec{}
	}
	role := cmp.Or(f.Role, reg.Role, m.facts.Role, m.claimed)
	d.roleKnown = role != store.RoleUnspecified || r.opts.Prober == nil
	d.def = &store.Worker{
		ID: f.ID, URL: f.URL, Origin: f.Origin, Role: cmp.Or(role, store.RoleRegular), Models: f.Models,
		Zone: cmp.Or(f.Zone, reg.Zone), Labels: joinLabels(f.Labels, reg.Labels), Draining: f.Draining || r.drained[f.ID], NoEngine: f.NoEngine,
		Interval: cmp.Or(f.Interval, r.opts.ReportInterval), DiscoveredBy: f.by, Duplicate: f.duplicate,
	}
	switch {
	case f.Models != nil:
	case reg.Models != nil:
		d.def.Models = reg.Models
	default:
		d.def.Models = m.facts.Models
	}
	switch {
	case d.dialect == store.DialectUnspecified && r.opts.Prober == nil:
		d.dialect, d.def.Dialect = store.DialectPush, store.DialectPush
	case d.dialect == store.DialectUnspecified:
		d.def.Dialect = m.dialect
	default:
		d.def.Dialect = d.dialect
	}
	return d
}

// reconcile makes the workers those of the sources, by one change of the
// store.
func (r *Registry) reconcile(start starter) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.sources.merged = r.merge()
	r.put(start)
}

// renew takes up what engines said since the last reconciliation, and what
// became of waiting.
func (r *Registry) renew(start starter) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.put(start)
}

// put makes the workers those that were merged last. The caller holds
// r.discovering.
func (r *Registry) put(start starter) {
	d, streams := r.replace(start)
	for _, e := range streams {
		r.refuse(e.w, e.why)
	}
	r.noteSources()
	r.sumUp(&d)
}

func (r *Registry) count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.workers)
}

// sumUp logs what a reconciliation changed, and how many engines came before
// discovery was complete. The caller holds r.discovering.
func (r *Registry) sumUp(d *store.Discovery) {
	r.mu.RLock()
	workers, synced := len(r.workers), r.synced
	r.mu.RUnlock()
	line := func() {
		r.log.Info("workers discovered", "workers", workers, "added", len(d.Added),
			"removed", len(d.Removed), "updated", len(d.Updated), "complete", synced)
	}
	switch {
	case d.Synced:
		line()
	case changes(d):
		r.roll.rounds.Do(line)
	}
	if n := r.refusals.welcome(synced); n > 1 {
		r.log.Info("discovery is complete, engines that came too early are taken now", "refused", n)
	}
}

// ended is a stream that discovery ended.
type ended struct {
	w   *worker
	why *Refusal
}

// replace puts the workers that were merged last in the place of the old ones.
func (r *Registry) replace(start starter) (store.Discovery, []ended) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = r.sources.complete()
	d := store.Discovery{Synced: !r.told && r.synced && !r.sources.expectsMore()}
	r.told = r.told || d.Synced
	want := slices.Concat(r.sources.merged, r.lodgers(r.sources.merged))
	streams := r.turnOut(want, &d)
	next := make(map[string]*worker, len(want))
	var added []*worker
	for i := range want {
		w, fresh := r.place(&want[i], &d)
		next[w.id] = w
		if fresh {
			added = append(added, w)
		}
	}
	removed, more := r.removeOthers(next)
	streams = append(streams, more...)
	for _, w := range removed {
		d.Removed = append(d.Removed, w.slot)
	}
	r.adopt(next)
	r.keepTenants(&d)
	if d.Synced || changes(&d) {
		r.opts.Store.Apply(d)
	}
	r.begin(added, removed, start)
	for _, w := range added {
		if t := r.tenants[w.origin]; t != nil && !w.duplicate {
			w.lodge(t)
		}
	}
	return d, streams
}

func changes(d *store.Discovery) bool { return len(d.Removed)+len(d.Added)+len(d.Updated) > 0 }

// place returns the worker of a listing: the one that is there, changed in
// place, or a new one where the identity is another. The caller holds r.mu.
func (r *Registry) place(f *found, d *store.Discovery) (w *worker, fresh bool) {
	old := r.workers[f.ID]
	m := old.memory(&f.WorkerSpec)
	r.recall(f, &m)
	def := r.define(f, m)
	if old != nil && old.is(&def) {
		if old.update(&def) {
			d.Updated = append(d.Updated, store.Update{Slot: old.slot, Worker: def.def})
		}
		return old, false
	}
	// What a stream claimed and chose is forgotten with it.
	m = memory{facts: m.facts, line: m.line, lines: m.lines, roleMoved: m.roleMoved}
	r.recall(f, &m)
	def = r.define(f, m)
	w = newWorker(r, &def, m)
	d.Added = append(d.Added, w.slot)
	return w, true
}

// removeOthers ends the workers that are not in next, and the streams that
// speak for them.
func (r *Registry) removeOthers(next map[string]*worker) (removed []*worker, streams []ended) {
	for id, w := range r.workers {
		if next[id] == w {
			continue
		}
		why := gone(next[id] != nil)
		if w.end(why) {
			streams = append(streams, ended{w, why})
		}
		w.stop()
		r.depart(w)
		removed = append(removed, w)
	}
	return removed, streams
}

// gone says why a worker has no place any more, with a successor or without.
func gone(replaced bool) *Refusal {
	if replaced {
		return &Refusal{Reason: ReasonIdentityChanged, Message: "the worker's URL, role, dialect, UID or id changed"}
	}
	return &Refusal{Reason: ReasonWorkerRemoved, Message: "the worker is not discovered any more"}
}

// adopt puts the indexes of next in force.
func (r *Registry) adopt(next map[string]*worker) {
	r.workers = next
	maps.DeleteFunc(r.drained, func(id string, _ bool) bool { return next[id] == nil })
	r.keepers = make(map[string]*worker, len(next))
	r.shared = make(map[string]bool)
	for w := range maps.Values(next) {
		if w.duplicate {
			r.shared[w.origin] = true
		} else {
			r.keepers[w.origin] = w
		}
	}
	r.metrics.workers.Set(float64(len(next)))
}

// begin starts the loops of new workers, spread over time by their
// number alone. An engine that had another identity until now learns first
// that its stream ended.
func (r *Registry) begin(added, removed []*worker, start starter) {
	known := make(map[string]bool, len(removed))
	ids := make(map[string]bool, len(removed))
	for _, w := range removed {
		known[w.origin], ids[w.id] = true, true
	}
	i := 0
	for _, w := range added {
		if w.facts.Family != "" {
			w.tell(&w.facts)
		}
		if known[w.origin] || ids[w.id] {
			w.slot.Happen(store.EventIdentityChanged, ReasonIdentityChanged, "")
		}
		switch {
		case !w.def.Hearable():
			w.slot.Diagnose(func(d *store.Diagnostics) { d.Registration = string(StateOff) })
			continue
		case w.dialect == store.DialectNative:
			w.expect()
			continue
		}
		delay := time.Duration(i/spreadBatch) * spreadStep
		if known[w.origin] {
			delay += endGrace
		}
		start(w, delay)
		i++
	}
}

// is says whether d is of the same identity. A role that was only assumed may
// change.
func (w *worker) is(d *definition) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.origin == d.def.Origin && w.url == d.def.URL && w.dialect == d.dialect &&
		w.duplicate == d.def.Duplicate && w.noEngine == d.def.NoEngine && !w.anotherUID(d.spec.UID) && (w.def.Role == d.def.Role || !w.roleKnown)
}

// update takes over what changed in place and says whether the store shows
// any of it.
func (w *worker) update(d *definition) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, asked := !reflect.DeepEqual(w.def, d.def), !reflect.DeepEqual(w.spec, d.spec)
	w.roleKnown, w.uid = d.roleKnown, cmp.Or(d.spec.UID, w.uid)
	if seen {
		w.def = d.def
		if w.dialect == store.DialectNative {
			w.explainNative()
		}
	}
	if asked {
		w.spec = d.spec
		w.stir()
	}
	return seen
}

// drain takes what poke left.
func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// poke leaves a signal in a channel of one place.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

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

// Times of discovery and of the start of registrations.
const (
	// settleFile is how long a change of the workers file waits for more.
	settleFile = 100 * time.Millisecond
	// settleFacts is how long a change by what engines say waits for more.
	settleFacts = 100 * time.Millisecond
	// recheckFile is how often the file is read without a sign of change,
	// for file systems that give none.
	recheckFile = 5 * time.Second
	// Registrations that begin together are spread: so many in each step.
	spreadBatch, spreadStep = 64, 20 * time.Millisecond
)

// sources are the specs of each discovery source as last read. They are for
// one goroutine.
type sources struct {
	flags, file []WorkerSpec
	merged      []found
	data        []byte
	broken      bool
}

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
	if r.opts.WorkersFile == "" {
		return nil
	}
	_, err := r.readFile()
	return err
}

func (r *Registry) checkSpec(s *WorkerSpec) error {
	switch d := s.Dialect; d {
	case store.DialectUnspecified, store.DialectPush, store.DialectNative, store.DialectNone:
	default:
		if r.opts.Dialers[d] == nil {
			return fmt.Errorf("dialect: %s is not available here", d)
		}
	}
	if s.Interval == 0 {
		return nil
	}
	return r.opts.checkInterval(s.Interval)
}

// readFile reads the workers file and says whether its list was replaced. On
// an error the last list stays.
func (r *Registry) readFile() (changed bool, err error) {
	data, err := egress.ReadBounded(r.opts.WorkersFile, maxFileBytes)
	if err != nil {
		r.sources.broken = true
		return false, err
	}
	if r.sources.data != nil && !r.sources.broken && bytes.Equal(data, r.sources.data) {
		return false, nil
	}
	specs, err := parseWorkers(data)
	for i := range specs {
		if err == nil {
			err = r.checkSpec(&specs[i])
		}
	}
	if r.sources.broken = err != nil; r.sources.broken {
		return false, err
	}
	r.sources.file, r.sources.data = specs, data
	return true, nil
}

// discover reconciles once and then at every change of the workers file or of
// what engines say, until ctx ends.
func (r *Registry) discover(ctx context.Context, start starter) {
	var watch *fileWatch
	if r.opts.WorkersFile != "" {
		var err error
		if watch, err = newFileWatch(r.opts.WorkersFile); err != nil {
			r.log.Warn("workers file cannot be watched", "error", err)
		}
		defer watch.close()
		r.reload()
	}
	r.reconcile(start)
	r.follow(ctx, watch, start)
}

// follow reconciles at every change of the workers file or of what engines
// say.
func (r *Registry) follow(ctx context.Context, watch *fileWatch, start starter) {
	events, failures := watch.events()
	var recheck, settled, learned <-chan time.Time
	if r.opts.WorkersFile != "" {
		ticker := time.NewTicker(recheckFile)
		defer ticker.Stop()
		recheck = ticker.C
	}
	for {
		now := false
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if settled == nil && watch.relevant(e) {
				settled = time.After(settleFile)
			}
		case err := <-failures:
			r.log.Warn("workers file watch failed", "error", err)
			settled = time.After(settleFile)
		case <-settled:
			now = true
		case <-recheck:
			now = true
		case <-r.learned:
			if learned == nil {
				learned = time.After(settleFacts)
			}
		case <-learned:
			learned = nil
			r.renew(start)
		}
		if !now {
			continue
		}
		settled = nil
		if err := watch.aim(); err != nil {
			r.log.Debug("workers file cannot be watched", "error", err)
		}
		if r.reload() {
			r.reconcile(start)
		}
	}
}

// reload reads the workers file again, keeps the outcome for operators, and
// says whether there is a new list.
func (r *Registry) reload() bool {
	changed, err := r.readFile()
	r.opts.Store.NoteDiscoveryError(err)
	if err != nil {
		r.metrics.fileErrors.Inc()
		r.metrics.fileFailing.Set(1)
		r.log.Error("workers file not used, last list kept", "file", r.opts.WorkersFile, "error", cut(err.Error()))
		return false
	}
	r.metrics.fileFailing.Set(0)
	return changed
}

// merge returns the workers of all sources, sorted by id. The flag wins over
// the file, and the lowest id wins an origin.
func (r *Registry) merge() []found {
	var all []found
	taken := make(map[string]bool)
	add := func(specs []WorkerSpec, by string) {
		for _, s := range specs {
			if taken[s.ID] {
				r.log.Warn("worker of the file ignored, a flag names it too", "worker", s.ID)
				continue
			}
			taken[s.ID] = true
			all = append(all, found{WorkerSpec: s, by: by})
		}
	}
	add(r.sources.flags, "flag")
	add(r.sources.file, "file")
	dropped := max(0, len(all)-r.opts.MaxWorkers)
	if dropped > 0 {
		r.log.Error("workers above the limit dropped", "limit", r.opts.MaxWorkers, "dropped", dropped)
		all = all[:r.opts.MaxWorkers]
	}
	r.metrics.dropped.Set(float64(dropped))
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.ID, b.ID) })
	origins := make(map[string]bool, len(all))
	for i := range all {
		all[i].duplicate = origins[all[i].Origin]
		origins[all[i].Origin] = true
	}
	return all
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
		Zone: cmp.Or(f.Zone, reg.Zone), Labels: joinLabels(f.Labels, reg.Labels), Draining: f.Draining,
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

// joinLabels returns those of named, and those of others that it does not name.
func joinLabels(named, others map[string]string) map[string]string {
	if len(named) == 0 {
		return others
	}
	if len(others) == 0 {
		return named
	}
	all := maps.Clone(others)
	maps.Copy(all, named)
	return all
}

// reconcile makes the workers those of the sources, by one change of the
// store.
func (r *Registry) reconcile(start starter) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.sources.merged = r.merge()
	r.put(start)
}

// renew takes up what engines said since the last reconciliation.
func (r *Registry) renew(start starter) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.put(start)
}

// put makes the workers those that were merged last.
func (r *Registry) put(start starter) {
	d, streams := r.replace(r.sources.merged, start)
	for _, e := range streams {
		r.refuse(e.w, e.why)
	}
	r.log.Info("workers discovered", "workers", r.count(), "added", len(d.Added),
		"removed", len(d.Removed), "updated", len(d.Updated))
}

func (r *Registry) count() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.workers)
}

// ended is a stream that discovery ended.
type ended struct {
	w   *worker
	why *Refusal
}

// replace puts the wanted workers in the place of the old ones.
func (r *Registry) replace(want []found, start starter) (store.Discovery, []ended) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := store.Discovery{Synced: true}
	want = slices.Concat(want, r.lodgers(want))
	next := make(map[string]*worker, len(want))
	var added []*worker
	for i := range want {
		w, fresh := r.place(&want[i], &d)
		next[w.id] = w
		if fresh {
			added = append(added, w)
		}
	}
	removed, streams := r.removeOthers(next)
	for _, w := range removed {
		d.Removed = append(d.Removed, w.slot)
	}
	first := !r.synced
	r.adopt(next)
	r.keepTenants(&d)
	if first || changes(&d) {
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
	m := old.memory(f.URL)
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
		removed = append(removed, w)
	}
	return removed, streams
}

// gone says why a worker has no place any more, with a successor or without.
func gone(replaced bool) *Refusal {
	if replaced {
		return &Refusal{Reason: ReasonIdentityChanged, Message: "the worker's URL, role or dialect changed"}
	}
	return &Refusal{Reason: ReasonWorkerRemoved, Message: "the worker is not discovered any more"}
}

// adopt puts the indexes of next in force.
func (r *Registry) adopt(next map[string]*worker) {
	r.synced = true
	r.workers = next
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
	for _, w := range removed {
		known[w.origin] = true
	}
	i := 0
	for _, w := range added {
		if w.facts.Family != "" {
			w.tell(&w.facts)
		}
		switch {
		case w.dialect == store.DialectNone || w.duplicate:
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
		w.duplicate == d.def.Duplicate && (w.def.Role == d.def.Role || !w.roleKnown)
}

// update takes over what changed in place and says whether the store shows
// any of it.
func (w *worker) update(d *definition) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, asked := !reflect.DeepEqual(w.def, d.def), !reflect.DeepEqual(w.spec, d.spec)
	w.roleKnown = d.roleKnown
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

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

	"github.com/loadplane/loadplane/store"
)

// Times of discovery and of the start of registrations.
const (
	// settleFile is how long a change of the workers file waits for more.
	settleFile = 100 * time.Millisecond
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
	data        []byte
	broken      bool
}

// found is a spec with what the whole of discovery says of it.
type found struct {
	WorkerSpec
	by        string
	duplicate bool
}

// starter begins the registration loop of a worker after a delay.
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
	if s.Interval == 0 {
		return nil
	}
	return r.opts.checkInterval(s.Interval)
}

// readFile reads the workers file and says whether its list was replaced. On
// an error the last list stays.
func (r *Registry) readFile() (changed bool, err error) {
	data, err := readBounded(r.opts.WorkersFile, maxFileBytes)
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

// discover reconciles once and then at every change of the workers file,
// until ctx ends.
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
	if r.opts.WorkersFile == "" {
		<-ctx.Done()
		return
	}
	r.follow(ctx, watch, start)
}

// follow reconciles at every change of the workers file.
func (r *Registry) follow(ctx context.Context, watch *fileWatch, start starter) {
	events, failures := watch.events()
	recheck := time.NewTicker(recheckFile)
	defer recheck.Stop()
	var settled <-chan time.Time
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
		case <-recheck.C:
			now = true
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

// define returns what the store shows of a worker.
func (r *Registry) define(f *found) *store.Worker {
	w := &store.Worker{
		ID: f.ID, URL: f.URL, Origin: f.Origin, Role: f.Role, Models: f.Models,
		Zone: f.Zone, Labels: f.Labels, Draining: f.Draining, Dialect: f.Dialect,
		Interval: cmp.Or(f.Interval, r.opts.ReportInterval), DiscoveredBy: f.by, Duplicate: f.duplicate,
	}
	if w.Dialect == store.DialectUnspecified {
		w.Dialect = store.DialectPush
	}
	return w
}

// reconcile makes the workers those of the sources, by one change of the
// store.
func (r *Registry) reconcile(start starter) {
	d, ended := r.replace(r.merge(), start)
	for _, e := range ended {
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

// ending is a stream that discovery ended.
type ending struct {
	w   *worker
	why *Refusal
}

// replace puts the wanted workers in the place of the old ones.
func (r *Registry) replace(want []found, start starter) (store.Discovery, []ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := store.Discovery{Synced: true}
	next := make(map[string]*worker, len(want))
	var added []*worker
	for i := range want {
		f := &want[i]
		def, old := r.define(f), r.workers[f.ID]
		if old == nil || !old.is(def) {
			next[f.ID] = newWorker(r, f.WorkerSpec, def)
			added = append(added, next[f.ID])
			d.Added = append(d.Added, next[f.ID].slot)
			continue
		}
		next[f.ID] = old
		if old.update(f.WorkerSpec, def) {
			d.Updated = append(d.Updated, store.Update{Slot: old.slot, Worker: def})
		}
	}
	removed, ended := r.removeOthers(next)
	for _, w := range removed {
		d.Removed = append(d.Removed, w.slot)
	}
	if !r.synced || len(d.Removed)+len(d.Added)+len(d.Updated) > 0 {
		r.opts.Store.Apply(d)
	}
	r.adopt(next)
	r.begin(added, removed, start)
	return d, ended
}

// removeOthers ends the workers that are not in next, and the streams that
// speak for them.
func (r *Registry) removeOthers(next map[string]*worker) (removed []*worker, ended []ending) {
	for id, w := range r.workers {
		if next[id] == w {
			continue
		}
		why := &Refusal{Reason: ReasonWorkerRemoved, Message: "the worker is not discovered any more"}
		if next[id] != nil {
			why = &Refusal{Reason: ReasonIdentityChanged, Message: "the worker's URL, role or dialect changed"}
		}
		if w.end(why) {
			ended = append(ended, ending{w, why})
		}
		w.stop()
		removed = append(removed, w)
	}
	return removed, ended
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

// begin starts the registration of new workers, spread over time by their
// number alone. An engine that had another identity until now learns first
// that its stream ended.
func (r *Registry) begin(added, removed []*worker, start starter) {
	known := make(map[string]bool, len(removed))
	for _, w := range removed {
		known[w.origin] = true
	}
	i := 0
	for _, w := range added {
		if w.dialect != store.DialectPush || w.duplicate {
			w.slot.Diagnose(func(d *store.Diagnostics) { d.Registration = string(StateOff) })
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

// is says whether def is of the same identity.
func (w *worker) is(def *store.Worker) bool {
	return w.origin == def.Origin && w.url == def.URL && w.role == def.Role &&
		w.dialect == def.Dialect && w.duplicate == def.Duplicate
}

// update takes over what changed in place and says whether the store shows
// any of it.
func (w *worker) update(spec WorkerSpec, def *store.Worker) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := !reflect.DeepEqual(w.def, def)
	if seen || !reflect.DeepEqual(w.spec, spec) {
		w.spec, w.def = spec, def
		poke(w.changed)
	}
	return seen
}

// poke leaves a signal in a channel of one place.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

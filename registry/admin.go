package registry

import (
	"errors"
	"fmt"
	"slices"
)

// AddWorker adds a worker to the admin list, which wins over the further sources
// and is kept in memory only: it is gone at the next start. It takes effect
// within moments. The error says why the worker cannot be had, or that a source
// that wins, or the list itself, names its id.
func (r *Registry) AddWorker(s WorkerSpec) error {
	if err := errors.Join(checkNamed(&s), r.checkSpec(&s)); err != nil {
		return fmt.Errorf("worker %s: %w", cut(s.ID), err)
	}
	r.discovering.Lock()
	defer r.discovering.Unlock()
	for _, l := range []listed{{byFlag, r.sources.flags}, {byFile, r.sources.file}, {byAdmin, r.sources.admin}} {
		if hasID(l.specs, s.ID) {
			return fmt.Errorf("worker %s is listed by %s already", s.ID, l.by)
		}
	}
	full := r.count() >= r.opts.MaxWorkers && r.keeper(s.Origin) == nil
	if full || len(r.sources.admin) >= r.opts.MaxWorkers {
		return fmt.Errorf("worker %s: there are as many workers as are allowed", s.ID)
	}
	r.order(append(slices.Clone(r.sources.admin), s))
	return nil
}

// RemoveWorker takes a worker from the admin list. Another source that lists it
// goes on to. The error says which source lists a worker that is not on the
// list, by which other id the list has it, or that there is none.
func (r *Registry) RemoveWorker(id string) error {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	if !hasID(r.sources.admin, id) {
		return r.notOrdered(id)
	}
	r.order(slices.DeleteFunc(slices.Clone(r.sources.admin), func(s WorkerSpec) bool { return s.ID == id }))
	return nil
}

// notOrdered says of a worker why it cannot be taken from the admin list, or by
// which id it can. The caller holds r.discovering.
func (r *Registry) notOrdered(id string) error {
	by, err := r.listedBy(id)
	if err != nil {
		return err
	}
	same := func(s WorkerSpec) bool { return r.isAt(id, s.Origin) }
	if i := slices.IndexFunc(r.sources.admin, same); i >= 0 {
		return fmt.Errorf("worker %s is listed by %s, and by %s as %s", id, by, byAdmin, r.sources.admin[i].ID)
	}
	return fmt.Errorf("worker %s is listed by %s, not by %s", id, by, byAdmin)
}

// isAt says whether the worker of an id has an origin.
func (r *Registry) isAt(id, origin string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w := r.workers[id]
	return w != nil && w.origin == origin
}

// order puts another admin list in force. The caller holds r.discovering.
func (r *Registry) order(specs []WorkerSpec) {
	r.sources.admin, r.sources.adminFrom = specs, r.clock.Now()
	poke(r.ordered)
}

// DrainWorker makes a worker of any source get no new work, or undoes that. It
// takes effect within moments and lasts until it is undone, no source lists the
// worker any more, or the plane ends. What a source says of draining stands
// beside it: the error says that there is no such worker, or that its source
// drains it.
func (r *Registry) DrainWorker(id string, on bool) error {
	by, err := r.listedBy(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[id]
	switch {
	case w == nil:
		return unknownID(id)
	case !on && w.drains():
		return fmt.Errorf("worker %s is drained by %s", id, by)
	case on:
		r.drained[id] = true
	default:
		delete(r.drained, id)
	}
	poke(r.ordered)
	return nil
}

// drains says whether a source of discovery drains the worker.
func (w *worker) drains() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec.Draining
}

// listedBy returns the source of a worker that is there.
func (r *Registry) listedBy(id string) (string, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w := r.workers[id]
	if w == nil {
		return "", unknownID(id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.def.DiscoveredBy, nil
}

func unknownID(id string) error { return fmt.Errorf("there is no worker %s", cut(id)) }

func hasID(specs []WorkerSpec, id string) bool {
	return slices.ContainsFunc(specs, func(s WorkerSpec) bool { return s.ID == id })
}

package registry

import (
	"slices"
	"time"
)

// departure is a worker with a UID that had to go, with the source instances
// that spoke for it. It is a plain value.
type departure struct {
	origin, uid string
	sources     []string
	until       time.Time
}

// formers are the source instances of what ran behind an origin before what runs
// there now. For one lease they may not speak for what has another UID: a stream
// of theirs that did not end by then is dead. Registry.mu guards them.
type formers struct {
	// queue has the oldest departure first, which is the first to be over.
	queue    []*departure
	byOrigin map[string][]*departure
}

// add notes a departure, and forgets the oldest ones above a limit.
func (f *formers) add(d *departure, limit int) {
	if f.byOrigin == nil {
		f.byOrigin = make(map[string][]*departure)
	}
	f.queue = append(f.queue, d)
	f.byOrigin[d.origin] = append(f.byOrigin[d.origin], d)
	f.forget(limit)
}

// forget drops departures that are over, and the oldest ones above a limit.
func (f *formers) forget(limit int) {
	now := time.Now()
	for len(f.queue) > 0 && (len(f.queue) > limit || !now.Before(f.queue[0].until)) {
		origin := f.queue[0].origin
		f.queue[0] = nil
		f.queue = f.queue[1:]
		if rest := slices.Delete(f.byOrigin[origin], 0, 1); len(rest) > 0 {
			f.byOrigin[origin] = rest
			continue
		}
		delete(f.byOrigin, origin)
	}
}

// bar says whether a source instance may not speak for what runs at an origin.
// What has no UID is not known to be another one.
func (f *formers) bar(origin, uid, source string) bool {
	now := time.Now()
	return uid != "" && slices.ContainsFunc(f.byOrigin[origin], func(d *departure) bool {
		return d.uid != uid && now.Before(d.until) && slices.Contains(d.sources, source)
	})
}

// depart notes who spoke for a worker that has to go. The caller holds r.mu for
// writing.
func (r *Registry) depart(w *worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &departure{origin: w.origin, uid: w.uid, until: time.Now().Add(r.opts.Lease)}
	for _, old := range w.retired {
		d.sources = append(d.sources, old.source)
	}
	if w.source != "" {
		d.sources = append(d.sources, w.source)
	}
	if d.uid != "" && len(d.sources) > 0 {
		r.formers.add(d, r.opts.MaxWorkers)
	}
}

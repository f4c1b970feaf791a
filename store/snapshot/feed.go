package snapshot

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

// Feed is the sequence of views of one filter: the workers that it selects,
// the pools over them, and what left it. The version of a view is at least the
// one in which its content last changed, and stays where nothing of the filter
// changes, so that with lineage, epoch and filter hash it names one content.
// It is safe for concurrent use, and readers of one filter should share it.
type Feed struct {
	builder *Builder
	filter  *filter.Filter

	mu   sync.Mutex
	view *View // of the newest state that was asked for
	// cut is the newest content that was cut; nil before the first.
	cut *Snapshot
	// at are the places of cut's workers in the whole view, as far as known.
	at []int

	// What follows is of version seen of the store, which cut may lag behind.

	// seen is the version up to which the feed looked; 0 for none.
	seen uint64
	// version is the feed's own.
	version uint64
	warming bool
	// moved says that workers may have entered or left since cut.
	moved bool
	// touched are the pools that may have changed since cut.
	touched map[PoolKey]bool
	left    graves
}

// graves are what left a feed, and the highest version that was forgotten.
type graves struct {
	workers []*store.Tombstone
	pools   []*PoolGrave
	horizon uint64
}

// Feed returns the views of a filter; nil selects all. It starts nothing.
func (b *Builder) Feed(f *filter.Filter) *Feed {
	return &Feed{builder: b, filter: f, touched: map[PoolKey]bool{}}
}

// Current returns the view of the newest state and a channel that closes when
// any content of the store is superseded: Moved then says whether that
// concerns the filter.
func (f *Feed) Current() (*View, <-chan struct{}) {
	if f.filter == nil {
		return f.builder.Current()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	whole, stale := f.builder.Current()
	if f.view == nil || f.view.state != whole.state {
		f.view = f.of(whole)
	}
	return f.view, stale
}

// Fresh is Current for readers that judge freshness: an overdue expiry is
// committed first, within 100 ms.
func (f *Feed) Fresh(ctx context.Context) (*View, <-chan struct{}) {
	f.builder.st.Fresh(ctx)
	return f.Current()
}

// Moved says whether the newest content of the filter has a version above that
// of what a reader holds, and returns the channel that closes when the answer
// may be another. It builds no view, and costs as much as what changed in the
// store.
func (f *Feed) Moved(version uint64) (bool, <-chan struct{}) {
	st, stale := f.builder.st.Current()
	if f.filter == nil {
		return st.Version > version, stale
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(st.Content)
	return f.version > version, stale
}

// of returns the filter's part of the whole view.
func (f *Feed) of(whole *View) *View {
	f.look(whole.Content)
	if f.cut == nil || f.cut.Version != f.version {
		f.cut = f.snapshot(whole)
		f.moved = false
		clear(f.touched)
	}
	v := &View{
		Snapshot: f.cut, Tick: whole.Tick, Seen: whole.Version, state: whole.state, stale: whole.stale,
		Receipts: make([]*Receipt, len(f.cut.Workers)),
	}
	for i, w := range f.cut.Workers {
		f.at[i], _ = whole.FindNear(w.Row, f.at[i])
		v.Receipts[i] = whole.Receipts[f.at[i]]
	}
	return v
}

// look takes notice of what changed up to a content of the store. What the
// store forgot since the feed last looked cannot be told by the feed either.
func (f *Feed) look(c *store.Content) {
	if c.Version <= f.seen {
		return
	}
	version := f.lookAround(c)
	for _, e := range f.builder.changes(c, f.seen) {
		if f.filter.Match(e.Worker) {
			version = max(version, e.Version)
			f.enter(e)
		}
	}
	for _, t := range newerThan(c.Tombstones, f.seen) {
		if f.filter.Match(t.Worker) {
			version = max(version, t.Version)
			f.bury(t)
		}
	}
	f.seen, f.warming = c.Version, c.Warming
	f.version = max(f.version, version)
}

// lookAround returns the version of the last change of anything but workers
// that the store remembers, at most; 0 for none since the feed last looked.
func (f *Feed) lookAround(c *store.Content) (version uint64) {
	first := f.seen == 0
	if first || c.Horizon > f.seen {
		f.forget(c.Horizon)
		version = max(c.Horizon, 1)
	}
	switch {
	case first:
		version = max(version, f.builder.warmed(c))
	case c.Warming != f.warming:
		version = c.Version
	}
	return version
}

// forget takes notice that what left up to a version is not known.
func (f *Feed) forget(horizon uint64) {
	f.moved, f.left.horizon = true, horizon
	if f.cut == nil {
		return
	}
	for _, p := range f.cut.Pools {
		f.touched[p.Key] = true
	}
}

// enter takes notice of a worker of the filter that changed, and may be new
// in it.
func (f *Feed) enter(e *store.Entry) {
	for _, k := range poolsOf(e.Worker) {
		f.touched[k] = true
	}
	if f.cut == nil || f.moved {
		f.moved = true
		return
	}
	_, there := slices.BinarySearchFunc(f.cut.Entries, e, func(a, b *store.Entry) int {
		return cmp.Or(cmp.Compare(a.Worker.ID, b.Worker.ID), cmp.Compare(a.Row, b.Row))
	})
	f.moved = !there
}

// bury takes notice of a worker that left the filter, or a pool of it.
func (f *Feed) bury(t *store.Tombstone) {
	f.moved = true
	f.left.workers = append(f.left.workers, t)
	for _, k := range poolsOf(t.Worker) {
		f.touched[k] = true
		f.left.pools = append(f.left.pools, &PoolGrave{k, t.Version, t.At})
	}
}

// newerThan returns the tombstones after a version; they are in the order of
// their versions.
func newerThan(all []*store.Tombstone, version uint64) []*store.Tombstone {
	i := len(all)
	for i > 0 && all[i-1].Version > version {
		i--
	}
	return all[i:]
}

// snapshot cuts the filter's content out of the whole.
func (f *Feed) snapshot(whole *View) *Snapshot {
	s := &Snapshot{
		Lineage: whole.Lineage, Epoch: whole.Epoch, Enabled: whole.Enabled, FilterHash: f.filter.Hash(),
		Content: &store.Content{Version: f.version, Warming: whole.Warming, Published: whole.Published},
	}
	f.members(whole)
	s.Workers, s.Entries = make([]*Worker, len(f.at)), make([]*store.Entry, len(f.at))
	for i, at := range f.at {
		s.Workers[i], s.Entries[i] = whole.Workers[at], whole.Entries[at]
		s.Digest += s.Workers[i].Hash
	}
	s.Pools = pools(s.Entries)
	for i, p := range s.Pools {
		p.Version = s.Version
		if f.cut != nil && !f.touched[p.Key] {
			s.Pools[i] = findPool(f.cut.Pools, p.Key)
		}
	}
	f.left.trim(f.builder.st.Options().Clock.Now())
	// Only those whose row is not in the view are of use.
	there := make(map[uint32]bool, len(s.Entries))
	for _, e := range s.Entries {
		there[e.Row] = true
	}
	f.left.workers = slices.DeleteFunc(slices.Clone(f.left.workers), func(t *store.Tombstone) bool { return there[t.Row] })
	s.Tombstones, s.PoolGraves, s.Horizon = slices.Clip(f.left.workers), slices.Clip(f.left.pools), f.left.horizon
	return s
}

// members finds the places of the filter's workers in the whole view.
func (f *Feed) members(whole *View) {
	if !f.moved {
		for i, w := range f.cut.Workers {
			f.at[i], _ = whole.FindNear(w.Row, f.at[i])
		}
		return
	}
	f.at = f.at[:0]
	for i, e := range whole.Entries {
		if f.filter.Match(e.Worker) {
			f.at = append(f.at, i)
		}
	}
}

// trim forgets what left long ago, and what is too much.
func (g *graves) trim(now store.Instant) {
	old := func(n int, at store.Instant) bool { return n > maxPoolGraves || now.Sub(at) > keepPoolGraves }
	for len(g.workers) > 0 && old(len(g.workers), g.workers[0].At) {
		g.horizon = max(g.horizon, g.workers[0].Version)
		g.workers = g.workers[1:]
	}
	for len(g.pools) > 0 && old(len(g.pools), g.pools[0].at) {
		g.horizon = max(g.horizon, g.pools[0].Version)
		g.pools = g.pools[1:]
	}
}

// warmed returns the version in which the warming ended, at most; 0 while it
// goes on.
func (b *Builder) warmed(c *store.Content) uint64 {
	if c.Warming {
		return 0
	}
	b.warm.CompareAndSwap(0, c.Version)
	// Another reader may have found it at a version after c.
	return min(b.warm.Load(), c.Version)
}

// recent are the entries of a content that are newer than a version. It is
// immutable.
type recent struct {
	content *store.Content
	from    uint64
	entries []*store.Entry
}

// changes returns the entries of c that are newer than version from. The feeds
// of one state mostly ask the same, so the last answer is kept.
func (b *Builder) changes(c *store.Content, from uint64) []*store.Entry {
	if r := b.recent.Load(); r != nil && r.content == c && r.from == from {
		return r.entries
	}
	r := &recent{content: c, from: from}
	for _, e := range c.Entries {
		if e.Version > from {
			r.entries = append(r.entries, e)
		}
	}
	b.recent.Store(r)
	return r.entries
}

// Package snapshot builds what readers see out of the store's state: each
// worker's encoded bytes and content hash, the pools, and the digest. It pulls:
// a build happens when a reader asks for a version that nobody asked for
// before, once, and is then shared.
package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/loadplane/loadplane/store"
)

// View is one state as readers see it: content of one version and the
// receipts of one tick. It is immutable and shared.
type View struct {
	*Snapshot
	// Tick counts the store's commits, those of receipts only included.
	Tick uint64
	// Seen is the version of the store that the view is of: at or above
	// Version, which names the same content of the filter.
	Seen uint64
	// Receipts belong to Snapshot.Workers, index by index; nil where nothing
	// was heard.
	Receipts []*Receipt

	state *store.State
	stale <-chan struct{}
}

// Lacking yields the places of the receipts that a reader lacks: those admitted
// after a tick, and those of workers that changed after version entered and so
// may be new to the reader; 0 for none of these.
func (v *View) Lacking(tick, entered uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, r := range v.Receipts {
			if r == nil || r.Tick <= tick && (entered == 0 || v.Workers[i].Version <= entered) {
				continue
			}
			if !yield(i) {
				return
			}
		}
	}
}

// Overdue says that at now time alone has changed the content, and nobody
// committed it yet.
func (v *View) Overdue(now store.Instant) bool {
	return v.state.NextDue != 0 && now >= v.state.NextDue
}

// Named returns v under another version that names the same content.
func (v *View) Named(version uint64) *View {
	content, cut, view := *v.Content, *v.Snapshot, *v
	content.Version, cut.Content, view.Snapshot = version, &content, &cut
	return &view
}

// Bare returns what is left of v without workers, pools and receipts: enough
// to tell a reader that holds them that they are current.
func (v *View) Bare() *View {
	bare := &View{Tick: v.Tick, Seen: v.Seen}
	bare.Snapshot = &Snapshot{
		Lineage: v.Lineage, Epoch: v.Epoch, FilterHash: v.FilterHash, Enabled: v.Enabled, Digest: v.Digest,
		Content: &store.Content{Version: v.Version, Warming: v.Warming, Published: v.Published},
	}
	return bare
}

// Snapshot is the content of one version, whole or of a filter. It is
// immutable and shared.
type Snapshot struct {
	// Lineage, Epoch, Version and FilterHash name it.
	Lineage string
	Epoch   uint64
	// FilterHash is that of the filter; 0 where everything is there.
	FilterHash uint64
	*store.Content
	// Enabled is false where there is no discovery source.
	Enabled bool
	// Workers are sorted by worker id.
	Workers []*Worker
	// Pools are sorted by model, then role.
	Pools []*Pool
	// PoolGraves are the pools that left the view, in the order of their
	// versions.
	PoolGraves []*PoolGrave
	// Digest is the sum of the workers' hashes modulo 2^64.
	Digest uint64

	poolHorizon uint64
}

// Covers says whether the change from version base to this one can be told:
// base is a version before this one, and nothing that left since was
// forgotten.
func (s *Snapshot) Covers(base uint64) bool {
	return base > 0 && base <= s.Version && base >= max(s.Horizon, s.poolHorizon)
}

// Changed yields the workers whose content is newer than version base.
func (s *Snapshot) Changed(base uint64) iter.Seq[*Worker] {
	return func(yield func(*Worker) bool) {
		for _, w := range s.Workers {
			if w.Version > base && !yield(w) {
				return
			}
		}
	}
}

// Removed yields what left the view after version base and did not come back
// under its row number.
func (s *Snapshot) Removed(base uint64) iter.Seq[*store.Tombstone] {
	return func(yield func(*store.Tombstone) bool) {
		told := map[uint32]bool{}
		for _, t := range s.Tombstones {
			if _, there := s.Find(t.Row); t.Version <= base || there || told[t.Row] {
				continue
			}
			told[t.Row] = true
			if !yield(t) {
				return
			}
		}
	}
}

// ChangedPools yields the pools that are newer than version base.
func (s *Snapshot) ChangedPools(base uint64) iter.Seq[*Pool] {
	return func(yield func(*Pool) bool) {
		for _, p := range s.Pools {
			if p.Version > base && !yield(p) {
				return
			}
		}
	}
}

// RemovedPools yields the pools that left the view after version base and did
// not come back.
func (s *Snapshot) RemovedPools(base uint64) iter.Seq[PoolKey] {
	return func(yield func(PoolKey) bool) {
		told := map[PoolKey]bool{}
		for _, g := range s.PoolGraves {
			if g.Version <= base || findPool(s.Pools, g.Key) != nil || told[g.Key] {
				continue
			}
			told[g.Key] = true
			if !yield(g.Key) {
				return
			}
		}
	}
}

// Worker is a worker's content with its encodings. It is immutable, and
// versions in which it did not change share it.
type Worker struct {
	*store.Entry
	// Hash is the content hash: xxhash64 of the content's deterministic
	// encoding, ranks included, row number not.
	Hash uint64
	// Encoded is a whole loadplane.v1.Worker message.
	Encoded []byte

	once  sync.Once
	brief []byte
}

// Brief returns Encoded without the ranks; the hash is that of the whole. It
// must not be changed.
func (w *Worker) Brief() []byte {
	w.once.Do(func() { w.brief = withoutRanks(w.Encoded) })
	return w.brief
}

// Receipt is a worker's liveness with its encoding. It is immutable.
type Receipt struct {
	*store.Live
	// Encoded is a whole loadplane.v1.WorkerLiveness message.
	Encoded []byte
}

// Builder turns states of a store into views. It is safe for concurrent use.
type Builder struct {
	st   *store.Store
	last atomic.Pointer[View]
	mu   sync.Mutex // one build at a time
	// recent is what changes answered last.
	recent atomic.Pointer[recent]
	// warm is the first version that was seen after the warming; 0 for none.
	warm atomic.Uint64
}

// New returns a builder over st. It starts nothing.
func New(st *store.Store) *Builder { return &Builder{st: st} }

// Store returns the store that the builder reads.
func (b *Builder) Store() *store.Store { return b.st }

// Current returns the view of the newest state and a channel that closes when
// its content is superseded. Receipts alone do not close it.
func (b *Builder) Current() (*View, <-chan struct{}) {
	st, _ := b.st.Current()
	if v := b.last.Load(); v != nil && v.state == st {
		return v, v.stale
	}
	return b.build()
}

// Fresh is Current for readers that judge freshness: an overdue expiry is
// committed first, within 100 ms.
func (b *Builder) Fresh(ctx context.Context) (*View, <-chan struct{}) {
	b.st.Fresh(ctx)
	return b.Current()
}

// build makes the view of the newest state, out of the last one.
func (b *Builder) build() (*View, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	st, stale := b.st.Current()
	last := b.last.Load()
	if last != nil && last.state == st {
		return last, last.stale
	}
	b.warmed(st.Content)
	v := &View{Tick: st.Tick, Seen: st.Version, state: st, stale: stale}
	if last != nil && last.Content == st.Content {
		v.Snapshot = last.Snapshot
	} else {
		v.Snapshot = b.snapshot(st, last)
	}
	v.Receipts = receipts(st, last)
	b.last.Store(v)
	return v, stale
}

func (b *Builder) snapshot(st *store.State, last *View) *Snapshot {
	opts := b.st.Options()
	s := &Snapshot{
		Lineage: opts.Lineage, Epoch: opts.Epoch, Content: st.Content, Enabled: opts.Discovery,
		Workers: make([]*Worker, len(st.Entries)), Pools: pools(st.Entries),
	}
	for _, p := range s.Pools {
		p.Version = s.Version
	}
	s.poolHorizon = s.Version // no reader was told of a version before the first
	if last != nil {
		s.inherit(last.Snapshot, opts.Clock.Now())
	}
	for i, e := range st.Entries {
		w := last.worker(e, i)
		if w == nil {
			w = newWorker(e)
		}
		s.Workers[i] = w
		s.Digest += w.Hash
	}
	return s
}

// worker returns the view's worker when its entry is still e; it most likely
// is at guess.
func (v *View) worker(e *store.Entry, guess int) *Worker {
	if v == nil {
		return nil
	}
	if i, ok := v.FindNear(e.Row, guess); ok && v.Workers[i].Entry == e {
		return v.Workers[i]
	}
	return nil
}

func newWorker(e *store.Entry) *Worker {
	content := encodeContent(e)
	hash := xxhash.Sum64(content)
	return &Worker{Entry: e, Hash: hash, Encoded: encodeWorker(e.Row, content, hash)}
}

func receipts(st *store.State, last *View) []*Receipt {
	out := make([]*Receipt, len(st.Live))
	for i, l := range st.Live {
		if l == nil {
			continue
		}
		if out[i] = last.receipt(l, i); out[i] == nil {
			out[i] = &Receipt{Live: l, Encoded: encodeReceipt(l)}
		}
	}
	return out
}

// receipt returns the view's receipt of a worker when it is still l; it most
// likely is at guess.
func (v *View) receipt(l *store.Live, guess int) *Receipt {
	if v == nil {
		return nil
	}
	if i, ok := v.FindNear(l.Row, guess); ok && v.Receipts[i] != nil && v.Receipts[i].Live == l {
		return v.Receipts[i]
	}
	return nil
}

// Check recomputes the newest view from the store's rows and returns how they
// differ; nil when they agree. It is for tests and diagnostics: it costs as
// much as encoding every worker.
func (b *Builder) Check() error {
	if err := b.st.Check(); err != nil {
		return err
	}
	v, _ := b.Current()
	var sum uint64
	for i, w := range v.Workers {
		if w.Entry != v.Entries[i] || newWorker(w.Entry).Hash != w.Hash {
			return fmt.Errorf("snapshot: version %d: worker %q does not follow from its entry", v.Version, w.Worker.ID)
		}
		sum += w.Hash
	}
	if sum != v.Digest {
		return fmt.Errorf("snapshot: version %d: digest %x, sum %x", v.Version, v.Digest, sum)
	}
	for i, p := range pools(v.Entries) {
		if !bytes.Equal(p.Encoded, v.Pools[i].Encoded) {
			return fmt.Errorf("snapshot: version %d: pool %v does not follow from the workers", v.Version, p.Key)
		}
	}
	return nil
}

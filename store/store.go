package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Store. All but Registerer and Logger are required.
type Options struct {
	// Lineage names the history of versions; random for every start.
	Lineage string
	// Epoch is the wall clock at this start, Unix milliseconds.
	Epoch uint64
	// Clock is the plane's monotonic clock.
	Clock *Clock
	// StaleAfter is the age at which a report stops being fresh; at least
	// three report intervals.
	StaleAfter time.Duration
	// Settle is the time that a commit waits for more input, 1 ms to 1 s.
	Settle time.Duration
	// ReportInterval is the default interval at which engines report.
	ReportInterval time.Duration
	// Discovery says that there is a discovery source. Without one the store
	// never warms.
	Discovery bool
	// SleptFor returns the time for which the machine slept since boot; nil
	// reads the kernel's boot and monotonic clocks.
	SleptFor func() time.Duration
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Discovery is one change of the discovered workers. All of it takes effect
// in one version, removals first.
type Discovery struct {
	Removed []*Slot
	// Added slots come from NewSlot.
	Added []*Slot
	// Updated replaces what discovery says of a worker in place: models,
	// zone, labels, draining, interval. Load and stream stay.
	Updated []Update
	// Synced says that every discovery source delivered its first list, or is
	// not waited for any more.
	Synced bool
}

// Update is a change in place of one worker.
type Update struct {
	Slot   *Slot
	Worker *Worker
}

// Store is the system of record. All methods are safe for concurrent use.
type Store struct {
	opts    Options
	log     *slog.Logger
	db      *memdb.MemDB
	metrics *metrics
	rows    atomic.Uint32 // last row number given out
	beat    atomic.Int64  // Instant at which the committer was last seen running

	current atomic.Pointer[published]
	sources atomic.Pointer[[]SourceStatus]

	mu      sync.Mutex
	dirty   []*Slot     // slots with something to take
	changes []Discovery // discovery changes, in order

	wake    chan struct{} // something is queued; settle, then commit
	overdue chan struct{} // a reader waits; commit at once

	// slots are those of the workers that there are, by row number; they are the
	// committer's alone.
	slots map[uint32]*Slot

	// commit is held while the tables and the published state move together.
	commit sync.Mutex
}

// published is a state with the channels that say when it is old.
type published struct {
	state *State
	// stale closes with the content, next with the state.
	stale, next chan struct{}
}

// New returns a store whose state is empty: version 1, warming where there is
// a discovery source. It starts nothing. It fails when an option is missing or
// out of range.
func New(opts Options) (*Store, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{
		opts: opts, db: db, metrics: m,
		log:  cmp.Or(opts.Logger, slog.Default()),
		wake: make(chan struct{}, 1), overdue: make(chan struct{}, 1),
		slots: make(map[uint32]*Slot),
	}
	empty := &State{Content: &Content{Version: 1, Warming: opts.Discovery, Published: time.Now()}}
	s.current.Store(&published{state: empty, stale: make(chan struct{}), next: make(chan struct{})})
	return s, nil
}

func (o *Options) validate() error {
	switch {
	case o.Lineage == "":
		return errors.New("store: Lineage is empty")
	case o.Clock == nil:
		return errors.New("store: Clock is nil")
	case o.ReportInterval <= 0:
		return errors.New("store: ReportInterval must be positive")
	case o.StaleAfter < 3*o.ReportInterval:
		return fmt.Errorf("store: StaleAfter %v is below three report intervals", o.StaleAfter)
	case o.Settle < time.Millisecond || o.Settle > time.Second:
		return fmt.Errorf("store: Settle %v is not within 1ms to 1s", o.Settle)
	}
	if o.SleptFor == nil {
		o.SleptFor = sleptFor
	}
	return nil
}

// Options returns the options in force.
func (s *Store) Options() Options { return s.opts }

// Current returns the newest state and a channel that closes when its content
// is superseded. Receipts alone do not close it.
func (s *Store) Current() (*State, <-chan struct{}) {
	p := s.current.Load()
	return p.state, p.stale
}

// overdueWait bounds the wait of Fresh.
const overdueWait = 100 * time.Millisecond

// Fresh is Current for readers that judge freshness: where the next expiry is
// overdue it wakes the committer and waits for that commit, for 100 ms at the
// most.
func (s *Store) Fresh(ctx context.Context) (*State, <-chan struct{}) {
	p := s.current.Load()
	if !s.late(p) {
		return p.state, p.stale
	}
	ctx, cancel := context.WithTimeout(ctx, overdueWait)
	defer cancel()
	for s.late(p) && ctx.Err() == nil {
		signal(s.overdue)
		select {
		case <-p.next:
		case <-ctx.Done():
		}
		p = s.current.Load()
	}
	return p.state, p.stale
}

func (s *Store) late(p *published) bool {
	return p.state.NextDue != 0 && s.opts.Clock.Now() >= p.state.NextDue
}

// Beat returns when the committer was last seen running; 0 before Run.
func (s *Store) Beat() Instant { return Instant(s.beat.Load()) }

// NoteSources records how the discovery sources are, in the order in which
// they win over each other. The list must not be changed after.
func (s *Store) NoteSources(list []SourceStatus) { s.sources.Store(&list) }

// Sources returns how the discovery sources are, in the order in which they
// win over each other; nil before anything was noted. It must not be changed.
func (s *Store) Sources() []SourceStatus {
	if list := s.sources.Load(); list != nil {
		return *list
	}
	return nil
}

// DiscoveryError returns why sources of discovery cannot deliver a new list,
// each with its name; empty while all can.
func (s *Store) DiscoveryError() string {
	var failing []string
	for _, src := range s.Sources() {
		if src.Error != "" {
			failing = append(failing, src.Name+": "+src.Error)
		}
	}
	return strings.Join(failing, "; ")
}

// NewSlot reserves a row number for a worker. The worker is visible once a
// Discovery that adds it was applied and committed.
func (s *Store) NewSlot(w *Worker) *Slot {
	sl := &Slot{store: s, row: s.rows.Add(1), worker: w}
	sl.history.add(Happening{At: s.opts.Clock.Now(), Event: EventDiscovered, Detail: w.DiscoveredBy})
	return sl
}

// Apply queues a change of the discovered workers for the next commit.
func (s *Store) Apply(d Discovery) {
	s.mu.Lock()
	s.changes = append(s.changes, d)
	s.mu.Unlock()
	signal(s.wake)
}

func (s *Store) enqueue(sl *Slot) {
	s.mu.Lock()
	s.dirty = append(s.dirty, sl)
	s.mu.Unlock()
	signal(s.wake)
}

// signal leaves a token in a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Inspect returns the committed stream and diagnostics rows of a worker, and
// whether the worker is in the tables.
func (s *Store) Inspect(row uint32) (Stream, Diagnostics, bool) {
	txn := s.db.Txn(false)
	if w, err := find[workerRow](txn, tableWorkers, row); err != nil || w == nil {
		return Stream{}, Diagnostics{}, false
	}
	st, dg := Stream{Row: row}, Diagnostics{Row: row}
	if r, err := find[Stream](txn, tableStreams, row); err == nil && r != nil {
		st = *r
	}
	if r, err := find[Diagnostics](txn, tableDiagnostics, row); err == nil && r != nil {
		dg = *r
	}
	return st, dg, true
}

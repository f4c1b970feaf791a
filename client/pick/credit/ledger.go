package credit

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options set up a Ledger. The zero value is ready to use.
type Options struct {
	// AssumedTokens are the prompt tokens that a dispatch counts with if it
	// does not tell its own. With 0, the default, it counts as a request only,
	// and policies that compare tokens do not see it.
	AssumedTokens int64
	// Now reads the local clock; nil is time.Now.
	Now func() time.Time
}

// Receipt tells of the newest report of a worker. It is a plain value.
type Receipt struct {
	// WorkerID names the worker.
	WorkerID string
	// Instance names the life of the engine; empty is not known. Row is the
	// number under which the plane lists the worker; 0 is not known. Where one
	// of them changes, another engine stands behind the id.
	Instance string
	Row      uint32
	// At is when the plane received the report, mapped to the local clock: its
	// arrival here less its age. It is zero where none was received, where the
	// report carried no load, and where its status is not healthy: none of these
	// covers a dispatch.
	At time.Time
	// Sampled is when the oldest of the report's samples was taken, on the local
	// clock and at the latest; zero is not known.
	Sampled time.Time
	// Interval is that between reports. Polled says that the plane asks for
	// them; what is asked for may be an interval old already.
	Interval time.Duration
	Polled   bool
}

// Covers says whether the numbers of the report have a request in them that
// was dispatched at a time. It must have been received more than an interval
// later, or two intervals where the worker is polled. A report whose oldest
// sample is not younger than the dispatch covers it not: an engine may repeat a
// sample. The interval is the one that the caller knows: where a plane polls a
// slow engine less often than its view says, a request may be neither in the
// credit nor in the report until the next one.
func (r Receipt) Covers(dispatched time.Time) bool {
	wait := r.Interval
	if r.Polled {
		wait = 2 * r.Interval
	}
	return r.At.After(dispatched.Add(wait)) && (r.Sampled.IsZero() || r.Sampled.After(dispatched))
}

// Ledger keeps this process's own books: which requests are open, and which
// the reported load cannot have yet. All methods may be called from any
// goroutine.
type Ledger struct {
	options Options
	base    time.Time

	mu      sync.RWMutex
	entries map[string]*entry
	round   uint64 // of Sync

	// next is when the first of due ends, after base.
	next  atomic.Int64
	dueMu sync.Mutex
	// due are dispatches of unknown end, the earliest deadline first.
	due []*Dispatch
}

// NewLedger returns an empty Ledger.
func NewLedger(o Options) *Ledger {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Ledger{options: o, base: o.Now(), entries: map[string]*entry{}}
	l.next.Store(math.MaxInt64)
	return l
}

// Sync takes the receipts of all workers of a view, and forgets the workers
// that are not among them: their credit is dropped, and their open requests
// are counted until they end. Call it before the tables of the view are used,
// and with every newer view.
func (l *Ledger) Sync(all []Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round++
	for i := range all {
		e := l.entry(all[i].WorkerID)
		e.round = l.round
		e.observe(&all[i])
	}
	for _, e := range l.entries {
		if e.round != l.round {
			e.leave()
			l.removeIdle(e)
		}
	}
}

// Observe takes the receipt of one worker, as Sync takes those of all.
func (l *Ledger) Observe(r Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(r.WorkerID)
	e.round = l.round
	e.observe(&r)
}

// Local returns the counters of a target.
func (l *Ledger) Local(of Target) Local {
	l.Expire(l.options.Now())
	l.mu.RLock()
	e := l.entries[of.WorkerID]
	l.mu.RUnlock()
	if e == nil {
		return Local{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if of.Rank < 0 {
		return e.worker.local(0)
	}
	if c, i := e.find(of.Rank); c != nil {
		return c.local(i)
	}
	return Local{}
}

// Counters returns the counters of a worker of the view, or of its ranks from
// first to last, which are 0 or more and below MaxRanks, in one or more parts.
// A first of NoRank asks for the worker.
func (l *Ledger) Counters(workerID string, first, last int32) []Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(workerID)
	e.claim()
	return e.counters(first, last)
}

// Len returns how many workers the ledger has counters of: those of the last
// view, and those that are gone and have requests open.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.entries)
}

// entry returns the entry of a worker; l.mu is held.
func (l *Ledger) entry(id string) *entry {
	e := l.entries[id]
	if e == nil {
		e = newEntry(l, id)
		l.entries[id] = e
	}
	return e
}

// hold returns the entry of a worker with its lock held. A worker that no view
// has gets counters until its requests end.
func (l *Ledger) hold(id string) *entry {
	l.mu.RLock()
	e := l.entries[id]
	l.mu.RUnlock()
	if e != nil {
		e.mu.Lock()
		if !e.removed {
			return e
		}
		e.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e = l.entry(id)
	e.mu.Lock()
	return e
}

// removeIdle removes an entry that nothing needs any more; l.mu is held.
func (l *Ledger) removeIdle(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle() && !e.removed {
		e.removed = true
		delete(l.entries, e.id)
	}
}

// await puts a dispatch among those that end at a deadline.
func (l *Ledger) await(d *Dispatch) {
	l.dueMu.Lock()
	defer l.dueMu.Unlock()
	i := len(l.due)
	for i > 0 && l.due[i-1].deadline.After(d.deadline) {
		i--
	}
	l.due = slices.Insert(l.due, i, d)
	l.alarm()
}

// alarm notes the earliest deadline; l.dueMu is held.
func (l *Ledger) alarm() {
	next := int64(math.MaxInt64)
	if len(l.due) > 0 {
		next = int64(l.due[0].deadline.Sub(l.base))
	}
	l.next.Store(next)
}

// Expire ends the dispatches of unknown end whose deadline has come. It
// costs next to nothing where there is none.
func (l *Ledger) Expire(now time.Time) {
	if int64(now.Sub(l.base)) < l.next.Load() {
		return
	}
	for _, d := range l.takeDue(now) {
		d.End()
	}
}

func (l *Ledger) takeDue(now time.Time) []*Dispatch {
	l.dueMu.Lock()
	defer l.dueMu.Unlock()
	n := 0
	for n < len(l.due) && !now.Before(l.due[n].deadline) {
		n++
	}
	due := slices.Clone(l.due[:n])
	clear(l.due[:n])
	l.due = l.due[n:]
	l.alarm()
	return due
}

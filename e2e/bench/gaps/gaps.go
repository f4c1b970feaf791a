// Package gaps measures how far the times between two events of one source are
// off the wanted interval.
package gaps

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// maxTime is the longest time that is told from a longer one, microseconds.
const maxTime = 60_000_000

// never is a time that does not come.
const never = 1 << 62

// Recorder records the gaps between the events of sources. It is safe for
// concurrent use.
type Recorder[K comparable] struct {
	mu       sync.Mutex
	interval int64
	since    int64
	last     map[K]int64
	events   int64
	off      *hdrhistogram.Histogram
	gaps     *hdrhistogram.Histogram
}

// New returns a recorder that records nothing before Record.
func New[K comparable]() *Recorder[K] {
	return &Recorder[K]{
		since: never, last: map[K]int64{},
		off: hdrhistogram.New(1, maxTime, 3), gaps: hdrhistogram.New(1, maxTime, 3),
	}
}

// Note notes an event of a source at a time of the monotonic clock,
// microseconds.
func (r *Recorder[K]) Note(source K, at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events++
	before, ok := r.last[source]
	r.last[source] = at
	if !ok || before < r.since {
		return
	}
	gap := at - before
	off := gap - r.interval
	_ = r.gaps.RecordValue(min(max(gap, 1), maxTime)) // It fits.
	_ = r.off.RecordValue(min(max(off, -off, 1), maxTime))
}

// Record begins to record the gaps that begin from now on, held against an
// interval.
func (r *Recorder[K]) Record(interval time.Duration, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interval, r.since, r.events = interval.Microseconds(), now, 0
	r.off.Reset()
	r.gaps.Reset()
}

// Events returns the number of events since Record, or since the start.
func (r *Recorder[K]) Events() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events
}

// Seen is what was recorded. Times are microseconds. It is a plain value.
type Seen struct {
	// Events is how many came since Record, Count how many gaps lie between
	// them, Sources how many sources ever had an event.
	Events, Count int64
	Sources       int
	// P50, P99 and Max are how far the gaps were off the interval, above or
	// below; Longest is the longest gap, up to now also of those that have not
	// ended.
	P50, P99, Max, Longest int64
}

// Seen returns what was recorded up to a time.
func (r *Recorder[K]) Seen(now int64) Seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Seen{
		Events: r.events, Count: r.off.TotalCount(), Sources: len(r.last),
		P50: r.off.ValueAtQuantile(50), P99: r.off.ValueAtQuantile(99), Max: r.off.Max(), Longest: r.gaps.Max(),
	}
	for _, at := range r.last {
		s.Longest = max(s.Longest, now-at)
	}
	return s
}

// Package feeds shares the views of a filter, and the bytes encoded out of
// them, among all its readers. A feed lives while somebody reads it: what a
// reader that comes back lacks follows from the store alone.
package feeds

import (
	"sync"

	"github.com/loadplane/loadplane/api/frame"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

// maxKept bounds the bytes of events and receipts that all filters keep
// together, beside those of the whole view. What is above is encoded for each
// reader.
const maxKept = 256 << 20

// Set has the feeds in use, one a filter. It is safe for concurrent use.
type Set struct {
	builder *snapshot.Builder
	counts  frame.Counts
	budget  *frame.Budget
	whole   *Feed

	mu    sync.Mutex
	inUse map[uint64]*Feed // by the hash of the filter
}

// Feed is the views of one filter with the bytes that its readers share. It
// is safe for concurrent use.
type Feed struct {
	*snapshot.Feed
	frame.Cache

	set    *Set
	filter *filter.Filter
	users  int // guarded by the mu of the set, as is what Keep is told
}

// New returns a set over the views of b. It starts nothing.
func New(b *snapshot.Builder) *Set {
	s := &Set{builder: b, budget: frame.NewBudget(maxKept), inUse: make(map[uint64]*Feed)}
	s.whole = &Feed{Feed: b.Feed(nil)}
	s.whole.Counts = &s.counts
	return s
}

// Take returns the feed of a filter, nil for all workers. Each must be
// released once.
func (s *Set) Take(f *filter.Filter) *Feed {
	if f == nil {
		return s.whole
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	feed := s.inUse[f.Hash()]
	if feed == nil || !feed.filter.Equal(f) {
		feed = &Feed{Feed: s.builder.Feed(f), set: s, filter: f}
		feed.Counts, feed.Budget = &s.counts, s.budget
		// Of two filters of one hash the newer is the one that is shared.
		s.inUse[f.Hash()] = feed
	}
	feed.count(1)
	return feed
}

// count changes the number of users. What is encoded for a single one is not
// kept: nobody would read it again.
func (f *Feed) count(change int) {
	f.users += change
	f.Keep(f.users > 1)
}

// Release gives the feed back. The last reader but one drops what it kept.
func (f *Feed) Release() {
	if f.set == nil {
		return
	}
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	f.count(-1)
	if f.users == 0 && f.set.inUse[f.filter.Hash()] == f {
		delete(f.set.inUse, f.filter.Hash())
	}
}

// Len returns how many filters are in use.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inUse)
}

// Encoded returns how many fulls and deltas were encoded for all filters.
func (s *Set) Encoded() (fulls, deltas uint64) { return s.counts.Encoded() }

// Kept returns the bytes that all filters keep together.
func (s *Set) Kept() int64 { return s.budget.Used() }

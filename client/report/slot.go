package report

import (
	"sync"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// slot holds the newest report that is to be sent. It is safe for concurrent
// use.
type slot struct {
	// filled signals that there is one.
	filled chan struct{}

	mu     sync.Mutex
	report *pb.EngineReport
}

func newSlot() slot { return slot{filled: make(chan struct{}, 1)} }

// put leaves a report, and says whether it took the place of one.
func (s *slot) put(r *pb.EngineReport) (replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	replaced = s.report != nil
	s.report = r
	poke(s.filled)
	return replaced
}

// take returns the report that was left; nil where there is none.
func (s *slot) take() *pb.EngineReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	s.report = nil
	drain(s.filled)
	return r
}

// hurryBurst is how many reports may be hurried at once.
const hurryBurst = 3

// hurry bounds the reports that come beside the schedule to one an interval, so
// that all of them stay within twice the granted rate. It is for one goroutine.
type hurry struct {
	bucket
	// wanted says that a report is due.
	wanted bool
}

// due says whether a hurried report may be made now.
func (h *hurry) due(now time.Time, interval time.Duration) bool {
	h.pass(now, interval)
	return h.wanted && h.used <= hurryBurst-1
}

// made notes that a report was made. One that was due anyway costs nothing.
func (h *hurry) made(scheduled bool) {
	if h.wanted && !scheduled {
		h.used++
	}
	h.wanted = false
}

// wait returns the time until the next report may be due.
func (h *hurry) wait(now time.Time, interval time.Duration, next time.Time) time.Duration {
	wait := next.Sub(now)
	if !h.wanted {
		return wait
	}
	free := (h.used - (hurryBurst - 1)) * float64(interval)
	return min(wait, max(time.Duration(free), time.Millisecond))
}

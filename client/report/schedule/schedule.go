// Package schedule says when a reporter reports: at a fixed rate, whose
// deadlines are counted from one anchor, so that no delay adds up. A deadline
// that was missed is skipped and not made up for. Nothing but a report that was
// made moves a deadline back, so that renewals and changed grants, however often
// they come, starve nobody.
package schedule

import "time"

// shortest is the shortest interval; a shorter one counts as this.
const shortest = time.Millisecond

// Schedule has the deadlines of a reporter. The time is an argument of its
// methods; readings should have a monotonic clock. It is for one goroutine.
type Schedule struct {
	interval time.Duration
	// anchor is the deadline that was last met, or skipped last; the following
	// ones are whole intervals after it.
	anchor time.Time
	// next is the deadline to come.
	next time.Time
}

// New returns a schedule whose first deadline is now. An interval below 1 ms
// counts as 1 ms.
func New(interval time.Duration, now time.Time) *Schedule {
	return &Schedule{interval: max(interval, shortest), anchor: now, next: now}
}

// Next returns when the next report is due; it may be past.
func (s *Schedule) Next() time.Time { return s.next }

// Interval returns the time between two deadlines.
func (s *Schedule) Interval() time.Duration { return s.interval }

// Fired notes that a report was made at now, for the deadline to come if now is
// not before it; a report that comes earlier moves nothing. The next deadline is
// the first one on the grid after now. It returns how many were skipped.
func (s *Schedule) Fired(now time.Time) (skipped int64) {
	late := now.Sub(s.next)
	if late < 0 {
		return 0
	}
	skipped = int64(late / s.interval)
	s.anchor = s.next.Add(time.Duration(skipped) * s.interval)
	s.next = s.anchor.Add(s.interval)
	return skipped
}

// SetInterval changes the interval. The same one changes nothing; another one
// counts from the last deadline, so that the next report is due one new interval
// after it, and at once where that is past. Before the first report nothing but
// the interval changes.
func (s *Schedule) SetInterval(interval time.Duration, now time.Time) {
	interval = max(interval, shortest)
	if interval == s.interval {
		return
	}
	s.interval = interval
	if !s.next.After(s.anchor) {
		return // the first one is not made yet
	}
	s.next = s.anchor.Add(interval)
	if s.next.Before(now) {
		s.next = now
	}
}

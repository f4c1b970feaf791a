package store

import "time"

// Instant is a point on the plane's monotonic clock: the time since the
// process started, always positive. Instants of two processes do not compare.
type Instant time.Duration

// Add returns i later by d.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from earlier to i.
func (i Instant) Sub(earlier Instant) time.Duration { return time.Duration(i - earlier) }

// Milliseconds returns i in whole milliseconds, as the API shows it.
func (i Instant) Milliseconds() uint64 {
	return uint64(max(0, time.Duration(i).Milliseconds()))
}

// Clock reads the monotonic clock. Setting the wall clock does not move it;
// a suspended machine stops it. It is immutable and safe for concurrent use.
type Clock struct{ start time.Time }

// NewClock returns a clock that starts now.
func NewClock() *Clock {
	// One nanosecond back, so that no reading is the zero Instant.
	return &Clock{start: time.Now().Add(-1)}
}

// Now returns the time since the clock was made.
func (c *Clock) Now() Instant { return Instant(time.Since(c.start)) }

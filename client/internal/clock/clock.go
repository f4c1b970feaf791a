// Package clock maps the clock of a server to the local one.
package clock

import "time"

// window is how long an observation of the server's clock counts: long
// enough to meet a message that was not held up, short enough that the drift
// of two clocks does not matter.
const window = time.Minute

// Server is what is known of the clock of a server. A message that was
// read late arrives late, so the least delayed one of the last minute or two
// decides: validity ends when it does at the server, plus the way of that one.
// It is a plain value.
type Server struct {
	server string
	// zero is the earliest local time at which the server's clock can have been
	// zero, by this window; before is that of the window before.
	zero, before time.Time
	began        time.Time
}

// Seen returns the clock after one more message of a server, which shows ms
// milliseconds and arrived at at.
func (c Server) Seen(server string, ms uint64, at time.Time) Server {
	zero := at.Add(-Millis(ms))
	switch {
	case c.began.IsZero() || c.server != server:
		return Server{server, zero, zero, at}
	case at.Sub(c.began) > window:
		c.before, c.zero, c.began = c.zero, zero, at
	case zero.Before(c.zero):
		c.zero = zero
	}
	return c
}

// Local returns the local time at which the server's clock shows ms.
func (c Server) Local(ms uint64) time.Time {
	zero := c.zero
	if c.before.Before(zero) {
		zero = c.before
	}
	return zero.Add(Millis(ms))
}

// Millis bounds a reading to what a Duration holds.
func Millis(ms uint64) time.Duration {
	const most = 1 << 43
	return time.Duration(min(ms, most)) * time.Millisecond
}

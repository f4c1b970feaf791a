package client

import (
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// clockWindow is how long an observation of the server's clock counts: long
// enough to meet a message that was not held up, short enough that the drift
// of two clocks does not matter.
const clockWindow = time.Minute

// serverClock maps the clock of a server to the local one. A message that was
// read late arrives late, so the least delayed one of the last minute or two
// decides: validity ends when it does at the server, plus the way of that one.
// It is a plain value.
type serverClock struct {
	server string
	// zero is the earliest local time at which the server's clock can have been
	// zero, by this window; before is that of the window before.
	zero, before time.Time
	began        time.Time
}

// seen returns the clock after one more message, which arrived at at.
func (c serverClock) seen(m *pb.WatchSnapshotsResponse, at time.Time) serverClock {
	zero := at.Add(-millis(m.GetServerClockMs()))
	switch {
	case c.began.IsZero() || c.server != m.GetServerId():
		return serverClock{m.GetServerId(), zero, zero, at}
	case at.Sub(c.began) > clockWindow:
		c.before, c.zero, c.began = c.zero, zero, at
	case zero.Before(c.zero):
		c.zero = zero
	}
	return c
}

// local returns the local time at which the server's clock shows ms.
func (c serverClock) local(ms uint64) time.Time {
	zero := c.zero
	if c.before.Before(zero) {
		zero = c.before
	}
	return zero.Add(millis(ms))
}

// millis bounds a reading to what a Duration holds.
func millis(ms uint64) time.Duration {
	const most = 1 << 43
	return time.Duration(min(ms, most)) * time.Millisecond
}

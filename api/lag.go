package api

import (
	"sync"
	"sync/atomic"
	"time"
)

// lags knows since when each open watch is being sent a message, so that a
// reader that takes none shows before it is cut. The zero lags has none. It is
// safe for concurrent use.
type lags struct {
	mu   sync.Mutex
	open map[*lag]struct{}
}

// lag is when the message was begun that a watch is being sent, by the time
// since the API was made; 0 for none. It is safe for concurrent use.
type lag struct{ since atomic.Int64 }

// enter adds a watch.
func (l *lags) enter() *lag {
	entered := new(lag)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[*lag]struct{})
	}
	l.open[entered] = struct{}{}
	return entered
}

// leave takes a watch out.
func (l *lags) leave(left *lag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, left)
}

// longest returns how long the watch that waits longest has waited at now; 0
// where no message is being sent.
func (l *lags) longest(now time.Duration) (most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for watch := range l.open {
		if since := time.Duration(watch.since.Load()); since > 0 {
			most = max(most, now-since)
		}
	}
	return most
}

// begin and end are called around each message.
func (l *lag) begin(now time.Duration) { l.since.Store(int64(max(1, now))) }

func (l *lag) end() { l.since.Store(0) }

package monitor

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/loadplane/loadplane/registry"
)

const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
	// livedFor is how long a session has to last for the next one to be opened
	// soon.
	livedFor = time.Second
	// quietFor is how long an engine that reported may be away at least, and
	// the shortest time between two questions where it is.
	quietFor = 10 * time.Second
	// endStopped and endMoved are the words for the ends of sessions that the
	// plane ended: it is served no more, or is elsewhere.
	endStopped = "stopped"
	endMoved   = "moved"
)

// loop opens the sessions with one engine. It is for one goroutine.
type loop struct {
	monitor *Monitor
	engine  *registry.Engine
	target  registry.Target
	// backoff is the bound of the last wait, 0 for none.
	backoff time.Duration
	// heard is when a report was admitted last; zero for never.
	heard time.Time
	// wondered is when the engine was last asked where its load reporter is.
	wondered time.Time
}

// session opens a session and keeps it until it ends. It returns nil where ctx
// ended it.
func (l *loop) session(ctx context.Context) *fault {
	l.target = l.monitor.target(l.engine)
	if l.target.ReporterPort == 0 {
		return faultf(ReasonNoReporterPort, "the port of the load reporter is not known")
	}
	s, why := l.monitor.open(ctx, l.engine, &l.target)
	if why == nil {
		why = s.run(ctx)
		l.note(s)
		s.end(why == nil || why.final || why.moved)
	}
	if ctx.Err() != nil {
		count(l.monitor.metrics.ended, endStopped)
		return nil
	}
	return why
}

// note takes over what a session leaves.
func (l *loop) note(s *session) {
	t := s.in.timing()
	if !t.admitted.IsZero() {
		l.heard = t.admitted
	}
	if !t.acked.IsZero() && time.Since(t.acked) >= livedFor {
		l.backoff = 0
	}
}

// over counts and shows why there is no session, and says whether there will
// be no further one.
func (l *loop) over(why *fault) bool {
	if why.moved {
		count(l.monitor.metrics.ended, endMoved)
		return false
	}
	count(l.monitor.metrics.ended, string(why.reason))
	l.engine.Show(registry.Way{State: registry.StateFailing, Reason: why.reason, Err: why.err, Interval: l.target.Interval})
	if why.reason == registry.ReasonConnectFailed && time.Since(l.wondered) >= quietFor {
		l.wondered = time.Now()
		l.engine.Wonder()
	}
	quiet := max(l.target.Lease, quietFor)
	return why.final || !l.heard.IsZero() && time.Since(l.heard) >= quiet
}

// wait waits before the next session. That the load reporter is elsewhere ends
// it.
func (l *loop) wait(ctx context.Context) {
	l.backoff = min(max(minBackoff, 2*l.backoff), maxBackoff)
	delay := rand.N(l.backoff)
	if l.target.ReporterPort == 0 {
		delay, l.backoff = maxBackoff, 0
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-l.engine.Changed():
			if t := l.monitor.target(l.engine); moved(&t, &l.target) {
				l.backoff = 0
				return
			}
		}
	}
}

// moved says that the load reporter is at another address than before.
func moved(now, before *registry.Target) bool {
	return now.URL != before.URL || now.ReporterPort != before.ReporterPort
}

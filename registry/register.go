package registry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Times of the registration loop.
const (
	minBackoff   = 200 * time.Millisecond
	maxBackoff   = 5 * time.Second
	parkFor      = time.Minute
	lookEach     = 5 * time.Second // at the credentials of a parked worker
	noEngineFor  = 5 * time.Minute
	minRenewal   = time.Second
	maxRenewal   = time.Minute
	minLeaseSeen = 3 * time.Second
	// endGrace is how long an engine is given to learn that its stream ended.
	// A call that it gets before would renew what is about to end, and the
	// engine would not come back before the next one.
	endGrace = 200 * time.Millisecond
)

// loop keeps one worker registered. It is for one goroutine.
type loop struct {
	w     *worker
	state RegistrationState
	// reason is that of the last failed call.
	reason store.Reason
	// trial is nil where the dialect is configured.
	trial *trial
	// last is when the last call began, due when the next one does.
	last, due time.Time
	// began is last on the plane's clock.
	began store.Instant
	// renewal is when a good registration is to be renewed. While checking,
	// due is before it: if nothing was heard by then, the engine is asked
	// once more. asked says that it was.
	renewal         time.Time
	checking, asked bool
	backoff         backoff
	// stamps are those of the credentials of the last call.
	stamps [2]stamp
}

// keepRegistered registers the worker and renews until ctx ends.
func (w *worker) keepRegistered(ctx context.Context) {
	l := &loop{w: w, due: time.Now()}
	l.move(StatePending, outcome{})
	l.run(ctx)
}

// run registers and renews until ctx ends or a trial is over.
func (l *loop) run(ctx context.Context) ending {
	for l.await(ctx) {
		if e, over := l.expired(); over {
			return e
		}
		l.last, l.began = time.Now(), l.w.reg.clock.Now()
		l.stamps = l.w.credentials()
		o := l.w.call(ctx)
		if ctx.Err() != nil {
			break
		}
		l.w.reg.metrics.called(o.result(), time.Since(l.last))
		l.settle(o)
		if e, over := l.judge(&o); over {
			return e
		}
	}
	return ending{}
}

// await waits until the next call is due; false says that ctx ended, or that a
// registered reporter took the turn.
func (l *loop) await(ctx context.Context) bool {
	timer := time.NewTimer(l.untilDue())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			if l.state == StateParked && l.w.credentials() != l.stamps {
				l.hasten(0)
			}
			if l.outOfTime() || (!time.Now().Before(l.due) && !l.answered()) {
				return true
			}
		case <-l.w.changed:
			l.hasten(0)
		case <-l.w.pushed:
			if l.trial != nil && l.w.hasTurn(store.DialectNative) {
				return false
			}
		case <-l.w.early:
			if l.state == StateRegistered || l.trial != nil {
				l.hasten(endGrace)
			}
		}
		timer.Reset(l.untilDue())
	}
}

// answered says that the check of a good registration is due and the engine
// was heard: the next call is the renewal.
func (l *loop) answered() bool {
	checking, heard := l.checking, l.w.heardSince(l.began)
	l.checking = false
	l.asked = !heard && (l.asked || checking)
	if checking && heard {
		l.due = l.renewal
		return true
	}
	return false
}

// hasten makes the next call due as soon as the last one allows, but not
// before a delay. A call makes the engine count its report interval anew, so
// calls that come as fast as reports would stop them.
func (l *loop) hasten(delay time.Duration) {
	_, def := l.w.settings()
	gap := minBackoff
	if l.state == StateRegistered {
		gap = floorOf(def.Interval)
	}
	soonest := l.last.Add(gap)
	if earliest := time.Now().Add(delay); soonest.Before(earliest) {
		soonest = earliest
	}
	if soonest.Before(l.due) {
		l.due, l.checking = soonest, false
		l.showDue()
	}
}

// settle decides from the outcome of a call what comes next.
func (l *loop) settle(o outcome) {
	_, def := l.w.settings()
	state := o.state
	if state == StateParked && l.w.lapsed() {
		state = StateRetrying
	}
	var delay time.Duration
	switch state {
	case StateRegistered:
		delay = renewal(def.Interval, l.w.reg.opts.Lease, o.granted)
	case StateConflict:
		delay = l.w.reg.opts.Lease
	case StateParked:
		delay = parkFor
	default:
		state, delay = StateRetrying, l.backoff.next()
		if l.w.lapsed() {
			delay = min(delay, max(minBackoff, l.w.reg.opts.StaleAfter/3))
		}
	}
	if state != StateRetrying {
		l.backoff = 0
	}
	l.due = time.Now().Add(delay)
	l.renewal = l.due
	// An engine that accepted reports at once. One that is not heard may have
	// taken the call for a renewal of a stream that was just ending.
	check := l.last.Add(2*def.Interval + endGrace)
	if l.checking = state == StateRegistered && !l.asked && check.Before(l.due); l.checking {
		l.due = check
	}
	l.w.note(Way{State: o.state, Reason: o.reason, Err: o.err, Status: o.status})
	l.move(state, o)
}

// backoff is the time of the last retry. Its zero value has seen none.
type backoff time.Duration

// next doubles the delay of retries, spread by a fifth.
func (b *backoff) next() time.Duration {
	last := min(max(minBackoff, 2*time.Duration(*b)), maxBackoff)
	*b = backoff(last)
	return last*4/5 + rand.N(last*2/5)
}

// move shows a state and when the next call is due.
func (l *loop) move(state RegistrationState, o outcome) {
	l.state, l.reason = state, o.reason
	l.w.show(Way{State: state, Reason: o.reason, Err: o.err, Status: o.status})
	l.showDue()
}

func (l *loop) showDue() {
	next := l.next()
	l.w.slot.Diagnose(func(d *store.Diagnostics) { d.NextRegistration = next })
}

// next returns when the next call is due, on the plane's clock.
func (l *loop) next() store.Instant {
	due := l.due
	if l.checking {
		due = l.renewal
	}
	return l.w.reg.clock.Now().Add(time.Until(due))
}

// floorOf returns the shortest time between two calls of an engine that
// reports.
func floorOf(interval time.Duration) time.Duration { return interval * 3 / 2 }

// renewal returns when to renew: as granted, above the report interval, below
// the lease, within 1 s and 60 s where these allow it, and after a third of
// the lease where nothing sane was granted. The lease is at least four
// intervals.
func renewal(interval, asked time.Duration, g grant) time.Duration {
	lease := asked
	if g.lease > 0 {
		lease = min(asked, max(g.lease, minLeaseSeen, 4*interval))
	}
	after := g.renewAfter
	if after <= 0 || after >= lease {
		after = lease / 3
	}
	floor := floorOf(interval)
	return min(max(after, floor, minRenewal), lease*2/3, max(maxRenewal, floor))
}

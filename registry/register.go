package registry

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Times of the registration loop.
const (
	minBackoff   = 200 * time.Millisecond
	maxBackoff   = 5 * time.Second
	parkFor      = time.Minute
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
	// last is when the last call began, due when the next one does.
	last, due time.Time
	// began is last on the plane's clock.
	began store.Instant
	// renewal is when a good registration is to be renewed. While checking,
	// due is before it: if nothing was heard by then, the engine is asked
	// once more. asked says that it was.
	renewal         time.Time
	checking, asked bool
	backoff         time.Duration
	// refusedSince is when connections began to be refused without a break.
	refusedSince time.Time
}

// keepRegistered registers the worker after a delay and renews until ctx ends.
func (w *worker) keepRegistered(ctx context.Context, delay time.Duration) {
	l := &loop{w: w, due: time.Now().Add(delay)}
	l.move(StatePending, outcome{})
	defer func() { w.reg.metrics.moved(l.state, "") }()
	for l.await(ctx) {
		l.last, l.began = time.Now(), w.reg.clock.Now()
		o := w.call(ctx)
		if ctx.Err() != nil {
			return
		}
		w.reg.metrics.called(o.result(), time.Since(l.last))
		l.settle(o)
	}
}

// await waits until the next call is due; false says that ctx ended.
func (l *loop) await(ctx context.Context) bool {
	timer := time.NewTimer(time.Until(l.due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			if !l.answered() {
				return true
			}
		case <-l.w.changed:
			l.hasten(0)
		case <-l.w.early:
			if l.state == StateRegistered {
				l.hasten(endGrace)
			}
		}
		timer.Reset(time.Until(l.due))
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
	var delay time.Duration
	switch state {
	case StateRegistered:
		delay = renewal(def.Interval, l.w.reg.opts.Lease, o.granted)
	case StateConflict:
		delay = l.w.reg.opts.Lease
	case StateParked:
		delay = parkFor
	default:
		state, delay = StateRetrying, l.nextBackoff()
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
	l.note(o)
	l.move(state, o)
}

// nextBackoff doubles the delay of retries, spread by a fifth.
func (l *loop) nextBackoff() time.Duration {
	l.backoff = min(max(minBackoff, 2*l.backoff), maxBackoff)
	return l.backoff*4/5 + rand.N(l.backoff*2/5)
}

// note tells the store why a worker that was never heard is not.
func (l *loop) note(o outcome) {
	if !errors.Is(o.err, syscall.ECONNREFUSED) {
		l.refusedSince = time.Time{}
	} else if l.refusedSince.IsZero() {
		l.refusedSince = l.last
	}
	switch {
	case l.w.heard():
	case o.state == StateRegistered:
		l.w.slot.Note("")
	case !l.refusedSince.IsZero() && time.Since(l.refusedSince) >= noEngineFor:
		l.w.slot.Note(store.ReasonNoEngine)
	default:
		l.w.slot.Note(o.reason)
	}
}

// log tells of a state, loudest where a call failed.
func (l *loop) log(state RegistrationState, o outcome) {
	level, attrs := slog.LevelInfo, []slog.Attr{slog.String("worker", l.w.id), slog.String("state", string(state))}
	switch {
	case o.err != nil:
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("reason", string(o.reason)), slog.Int("status", o.status), slog.String("error", o.text()))
	case state == StatePending:
		level = slog.LevelDebug
	}
	l.w.reg.log.LogAttrs(context.Background(), level, "registration changed", attrs...)
}

// move shows a state and logs where it is another than before.
func (l *loop) move(state RegistrationState, o outcome) {
	if state != l.state || o.reason != l.reason {
		l.log(state, o)
	}
	l.w.reg.metrics.moved(l.state, state)
	l.state, l.reason = state, o.reason
	next := l.next()
	l.w.slot.Diagnose(func(d *store.Diagnostics) {
		d.Registration = string(state)
		d.RegistrationError = o.text()
		d.RegistrationStatus = o.status
		d.NextRegistration = next
	})
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

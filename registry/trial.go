package registry

import (
	"net/http"
	"time"

	"github.com/loadplane/loadplane/store"
)

// trial is what a registration has to prove where the dialect was left open:
// that the engine is heard once it accepted. It is for one goroutine.
type trial struct {
	// began is when it began; reports received since count.
	began store.Instant
	// until is when the engine has to be heard, and longest when a dialer that
	// has shown nothing is waited for no more.
	until, longest time.Time
	// accepted says that a call was accepted, proven that it was heard.
	accepted, proven bool
}

// ending is how the use of a dialect ended. The zero value says that the
// context ended, or that a stream of another dialect came.
type ending struct {
	reason store.Reason
	// settled says that the engine gave a definite answer: the same question
	// need not be asked soon.
	settled bool
	// proven says that the engine was heard before.
	proven bool
}

// maxTrial is how long a slow engine is waited for.
const maxTrial = 30 * time.Second

// trialFor is how long an engine is given to be heard.
func trialFor(interval time.Duration) time.Duration { return max(3*interval, 5*time.Second) }

// quietFor is how long a registration may fail, with nothing heard, before an
// engine that was heard is asked anew what it offers.
func (o *Options) quietFor() time.Duration { return max(o.Lease, 10*time.Second) }

func (w *worker) newTrial() *trial {
	_, def := w.settings()
	now, length := time.Now(), trialFor(def.Interval)
	return &trial{began: w.reg.clock.Now(), until: now.Add(length), longest: now.Add(max(length, maxTrial))}
}

// more is how long a dialer is still waited for once its time is over: until
// it has shown what came of its first round, and as long again after that.
func (t *trial) more(w *worker) time.Duration {
	w.mu.Lock()
	first, interval := w.firstShown, w.def.Interval
	w.mu.Unlock()
	if first.IsZero() {
		return min(time.Until(t.longest), time.Second)
	}
	if again := first.Add(trialFor(interval)); again.Before(t.longest) {
		return time.Until(again)
	}
	return time.Until(t.longest)
}

// check says whether the engine has been heard.
func (t *trial) check(w *worker) bool {
	t.proven = t.proven || w.heardSince(t.began)
	return t.proven
}

// untilDue is the time until there is something to do.
func (l *loop) untilDue() time.Duration {
	due := l.due
	if t := l.trial; t != nil && !t.proven && t.until.Before(due) {
		due = t.until
	}
	if look := time.Now().Add(lookEach); l.state == StateParked && look.Before(due) {
		due = look
	}
	return time.Until(due)
}

// outOfTime says that the trial ends now, with nothing heard.
func (l *loop) outOfTime() bool {
	t := l.trial
	return t != nil && !t.proven && !time.Now().Before(t.until) && !t.check(l.w)
}

// expired ends a trial that is out of time.
func (l *loop) expired() (ending, bool) {
	switch {
	case !l.outOfTime():
		return ending{}, false
	case l.trial.accepted || l.reason == "":
		return ending{reason: store.ReasonNoReport}, true
	}
	return ending{reason: l.reason}, true
}

// judge says whether a trial is over by the outcome of a call.
func (l *loop) judge(o *outcome) (ending, bool) {
	t := l.trial
	switch {
	case t == nil:
		return ending{}, false
	case o.state == StateRegistered:
		if !t.accepted {
			_, def := l.w.settings()
			t.accepted, t.until = true, l.last.Add(trialFor(def.Interval))
		}
		if silent := t.check(l.w) && l.w.quiet(); silent {
			l.w.lines.turn.Do(func() {
				l.w.reg.log.Warn("engine accepts and reports no more", "worker", l.w.id)
			})
			return ending{reason: store.ReasonNoReport, proven: true}, true
		}
		return ending{}, false
	}
	t.check(l.w)
	e := ending{reason: o.reason, settled: o.definite(), proven: t.proven}
	if o.status == http.StatusNotImplemented {
		e.reason = ReasonUnsupported
	}
	speaks := l.w.speaks(store.DialectPush)
	if e.settled && speaks {
		// Its stream may be about to end, or be dead already.
		l.due = l.last.Add(l.w.reg.opts.quietFor())
		l.showDue()
	}
	return e, (e.settled && !speaks) || (t.proven && l.w.quiet())
}

// quiet says that nothing was heard for so long that a stream that is bound
// counts for nothing.
func (w *worker) quiet() bool {
	return !w.heardSince(w.reg.clock.Now().Add(-w.reg.opts.quietFor()))
}

// definite says that the engine answered that it will not report.
func (o *outcome) definite() bool {
	return o.state == StateParked || o.status == http.StatusNotImplemented
}

package registry

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/loadplane/loadplane/store"
)

// run keeps the way to the worker until ctx ends. It begins after a delay.
func (w *worker) run(ctx context.Context, delay time.Duration) {
	defer w.hide()
	w.show(Way{State: StatePending})
	w.pause(ctx, delay)
	switch w.dialect {
	case store.DialectUnspecified:
		w.auto(ctx)
	case store.DialectPush:
		w.explain("push: configured")
		w.wonderNow()
		w.keepRegistered(ctx)
	default:
		w.explain(w.dialect.String() + ": configured")
		w.keepDialled(ctx)
	}
}

// keepDialled runs the dialer of the configured dialect until ctx ends.
func (w *worker) keepDialled(ctx context.Context) {
	w.pass(store.DialectUnspecified, w.dialect)
	w.wonderNow()
	var again backoff
	for ctx.Err() == nil {
		began, source := time.Now(), w.instance()
		reason := w.serve(ctx, w.dialect)
		switch {
		case ctx.Err() != nil:
			return
		case reason == ReasonInstanceChanged:
			again = 0
			w.wonderUnopened(source)
			w.pause(ctx, minBackoff-time.Since(began))
		case refuses(reason) && !w.lapsed():
			again = 0
			w.fail(StateParked, reason)
			w.park(ctx)
		default:
			w.fail(StateRetrying, reason)
			w.pause(ctx, again.next())
		}
	}
}

// instance returns the instance that was heard last.
func (w *worker) instance() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.source
}

// wonderUnopened has the facts of another process asked for that is not heard
// yet: what is known of the engine may keep it from being heard. One that is
// was asked about when its stream opened.
func (w *worker) wonderUnopened(before string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.source == before {
		w.wonder()
	}
}

// refuses says that a dialer's reason is a definite answer of the engine.
func refuses(reason store.Reason) bool {
	return reason == ReasonAuth || reason == ReasonUnsupported
}

// serve runs the dialer of a dialect.
func (w *worker) serve(ctx context.Context, d store.Dialect) store.Reason {
	e, leave := w.engine(d)
	defer leave()
	return w.reg.opts.Dialers[d].Serve(ctx, e)
}

// fail shows a state that came of a dialer's reason, with the error that the
// dialer showed last. What it showed as the cause says more than that the
// engine does not have the dialect.
func (w *worker) fail(state RegistrationState, reason store.Reason) {
	w.mu.Lock()
	way := w.shown
	w.mu.Unlock()
	if way.Err == nil {
		way.Err = errors.New(string(reason))
	}
	if reason != ReasonUnsupported || way.Reason == "" {
		way.Reason = reason
	}
	way.State, way.Renewal = state, 0
	w.show(way)
	w.note(way)
}

// pause waits; a change by discovery or a pushed stream ends it early. It says
// whether it waited to the end.
func (w *worker) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		return true
	case <-w.changed:
	case <-w.pushed:
	}
	return false
}

// park is a long pause, which ends early when a credential file of the worker
// changes as well.
func (w *worker) park(ctx context.Context) {
	before := w.credentials()
	for end := time.Now().Add(parkFor); time.Now().Before(end); {
		if !w.pause(ctx, lookEach) || w.credentials() != before {
			return
		}
	}
}

// stamp tells one content of a file from the next; zero for no file.
type stamp struct{ modified, size int64 }

// credentials returns the stamps of the worker's credential files.
func (w *worker) credentials() (stamps [2]stamp) {
	t := w.target()
	for i, path := range []string{t.TokenFile, t.CAFile} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			stamps[i] = stamp{info.ModTime().UnixNano(), info.Size()}
		}
	}
	return stamps
}

// lapsed says that the engine was heard until lately, and is not any more.
// What it says now may be that of a start, or of a proxy.
func (w *worker) lapsed() bool {
	lately := w.reg.clock.Now().Add(lookEach - parkFor)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound == nil && w.accepted != 0 && w.accepted >= lately
}

// unasked says that streams of a dialect come by themselves: they take the turn
// of a worker whose dialect was left open, and are never given it.
func unasked(d store.Dialect) bool { return d == store.DialectPush || d == store.DialectNative }

// pass gives the turn from one dialect to another and says whether it could: a
// stream that came by itself keeps it while it is bound and heard.
func (w *worker) pass(from, to store.Dialect) bool {
	patience := w.reg.opts.quietFor()
	if from == store.DialectNative {
		patience = w.reg.opts.StaleAfter
	}
	now := w.reg.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	speaks := w.bound != nil && w.bound.claim.dialect == from && w.accepted > now.Add(-patience)
	if w.turn != from || (unasked(from) && speaks) {
		return false
	}
	if w.turn = to; from == store.DialectNative && w.lease != "" {
		w.doubt.begin(now, w.reg.opts.StaleAfter)
	}
	return true
}

// taken says that a stream that came by itself has the turn.
func (w *worker) taken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return unasked(w.turn)
}

// hasTurn says whether streams of a dialect may bind.
func (w *worker) hasTurn(d store.Dialect) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.turn == d
}

package registry

import (
	"time"

	"github.com/loadplane/loadplane/store"
)

// Times of reporters that were silent.
const (
	// maxDoubt is for how long a reporter has to keep its interval at most
	// before it is believed again.
	maxDoubt = time.Minute
	// forgiveAfter is how long a reporter has to be believed for its next
	// silence to count as the first.
	forgiveAfter = 5 * time.Minute
)

// doubt is what is held against the reporters of a worker whose dialect was
// left open. The worker's lock guards it.
type doubt struct {
	// on says that a reporter was silent, or left without giving its lease back:
	// while another dialect is heard, reports have to come for a span without a
	// gap before they count.
	on   bool
	span time.Duration
	// since is when the present row of reports began, and last when its last
	// one came; 0 for none. trusted is when a doubt was last over.
	since, last, trusted store.Instant
}

// begin doubts reporters from now on, the longer the sooner the last doubt was
// over.
func (u *doubt) begin(now store.Instant, staleAfter time.Duration) {
	if u.trusted != 0 && now.Sub(u.trusted) < forgiveAfter {
		u.span = min(2*u.span, max(maxDoubt, staleAfter))
	} else {
		u.span = staleAfter
	}
	u.on, u.since, u.last = true, 0, 0
}

// hear takes note of a report, and says for how long they have come without a
// gap.
func (u *doubt) hear(at store.Instant, gap time.Duration) time.Duration {
	if u.last == 0 || at.Sub(u.last) > gap {
		u.since = at
	}
	u.last = at
	return at.Sub(u.since)
}

// end believes reporters.
func (u *doubt) end(now store.Instant) { u.on, u.trusted = false, now }

// unsteady says why the stream of a reporter that was silent does not speak
// yet; nil where it does. A gap is two thirds of StaleAfter, which is two
// intervals at least. The caller holds w.mu.
func (w *worker) unsteady(at store.Instant) *Refusal {
	if !w.doubt.on {
		return nil
	}
	stale := w.reg.opts.StaleAfter
	kept := w.doubt.hear(at, stale*2/3)
	other := w.bound != nil && w.bound.claim.dialect != store.DialectNative && at.Sub(w.accepted) < stale
	if other && kept < w.doubt.span {
		return &Refusal{
			Reason:  ReasonUnsteady,
			Message: "the worker is heard in another way; a reporter that was silent has to keep its interval for a while first",
			Drop:    true,
		}
	}
	return nil
}

// silentIn is how long the reporter in force may still be silent before the
// engine is asked what else it offers: until it was not heard for StaleAfter,
// or, without a stream, for the grace.
func (w *worker) silentIn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, stale := w.reg.clock.Now(), w.reg.opts.StaleAfter
	left := stale - now.Sub(w.accepted)
	if w.bound == nil {
		left = min(left, w.graceLocked()-now.Sub(w.unbound))
	}
	return left
}

// grace is how long a way that ended may take to be there again, as it is where
// the engine restarts: two intervals, at most half of StaleAfter.
func (w *worker) grace() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.graceLocked()
}

// graceLocked is grace for callers with the lock.
func (w *worker) graceLocked() time.Duration {
	return min(2*w.def.Interval, w.reg.opts.StaleAfter/2)
}

// refuses says that the last connections to the engine were refused.
func (w *worker) refuses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.refusedSince.IsZero()
}

// reclaim gives the turn back to a stream that came by itself, was silent, and
// is heard again before any other. The caller holds w.mu.
func (w *worker) reclaim(b *Binding) {
	d := b.claim.dialect
	if w.dialect != store.DialectUnspecified || !unasked(d) || w.turn == d {
		return
	}
	w.turn, w.rival, w.rivalWay = d, store.DialectUnspecified, Way{}
	if d == store.DialectNative {
		w.doubt.end(w.accepted)
	}
	poke(w.pushed)
}

package registry

import (
	"cmp"
	"context"
	"time"

	"github.com/loadplane/loadplane/store"
)

// rival is a dialect on trial beside the one in use: its dialer runs, and its
// first report takes the turn over. So there is no gap in the load that is
// known. Its methods may be called on nil. It is for one goroutine.
type rival struct {
	dialect store.Dialect
	session *session
	timer   *time.Timer
	// fallback says that it is not preferred to the one in use, which fails.
	fallback bool
}

func (r *rival) done() <-chan store.Reason {
	if r == nil {
		return nil
	}
	return r.session.done
}

func (r *rival) outOfTime() <-chan time.Time {
	if r == nil {
		return nil
	}
	return r.timer.C
}

// challenge tries the offers preferred to the dialect in use, in order and one
// at a time. An engine that can push is asked to: its stream, when it comes,
// takes over.
func (u *duty) challenge(ctx context.Context) {
	preferred := u.c.offers[:place(u.c.offers, u.d)]
	for i := range preferred {
		o := &preferred[i]
		switch {
		case o.Verdict != VerdictOffered:
		case ctx.Err() != nil || !u.w.hasTurn(u.d):
			return
		case o.Dialect == store.DialectPush:
			o.fail(u.c.knock(ctx))
		default:
			u.invite(ctx, o.Dialect)
			return
		}
	}
	u.recheck = u.c.recheck(u.d)
}

// invite begins a trial beside the dialect in use.
func (u *duty) invite(ctx context.Context, d store.Dialect) {
	w := u.w
	w.mu.Lock()
	if w.turn == u.d {
		w.rival, w.rivalWay, w.rivalSince = d, Way{}, 0
	}
	interval := w.def.Interval
	w.mu.Unlock()
	u.rival = &rival{dialect: d, timer: time.NewTimer(trialFor(interval)), session: u.c.begin(ctx, d)}
}

// lost ends a trial in vain, by its time or by the dialer, and goes on to the
// next one.
func (u *duty) lost(ctx context.Context, reason store.Reason) {
	r, w := u.rival, u.w
	shown, stays := w.withdraw(r.dialect)
	if stays {
		if r.session.over {
			r.session.over = false
			r.session.done <- reason // it is now that of the session in use
		}
		u.promote()
		return
	}
	r.timer.Stop()
	r.session.end()
	u.rival = nil
	if i := place(u.c.offers, r.dialect); i < len(u.c.offers) && (!r.fallback || reason != ReasonSuperseded) {
		e := ending{reason: reason, settled: refuses(reason)}
		if !e.settled {
			e.reason = cmp.Or(shown.Reason, reason, store.ReasonNoReport)
		}
		u.c.offers[i].fail(e)
	}
	if r.fallback {
		return
	}
	u.challenge(ctx)
	if w.hasTurn(u.d) {
		u.c.explain()
	}
}

// dismiss ends a trial without a result. One that was heard meanwhile is
// promoted.
func (u *duty) dismiss() {
	r := u.rival
	if r == nil || u.promote() {
		return
	}
	if _, stays := u.w.withdraw(r.dialect); stays {
		u.promote()
		return
	}
	r.timer.Stop()
	r.session.end()
	u.rival = nil
}

// promote makes the rival the dialect in use, where it took the turn, and says
// whether it did.
func (u *duty) promote() bool {
	r, w := u.rival, u.w
	if r == nil || !w.hasTurn(r.dialect) {
		return false
	}
	u.session.end()
	r.timer.Stop()
	old := u.d
	u.d, u.session, u.rival = r.dialect, r.session, nil
	u.trial = w.newTrial()
	u.trial.proven = true
	u.deadline.Reset(w.reg.opts.StaleAfter)
	u.recheck = u.c.recheck(u.d)
	if r.fallback {
		u.fell(old)
	}
	u.c.explain()
	return true
}

// overtake gives the turn to the rival, and returns what it showed last. The
// caller holds w.mu.
func (w *worker) overtake(d store.Dialect) *Way {
	way := w.rivalWay
	w.turn, w.rival, w.rivalWay = d, store.DialectUnspecified, Way{}
	w.detail = ""
	drain(w.detailed)
	poke(w.pushed)
	if way.State == "" || way.Reason != "" {
		return nil
	}
	return &way
}

// withdraw takes the right to overtake from a rival, and returns what it
// showed last. stays says that it has the turn already.
func (w *worker) withdraw(d store.Dialect) (shown Way, stays bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.turn == d {
		return Way{}, true
	}
	shown = w.rivalWay
	w.rival, w.rivalWay = store.DialectUnspecified, Way{}
	return shown, false
}

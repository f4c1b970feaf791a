package registry

import (
	"context"
	"time"

	"github.com/loadplane/loadplane/store"
)

// session is a run of a dialer. It is for one goroutine.
type session struct {
	done  chan store.Reason
	began time.Time
	// source is the instance that was heard last when it began.
	source string
	stop   context.CancelFunc
	// over says that the reason was taken from done.
	over bool
}

func (c *chooser) begin(ctx context.Context, d store.Dialect) *session {
	ctx, stop := context.WithCancel(ctx)
	s := &session{done: make(chan store.Reason, 1), began: time.Now(), source: c.w.instance(), stop: stop}
	go func() { s.done <- c.w.serve(ctx, d) }()
	return s
}

// end stops a session and waits for it.
func (s *session) end() {
	s.stop()
	if !s.over {
		<-s.done
		s.over = true
	}
}

// duty is the use of a dialect with a dialer, and what is tried beside it. It
// is for one goroutine.
type duty struct {
	c *chooser
	w *worker
	// d is the dialect that has the turn, and session that of its dialer.
	d       store.Dialect
	session *session
	trial   *trial
	// deadline is when the engine has to be heard.
	deadline *time.Timer
	// recheck tells when to reconsider the use of d; nil for never.
	recheck <-chan time.Time
	// refused tells when connections were refused for long enough; nil for
	// never.
	refused <-chan time.Time
	// rival is on trial beside d; nil for none.
	rival *rival
	// fellBack is when a fallback last began, nextAsk when the engine may be
	// asked for one, and asks the time between two such questions.
	fellBack store.Instant
	nextAsk  time.Time
	asks     backoff
	// look is when the facts of an engine that is polled are asked for.
	look *time.Timer
}

// serve runs the dialer of a dialect that has the turn. An engine whose
// process changed is served on, while it is asked anew what it offers. What is
// offered by then and preferred takes over once it is heard.
func (c *chooser) serve(ctx context.Context, d store.Dialect) ending {
	c.w.forgetShown()
	u := &duty{c: c, w: c.w, d: d, trial: c.w.newTrial()}
	u.deadline = time.NewTimer(time.Until(u.trial.until))
	u.look = time.NewTimer(nextLook())
	u.session = c.begin(ctx, d)
	u.recheck = c.recheck(d)
	defer u.close()
	for {
		if e, over := u.next(ctx); over {
			return e
		}
	}
}

// close ends what still runs, and gives the turn back.
func (u *duty) close() {
	u.dismiss()
	u.deadline.Stop()
	u.look.Stop()
	u.session.end()
	u.w.pass(u.d, store.DialectUnspecified)
}

// next does what is to be done next, and says whether the use is over.
func (u *duty) next(ctx context.Context) (e ending, over bool) {
	w := u.w
	select {
	case reason := <-u.session.done:
		u.session.over = true
		return u.ended(ctx, reason)
	case reason := <-u.rival.done():
		u.rival.session.over = true
		u.lost(ctx, reason)
	case <-u.rival.outOfTime():
		u.lost(ctx, "")
	case <-w.pushed:
		return ending{}, !u.promote() && !w.hasTurn(u.d)
	case <-u.deadline.C:
		return u.overdue(ctx)
	case <-w.failing:
		u.refused = time.After(w.grace())
	case <-u.refused:
		if u.refused = nil; w.refuses() && u.trial.check(w) {
			u.fallBack(ctx)
		}
	case <-u.look.C:
		if u.d == store.DialectPoll {
			w.wonderNow()
		}
		u.look.Reset(nextLook())
	case <-w.detailed:
		u.c.detail(u.d)
	case <-w.back:
		if u.trial.check(w) {
			u.reconsider(ctx)
		}
	case <-u.recheck:
		u.reconsider(ctx)
	}
	return ending{}, false
}

// ended goes on after the dialer returned, where it is to.
func (u *duty) ended(ctx context.Context, reason store.Reason) (ending, bool) {
	w := u.w
	if u.promote() {
		return ending{}, false
	}
	if reason != ReasonInstanceChanged || ctx.Err() != nil {
		return ending{reason: reason, settled: refuses(reason), proven: u.trial.check(w)}, true
	}
	w.wonderUnopened(u.session.source)
	w.pause(ctx, minBackoff-time.Since(u.session.began))
	if u.promote() {
		return ending{}, false
	}
	if !w.hasTurn(u.d) {
		return ending{}, true
	}
	u.session.stop()
	u.session = u.c.begin(ctx, u.d)
	u.reconsider(ctx)
	return ending{}, false
}

// overdue ends the use of a dialect in which the engine was not heard in time,
// or, where its dialer waits for an engine that sends by itself, not for long.
// A dialer that asks knows by itself why there is no answer.
func (u *duty) overdue(ctx context.Context) (ending, bool) {
	w := u.w
	if !u.trial.check(w) {
		if more := u.trial.more(w); more > 0 {
			u.deadline.Reset(more)
			return ending{}, false
		}
	} else {
		if u.d == store.DialectPoll {
			return ending{}, false
		}
		if left := w.quietIn(); left > 0 {
			u.watch(ctx, left)
			return ending{}, false
		}
		w.silent(u.d)
	}
	u.session.end()
	return ending{reason: store.ReasonNoReport, proven: u.trial.check(w)}, true
}

// reconsider asks again about the dialects preferred to the one in use, and
// tries what is offered of them.
func (u *duty) reconsider(ctx context.Context) {
	c := u.c
	u.dismiss()
	u.recheck = nil
	if place(c.offers, u.d) == 0 {
		drain(u.w.back)
		return
	}
	t := u.w.target()
	t.Using = u.d
	f := u.w.reg.opts.Prober.Probe(ctx, t)
	if ctx.Err() != nil {
		return
	}
	u.w.learnFacts(&Finding{Facts: f.Facts})
	drain(u.w.back) // it is reconsidered now
	c.review(&f, u.d)
	u.challenge(ctx)
	if u.w.hasTurn(u.d) {
		c.explain()
	}
}

// quietIn is how long the worker may still be silent before it counts as quiet.
func (w *worker) quietIn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reg.opts.quietFor() - w.reg.clock.Now().Sub(w.accepted)
}

package registry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/loadplane/loadplane/store"
)

// chooser finds the dialect of a worker for which none is configured. It is
// for one goroutine.
type chooser struct {
	w *worker
	// offers are those of the last probe, with what came of trying them: one
	// that was tried in vain is not offered any more.
	offers []Offer
	again  backoff
}

// auto finds a dialect, keeps to it while it works, and begins anew when it
// does not, until ctx ends.
func (w *worker) auto(ctx context.Context) {
	c := &chooser{w: w}
	for ctx.Err() == nil {
		if w.hasTurn(store.DialectPush) {
			c.welcome(ctx)
		} else if c.probe(ctx) {
			c.try(ctx)
		}
	}
}

// welcome keeps an engine registered whose stream came unasked.
func (c *chooser) welcome(ctx context.Context) {
	w := c.w
	drain(w.pushed)
	w.explain("push: the engine's stream came unasked")
	w.wonderNow()
	t := w.newTrial()
	t.proven = true
	c.register(ctx, t)
	w.pause(ctx, minBackoff)
}

// register runs the registration until its trial is over. Push has the turn.
func (c *chooser) register(ctx context.Context, t *trial) ending {
	l := &loop{w: c.w, due: time.Now(), trial: t}
	e := l.run(ctx)
	c.w.pass(store.DialectPush, store.DialectUnspecified)
	return e
}

// probe asks the engine what it offers. It says whether there is an answer to
// act upon; there is none where a pushed stream came meanwhile.
func (c *chooser) probe(ctx context.Context) bool {
	w := c.w
	w.mu.Lock()
	failing := w.shown.State == StateRetrying || w.shown.State == StateParked
	w.mu.Unlock()
	if !failing {
		w.show(Way{State: StateProbing})
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan Finding, 1)
	go func() { done <- w.reg.opts.Prober.Probe(ctx, w.target()) }()
	select {
	case f := <-done:
		c.learn(&f)
		return ctx.Err() == nil
	case <-w.pushed:
		stop()
		<-done
		return false
	}
}

// learn takes over what a probe found. What it did not find out is asked for
// in the background.
func (c *chooser) learn(f *Finding) {
	if !c.w.learnFacts(f) {
		c.w.wonderNow()
	}
	c.w.mu.Lock()
	c.w.behind = f.Behind
	c.w.mu.Unlock()
	c.offers = c.speakable(f.Offers)
}

// speakable returns a copy of offers without those that nobody here speaks.
func (c *chooser) speakable(offers []Offer) []Offer {
	offers = slices.Clone(offers)
	for i := range offers {
		o := &offers[i]
		if o.Verdict == VerdictOffered && o.Dialect != store.DialectPush && c.w.reg.opts.Dialers[o.Dialect] == nil {
			o.Verdict, o.Reason, o.Detail = VerdictAbsent, ReasonUnsupported, "not available here"
		}
	}
	return offers
}

// review takes over what a probe found of the dialects preferred to d.
func (c *chooser) review(f *Finding, d store.Dialect) {
	fresh := c.speakable(f.Offers)
	c.offers = append(fresh[:place(fresh, d)], c.offers[place(c.offers, d):]...)
}

// place returns where a dialect stands among offers, their number for nowhere.
func place(offers []Offer, d store.Dialect) int {
	if i := slices.IndexFunc(offers, func(o Offer) bool { return o.Dialect == d }); i >= 0 {
		return i
	}
	return len(offers)
}

// try uses the offers in order until one works, and as long as it does. Where
// none works it waits before the next probe.
func (c *chooser) try(ctx context.Context) {
	for i := range c.offers {
		o := &c.offers[i]
		if o.Verdict != VerdictOffered {
			continue
		}
		c.explain()
		e := c.use(ctx, o.Dialect)
		switch {
		case ctx.Err() != nil || c.w.hasTurn(store.DialectPush):
			return
		case e.proven:
			c.again = 0
			c.w.pause(ctx, minBackoff)
			return
		}
		o.fail(e)
	}
	c.rest(ctx)
}

// use runs a dialect on trial.
func (c *chooser) use(ctx context.Context, d store.Dialect) ending {
	switch {
	case !c.w.pass(store.DialectUnspecified, d):
		return ending{} // a pushed stream came
	case d == store.DialectPush:
		return c.register(ctx, c.w.newTrial())
	}
	defer c.w.pass(d, store.DialectUnspecified)
	return c.serve(ctx, d)
}

// fail makes an offer one that was tried in vain.
func (o *Offer) fail(e ending) {
	o.Verdict, o.Reason, o.Detail = VerdictUnknown, e.reason, "tried after "+o.Detail
	if e.settled {
		o.Verdict = VerdictAbsent
	}
}

// session is a run of a dialer.
type session struct {
	done  chan store.Reason
	began time.Time
	stop  context.CancelFunc
}

// serve runs the dialer of a dialect that has the turn. An engine whose
// process changed is served on, while it is asked anew what it offers.
func (c *chooser) serve(ctx context.Context, d store.Dialect) ending {
	w := c.w
	w.forgetShown()
	t := w.newTrial()
	deadline := time.NewTimer(time.Until(t.until))
	defer deadline.Stop()
	s := c.begin(ctx, d)
	defer func() { s.stop() }()
	recheck := c.recheck(d)
	for {
		select {
		case reason := <-s.done:
			if reason != ReasonInstanceChanged || ctx.Err() != nil {
				return ending{reason: reason, settled: refuses(reason), proven: t.check(w)}
			}
			w.pause(ctx, minBackoff-time.Since(s.began))
			if !w.hasTurn(d) {
				return ending{}
			}
			s.stop()
			s = c.begin(ctx, d)
			drain(w.back) // it is reconsidered now
			recheck = c.reconsider(ctx, d)
		case <-w.pushed:
			s.end()
			return ending{}
		case <-deadline.C:
			if t.check(w) {
				continue
			}
			if more := t.more(w); more > 0 {
				deadline.Reset(more)
				continue
			}
			s.end()
			return ending{reason: store.ReasonNoReport, proven: t.check(w)}
		case <-w.detailed:
			c.detail(d)
		case <-w.back:
			if t.check(w) {
				recheck = c.reconsider(ctx, d)
			}
		case <-recheck:
			recheck = c.reconsider(ctx, d)
		}
	}
}

// detail takes over what a dialer shows of what it reads.
func (c *chooser) detail(d store.Dialect) {
	c.w.mu.Lock()
	detail := c.w.detail
	c.w.mu.Unlock()
	if i := place(c.offers, d); i < len(c.offers) && detail != "" && c.offers[i].Detail != detail {
		c.offers[i].Detail = detail
		c.explain()
	}
}

func (c *chooser) begin(ctx context.Context, d store.Dialect) session {
	ctx, stop := context.WithCancel(ctx)
	s := session{done: make(chan store.Reason, 1), began: time.Now(), stop: stop}
	go func() { s.done <- c.w.serve(ctx, d) }()
	return s
}

// end stops a session and waits for it.
func (s *session) end() {
	s.stop()
	<-s.done
}

// undecided says whether a dialect preferred to d was given up, or not tried,
// without a definite answer.
func (c *chooser) undecided(d store.Dialect) bool {
	return slices.ContainsFunc(c.offers[:place(c.offers, d)], func(o Offer) bool { return o.Verdict == VerdictUnknown })
}

// recheck returns what tells when to reconsider the use of d; nil for never.
func (c *chooser) recheck(d store.Dialect) <-chan time.Time {
	if !c.undecided(d) {
		return nil
	}
	return time.After(parkFor)
}

// reconsider asks again about the dialects preferred to d, which is in use. An
// engine that can push is asked to: its stream, when it comes, takes over. It
// returns what tells when to do so again.
func (c *chooser) reconsider(ctx context.Context, d store.Dialect) <-chan time.Time {
	if place(c.offers, d) == 0 {
		return nil
	}
	t := c.w.target()
	t.Using = d
	f := c.w.reg.opts.Prober.Probe(ctx, t)
	if ctx.Err() != nil {
		return nil
	}
	c.review(&f, d)
	preferred := c.offers[:place(c.offers, d)]
	if i := place(preferred, store.DialectPush); i < len(preferred) && preferred[i].Verdict == VerdictOffered {
		preferred[i].fail(c.knock(ctx))
	}
	if c.w.hasTurn(d) {
		c.explain()
	}
	return c.recheck(d)
}

// knock makes one registration call, beside no other request.
func (c *chooser) knock(ctx context.Context) ending {
	leave, err := c.w.line.Join(ctx)
	if err != nil {
		return ending{}
	}
	defer leave()
	began := time.Now()
	o := c.w.call(ctx)
	if ctx.Err() != nil {
		return ending{}
	}
	c.w.reg.metrics.called(o.result(), time.Since(began))
	if o.state == StateRegistered {
		return ending{reason: store.ReasonNoReport}
	}
	return ending{reason: o.reason, settled: o.definite()}
}

// rest shows why no dialect works and waits: long where every answer was
// definite.
func (c *chooser) rest(ctx context.Context) {
	c.explain()
	way := Way{State: StateParked, Reason: c.telling(), Err: errors.New(c.why())}
	var delay time.Duration
	for i := range c.offers {
		if c.offers[i].Verdict != VerdictAbsent {
			way.State = StateRetrying
		}
	}
	if len(c.offers) == 0 || way.State == StateRetrying || c.w.lapsed() {
		way.State, delay = StateRetrying, c.again.next()
		c.w.checkRefusing(ctx, &way)
	} else {
		c.again = 0
	}
	c.w.show(way)
	c.w.note(way)
	if way.State == StateParked {
		c.w.park(ctx)
		return
	}
	c.w.pause(ctx, delay)
}

// checkRefusing finds out whether a worker that was never heard refuses
// connections.
func (w *worker) checkRefusing(ctx context.Context, way *Way) {
	if w.heard() {
		return
	}
	ctx, stop := context.WithTimeout(ctx, w.reg.opts.CallTimeout)
	defer stop()
	conn, err := w.reg.dial(ctx, "tcp", w.origin)
	if err != nil {
		way.Reason, way.Err = ReasonConnectFailed, err
		return
	}
	_ = conn.Close()
}

// telling returns the reason that says most: another than that a dialect is
// not there.
func (c *chooser) telling() store.Reason {
	reason := store.ReasonNoReport
	for i := range c.offers {
		switch o := &c.offers[i]; o.Reason {
		case "":
		case ReasonUnsupported:
			reason = ReasonUnsupported
		default:
			return o.Reason
		}
	}
	return reason
}

func (c *chooser) explain() { c.w.explain(c.why()) }

// why says for people where each dialect stands.
func (c *chooser) why() string {
	var b strings.Builder
	for i := range c.offers {
		o := &c.offers[i]
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(o.Dialect.String() + ": ")
		if o.Verdict == VerdictOffered {
			b.WriteString("offered")
		} else {
			b.WriteString(string(o.Reason))
		}
		if o.Detail != "" {
			b.WriteString(" (" + cut(o.Detail) + ")")
		}
	}
	return b.String()
}

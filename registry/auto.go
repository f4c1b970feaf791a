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
	// fell is when a dialect was last left because it was silent, and back how
	// long it was left alone then.
	fell time.Time
	back time.Duration
}

// auto finds a dialect, keeps to it while it works, and begins anew when it
// does not, until ctx ends.
func (w *worker) auto(ctx context.Context) {
	c := &chooser{w: w}
	for ctx.Err() == nil {
		switch {
		case w.hasTurn(store.DialectPush):
			c.welcome(ctx)
		case w.hasTurn(store.DialectNative):
			c.heed(ctx)
		case c.probe(ctx):
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

// heed leaves an engine alone for which a registered reporter speaks, until its
// lease ended or it is silent. Its stream may still speak then, until another
// dialect is heard.
func (c *chooser) heed(ctx context.Context) {
	w := c.w
	drain(w.pushed)
	w.explain("native: a reporter registered")
	w.wonderNow()
	for ctx.Err() == nil && w.hasTurn(store.DialectNative) {
		left := w.silentIn()
		if (left <= 0 || !w.leased()) && w.pass(store.DialectNative, store.DialectUnspecified) {
			break
		}
		w.doze(ctx, max(left, minBackoff))
	}
	w.pause(ctx, minBackoff)
}

// doze waits for a time, or until a stream comes or ends.
func (w *worker) doze(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-w.early:
	case <-w.pushed:
	}
}

// leased says whether a reporter holds a lease for the worker.
func (w *worker) leased() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease != ""
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
		case ctx.Err() != nil || c.w.taken():
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
		return ending{} // a stream came by itself
	case d == store.DialectPush:
		return c.register(ctx, c.w.newTrial())
	}
	return c.serve(ctx, d)
}

// fail makes an offer one that was tried in vain.
func (o *Offer) fail(e ending) {
	o.Verdict, o.Reason, o.Detail = VerdictUnknown, e.reason, "tried after "+o.Detail
	if e.settled {
		o.Verdict = VerdictAbsent
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
		way.Reason, way.Err = ConnectReason(err), err
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

package registry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Times of what is tried beside a way that fails.
const (
	// minReturn is how soon a dialect is tried again at first that was left for
	// a lesser one because it was silent; the time doubles up to parkFor.
	minReturn = 5 * time.Second
	// wonderEach is how often an engine that is polled is asked for its facts,
	// spread by a fifth.
	wonderEach = time.Minute
)

// silentIn is how long the engine may still be silent before another dialect is
// tried beside the one in use; 0 and less for now.
func (u *duty) silentIn() time.Duration {
	opts := &u.w.reg.opts
	return u.w.quietIn() - max(0, opts.quietFor()-opts.StaleAfter)
}

// watch sets the deadline by what is left until the engine counts as quiet, or
// until another dialect is to be tried beside the one in use.
func (u *duty) watch(ctx context.Context, left time.Duration) {
	silent := u.silentIn()
	if u.rival != nil && u.rival.fallback && u.w.heardSince(u.fellBack.Add(1)) {
		u.dismiss() // it is heard again
	}
	if silent <= 0 {
		u.fallBack(ctx)
		silent = u.w.reg.opts.StaleAfter / 3
	}
	u.deadline.Reset(min(left, silent))
}

// fallBack begins a lesser dialect beside the one in use, which fails: the
// first that is offered as far as is known. Where none is, the engine is asked.
// Whichever is heard first has the turn.
func (u *duty) fallBack(ctx context.Context) {
	if u.rival != nil || ctx.Err() != nil || !u.w.hasTurn(u.d) || u.d == store.DialectPoll {
		return
	}
	known := u.c.offers[min(place(u.c.offers, u.d)+1, len(u.c.offers)):]
	if u.retreat(ctx, known) || time.Now().Before(u.nextAsk) {
		return
	}
	u.nextAsk = time.Now().Add(u.asks.next())
	f := u.w.reg.opts.Prober.Probe(ctx, u.w.target())
	if ctx.Err() != nil {
		return
	}
	u.w.learnFacts(&Finding{Facts: f.Facts})
	offers := u.c.speakable(f.Offers)
	if place(offers, u.d) < len(offers) {
		u.c.offers = offers
		u.retreat(ctx, offers)
	}
}

// retreat tries the first other dialect that is offered, and says whether there
// is one. One that has to be asked for only sends by itself.
func (u *duty) retreat(ctx context.Context, offers []Offer) bool {
	for i := range offers {
		switch o := &offers[i]; {
		case o.Verdict != VerdictOffered || o.Dialect == u.d:
		case o.Dialect == store.DialectPush:
			o.fail(u.c.knock(ctx))
		default:
			u.fellBack = u.w.reg.clock.Now()
			u.invite(ctx, o.Dialect)
			u.rival.timer.Stop() // it is tried for as long as the other fails
			u.rival.fallback = true
			u.w.mu.Lock()
			u.w.rivalSince = u.fellBack
			u.w.mu.Unlock()
			return true
		}
	}
	return false
}

// fell notes that a lesser dialect was heard while d was not. d is tried again
// before long.
func (u *duty) fell(d store.Dialect) {
	if i := place(u.c.offers, d); i < len(u.c.offers) && u.c.offers[i].Verdict == VerdictOffered {
		u.c.offers[i].fail(ending{reason: store.ReasonNoReport})
	}
	if time.Since(u.c.fell) > forgiveAfter {
		u.c.back = 0
	}
	u.c.back = min(max(2*u.c.back, minReturn), parkFor)
	u.c.fell = time.Now()
	u.recheck = time.After(u.c.back)
	u.w.silent(d)
}

// nextLook is the time until a polled engine is asked for its facts.
func nextLook() time.Duration { return wonderEach*4/5 + rand.N(wonderEach*2/5) }

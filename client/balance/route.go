package balance

import (
	"strconv"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
)

// RankHeader is the HTTP header by which SGLang and vLLM take a request to a DP
// rank.
const RankHeader = "X-Data-Parallel-Rank"

// Route is where a request goes. Its fields do not change, and its methods may
// be called from any goroutine.
type Route struct {
	// Choice has the worker, its URL, the rank, and why it was chosen.
	pick.Choice
	// DPRank is the value for RankHeader; empty where no rank was picked: then
	// the header is not sent.
	DPRank string
	// Lineage, Epoch and Version name the view, and Age is how long before the
	// pick its message arrived. They are zero before the first view.
	Lineage        string
	Epoch, Version uint64
	Age            time.Duration

	balancer *Balancer
	dispatch *credit.Dispatch
	pool     key
}

// route counts a request and returns where it goes.
func (b *Balancer) route(p *pools, k key, c pick.Choice, r Request) *Route {
	route := &Route{Choice: c, balancer: b, pool: k, dispatch: b.ledger.Dispatch(c.Target, r.PromptTokens)}
	if c.Rank >= 0 {
		route.DPRank = strconv.Itoa(int(c.Rank))
	}
	if v := p.view; v != nil {
		route.Lineage, route.Epoch, route.Version, route.Age = v.Lineage(), v.Epoch(), v.Version(), v.Age(b.opts.Pick.Now())
	}
	return route
}

// Done says that the request is over, however it ended. Only the first call
// counts. A request that is never done counts for ever.
func (r *Route) Done() { r.dispatch.End() }

// Failed says that the worker did not take the request, and is Done. For the
// time of Options.Cooldown the worker is picked only where no other is left.
// Without it a worker that refuses connections, and so has nothing open, would
// be the first choice whenever open requests decide.
func (r *Route) Failed() {
	r.Done()
	r.balancer.failures.note(r.WorkerID, r.balancer.opts)
}

// Lost says that the worker seems to be dead to a request that got no answer
// yet, so that a router may try another: the plane sent a message after the
// worker's last report ceased to be valid, and there was still no newer one,
// while enough of the pool is fresh. It is false where the plane is gone, and
// where it lost most of the pool: neither tells of the worker.
func (r *Route) Lost() bool {
	b := r.balancer
	p, now := b.newest(), b.opts.Pick.Now()
	if p.view == nil {
		return false
	}
	w := p.view.Worker(r.WorkerID)
	if w == nil {
		return false
	}
	until, heard := p.view.ValidUntil(w)
	if !heard || !now.Add(-p.view.Age(now)).After(until) {
		return false
	}
	t, static, err := p.table(r.pool)
	if err != nil || static != "" {
		return false
	}
	fresh, all := t.Workers(now)
	return fresh > 0 && float64(fresh) >= b.minFresh()*float64(all)
}

func (b *Balancer) minFresh() float64 {
	if b.opts.Pick.MinFresh == 0 {
		return pick.DefaultMinFresh
	}
	return b.opts.Pick.MinFresh
}

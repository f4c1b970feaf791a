package picks

import (
	"slices"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// takes says that a worker is of the pool and stands for an engine of its own:
// it is no duplicate of another, and no follower of a multi-node engine.
func (k *key) takes(w *snapshot.Worker) bool {
	return (k.role == pick.RoleAny || k.role == pick.Role(w.Worker.Role)) &&
		(k.model == "" || slices.Contains(w.Worker.Models, k.model)) &&
		!w.Worker.Duplicate && w.Reason != store.ReasonNoEngine
}

// candidates returns the workers of a pool, each followed by its DP ranks
// where the table is of ranks and they can be told apart.
func (p *Picks) candidates(v *snapshot.View, k key) []pick.PolicyCandidate {
	n := 0
	for _, w := range v.Workers {
		if k.takes(w) {
			n += 1 + ranksIn(w, k)
		}
	}
	out := make([]pick.PolicyCandidate, 0, n)
	for i, w := range v.Workers {
		if !k.takes(w) {
			continue
		}
		c := p.identity(w, v.Receipts[i])
		out = append(out, c)
		whole(&out[len(out)-1], w)
		for r := range w.Ranks[:ranksIn(w, k)] {
			out = append(out, c)
			rank(&out[len(out)-1], &w.Ranks[r])
		}
	}
	return out
}

// ranksIn returns how many ranks of a worker a table has.
func ranksIn(w *snapshot.Worker, k key) int {
	if !k.perRank || w.Flags&store.FlagRanksUnknown != 0 {
		return 0
	}
	return len(w.Ranks)
}

// identity returns what a worker and its ranks share.
func (p *Picks) identity(w *snapshot.Worker, r *snapshot.Receipt) pick.PolicyCandidate {
	c := pick.PolicyCandidate{
		WorkerID: w.Worker.ID, URL: w.Worker.URL, Rank: pick.NoRank, Role: pick.Role(w.Worker.Role), Models: w.Worker.Models,
		Draining: w.Worker.Draining, Freshness: freshness(w.Freshness),
	}
	if r != nil {
		c.ValidUntil = p.time(r.ValidUntil)
	}
	return c
}

func freshness(f store.Freshness) pick.Freshness {
	switch f {
	case store.Fresh:
		return pick.Usable
	case store.Stale:
		return pick.Stale
	case store.Unreachable:
		return pick.Unreachable
	}
	return pick.Missing
}

// whole fills in the load of a worker. What no policy compares is left out.
func whole(c *pick.PolicyCandidate, w *snapshot.Worker) {
	a := w.Aggregate
	if a == nil {
		return
	}
	for _, n := range []struct {
		to   *pick.Number
		from store.Sum
	}{
		{&c.Running, store.SumRunningReqs},
		{&c.Waiting, store.SumWaitingReqs},
		{&c.TotalRequests, store.SumTotalRequests},
		{&c.WaitingUncachedTokens, store.SumWaitingUncachedTokens},
		{&c.UsedTokens, store.SumUsedTokens},
		{&c.Capacity, store.SumMaxTotalTokens},
		{&c.TotalTokens, store.SumTotalTokens},
		{&c.MaxRunning, store.SumMaxRunningRequests},
	} {
		if v, ok := a.Count(n.from); ok {
			*n.to = pick.Count(v)
		}
	}
	if v, ok := a.Float(store.SumPrefillThroughput); ok {
		c.PrefillThroughput = pick.Known(v)
	}
	for _, q := range queues(c) {
		*q.to = sum(w.Ranks, q.from)
	}
}

// rank fills in the load of a rank.
func rank(c *pick.PolicyCandidate, r *store.Rank) {
	c.Rank = r.DPRank
	for _, n := range []place{
		{&c.Running, store.NumRunningReqs},
		{&c.Waiting, store.NumWaitingReqs},
		{&c.WaitingUncachedTokens, store.NumWaitingUncachedTokens},
		{&c.UsedTokens, store.NumUsedTokens},
		{&c.Capacity, store.MaxTotalNumTokens},
		{&c.TotalTokens, store.NumTotalTokens},
		{&c.MaxRunning, store.MaxRunningRequests},
	} {
		*n.to = count(r, n.from)
	}
	for _, q := range queues(c) {
		*q.to = count(r, q.from)
	}
	if v, ok := r.Float(store.PrefillThroughput); ok {
		c.PrefillThroughput = pick.Known(v)
	}
}

// place is where a number of a rank goes.
type place struct {
	to   *pick.Number
	from store.Field
}

// queues are the prefill/decode queues, which have no sums in an aggregate.
func queues(c *pick.PolicyCandidate) [5]place {
	return [5]place{
		{&c.PrefillBootstrap, store.PrefillBootstrapReqs},
		{&c.PrefillInflight, store.PrefillInflightReqs},
		{&c.DecodePrealloc, store.DecodePreallocReqs},
		{&c.DecodeTransfer, store.DecodeTransferReqs},
		{&c.DecodeRetracted, store.DecodeRetractedReqs},
	}
}

func count(r *store.Rank, f store.Field) (n pick.Number) {
	if v, ok := r.Count(f); ok {
		n = pick.Count(v)
	}
	return n
}

// sum adds up a count; it is unknown where a rank does not have it.
func sum(ranks []store.Rank, f store.Field) pick.Number {
	total := int64(0)
	for i := range ranks {
		v, ok := ranks[i].Count(f)
		if !ok {
			return pick.Number{}
		}
		total += v // 4,096 ranks of up to 2^50 fit
	}
	return pick.Count(total)
}

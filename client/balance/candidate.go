package balance

import (
	"slices"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Reasons of the plane for workers that are no engine of their own: another
// worker has the same origin, or nothing ever answered there.
const (
	duplicateOrigin = "duplicate_origin"
	noEngine        = "no_engine"
)

// ranksUnknown is the plane's flag for an engine that has several DP ranks and
// does not tell them apart: the one rank it shows stands for all of them.
const ranksUnknown = "ranks_unknown"

// defaultInterval is that of reports where a worker names none.
const defaultInterval = time.Second

// pickable says that a worker is an engine of its own.
func pickable(w *pb.Worker) bool {
	return w.GetFreshnessReason() != duplicateOrigin && w.GetFreshnessReason() != noEngine
}

// receipts tells of the newest reports of all workers of a view.
func receipts(v *client.View) []credit.Receipt {
	all := make([]credit.Receipt, 0, len(v.Workers()))
	for _, w := range v.Workers() {
		if pickable(w) {
			all = append(all, receipt(v, w))
		}
	}
	return all
}

func receipt(v *client.View, w *pb.Worker) credit.Receipt {
	r := credit.Receipt{
		WorkerID: w.GetWorkerId(), Instance: w.GetSourceInstanceId(), Row: w.GetRow(),
		Interval: time.Duration(w.GetReportIntervalMs()) * time.Millisecond,
		Polled:   w.GetDialect() == pb.Dialect_DIALECT_POLL,
	}
	if r.Interval == 0 {
		r.Interval = defaultInterval
	}
	if w.GetAggregate() != nil && w.GetStatus() == pb.Status_STATUS_HEALTHY {
		r.At, _ = v.ReceivedAt(w)
		r.Sampled, _ = v.SampledAt(w)
	}
	return r
}

// candidates are the workers of a pool, each with its ranks behind it where
// they are wanted.
func candidates(v *client.View, k key, perRank bool) []pick.PolicyCandidate {
	n := 0
	for _, w := range v.Workers() {
		if k.has(w) {
			n++
			if perRank {
				n += len(ranksOf(w))
			}
		}
	}
	all := make([]pick.PolicyCandidate, 0, n)
	for _, w := range v.Workers() {
		if !k.has(w) {
			continue
		}
		whole := candidate(v, w)
		all = append(all, whole)
		if !perRank {
			continue
		}
		for _, r := range ranksOf(w) {
			all = append(all, rank(&whole, r))
		}
	}
	return all
}

// ranksOf returns the ranks of a worker that can be picked: none where they
// cannot be told apart.
func ranksOf(w *pb.Worker) []*pb.RankLoad {
	if slices.Contains(w.GetFlags(), ranksUnknown) {
		return nil
	}
	return w.GetRanks()
}

// has says that a worker is one of the pool that can be picked.
func (k key) has(w *pb.Worker) bool {
	return pickable(w) && pick.Role(w.GetRole()) == k.role && (k.model == "" || slices.Contains(w.GetModels(), k.model))
}

// candidate is a worker as a whole.
func candidate(v *client.View, w *pb.Worker) pick.PolicyCandidate {
	a := w.GetAggregate()
	c := pick.PolicyCandidate{
		WorkerID: w.GetWorkerId(), URL: w.GetUrl(), Rank: pick.NoRank,
		Role: pick.Role(w.GetRole()), Models: w.GetModels(), Draining: w.GetDraining(),
		Freshness: pick.Freshness(w.GetFreshness()),
	}
	c.ValidUntil, _ = v.ValidUntil(w)
	c.Received, _ = v.ReceivedAt(w)
	if a == nil {
		return c
	}
	c.Running, c.Waiting, c.TotalRequests = count(a.NumRunningReqs), count(a.NumWaitingReqs), count(a.TotalRequests)
	c.WaitingUncachedTokens = count(a.NumWaitingUncachedTokens)
	c.UsedTokens, c.Capacity, c.TotalTokens = count(a.NumUsedTokens), count(a.MaxTotalNumTokens), count(a.NumTotalTokens)
	c.MaxRunning = count(a.MaxRunningRequests)
	c.PrefillThroughput, c.GenThroughput = rate(a.PrefillThroughput), rate(a.GenThroughput)
	queues(&c, w.GetRanks())
	return c
}

// queues sums the prefill/decode queues, each where every rank has it.
func queues(c *pick.PolicyCandidate, ranks []*pb.RankLoad) {
	for _, q := range []struct {
		to   *pick.Number
		from func(*pb.RankLoad) *int64
	}{
		{&c.PrefillBootstrap, func(r *pb.RankLoad) *int64 { return r.PrefillBootstrapReqs }},
		{&c.PrefillInflight, func(r *pb.RankLoad) *int64 { return r.PrefillInflightReqs }},
		{&c.DecodePrealloc, func(r *pb.RankLoad) *int64 { return r.DecodePreallocReqs }},
		{&c.DecodeTransfer, func(r *pb.RankLoad) *int64 { return r.DecodeTransferReqs }},
		{&c.DecodeRetracted, func(r *pb.RankLoad) *int64 { return r.DecodeRetractedReqs }},
	} {
		sum := int64(0)
		for i, r := range ranks {
			n := q.from(r)
			if n == nil {
				break
			}
			if sum += *n; i == len(ranks)-1 {
				*q.to = pick.Count(sum)
			}
		}
	}
}

// rank is one DP rank of a worker.
func rank(whole *pick.PolicyCandidate, r *pb.RankLoad) pick.PolicyCandidate {
	return pick.PolicyCandidate{
		WorkerID: whole.WorkerID, URL: whole.URL, Rank: r.GetDpRank(),
		Role: whole.Role, Models: whole.Models, Draining: whole.Draining,
		Freshness: whole.Freshness, ValidUntil: whole.ValidUntil, Received: whole.Received,

		Running: count(r.NumRunningReqs), Waiting: count(r.NumWaitingReqs),
		WaitingUncachedTokens: count(r.NumWaitingUncachedTokens),
		UsedTokens:            count(r.NumUsedTokens), Capacity: count(r.MaxTotalNumTokens), TotalTokens: count(r.NumTotalTokens),
		MaxRunning:        count(r.MaxRunningRequests),
		PrefillThroughput: rate(r.PrefillThroughput), GenThroughput: rate(r.GenThroughput), CacheHitRate: rate(r.CacheHitRate),
		PrefillBootstrap: count(r.PrefillBootstrapReqs), PrefillInflight: count(r.PrefillInflightReqs),
		DecodePrealloc: count(r.DecodePreallocReqs), DecodeTransfer: count(r.DecodeTransferReqs), DecodeRetracted: count(r.DecodeRetractedReqs),
	}
}

func count(n *int64) pick.Number {
	if n == nil {
		return pick.Number{}
	}
	return pick.Count(*n)
}

func rate(v *float64) pick.Number {
	if v == nil {
		return pick.Number{}
	}
	return pick.Known(*v)
}

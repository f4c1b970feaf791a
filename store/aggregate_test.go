package store_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/loadplane/loadplane/store"
)

// The numbers of SGLang's own documented example: two equal ranks.
func TestSummarizeFormulas(t *testing.T) {
	r := store.Rank{}
	for f, v := range map[store.Field]int64{
		store.NumRunningReqs: 2, store.NumWaitingReqs: 3, store.NumWaitingUncachedTokens: 4, store.NumUsedTokens: 20,
		store.NumTotalTokens: 24, store.MaxTotalNumTokens: 100, store.MaxRunningRequests: 10,
	} {
		r.SetCount(f, v)
	}
	for f, v := range map[store.Field]float64{store.TokenUsage: 0.2, store.GenThroughput: 5, store.PrefillThroughput: 6} {
		r.SetFloat(f, v)
	}
	second := r
	second.DPRank = 1
	a := store.Summarize([]store.Rank{r, second})
	if a.Ranks != 2 || a.HottestRank != 0 || a.HottestBy != "token_usage" {
		t.Errorf("ranks %d hottest %d by %q", a.Ranks, a.HottestRank, a.HottestBy)
	}
	for s, want := range map[store.Sum]float64{
		store.SumRunningReqs: 4, store.SumWaitingReqs: 6, store.SumTotalRequests: 10, store.SumWaitingUncachedTokens: 8,
		store.SumUsedTokens: 40, store.SumTotalTokens: 48, store.SumMaxTotalTokens: 200, store.SumMaxRunningRequests: 20,
		store.SumFreeTokens: 160, store.SumAvailableSlots: 16, store.SumQueuePressure: 0.8, store.SumRequestUtilization: 0.2,
		store.SumWeightedTokenUsage: 0.2, store.SumMaxRankTokenUsage: 0.2, store.SumGenThroughput: 10,
		store.SumPrefillThroughput: 12, store.SumTokenUsageImbalance: 1, store.SumRequestImbalance: 1,
		store.SumPrefillWaitSeconds: 8.0 / 12,
	} {
		if got, ok := sum(a, s); !ok || math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v known %v, want %v", store.Sums[s].Name, got, ok, want)
		}
	}
}

func sum(a *store.Aggregate, s store.Sum) (float64, bool) {
	if store.Sums[s].Float {
		return a.Float(s)
	}
	v, ok := a.Count(s)
	return float64(v), ok
}

// A number is known only where every rank has what it is made of.
func TestSummarizeLeavesUnknownOut(t *testing.T) {
	for f := range store.NumFields {
		full, lacking := rank(0, 1), store.Rank{DPRank: 1}
		for g, info := range store.Fields {
			switch g := store.Field(g); {
			case g == f || !info.Core:
			case info.Float:
				lacking.SetFloat(g, 1)
			default:
				lacking.SetCount(g, 1)
			}
		}
		a := store.Summarize([]store.Rank{full, lacking})
		for s, info := range store.Sums {
			if info.Name == store.Fields[f].Name && a.Has(store.Sum(s)) {
				t.Errorf("%s is known although a rank lacks it", info.Name)
			}
		}
	}
	a := store.Summarize([]store.Rank{{DPRank: 3}})
	for s := range store.NumSums {
		if a.Has(s) {
			t.Errorf("%s of a rank without numbers is known", store.Sums[s].Name)
		}
	}
	if a.Ranks != 1 || a.HottestBy != "" {
		t.Errorf("ranks %d, hottest by %q", a.Ranks, a.HottestBy)
	}
	if store.Summarize(nil) != nil || store.Combine(nil) != nil {
		t.Error("nothing has an aggregate")
	}
}

func TestSummarizeZeroDenominators(t *testing.T) {
	r := rank(0, 3)
	r.SetCount(store.MaxTotalNumTokens, 0)
	r.SetCount(store.MaxRunningRequests, 0)
	r.SetFloat(store.GenThroughput, 0)
	r.SetFloat(store.PrefillThroughput, 0)
	r.SetFloat(store.TokenUsage, 0)
	a := store.Summarize([]store.Rank{r})
	for _, s := range []store.Sum{store.SumQueuePressure, store.SumRequestUtilization, store.SumWeightedTokenUsage, store.SumFreeTokens, store.SumAvailableSlots} {
		if v, ok := sum(a, s); !ok || v != 0 {
			t.Errorf("%s is %v known %v, want a known 0", store.Sums[s].Name, v, ok)
		}
	}
	for _, s := range []store.Sum{store.SumPrefillWaitSeconds, store.SumTokenUsageImbalance} {
		if a.Has(s) {
			t.Errorf("%s is known with a zero denominator", store.Sums[s].Name)
		}
	}
}

// A pool knows its hottest rank although nothing weighs the usage of one.
func TestCombineKeepsTheHighestUsage(t *testing.T) {
	r := store.Rank{}
	r.SetFloat(store.TokenUsage, 0.75)
	blind := store.Summarize([]store.Rank{r})
	a := store.Combine([]*store.Aggregate{blind, store.Summarize([]store.Rank{rank(0, 1)})})
	if v, ok := a.Float(store.SumMaxRankTokenUsage); !ok || v != 0.75 {
		t.Errorf("the highest usage is %v known %v, want 0.75", v, ok)
	}
	if a.Has(store.SumWeightedTokenUsage) || a.Has(store.SumTokenUsageImbalance) {
		t.Error("a mean is known although a worker has no weight")
	}
}

// A throughput of next to nothing gives no endless wait, but none.
func TestQuotientsAreFinite(t *testing.T) {
	r := rank(0, 0)
	r.SetCount(store.NumWaitingUncachedTokens, 1<<40)
	r.SetFloat(store.GenThroughput, 5e-324)
	r.SetFloat(store.PrefillThroughput, 1e-3)
	a := store.Summarize([]store.Rank{r})
	for _, s := range []store.Sum{store.SumQueuePressure, store.SumPrefillWaitSeconds} {
		if v, ok := a.Float(s); ok {
			t.Errorf("%s is %v, want unknown", store.Sums[s].Name, v)
		}
	}
}

// The hottest rank is the one with the highest token usage, else the most
// requests; queues 1 and 0 give half a request on average, not none.
func TestHottestRankAndImbalance(t *testing.T) {
	cold, hot := rank(0, 0), rank(5, 0)
	cold.SetCount(store.NumWaitingReqs, 0)
	hot.SetCount(store.NumWaitingReqs, 1)
	hot.SetFloat(store.TokenUsage, 0.9)
	a := store.Summarize([]store.Rank{cold, hot})
	if v, _ := a.Float(store.SumRequestImbalance); v != 2 {
		t.Errorf("request imbalance %v, want 2", v)
	}
	if v, _ := a.Float(store.SumTokenUsageImbalance); math.Abs(v-0.9/0.7) > 1e-12 {
		t.Errorf("token usage imbalance %v, want %v", v, 0.9/0.7)
	}
	if a.HottestRank != 5 || a.HottestBy != "token_usage" {
		t.Errorf("hottest %d by %q", a.HottestRank, a.HottestBy)
	}
	blind := store.Rank{DPRank: 7}
	blind.SetCount(store.NumRunningReqs, 8)
	blind.SetCount(store.NumWaitingReqs, 0)
	a = store.Summarize([]store.Rank{cold, blind})
	if a.HottestRank != 7 || a.HottestBy != "total_requests" {
		t.Errorf("hottest %d by %q, want 7 by total_requests", a.HottestRank, a.HottestBy)
	}
}

func TestSumsSaturate(t *testing.T) {
	r := rank(0, math.MaxInt64)
	r.SetCount(store.NumWaitingReqs, math.MaxInt64)
	a := store.Summarize([]store.Rank{r, r})
	for _, s := range []store.Sum{store.SumRunningReqs, store.SumTotalRequests} {
		if v, _ := a.Count(s); v != math.MaxInt64 {
			t.Errorf("%s is %d, want the largest count", store.Sums[s].Name, v)
		}
	}
	if v, _ := a.Count(store.SumAvailableSlots); v != 0 {
		t.Errorf("available slots %d", v)
	}
}

// Combining workers gives what their ranks together give.
func TestCombineEqualsSummarize(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []store.Rank
		var parts []*store.Aggregate
		for range 1 + rnd.IntN(4) {
			var ranks []store.Rank
			for dp := range 1 + rnd.IntN(4) {
				r := rank(int32(dp), rnd.Int64N(50))
				r.SetFloat(store.TokenUsage, rnd.Float64())
				r.SetCount(store.MaxTotalNumTokens, 1+rnd.Int64N(1000))
				ranks = append(ranks, r)
			}
			all = append(all, ranks...)
			parts = append(parts, store.Summarize(ranks))
		}
		got, want := store.Combine(parts), store.Summarize(all)
		if got.Ranks != want.Ranks {
			t.Fatalf("%d ranks, want %d", got.Ranks, want.Ranks)
		}
		for s := range store.NumSums {
			if s == store.SumTokenUsageImbalance || s == store.SumRequestImbalance {
				continue // over workers, not over ranks
			}
			g, okG := sum(got, s)
			w, okW := sum(want, s)
			if okG != okW || math.Abs(g-w) > 1e-9*math.Max(1, math.Abs(w)) {
				t.Fatalf("%s is %v known %v, want %v known %v", store.Sums[s].Name, g, okG, w, okW)
			}
		}
	}
}

// A rank number means nothing beside other workers, so a pool has none.
func TestCombineNamesNoRank(t *testing.T) {
	if a := store.Combine([]*store.Aggregate{store.Summarize([]store.Rank{rank(3, 1)})}); a.HottestBy != "" {
		t.Errorf("rank %d is hottest by %q", a.HottestRank, a.HottestBy)
	}
}

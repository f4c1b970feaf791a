package store

import (
	"cmp"
	"slices"
)

// withRates returns the ranks of cur with the rates that its cumulative
// counters give against the report before it. Rates need the same source and
// rank set; a counter that did not grow, or went back, gives none. A prefill
// throughput that the engine sent itself stands.
func withRates(cur *Load, prev *Entry, before []Sample) []Rank {
	if prev == nil || prev.Load == nil || prev.Load.Source != cur.Source ||
		len(before) != len(cur.Samples) || !sameRankSet(prev.Ranks, cur.Ranks) {
		return cur.Ranks
	}
	ranks := cur.Ranks
	for i := range cur.Samples {
		busy, wall := prefillRates(before[i], cur.Samples[i])
		if busy <= 0 && wall <= 0 {
			continue
		}
		if &ranks[0] == &cur.Ranks[0] {
			ranks = slices.Clone(cur.Ranks)
		}
		if busy > 0 && !ranks[i].Has(PrefillThroughput) {
			ranks[i].SetFloat(PrefillThroughput, busy)
		}
		if wall > 0 && !ranks[i].Has(PrefillThroughputWall) {
			ranks[i].SetFloat(PrefillThroughputWall, wall)
		}
	}
	return ranks
}

// prefillRates returns uncached prefill tokens per second of busy time and of
// the engine's wall clock between two samples; 0 for unknown.
func prefillRates(from, to Sample) (busy, wall float64) {
	if from.PrefillUncachedTokens < 0 || to.PrefillUncachedTokens < from.PrefillUncachedTokens {
		return 0, 0
	}
	tokens := float64(to.PrefillUncachedTokens - from.PrefillUncachedTokens)
	if us := to.PrefillBusyUs - from.PrefillBusyUs; from.PrefillBusyUs >= 0 && us > 0 {
		busy = tokens * 1e6 / float64(us)
	}
	if ms := to.TimeUnixMs - from.TimeUnixMs; from.TimeUnixMs >= 0 && ms > 0 {
		wall = tokens * 1e3 / float64(ms)
	}
	return busy, wall
}

func sameRankSet(a, b []Rank) bool {
	return slices.EqualFunc(a, b, func(x, y Rank) bool { return x.DPRank == y.DPRank })
}

// idle says that every load of every rank is zero: requests and used tokens
// known ones, demand and the queues between prefill and decode where they are
// known.
func idle(ranks []Rank) bool {
	for i := range ranks {
		r := &ranks[i]
		if !r.Has(NumRunningReqs) || !r.Has(NumWaitingReqs) || !r.Has(NumUsedTokens) {
			return false
		}
		for _, f := range []Field{
			NumRunningReqs, NumWaitingReqs, NumUsedTokens, NumTotalTokens, PrefillBootstrapReqs,
			PrefillInflightReqs, DecodePreallocReqs, DecodeTransferReqs, DecodeRetractedReqs,
		} {
			if v, _ := r.Count(f); v != 0 {
				return false
			}
		}
	}
	return len(ranks) > 0
}

// grew says that a cumulative counter of a rank rose between two reports.
func grew(from, to []Sample) bool {
	for i := range min(len(from), len(to)) {
		a, b := from[i], to[i]
		if (a.GeneratedTokens >= 0 && b.GeneratedTokens > a.GeneratedTokens) ||
			(a.PrefillUncachedTokens >= 0 && b.PrefillUncachedTokens > a.PrefillUncachedTokens) {
			return true
		}
	}
	return false
}

// stalledSince returns since when each rank of the worker has had requests
// waiting and none running. old and before are of the report before, which
// counts where it is of the same source and rank set.
func stalledSince(e, old *Entry, l, before *Live) (since []Instant) {
	if e.Worker.Role == RolePrefill {
		return nil
	}
	goesOn := before != nil && before.stalled != nil && old.Load.Source == e.Load.Source && sameRankSet(old.Ranks, e.Ranks)
	for i := range e.Ranks {
		if !stalled(&e.Ranks[i]) {
			continue
		}
		if since == nil {
			since = make([]Instant, len(e.Ranks))
		}
		if since[i] = l.Received; goesOn {
			since[i] = cmp.Or(before.stalled[i], l.Received)
		}
	}
	return since
}

// stalled says that requests wait at a rank that runs none.
func stalled(r *Rank) bool {
	running, known := r.Count(NumRunningReqs)
	waiting, _ := r.Count(NumWaitingReqs)
	return known && running == 0 && waiting > 0
}

// running says that a rank has requests in its running batch.
func running(ranks []Rank) bool {
	for i := range ranks {
		if v, _ := ranks[i].Count(NumRunningReqs); v > 0 {
			return true
		}
	}
	return false
}

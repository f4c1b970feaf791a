package store

import "math"

// Sum names one number of an Aggregate.
type Sum uint8

// The numbers of an Aggregate: counts first, then floats.
const (
	SumRunningReqs Sum = iota
	SumWaitingReqs
	SumTotalRequests
	SumWaitingUncachedTokens
	SumUsedTokens
	SumTotalTokens
	SumMaxTotalTokens
	SumMaxRunningRequests
	SumFreeTokens
	SumAvailableSlots
	SumQueuePressure
	SumRequestUtilization
	SumWeightedTokenUsage
	SumMaxRankTokenUsage
	SumGenThroughput
	SumPrefillThroughput
	SumTokenUsageImbalance
	SumRequestImbalance
	SumPrefillWaitSeconds

	// NumSums is how many there are.
	NumSums
)

// SumInfo describes a Sum.
type SumInfo struct {
	// Name is its name in proto and JSON.
	Name string
	// Number is its number in loadplane.v1.Aggregate.
	Number uint8
	// Float says that it is a float64; otherwise it is a count.
	Float bool
	// Upstream says that SGLang's router shows it too.
	Upstream bool
}

// Sums describes the numbers of an Aggregate, indexed by Sum, in the order in
// which JSON shows them. It must not be changed.
var Sums = [NumSums]SumInfo{
	SumRunningReqs:           {"num_running_reqs", 2, false, true},
	SumWaitingReqs:           {"num_waiting_reqs", 3, false, true},
	SumTotalRequests:         {"total_requests", 4, false, true},
	SumWaitingUncachedTokens: {"num_waiting_uncached_tokens", 5, false, true},
	SumUsedTokens:            {"num_used_tokens", 6, false, true},
	SumTotalTokens:           {"num_total_tokens", 7, false, true},
	SumMaxTotalTokens:        {"max_total_num_tokens", 8, false, true},
	SumMaxRunningRequests:    {"max_running_requests", 9, false, true},
	SumFreeTokens:            {"free_tokens", 10, false, true},
	SumAvailableSlots:        {"available_slots", 11, false, true},
	SumQueuePressure:         {"queue_pressure", 12, true, true},
	SumRequestUtilization:    {"request_utilization", 13, true, true},
	SumWeightedTokenUsage:    {"weighted_token_usage", 14, true, true},
	SumMaxRankTokenUsage:     {"max_rank_token_usage", 15, true, true},
	SumGenThroughput:         {"gen_throughput", 16, true, true},
	SumPrefillThroughput:     {"prefill_throughput", 17, true, true},
	SumTokenUsageImbalance:   {"token_usage_imbalance", 20, true, false},
	SumRequestImbalance:      {"request_imbalance", 21, true, false},
	SumPrefillWaitSeconds:    {"prefill_wait_seconds", 22, true, false},
}

// Aggregate is the load of a worker over its ranks, or of a pool over its
// fresh workers. A number that was not set is unknown. It is a plain value;
// once published it is not changed.
type Aggregate struct {
	// Ranks is the number of ranks.
	Ranks int
	// HottestRank is the most loaded rank where HottestBy is not empty.
	HottestRank int32
	// HottestBy names the field that it was chosen by.
	HottestBy string

	has    uint32
	values [NumSums]uint64
}

// SetCount sets a count.
func (a *Aggregate) SetCount(s Sum, v int64) {
	a.has |= 1 << s
	a.values[s] = uint64(v)
}

// SetFloat sets a float.
func (a *Aggregate) SetFloat(s Sum, v float64) {
	a.has |= 1 << s
	a.values[s] = math.Float64bits(v)
}

// Has says whether s is known.
func (a *Aggregate) Has(s Sum) bool { return a.has&(1<<s) != 0 }

// Count returns a count and whether it is known.
func (a *Aggregate) Count(s Sum) (int64, bool) { return int64(a.values[s]), a.Has(s) }

// Float returns a float and whether it is known.
func (a *Aggregate) Float(s Sum) (float64, bool) { return math.Float64frombits(a.values[s]), a.Has(s) }

// sources pairs each plain sum with the rank field that it adds up.
var sources = [...]struct {
	sum   Sum
	field Field
}{
	{SumRunningReqs, NumRunningReqs},
	{SumWaitingReqs, NumWaitingReqs},
	{SumWaitingUncachedTokens, NumWaitingUncachedTokens},
	{SumUsedTokens, NumUsedTokens},
	{SumTotalTokens, NumTotalTokens},
	{SumMaxTotalTokens, MaxTotalNumTokens},
	{SumMaxRunningRequests, MaxRunningRequests},
	{SumGenThroughput, GenThroughput},
	{SumPrefillThroughput, PrefillThroughput},
}

// Summarize returns the aggregate of a worker over its ranks, nil without
// any. A number is known only where every rank has the fields that it is made
// of; sums saturate at the largest int64. The formulas are those of SGLang's
// router, with hottest rank, imbalance and prefill wait beside them.
func Summarize(ranks []Rank) *Aggregate {
	if len(ranks) == 0 {
		return nil
	}
	t := newTally()
	for i := range ranks {
		t.addRank(&ranks[i])
	}
	a := t.finish()
	a.Ranks = len(ranks)
	return a
}

// Combine returns the aggregate of a pool over its workers' aggregates, nil
// without any. A number is known only where every worker has it.
func Combine(parts []*Aggregate) *Aggregate {
	if len(parts) == 0 {
		return nil
	}
	t := newTally()
	ranks := 0
	for _, p := range parts {
		t.addAggregate(p)
		ranks += p.Ranks
	}
	a := t.finish()
	a.Ranks = ranks
	a.HottestBy = "" // a rank number means nothing without its worker
	return a
}

// tally adds up ranks or aggregates. known has a bit for each sum that every
// part had.
type tally struct {
	known    uint32
	sums     Aggregate
	usage    spread // token usage of the parts
	requests spread // requests of the parts
	weighted float64
	// hasUsage says that every part had token usage, and hasWeight that every
	// part had what weighs it too.
	hasUsage, hasWeight bool
	// maxUsage is the highest token usage of a rank, hasMax that every part
	// had one.
	maxUsage float64
	hasMax   bool
}

// spread holds what imbalance and the hottest part need.
type spread struct {
	n        int
	sum, max float64
	rank     int32
}

func (s *spread) add(v float64, rank int32) {
	if s.n == 0 || v > s.max {
		s.max, s.rank = v, rank
	}
	s.n++
	s.sum += v
}

// imbalance returns largest over mean, and false where the mean is 0.
func (s *spread) imbalance() (float64, bool) {
	mean := s.sum / float64(max(1, s.n))
	return s.max / mean, mean > 0
}

func newTally() *tally {
	return &tally{known: 1<<NumSums - 1, hasUsage: true, hasWeight: true, hasMax: true}
}

func (t *tally) addRank(r *Rank) {
	for _, src := range sources {
		if Fields[src.field].Float {
			v, ok := r.Float(src.field)
			t.addFloat(src.sum, v, ok)
		} else {
			v, ok := r.Count(src.field)
			t.addCount(src.sum, v, ok)
		}
	}
	running, okR := r.Count(NumRunningReqs)
	waiting, okW := r.Count(NumWaitingReqs)
	if okR && okW {
		t.requests.add(float64(addSaturating(running, waiting)), r.DPRank)
	}
	usage, okU := r.Float(TokenUsage)
	capacity, okC := r.Count(MaxTotalNumTokens)
	t.addUsage(usage, okU, r.DPRank)
	t.addWeight(usage*float64(capacity), okU && okC)
	t.addHottest(usage, okU)
}

func (t *tally) addAggregate(a *Aggregate) {
	for _, src := range sources {
		if Sums[src.sum].Float {
			v, ok := a.Float(src.sum)
			t.addFloat(src.sum, v, ok)
		} else {
			v, ok := a.Count(src.sum)
			t.addCount(src.sum, v, ok)
		}
	}
	if v, ok := a.Count(SumTotalRequests); ok {
		t.requests.add(float64(v), 0)
	}
	usage, okU := a.Float(SumWeightedTokenUsage)
	capacity, okC := a.Count(SumMaxTotalTokens)
	t.addUsage(usage, okU, 0)
	t.addWeight(usage*float64(capacity), okU && okC)
	t.addHottest(a.Float(SumMaxRankTokenUsage))
}

func (t *tally) addUsage(usage float64, ok bool, rank int32) {
	t.hasUsage = t.hasUsage && ok
	if ok {
		t.usage.add(usage, rank)
	}
}

func (t *tally) addHottest(usage float64, ok bool) {
	t.hasMax = t.hasMax && ok
	t.maxUsage = max(t.maxUsage, usage)
}

func (t *tally) addWeight(weighted float64, ok bool) {
	t.hasWeight = t.hasWeight && ok
	t.weighted += weighted
}

func (t *tally) addCount(s Sum, v int64, ok bool) {
	if !ok {
		t.known &^= 1 << s
		return
	}
	old, _ := t.sums.Count(s)
	t.sums.SetCount(s, addSaturating(old, v))
}

func (t *tally) addFloat(s Sum, v float64, ok bool) {
	if !ok {
		t.known &^= 1 << s
		return
	}
	old, _ := t.sums.Float(s)
	t.sums.SetFloat(s, old+v)
}

// finish derives the numbers that are not plain sums.
func (t *tally) finish() *Aggregate {
	a := &Aggregate{}
	for _, src := range sources {
		if t.known&(1<<src.sum) != 0 {
			a.has |= 1 << src.sum
			a.values[src.sum] = t.sums.values[src.sum]
		}
	}
	t.deriveRequests(a)
	t.deriveTokens(a)
	t.deriveHottest(a)
	return a
}

func (t *tally) deriveRequests(a *Aggregate) {
	running, okR := a.Count(SumRunningReqs)
	waiting, okW := a.Count(SumWaitingReqs)
	most, okM := a.Count(SumMaxRunningRequests)
	if okR && okW {
		a.SetCount(SumTotalRequests, addSaturating(running, waiting))
		if v, ok := t.requests.imbalance(); ok {
			a.SetFloat(SumRequestImbalance, v)
		}
	}
	if okR && okM {
		a.SetCount(SumAvailableSlots, max(0, most-running))
		a.SetFloat(SumRequestUtilization, ratio(float64(running), float64(most)))
	}
}

func (t *tally) deriveTokens(a *Aggregate) {
	used, okU := a.Count(SumUsedTokens)
	capacity, okC := a.Count(SumMaxTotalTokens)
	if okU && okC {
		a.SetCount(SumFreeTokens, max(0, capacity-used))
	}
	waiting, okW := a.Count(SumWaitingUncachedTokens)
	if gen, ok := a.Float(SumGenThroughput); ok && okW {
		a.setSane(SumQueuePressure, ratio(float64(waiting), gen))
	}
	if prefill, ok := a.Float(SumPrefillThroughput); ok && okW && prefill > 0 {
		a.setSane(SumPrefillWaitSeconds, float64(waiting)/prefill)
	}
	if t.hasWeight && okC {
		a.SetFloat(SumWeightedTokenUsage, ratio(t.weighted, float64(capacity)))
	}
	if t.hasMax {
		a.SetFloat(SumMaxRankTokenUsage, t.maxUsage)
	}
	if v, ok := t.usage.imbalance(); ok && t.hasUsage {
		a.SetFloat(SumTokenUsageImbalance, v)
	}
}

func (t *tally) deriveHottest(a *Aggregate) {
	switch {
	case t.hasUsage:
		a.HottestRank, a.HottestBy = t.usage.rank, Fields[TokenUsage].Name
	case a.Has(SumTotalRequests):
		a.HottestRank, a.HottestBy = t.requests.rank, Sums[SumTotalRequests].Name
	}
}

// maxQuotient bounds a derived number, as reported ones are bounded.
const maxQuotient = 1e12

// setSane sets a quotient, unless its divisor was so small that it means
// nothing.
func (a *Aggregate) setSane(s Sum, v float64) {
	if v <= maxQuotient {
		a.SetFloat(s, v)
	}
}

// ratio returns a/b, or 0 where b is 0, as SGLang's router has it.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

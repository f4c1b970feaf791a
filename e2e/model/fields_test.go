package model

import pb "github.com/loadplane/loadplane/proto/loadplane/v1"

// field is a number of a rank by its name on the wire.
type field struct {
	name string
	core bool
	of   func(*pb.RankLoad) (float64, bool)
}

func count(get func(*pb.RankLoad) *int64) func(*pb.RankLoad) (float64, bool) {
	return func(r *pb.RankLoad) (float64, bool) {
		p := get(r)
		return float64(value(p)), p != nil
	}
}

func float(get func(*pb.RankLoad) *float64) func(*pb.RankLoad) (float64, bool) {
	return func(r *pb.RankLoad) (float64, bool) {
		p := get(r)
		return value(p), p != nil
	}
}

// fields are the numbers that reports of the test may have.
var fields = []field{
	{"num_running_reqs", true, count(func(r *pb.RankLoad) *int64 { return r.NumRunningReqs })},
	{"num_waiting_reqs", true, count(func(r *pb.RankLoad) *int64 { return r.NumWaitingReqs })},
	{"num_waiting_uncached_tokens", true, count(func(r *pb.RankLoad) *int64 { return r.NumWaitingUncachedTokens })},
	{"num_used_tokens", true, count(func(r *pb.RankLoad) *int64 { return r.NumUsedTokens })},
	{"num_total_tokens", true, count(func(r *pb.RankLoad) *int64 { return r.NumTotalTokens })},
	{"max_total_num_tokens", true, count(func(r *pb.RankLoad) *int64 { return r.MaxTotalNumTokens })},
	{"max_running_requests", true, count(func(r *pb.RankLoad) *int64 { return r.MaxRunningRequests })},
	{"token_usage", true, float(func(r *pb.RankLoad) *float64 { return r.TokenUsage })},
	{"gen_throughput", true, float(func(r *pb.RankLoad) *float64 { return r.GenThroughput })},
	{"cache_hit_rate", true, float(func(r *pb.RankLoad) *float64 { return r.CacheHitRate })},
	{"utilization", true, float(func(r *pb.RankLoad) *float64 { return r.Utilization })},
	{"prefill_throughput", false, float(func(r *pb.RankLoad) *float64 { return r.PrefillThroughput })},
	{"decode_prealloc_reqs", false, count(func(r *pb.RankLoad) *int64 { return r.DecodePreallocReqs })},
}

// summed are the numbers of an aggregate that are sums of their namesakes,
// derived those that follow from sums.
var (
	summed = []string{
		"num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
		"max_total_num_tokens", "max_running_requests", "gen_throughput", "prefill_throughput",
	}
	derived = []string{
		"total_requests", "free_tokens", "available_slots", "request_utilization", "queue_pressure", "max_rank_token_usage",
	}
)

func numbersOf(r *pb.RankLoad) numbers {
	n := numbers{}
	for _, f := range fields {
		if v, known := f.of(r); known {
			n[f.name] = v
		}
	}
	return n
}

func sumsOf(a *pb.Aggregate) numbers {
	n := numbers{}
	for name, p := range map[string]*int64{
		"num_running_reqs": a.NumRunningReqs, "num_waiting_reqs": a.NumWaitingReqs, "num_used_tokens": a.NumUsedTokens,
		"num_waiting_uncached_tokens": a.NumWaitingUncachedTokens, "num_total_tokens": a.NumTotalTokens,
		"max_total_num_tokens": a.MaxTotalNumTokens, "max_running_requests": a.MaxRunningRequests,
		"total_requests": a.TotalRequests, "free_tokens": a.FreeTokens, "available_slots": a.AvailableSlots,
	} {
		if p != nil {
			n[name] = float64(*p)
		}
	}
	for name, p := range map[string]*float64{
		"gen_throughput": a.GenThroughput, "prefill_throughput": a.PrefillThroughput, "queue_pressure": a.QueuePressure,
		"request_utilization": a.RequestUtilization, "max_rank_token_usage": a.MaxRankTokenUsage,
	} {
		if p != nil {
			n[name] = *p
		}
	}
	return n
}

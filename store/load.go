package store

import (
	"math"
	"math/bits"
)

// Field names one measured number of a rank.
type Field uint8

// The numbers of a rank: counts first, then floats.
const (
	NumRunningReqs Field = iota
	NumWaitingReqs
	NumWaitingUncachedTokens
	NumUsedTokens
	NumTotalTokens
	MaxTotalNumTokens
	MaxRunningRequests
	PrefillBootstrapReqs
	PrefillInflightReqs
	DecodePreallocReqs
	DecodeTransferReqs
	DecodeRetractedReqs
	TokenUsage
	GenThroughput
	CacheHitRate
	Utilization
	PrefillThroughput
	PrefillThroughputWall

	// NumFields is how many there are.
	NumFields
)

// FieldInfo describes a Field.
type FieldInfo struct {
	// Name is its name in proto and JSON.
	Name string
	// Number is its number in loadplane.v1.RankLoad and, up to 14, in the
	// push dialect's RankLoad.
	Number uint8
	// Float says that it is a float64; otherwise it is a count.
	Float bool
	// Core says that a worker that lacks it on a rank is partial.
	Core bool
}

// Fields describes the fields, indexed by Field. It must not be changed.
var Fields = [NumFields]FieldInfo{
	NumRunningReqs:           {"num_running_reqs", 3, false, true},
	NumWaitingReqs:           {"num_waiting_reqs", 4, false, true},
	NumWaitingUncachedTokens: {"num_waiting_uncached_tokens", 5, false, true},
	NumUsedTokens:            {"num_used_tokens", 6, false, true},
	NumTotalTokens:           {"num_total_tokens", 7, false, true},
	MaxTotalNumTokens:        {"max_total_num_tokens", 8, false, true},
	MaxRunningRequests:       {"max_running_requests", 9, false, true},
	PrefillBootstrapReqs:     {"prefill_bootstrap_reqs", 15, false, false},
	PrefillInflightReqs:      {"prefill_inflight_reqs", 16, false, false},
	DecodePreallocReqs:       {"decode_prealloc_reqs", 17, false, false},
	DecodeTransferReqs:       {"decode_transfer_reqs", 18, false, false},
	DecodeRetractedReqs:      {"decode_retracted_reqs", 19, false, false},
	TokenUsage:               {"token_usage", 10, true, true},
	GenThroughput:            {"gen_throughput", 11, true, true},
	CacheHitRate:             {"cache_hit_rate", 12, true, true},
	Utilization:              {"utilization", 13, true, true},
	PrefillThroughput:        {"prefill_throughput", 14, true, false},
	PrefillThroughputWall:    {"prefill_throughput_wall", 20, true, false},
}

// Rank is the load of one DP rank. A field that was not set is unknown. Two
// ranks are equal by == exactly when their number, presence and values are:
// counts by value, floats by bits, with -0 stored as 0. It is a plain value.
type Rank struct {
	// DPRank is the data-parallel rank, from 0.
	DPRank int32

	has    uint32
	values [NumFields]uint64
}

// SetCount sets a count.
func (r *Rank) SetCount(f Field, v int64) {
	r.has |= 1 << f
	r.values[f] = uint64(v)
}

// SetFloat sets a float.
func (r *Rank) SetFloat(f Field, v float64) {
	if v == 0 {
		v = 0 // -0 becomes 0
	}
	r.has |= 1 << f
	r.values[f] = math.Float64bits(v)
}

// Has says whether f is known.
func (r *Rank) Has(f Field) bool { return r.has&(1<<f) != 0 }

// Count returns a count and whether it is known.
func (r *Rank) Count(f Field) (int64, bool) { return int64(r.values[f]), r.Has(f) }

// Float returns a float and whether it is known.
func (r *Rank) Float(f Field) (float64, bool) { return math.Float64frombits(r.values[f]), r.Has(f) }

// Known returns how many fields are known.
func (r *Rank) Known() int { return bits.OnesCount32(r.has) }

// Sample is what came with a rank and is not content: when the engine took
// it, and the cumulative inputs. Fields below 0 are unknown.
type Sample struct {
	// TimeUnixMs is the engine's wall clock at the sample, Unix milliseconds.
	TimeUnixMs int64
	// PrefillUncachedTokens counts uncached prompt tokens since its start.
	PrefillUncachedTokens int64
	// PrefillBusyUs counts microseconds spent on prefill since its start.
	PrefillBusyUs int64
	// GeneratedTokens counts generated tokens since its start.
	GeneratedTokens int64
}

// Load is one accepted report. It is immutable once offered to a Slot.
type Load struct {
	// Source is the instance of the engine process that made it.
	Source string
	// Sequence rises within one source.
	Sequence uint64
	Status   Status
	// ReportUnixMs is the engine's wall clock when it built the report, Unix
	// milliseconds; below 0 for unknown.
	ReportUnixMs int64
	// LastError is the text of the engine's last failure; empty for none.
	LastError string
	// Ranks are sorted by DPRank, which are unique. Empty only when Status is
	// StatusUnreachable.
	Ranks []Rank
	// Samples belong to Ranks, index by index.
	Samples []Sample
	// Flags are those that the values alone show.
	Flags Flag
	// Received is when the plane read the report.
	Received Instant
	// Begun is when the plane asked for it, where it did; 0 otherwise. In a
	// suspension it decides whether the report is older than that.
	Begun Instant
	// ReceivedUnixMs is the plane's wall clock then; for display only.
	ReceivedUnixMs int64
}

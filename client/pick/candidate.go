package pick

import (
	"math"
	"slices"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// Number is a count or a rate that may be unknown. The zero Number is unknown.
// It is a plain value.
type Number struct{ bits uint64 } // of the float64, plus one

// Known returns the number v. What engines write for "not known" stays so: a
// negative v, NaN or an infinity gives the unknown Number.
func Known(v float64) Number {
	if !(v >= 0) || math.IsInf(v, 1) {
		return Number{}
	}
	return Number{math.Float64bits(v+0) + 1} // -0 became 0
}

// Count returns the number n, unknown where n is negative.
func Count(n int64) Number { return Known(float64(n)) }

// Value returns the number and whether it is known. It is finite and not
// negative.
func (n Number) Value() (float64, bool) {
	if n.bits == 0 {
		return 0, false
	}
	return math.Float64frombits(n.bits - 1), true
}

// sum adds up the numbers that are known.
func sum(numbers ...Number) (total float64) {
	for _, n := range numbers {
		v, _ := n.Value() // 0 where it is not known
		total += v
	}
	return total
}

// Role is the part of a request's life that a worker serves, numbered as on
// the wire.
type Role uint8

// The roles.
const (
	// RoleAny is no role: it selects all.
	RoleAny Role = iota
	// RolePlain: prefill and decode in one engine.
	RolePlain
	// RolePrefill: prefill only.
	RolePrefill
	// RoleDecode: decode only.
	RoleDecode
)

// Freshness is what a view knows of a worker, numbered as on the wire.
type Freshness uint8

// The kinds of freshness. The zero Freshness counts as missing.
const (
	// Missing: nothing was received since the worker was discovered.
	Missing Freshness = iota + 1
	// Usable: the last report is healthy; it is fresh until ValidUntil.
	Usable
	// Stale: the last report is too old, or is doubted.
	Stale
	// Unreachable: the engine could not be sampled; so until ValidUntil, and
	// stale from then on. With a zero ValidUntil it stays unreachable.
	Unreachable
)

// NoRank stands for a worker as a whole where a DP rank could stand.
const NoRank = credit.NoRank

// PolicyCandidate is a worker (Rank is NoRank) or one DP rank of a worker, as
// a view has it. It is a plain value.
type PolicyCandidate struct {
	// WorkerID names the worker, and URL is the base URL of its engine.
	WorkerID, URL string
	// Rank is the DP rank, or NoRank. Ranks from credit.MaxRanks on are left
	// out.
	Rank int32
	// Role is what the worker serves.
	Role Role
	// Models are the names of the models that it serves.
	Models []string
	// Draining says that the worker must get no new work.
	Draining bool
	// Freshness is the view's judgement. A usable candidate is fresh only
	// before ValidUntil, whatever the view says.
	Freshness Freshness
	// ValidUntil is when the report ceases to count, on the local clock.
	ValidUntil time.Time
	// Received is when the plane received the report, mapped to the local
	// clock. The policies do not use it; Score may.
	Received time.Time

	// Running and Waiting count requests. Waiting has the role's
	// prefill/decode queues in it, but for PrefillInflight.
	Running, Waiting Number
	// TotalRequests is running and waiting requests, for engines that report
	// only their sum.
	TotalRequests Number
	// WaitingUncachedTokens are the tokens of waiting requests that no cached
	// prefix covers.
	WaitingUncachedTokens Number
	// UsedTokens is the KV cache in use, Capacity its size, in tokens.
	UsedTokens, Capacity Number
	// TotalTokens is the demand, used and queued; it may exceed Capacity.
	TotalTokens Number
	// MaxRunning is the most requests that run at once.
	MaxRunning Number
	// PrefillThroughput is uncached prefill tokens per second of busy time.
	// Below 1e-9 it says nothing and counts as unknown.
	PrefillThroughput Number
	// GenThroughput is generated tokens per second. Engines keep the last
	// value when idle, so no policy uses it; Score may.
	GenThroughput Number
	// CacheHitRate is the share of prompt tokens served from the prefix cache,
	// 0 to 1. No policy uses it; Score may.
	CacheHitRate Number
	// PrefillBootstrap, DecodePrealloc, DecodeTransfer and DecodeRetracted are
	// requests in prefill/decode queues. The tokens of DecodeTransfer are in
	// UsedTokens already.
	PrefillBootstrap, DecodePrealloc, DecodeTransfer, DecodeRetracted Number
	// PrefillInflight are requests that are prefilled and whose KV cache is
	// being sent. They are neither running nor waiting.
	PrefillInflight Number
}

// fits says that c is of a pool; an empty model and RoleAny take all.
func (c *PolicyCandidate) fits(model string, role Role) bool {
	return (role == RoleAny || c.Role == role) && (model == "" || slices.Contains(c.Models, model))
}

// requests returns the requests that a candidate has: running, waiting and,
// where the engine says so, in prefill/decode queues that it may have left out
// of the waiting ones.
func (c *PolicyCandidate) requests() (float64, bool) {
	inflight := sum(c.PrefillInflight)
	running, okR := c.Running.Value()
	waiting, okW := c.Waiting.Value()
	if okR && okW {
		queues := sum(c.PrefillBootstrap, c.DecodePrealloc, c.DecodeTransfer, c.DecodeRetracted)
		return running + max(waiting, queues) + inflight, true
	}
	total, ok := c.TotalRequests.Value()
	return total + inflight, ok
}

// demand returns used and queued tokens. What a decode worker has queued is in
// its used tokens once its KV cache is on the way.
func (c *PolicyCandidate) demand() (float64, bool) {
	if total, ok := c.TotalTokens.Value(); ok {
		return total, true
	}
	used, okU := c.UsedTokens.Value()
	if c.Role == RoleDecode {
		return used, okU
	}
	waiting, okW := c.WaitingUncachedTokens.Value()
	return used + waiting, okU && okW
}

// free returns the KV cache that is free, in tokens; below zero where an
// engine uses more than it has.
func (c *PolicyCandidate) free() (float64, bool) {
	used, okU := c.UsedTokens.Value()
	capacity, okC := c.Capacity.Value()
	return capacity - used, okU && okC
}

// minThroughput is the least prefill throughput that is used, in tokens a
// second. Waits by one that is next to nothing are no finite numbers.
const minThroughput = 1e-9

// prefill returns waiting uncached tokens and the throughput by which they go.
func (c *PolicyCandidate) prefill() (waiting, throughput float64, ok bool) {
	waiting, okW := c.WaitingUncachedTokens.Value()
	throughput, okT := c.PrefillThroughput.Value()
	return waiting, throughput, okW && okT && throughput >= minThroughput
}

// slots returns requests and the most that run at once.
func (c *PolicyCandidate) slots() (requests, most float64, ok bool) {
	requests, okR := c.requests()
	most, okM := c.MaxRunning.Value()
	return requests, most, okR && okM && most > 0
}

package pick

import (
	"fmt"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// Field names the number that a choice was made by.
type Field uint8

// The fields.
const (
	// FieldNone: nothing was compared.
	FieldNone Field = iota
	// FieldRequests: running and waiting requests, prefill/decode queues
	// included, and the credit in requests.
	FieldRequests
	// FieldTokens: used and queued tokens, and the credit in tokens.
	FieldTokens
	// FieldUncached: waiting uncached tokens, and the credit in tokens.
	FieldUncached
	// FieldFree: capacity less used tokens less the credit in tokens; the
	// largest wins.
	FieldFree
	// FieldPrefillWait: seconds until the request is prefilled, which is
	// waiting uncached tokens, credit and its own tokens over prefill
	// throughput.
	FieldPrefillWait
	// FieldWait: FieldPrefillWait and the seconds until a slot to run in is
	// free, which is requests and credit above MaxRunning, times ServiceTime
	// over MaxRunning.
	FieldWait
	// FieldInFlight: requests that this process has open, and dispatches of
	// unknown end that are not covered.
	FieldInFlight
	// FieldScore: the router's own score.
	FieldScore

	numFields
)

var fieldNames = [numFields]string{
	"none", "total_requests", "token_demand", "waiting_uncached_tokens", "free_tokens", "prefill_wait_seconds", "wait_seconds", "in_flight", "score",
}

// String returns the word for the field.
func (f Field) String() string { return word(fieldNames[:], int(f)) }

func word(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprint(i)
}

// fieldSet has a bit for each field.
type fieldSet uint16

func (s fieldSet) has(f Field) bool { return s&(1<<f) != 0 }

// known returns the fields that a candidate has.
func known(c *PolicyCandidate) (s fieldSet) {
	for f, has := range [numFields]bool{
		FieldRequests: second(c.requests()),
		FieldTokens:   second(c.demand()),
		FieldUncached: second(c.WaitingUncachedTokens.Value()),
		FieldFree:     second(c.free()),
	} {
		if has {
			s |= 1 << f
		}
	}
	if _, _, ok := c.prefill(); ok {
		s |= 1 << FieldPrefillWait
		if _, _, ok := c.slots(); ok {
			s |= 1 << FieldWait
		}
	}
	return s
}

func second(_ float64, ok bool) bool { return ok }

// base returns the reported value of a field whose cost is a count: that of
// free tokens is negative, so that the least cost wins; nothing is reported of
// FieldInFlight.
func base(c *PolicyCandidate, f Field) int64 {
	var v float64
	switch f {
	case FieldRequests:
		v, _ = c.requests()
	case FieldTokens:
		v, _ = c.demand()
	case FieldUncached:
		v, _ = c.WaitingUncachedTokens.Value()
	case FieldFree:
		v, _ = c.free()
		v = -v
	}
	const most = 1 << 60
	return int64(max(-most, min(v, most)))
}

// creditOf returns the column that is added to a field whose cost is a count.
func creditOf(f Field) credit.Column {
	switch f {
	case FieldRequests:
		return credit.Credit
	case FieldInFlight:
		return credit.Sent
	}
	return credit.Tokens
}

// Policy is a way to compare candidates.
type Policy uint8

// The policies, each with the fields that it tries in this order.
const (
	// PowerOfK draws K candidates at random and takes the better one. A prefill
	// pool is compared by FieldTokens, then FieldRequests; others by
	// FieldRequests, then FieldTokens. It is the default: processes that see
	// the same view do not all choose the same.
	PowerOfK Policy = iota
	// LeastLoad takes the least loaded candidate by FieldRequests, then
	// FieldTokens.
	LeastLoad
	// ExpectedWait takes the candidate that prefills the request first, by
	// FieldWait, FieldPrefillWait, FieldUncached, FieldRequests. A decode pool
	// has nothing to prefill: it is compared by FieldRequests, then
	// FieldTokens.
	ExpectedWait
	// FreeTokens takes the candidate with the largest FieldFree; failing that
	// the least FieldTokens, then FieldRequests.
	FreeTokens
	// Custom takes the candidate with the least Options.Score.
	Custom

	numPolicies
)

var policyNames = [numPolicies]string{"power-of-k", "least-load", "expected-wait", "free-tokens", "custom"}

// String returns the name of the policy.
func (p Policy) String() string { return word(policyNames[:], int(p)) }

// ParsePolicy returns the policy of a name. Custom has none that can be
// parsed, since it needs a function.
func ParsePolicy(name string) (Policy, error) {
	for p := range Custom {
		if policyNames[p] == name {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown policy %q; there are %q", name, policyNames[:Custom])
}

// chains are the fields of each policy for most pools.
var chains = [numPolicies][]Field{
	PowerOfK:     {FieldRequests, FieldTokens},
	LeastLoad:    {FieldRequests, FieldTokens},
	ExpectedWait: {FieldWait, FieldPrefillWait, FieldUncached, FieldRequests},
	FreeTokens:   {FieldFree, FieldTokens, FieldRequests},
}

// chain returns the fields of the policy for a pool of the role.
func (p Policy) chain(role Role) []Field {
	switch {
	case p == PowerOfK && role == RolePrefill:
		return []Field{FieldTokens, FieldRequests}
	case p == ExpectedWait && role == RoleDecode:
		return chains[LeastLoad]
	}
	return chains[p]
}

// common returns the first field of the policy that all candidates have;
// FieldInFlight where there is none.
func (p Policy) common(role Role, all fieldSet) Field {
	for _, f := range p.chain(role) {
		if all.has(f) {
			return f
		}
	}
	return FieldInFlight
}

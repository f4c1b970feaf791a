package pick

import (
	"math/bits"
	"slices"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// query is one pick. It is for one goroutine.
type query struct {
	picker  *Picker
	section *section
	role    Role
	request Request
	// spans is how many of the section's spans are eligible.
	spans int
}

// fresh picks by the policy.
func (q *query) fresh() (Choice, error) {
	o := &q.picker.options
	if o.Policy == Custom {
		return q.byScore()
	}
	f := o.Policy.common(q.role, q.section.spans[q.spans-1].all)
	switch f {
	case FieldInFlight:
		return q.byLocal(ReasonNoCommonField)
	case FieldPrefillWait, FieldWait:
		return q.byWait(f)
	}
	if o.K > 0 {
		i, cost := q.drawn(func(p place) float64 { return float64(q.section.countCost(f, p)) })
		if i >= 0 {
			return q.choice(i, f, cost), nil
		}
	}
	return q.byCount(f)
}

// byCount picks the least count.
func (q *query) byCount(f Field) (Choice, error) {
	i, cost := q.leastCount(q.section.values(f), q.section.cells[creditOf(f)])
	if i < 0 {
		return Choice{}, ErrAllTried
	}
	return q.choice(i, f, float64(cost)), nil
}

// byLocal picks the least of what this process has there itself.
func (q *query) byLocal(why Reason) (Choice, error) {
	c, err := q.byCount(FieldInFlight)
	if err == nil {
		c.Fallback, c.Reason = true, why
	}
	return c, err
}

// byWait picks the shortest wait.
func (q *query) byWait(f Field) (Choice, error) {
	service := 0.0
	if f == FieldWait {
		service = q.picker.options.ServiceTime.Seconds()
	}
	own := max(0, q.request.PromptTokens)
	s, waits := q.section, q.section.allWaits()
	i, cost := q.least(func(p place) float64 {
		return waits[p.i].seconds(own+s.load(credit.Tokens, p), s.load(credit.Credit, p), service)
	})
	if i < 0 {
		return Choice{}, ErrAllTried
	}
	return q.choice(i, f, cost), nil
}

// byScore picks the least score of the router's own.
func (q *query) byScore() (Choice, error) {
	o := &q.picker.options
	unknown := false
	cost := func(p place) float64 {
		v, ok := o.Score(q.section.candidates[p.i], q.section.local(p), q.request)
		unknown = unknown || !ok || v != v
		return v
	}
	i, v := -1, 0.0
	if o.K > 0 {
		i, v = q.drawn(cost)
	}
	if i < 0 && !unknown {
		i, v = q.least(cost)
	}
	switch {
	case unknown:
		return q.byLocal(ReasonNoCommonField)
	case i < 0:
		return Choice{}, ErrAllTried
	}
	return q.choice(i, FieldScore, v), nil
}

func (q *query) choice(i int, f Field, cost float64) Choice {
	c := q.section.candidates[i]
	if f == FieldFree {
		cost = -cost
	}
	return Choice{
		Target: credit.Target{WorkerID: c.WorkerID, Rank: max(c.Rank, NoRank)}, URL: c.URL,
		Policy: q.picker.options.Policy, Field: f, Score: cost,
	}
}

// avoided says that the request does not want a candidate.
func (q *query) avoided(i int) bool {
	if len(q.request.Avoid) == 0 {
		return false // without a look at the candidate
	}
	c := q.section.candidates[i]
	for _, a := range q.request.Avoid {
		if (a.Rank < 0 || a.Rank == c.Rank) && a.WorkerID == c.WorkerID {
			return true
		}
	}
	return false
}

// below returns a random number below n.
func (q *query) below(n int) int {
	high, _ := bits.Mul64(q.picker.options.Rand(), uint64(n))
	return int(high)
}

// drawn returns the best of K candidates that are drawn without putting back;
// -1 where so few are left that all should be looked at. The first drawn wins
// a tie, which is a random one.
func (q *query) drawn(cost func(p place) float64) (best int, least float64) {
	k, n := q.picker.options.K, q.section.end(q.spans)
	best = -1
	if n <= k {
		return best, 0
	}
	var seen [MaxK]int
	had := 0
	for tries := 0; had < k && tries < 8*k; tries++ {
		i := q.below(n)
		if slices.Contains(seen[:had], i) || q.avoided(i) {
			continue
		}
		seen[had] = i
		had++
		if v := cost(q.section.place(i)); best < 0 || v < least {
			best, least = i, v
		}
	}
	return best, least
}

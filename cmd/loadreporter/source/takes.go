package source

import "time"

// leastLead is the time that a sample has at least before the report that is to
// have it, for a timer that is late.
const leastLead = time.Millisecond

// takes is how long samples take: a smoothed mean and a mean deviation, by the
// weights and the sum of RFC 6298, section 2. The zero value knows nothing. It is for one
// goroutine.
type takes struct {
	known           bool
	mean, deviation time.Duration
}

// note takes a sample into account.
func (t *takes) note(took time.Duration) {
	took = max(took, 0)
	if !t.known {
		*t = takes{true, took, took / 2}
		return
	}
	t.deviation += ((took - t.mean).Abs() - t.deviation) / 4
	t.mean += (took - t.mean) / 8
}

// likely is the time within which most samples end.
func (t *takes) likely() time.Duration { return t.mean + max(4*t.deviation, leastLead) }

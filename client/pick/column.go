package pick

import "sync"

// values returns the reported values of a field whose cost is a count.
func (s *section) values(f Field) []int64 {
	c := &s.counts[f]
	c.once.Do(func() {
		c.values = make([]int64, len(s.candidates))
		for i, x := range s.candidates {
			c.values[i] = base(x, f)
		}
	})
	return c.values
}

// countCost returns the cost of one candidate by a field whose cost is a
// count.
func (s *section) countCost(f Field, p place) int64 {
	return base(s.candidates[p.i], f) + s.load(creditOf(f), p)
}

// wait holds what the wait at a candidate is made of. A number that is not
// known is not used, since then the field is none that all have.
type wait struct {
	// prefill is the wait for what is queued, perToken that for one token
	// more, both in seconds.
	prefill, perToken float64
	// over is requests less the most that run at once; perSlot is how much of
	// a service time passes until one ends.
	over, perSlot float64
}

func waitOf(c *PolicyCandidate) (w wait) {
	if waiting, throughput, ok := c.prefill(); ok {
		w.prefill, w.perToken = waiting/throughput, 1/throughput
	}
	if requests, most, ok := c.slots(); ok {
		w.over, w.perSlot = requests-most, 1/most
	}
	return w
}

// seconds returns the wait with the credit and the request's own tokens.
// service is the service time in seconds, 0 to leave out the wait for a slot.
func (w *wait) seconds(tokens, credit int64, service float64) float64 {
	return w.prefill + float64(tokens)*w.perToken + service*w.perSlot*max(0, w.over+float64(credit))
}

// waitColumns holds the waits, made when they are first scanned.
type waitColumns struct {
	once  sync.Once
	waits []wait
}

func (s *section) allWaits() []wait {
	s.waits.once.Do(func() {
		s.waits.waits = make([]wait, len(s.candidates))
		for i, c := range s.candidates {
			s.waits.waits[i] = waitOf(c)
		}
	})
	return s.waits.waits
}

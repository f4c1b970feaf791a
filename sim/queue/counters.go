package queue

import "time"

// Counters are what one rank did since its model began. They never go back. It is a plain value.
type Counters struct {
	// PromptTokens are those of the requests whose prefill, or transfer into a
	// decode rank, has ended; CachedTokens are those of them that were cached.
	PromptTokens, CachedTokens int64
	// GeneratedTokens counts output tokens; 0 for prefill.
	GeneratedTokens int64
	// Finished counts requests with all their output.
	Finished int64
	// PrefillBusy and DecodeBusy are the times spent on each.
	PrefillBusy, DecodeBusy time.Duration
}

// Counters returns those of all ranks, in their order.
func (m *Model) Counters() []Counters {
	all := make([]Counters, len(m.ranks))
	for i, r := range m.ranks {
		all[i] = r.totals()
	}
	return all
}

// Plus returns the sum of both.
func (c Counters) Plus(n Counters) Counters {
	return Counters{
		PromptTokens:    c.PromptTokens + n.PromptTokens,
		CachedTokens:    c.CachedTokens + n.CachedTokens,
		GeneratedTokens: c.GeneratedTokens + n.GeneratedTokens,
		Finished:        c.Finished + n.Finished,
		PrefillBusy:     c.PrefillBusy + n.PrefillBusy,
		DecodeBusy:      c.DecodeBusy + n.DecodeBusy,
	}
}

// totals returns the counters with whole tokens.
func (r *rank) totals() Counters {
	c := r.counters
	if r.role != rolePrefill {
		c.GeneratedTokens = int64(r.generated)
	}
	return c
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

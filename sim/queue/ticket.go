package queue

import (
	"errors"
	"slices"
)

// AnyRank as Work.Rank takes the ranks in turn.
const AnyRank = -1

// Errors of Add.
var (
	// ErrNoRank: the engine has no such rank.
	ErrNoRank = errors.New("no such rank")
	// ErrFull: the queue of the rank is full.
	ErrFull = errors.New("the queue is full")
	// ErrTooLong: no rank can hold the tokens.
	ErrTooLong = errors.New("prompt and output are longer than a rank holds")
)

// Work is a request of a caller. It is a plain value.
type Work struct {
	// Rank is the DP rank, or AnyRank.
	Rank int
	// PromptTokens and OutputTokens are the lengths, at least 1 each. Nothing of
	// the prompt is cached.
	PromptTokens, OutputTokens int64
}

// Ticket follows a request of a caller. Steps of the model change it; it is as
// little safe for concurrent use as the model, except that any goroutine may
// receive from News.
type Ticket struct {
	// Rank is the one that serves it.
	Rank int
	// Tokens are those generated so far; Over says that these are all.
	Tokens int64
	Over   bool
	// News holds an element after a change.
	News chan struct{}
}

// Add puts a request at the end of a rank's queue. The caller removes it in the
// end. The error is one of those above.
func (m *Model) Add(w Work) (*Ticket, error) {
	t := &Ticket{Rank: w.Rank, News: make(chan struct{}, 1)}
	if w.Rank == AnyRank {
		t.Rank = m.next
		m.next = (m.next + 1) % len(m.ranks)
	}
	if t.Rank < 0 || t.Rank >= len(m.ranks) {
		return nil, ErrNoRank
	}
	if err := m.ranks[t.Rank].enqueue(w, t); err != nil {
		return nil, err
	}
	return t, nil
}

func (r *rank) enqueue(w Work, t *Ticket) error {
	q := request{prompt: w.PromptTokens, uncached: float64(w.PromptTokens), output: w.OutputTokens, ticket: t}
	if r.role == rolePrefill {
		q.output = holdTokens // whatever is asked for
	}
	switch {
	case q.output > CapacityTokens-q.prompt:
		return ErrTooLong
	case len(r.waiting) >= maxWaiting:
		return ErrFull
	}
	r.waiting = append(r.waiting, q)
	return nil
}

// Remove takes a request out. It does nothing where the request is over.
func (m *Model) Remove(t *Ticket) {
	r := m.ranks[t.Rank]
	has := func(q request) bool { return q.ticket == t }
	r.waiting = slices.DeleteFunc(r.waiting, has)
	r.running = slices.DeleteFunc(r.running, func(q request) bool {
		if has(q) {
			r.reserved -= q.prompt + q.output
		}
		return has(q)
	})
}

// note takes over how far the request is.
func (t *Ticket) note(q *request) {
	if t == nil {
		return
	}
	tokens, over := min(q.output, int64(q.done)), q.done >= float64(q.output)
	if tokens == t.Tokens && over == t.Over {
		return
	}
	t.Tokens, t.Over = tokens, over
	select {
	case t.News <- struct{}{}:
	default:
	}
}

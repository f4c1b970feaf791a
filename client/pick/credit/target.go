package credit

import "sync/atomic"

// NoRank stands for a worker as a whole where a DP rank could stand.
const NoRank int32 = -1

// MaxRanks bounds the DP ranks of a worker that have counters, as the plane
// bounds those that it takes. A dispatch to a rank beyond counts at the worker
// only.
const MaxRanks int32 = 4096

// Target names a worker, or one DP rank of it where Rank is not NoRank. It is a
// plain value.
type Target struct {
	// WorkerID names the worker.
	WorkerID string
	// Rank is the DP rank, or NoRank.
	Rank int32
}

// Local is what this process knows of a target by itself. None of its numbers
// is ever negative. It is a plain value.
type Local struct {
	// InFlight counts open requests: dispatched and not ended.
	InFlight int64
	// Credit counts dispatches that no report covers yet and that are not
	// ended; Tokens are their prompt tokens.
	Credit, Tokens int64
}

// Column is one of the counters that every worker and every rank has.
type Column uint8

// The columns.
const (
	// Credit is Local.Credit.
	Credit Column = iota
	// Tokens is Local.Tokens.
	Tokens
	// InFlight is Local.InFlight.
	InFlight
	// Sent is open requests and the credit of unknown end: what is at the
	// target by this process's own knowledge alone.
	Sent

	// NumColumns is how many there are.
	NumColumns
)

// Counters are those of a worker, or of ranks of it that follow each other.
// They stay where they are and change under the reader, who calls Load only.
// Any goroutine may do so.
type Counters [NumColumns][]atomic.Int64

func newCounters(n int) (c Counters) {
	all := make([]atomic.Int64, n*int(NumColumns))
	for col := range c {
		c[col] = all[col*n : (col+1)*n : (col+1)*n]
	}
	return c
}

// len returns of how many ranks the counters are.
func (c *Counters) len() int { return len(c[0]) }

// part returns the counters from one rank to before another.
func (c *Counters) part(from, to int) (p Counters) {
	for col := range c {
		p[col] = c[col][from:to:to]
	}
	return p
}

// local returns the counters at an index.
func (c *Counters) local(i int) Local {
	return Local{c[InFlight][i].Load(), c[Credit][i].Load(), c[Tokens][i].Load()}
}

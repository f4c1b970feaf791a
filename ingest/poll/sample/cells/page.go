package cells

import (
	"math"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/store"
)

// State says whether a cell has a value.
type State uint8

// The states.
const (
	// Absent: the page does not have it.
	Absent State = iota
	// Unusable: the page has it, and it was counted why it is of no use.
	Unusable
	// Known: there is a value within the limits.
	Known
)

// Cell is one input of one rank. It is a plain value.
type Cell struct {
	State State
	Value float64
	// Name is by which it was found.
	Name string
}

// Rank has the inputs of one rank. It is a plain value.
type Rank struct {
	Number int32
	In     [NumInputs]Cell
}

// Load says whether a usable number of requests or tokens is there. A
// throughput or a capacity alone is no load.
func (r *Rank) Load() bool {
	for _, i := range [...]Input{
		Running, Waiting, Queued, WaitingTokens, Used, Total, Usage, UsedBlocks,
		Bootstrap, Inflight, Prealloc, Transfer, Retracted,
	} {
		if r.In[i].State == Known {
			return true
		}
	}
	return false
}

// Page is what a page says. It is for one goroutine.
type Page struct {
	// Served are the model names that discovery knows, and DPSize is the number
	// of ranks of the engine, 0 for unknown. Readers use them.
	Served []string
	DPSize int

	// Ranks are sorted.
	Ranks []Rank
	// RanksUnknown says that the engine has several ranks and the page does not
	// tell them apart.
	RanksUnknown bool
	// Gaps says that the page has a place for a rank and nothing in it.
	Gaps bool
	// Frozen says that values of processes that stand still were left out.
	Frozen bool
	// Start is when the process started, Unix seconds; 0 for unknown.
	Start float64
	// TimeUnixMs is the engine's wall clock at the page.
	TimeUnixMs ingest.Int
	// Asleep is the word for the sleep of a rank; empty when all are awake.
	Asleep string
	// Models are those that the page names, sorted.
	Models []string
	// Odd counts what is not usable, by reason.
	Odd map[store.Reason]int
}

// Begin forgets the page before and keeps the buffers.
func (p *Page) Begin(served []string, dpSize int) {
	clear(p.Odd)
	*p = Page{Served: served, DPSize: dpSize, Ranks: p.Ranks[:0], Models: p.Models[:0], Odd: p.Odd}
}

// OneRank notes that the page says one thing of all ranks.
func (p *Page) OneRank() { p.RanksUnknown = p.DPSize > 1 }

// Partial says that the engine has more ranks than the page shows, told apart
// or not.
func (p *Page) Partial() bool { return p.RanksUnknown || p.Gaps || len(p.Ranks) < p.DPSize }

// Add adds a rank without values. It is valid until the next Add.
func (p *Page) Add(number int32) *Rank {
	p.Ranks = append(p.Ranks, Rank{Number: number})
	return &p.Ranks[len(p.Ranks)-1]
}

// Set puts a value into a cell where it is usable, and counts it otherwise.
func (p *Page) Set(r *Rank, to Input, name string, v float64) {
	r.In[to] = Cell{State: Known, Value: v, Name: name}
	if reason := Reject(to, v); reason != "" {
		p.Refuse(r, to, name, reason)
	}
}

// Refuse makes a cell unusable, and counts why.
func (p *Page) Refuse(r *Rank, to Input, name string, why store.Reason) {
	r.In[to] = Cell{State: Unusable, Name: name}
	p.Count(why, 1)
}

// Count counts something unusable.
func (p *Page) Count(reason store.Reason, n int) {
	if n == 0 {
		return
	}
	if p.Odd == nil {
		p.Odd = map[store.Reason]int{}
	}
	p.Odd[reason] += n
}

// Reject returns why a value cannot be used; empty where it can.
func Reject(to Input, v float64) store.Reason {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return ReasonNotFinite
	case v < 0:
		return ReasonNegative
	case v > limit(to):
		return ReasonAboveLimit
	case to < Usage && v != math.Trunc(v):
		return ReasonNotWhole
	}
	return ""
}

// limit returns the largest usable value. The hit rate may be in percent here.
func limit(to Input) float64 {
	switch to {
	case Usage, Utilization:
		return ingest.MaxRatio
	case GenRate, HitRate, SampleTime:
		return ingest.MaxFloat
	}
	return ingest.MaxCount
}

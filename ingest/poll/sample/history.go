package sample

import (
	"slices"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

// maxGap is the longest time between two pages for which rates are computed.
const maxGap = 30 * time.Second

// manyRestarts within the last pages are several processes that answer by
// turns.
const manyRestarts = 3

// past is what the page before said of one rank.
type past struct {
	rank     int32
	counters [cells.NumCounters]cells.Cell
	// running and gauge are the running requests and the gauge of generated
	// tokens, as the page has it.
	running, gauge cells.Cell
	// hit is the last hit rate, below 0 for unknown.
	hit float64
}

// history is what is kept of the pages that were read.
type history struct {
	seen  bool
	at    store.Instant
	start float64 // 0 for unknown
	// starts are the start times of the last pages, in a ring; restarts say which
	// of them, with this one, another process made than the page before.
	starts   [cells.Window]float64
	restarts [cells.Window]bool
	pages    int
	// ranks are sorted; spare is the buffer for the next page.
	ranks, spare []past

	// unstable counts down the pages for which the source is called unstable.
	unstable int
	// same says that the page before is of the same process.
	same bool
	// seconds is the time since the page before; 0 where rates are not to be
	// computed over it.
	seconds float64
}

// open compares a page with the one before, and says whether the process was
// restarted in between.
func (h *history) open(at store.Instant, start float64, ranks []cells.Rank) (restarted bool) {
	h.same, h.seconds, h.spare = false, 0, h.spare[:0]
	if !h.seen {
		return false
	}
	changed := h.changed(start, ranks)
	h.restarts[h.pages%cells.Window] = changed
	switch {
	case changed && h.byTurns(start):
		h.unstable = cells.Window
	case h.unstable > 0:
		h.unstable--
	}
	if h.unstable > 0 {
		return false
	}
	h.same = !changed
	if gap := at.Sub(h.at); h.same && gap > 0 && gap <= maxGap {
		h.seconds = gap.Seconds()
	}
	return changed
}

// byTurns says that a process that was not the last to answer is back, or that
// there were too many of them.
func (h *history) byTurns(start float64) bool {
	n := 0
	for _, restarted := range h.restarts {
		if restarted {
			n++
		}
	}
	return n >= manyRestarts || start != 0 && slices.Contains(h.starts[:], start)
}

// changed says that another process made this page: by the start times where
// both pages have one, else by a counter that went back.
func (h *history) changed(start float64, ranks []cells.Rank) bool {
	if start != 0 && h.start != 0 {
		return start != h.start
	}
	for i := range ranks {
		p := h.of(ranks[i].Number)
		for c := cells.FirstCounter; p != nil && c < cells.NumInputs; c++ {
			if from, to := p.counters[c-cells.FirstCounter], ranks[i].In[c]; alike(from, to) && to.Value < from.Value {
				return true
			}
		}
	}
	return false
}

// alike says that two cells are known by the same name.
func alike(a, b cells.Cell) bool {
	return a.State == cells.Known && b.State == cells.Known && a.Name == b.Name
}

// of returns what the page before said of a rank; nil for nothing.
func (h *history) of(rank int32) *past {
	i, ok := slices.BinarySearchFunc(h.ranks, rank, func(p past, r int32) int { return int(p.rank) - int(r) })
	if !ok {
		return nil
	}
	return &h.ranks[i]
}

// add keeps what this page says of a rank. Ranks come in order.
func (h *history) add(c *cells.Rank) *past {
	h.spare = append(h.spare, past{rank: c.Number, running: c.In[cells.Running], gauge: c.In[cells.GenRate], hit: -1})
	p := &h.spare[len(h.spare)-1]
	copy(p.counters[:], c.In[cells.FirstCounter:])
	return p
}

// keep ends a page.
func (h *history) keep(at store.Instant, start float64) {
	h.ranks, h.spare = h.spare, h.ranks
	h.seen, h.at, h.start = true, at, start
	h.starts[h.pages%cells.Window] = start
	h.pages++
}

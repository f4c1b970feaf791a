package credit

import (
	"sync"
)

// entry is the book of one worker.
type entry struct {
	ledger *Ledger
	id     string
	round  uint64 // of the last Sync that had the worker; under Ledger.mu

	mu sync.Mutex
	// gone says that no view has the worker; removed, that the ledger has not
	// either.
	gone, removed bool
	instance      string
	row           uint32
	// worker is written with mu held, as are ranks, which hold the ranks from
	// 0 on, one part after the other.
	worker Counters
	ranks  []*Counters
	// first and last are the ends of the list of credits, the oldest first.
	first, last *Dispatch
}

func newEntry(l *Ledger, id string) *entry {
	return &entry{ledger: l, id: id, gone: true, worker: newCounters(1)}
}

// find returns the counters of a rank and its index in them; nil where it has
// none.
func (e *entry) find(rank int32) (*Counters, int) {
	i := int(rank)
	for _, c := range e.ranks {
		if n := c.len(); i >= n {
			i -= n
			continue
		}
		return c, i
	}
	return nil, 0
}

// grow makes counters for all ranks up to one.
func (e *entry) grow(rank int32) {
	more := int(rank) + 1
	for _, c := range e.ranks {
		more -= c.len()
	}
	if more > 0 {
		c := newCounters(more)
		e.ranks = append(e.ranks, &c)
	}
}

// counters returns those of the ranks from first to last, in as few parts as
// there are.
func (e *entry) counters(first, last int32) (parts []Counters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first < 0 {
		return []Counters{e.worker}
	}
	e.grow(last)
	for at := first; at <= last; {
		c, i := e.find(at)
		end := min(c.len(), i+int(last-at)+1)
		parts = append(parts, c.part(i, end))
		at += int32(end - i)
	}
	return parts
}

// observe settles the credits that a report covers, all of them where another
// engine made it.
func (e *entry) observe(r *Receipt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	newRow := r.Row != 0 && e.row != 0 && r.Row != e.row
	if newRow || r.Instance != "" && e.instance != "" && r.Instance != e.instance {
		e.dropCredits()
	}
	if newRow || r.Instance != "" {
		e.instance = r.Instance
	}
	if r.Row != 0 {
		e.row = r.Row
	}
	e.gone = false
	// The credits are in the order of their dispatch.
	for e.first != nil && r.Covers(e.first.at) {
		e.uncredit(e.first)
	}
}

func (e *entry) dropCredits() {
	for e.first != nil {
		e.uncredit(e.first)
	}
}

// leave notes that the worker is in no view any more.
func (e *entry) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone, e.instance, e.row = true, "", 0
	e.dropCredits()
}

// claim notes that a view has the worker.
func (e *entry) claim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = false
}

// idle says that nothing needs the entry.
func (e *entry) idle() bool {
	return e.gone && e.first == nil && e.worker[InFlight][0].Load() == 0
}

// count adds n to a column of the worker and, where the dispatch has one, of
// the rank.
func (e *entry) count(d *Dispatch, col Column, n int64) {
	e.worker[col][0].Add(n)
	if d.counters != nil {
		d.counters[col][d.index].Add(n)
	}
}

// credit puts a dispatch at the end of the list.
func (e *entry) credit(d *Dispatch) {
	d.credited, d.before = true, e.last
	if e.last == nil {
		e.first = d
	} else {
		e.last.after = d
	}
	e.last = d
	e.count(d, Credit, 1)
	e.count(d, Tokens, d.tokens)
	if !d.known {
		e.count(d, Sent, 1)
	}
}

// uncredit takes a dispatch out of the list.
func (e *entry) uncredit(d *Dispatch) {
	if d.before == nil {
		e.first = d.after
	} else {
		d.before.after = d.after
	}
	if d.after == nil {
		e.last = d.before
	} else {
		d.after.before = d.before
	}
	d.credited, d.before, d.after = false, nil, nil
	e.count(d, Credit, -1)
	e.count(d, Tokens, -d.tokens)
	if !d.known {
		e.count(d, Sent, -1)
	}
}

package credit

import "time"

// Dispatch is a request that was sent to a worker. Its methods may be called
// from any goroutine.
type Dispatch struct {
	entry *entry
	// counters are those of the rank, at index; nil for none.
	counters *Counters
	index    int
	tokens   int64
	at       time.Time
	// known says that its end will be told; otherwise it ends at the deadline.
	known    bool
	deadline time.Time

	// The rest is under entry.mu. A dispatch that is credited is in the list
	// of its entry.
	open, credited bool
	before, after  *Dispatch
}

// maxTokens bounds what one dispatch can claim.
const maxTokens = 1 << 40

// Dispatch counts a request that is sent to a target: one open request, and a
// credit of one request and of its prompt tokens until a report covers it. A
// tokens of 0 or less is not known. The caller must call End.
func (l *Ledger) Dispatch(to Target, tokens int64) *Dispatch {
	return l.begin(to, &Dispatch{tokens: tokens, known: true, open: true})
}

// DispatchUntil counts a target that somebody else sends a request to, and of
// whose end nobody tells: a credit and no open request. It is gone with the
// first report that covers it, at the latest at the deadline, which should be
// stale_after from now.
func (l *Ledger) DispatchUntil(to Target, tokens int64, deadline time.Time) *Dispatch {
	d := l.begin(to, &Dispatch{tokens: tokens, deadline: deadline})
	l.await(d)
	return d
}

func (l *Ledger) begin(to Target, d *Dispatch) *Dispatch {
	if d.tokens <= 0 {
		d.tokens = l.options.AssumedTokens
	}
	d.tokens = max(0, min(d.tokens, maxTokens))
	e := l.hold(to.WorkerID)
	defer e.mu.Unlock()
	d.entry, d.at = e, l.options.Now()
	if to.Rank >= 0 && to.Rank < MaxRanks {
		e.grow(to.Rank)
		d.counters, d.index = e.find(to.Rank)
	}
	if d.open {
		e.count(d, InFlight, 1)
		e.count(d, Sent, 1)
	}
	e.credit(d)
	return d
}

// End ends the request, whether it succeeded or not. Only the first call
// counts.
func (d *Dispatch) End() {
	if e := d.entry; d.end() {
		e.ledger.mu.Lock()
		defer e.ledger.mu.Unlock()
		e.ledger.removeIdle(e)
	}
}

// end returns whether the entry may be removed.
func (d *Dispatch) end() bool {
	e := d.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.credited {
		e.uncredit(d)
	}
	if d.open {
		d.open = false
		e.count(d, InFlight, -1)
		e.count(d, Sent, -1)
	}
	return e.idle()
}

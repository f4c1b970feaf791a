package pick

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// TableOptions say which candidates a table takes, and whose credit counts.
type TableOptions struct {
	// Model and Role name the pool. An empty Model and RoleAny take all.
	Model string
	Role  Role
	// Ledger is this process's; nil gives the table one of its own.
	Ledger *credit.Ledger
}

// Table holds the candidates of one pool of one view, as workers and as DP
// ranks. It is immutable but for the credit of its Ledger: all methods may be
// called from any goroutine.
type Table struct {
	ledger         *credit.Ledger
	role           Role
	workers, ranks section
}

// NewTable compiles the candidates of a view, which it keeps: they must not be
// changed any more. Those of other pools are left out. A worker stands among
// them once with NoRank, to be picked as a whole, and once for each rank; to
// pick ranks, a worker without ranks counts as one. Two candidates of a worker
// stand next to each other. The caller leaves out what is no engine of its own:
// duplicates of another worker, and followers of a multi-node engine.
func NewTable(candidates []PolicyCandidate, o TableOptions) *Table {
	if o.Ledger == nil {
		o.Ledger = credit.NewLedger(credit.Options{})
	}
	t := &Table{ledger: o.Ledger, role: o.Role}
	var whole, ranks []*PolicyCandidate
	for i := 0; i < len(candidates); {
		id, had := candidates[i].WorkerID, len(ranks)
		var worker *PolicyCandidate
		for ; i < len(candidates) && candidates[i].WorkerID == id; i++ {
			switch c := &candidates[i]; {
			case !c.fits(o.Model, o.Role) || c.Rank >= credit.MaxRanks:
			case c.Rank < 0:
				worker = c
			default:
				ranks = append(ranks, c)
			}
		}
		if worker == nil {
			continue
		}
		whole = append(whole, worker)
		if len(ranks) == had {
			ranks = append(ranks, worker)
		}
	}
	t.workers.compile(whole, o.Ledger)
	t.ranks.compile(ranks, o.Ledger)
	return t
}

// Workers returns how many of the candidates with NoRank are fresh at now, and
// how many there are that are not draining.
func (t *Table) Workers(now time.Time) (fresh, all int) {
	return t.workers.freshWorkers(t.workers.live(now)), t.workers.all
}

func (t *Table) part(perRank bool) *section {
	if perRank {
		return &t.ranks
	}
	return &t.workers
}

// span is a run of candidates of one worker whose counters are neighbours, and
// which cease to be valid together.
type span struct {
	end int32 // of its candidates
	// workers counts those of the spans up to this one, all has the fields
	// that every candidate of them has.
	workers int32
	all     fieldSet
	validity
}

// validity says when candidates are fresh: the order of spans.
type validity struct {
	class class
	until int64 // after section.base
}

// class is the first part of validity.
type class uint8

const (
	classUsable      class = iota // the one that is valid longest first
	classOther                    // stale or missing
	classUnreachable              // the one that turns stale first, first
	classDraining                 // in no span
)

// section holds candidates as columns. Those that are fresh at any moment
// stand first, and those that may be reached after them, so that a scan needs
// no test of a candidate.
type section struct {
	base       time.Time
	candidates []*PolicyCandidate
	spanOf     []int32
	spans      []span
	cells      [credit.NumColumns][][]atomic.Int64 // of each span
	usable     int                                 // spans
	reachable  int                                 // spans, without unreachable ones
	all        int                                 // workers
	// earliest is when the first usable span ceases to be valid.
	earliest int64

	counts [numFields]countColumn
	waits  waitColumns
}

// countColumn holds the values of a field, made when it is first scanned.
type countColumn struct {
	once   sync.Once
	values []int64
}

// compile sets up the columns.
func (s *section) compile(all []*PolicyCandidate, l *credit.Ledger) {
	s.base = time.Now()
	runs := s.runs(all)
	slices.SortStableFunc(runs, compareRuns)
	s.candidates = make([]*PolicyCandidate, 0, len(all))
	s.spanOf = make([]int32, 0, len(all))
	s.spans = make([]span, 0, len(runs))
	for c := range s.cells {
		s.cells[c] = make([][]atomic.Int64, 0, len(runs))
	}
	for i := range runs {
		s.addRun(&runs[i], l)
	}
	s.summarize()
}

// run is a run of candidates of one worker that are fresh alike.
type run struct {
	validity
	candidates []*PolicyCandidate
}

// runs cuts the candidates, without those that drain.
func (s *section) runs(all []*PolicyCandidate) (runs []run) {
	for len(all) > 0 {
		n, v := 1, s.validity(all[0])
		for n < len(all) && all[n].WorkerID == all[0].WorkerID && s.validity(all[n]) == v {
			n++
		}
		if v.class != classDraining {
			runs = append(runs, run{v, all[:n]})
		}
		all = all[n:]
	}
	return runs
}

func (s *section) validity(c *PolicyCandidate) validity {
	switch {
	case c.Draining:
		return validity{class: classDraining}
	case c.Freshness == Usable:
		return validity{classUsable, s.offset(c.ValidUntil)}
	case c.Freshness == Unreachable && c.ValidUntil.IsZero():
		return validity{classUnreachable, math.MaxInt64}
	case c.Freshness == Unreachable:
		return validity{classUnreachable, s.offset(c.ValidUntil)}
	}
	return validity{class: classOther}
}

func (s *section) offset(t time.Time) int64 { return int64(t.Sub(s.base)) }

func compareRuns(a, b run) int {
	if a.class == classUsable && b.class == classUsable {
		return cmp.Compare(b.until, a.until)
	}
	return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.until, b.until))
}

// addRun makes spans of a run: one, unless its ranks do not follow each other.
func (s *section) addRun(r *run, l *credit.Ledger) {
	for rest := r.candidates; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Rank == rest[n-1].Rank+1 {
			n++
		}
		for _, c := range l.Counters(rest[0].WorkerID, rest[0].Rank, rest[n-1].Rank) {
			s.addSpan(r, rest[:len(c[0])], &c)
			rest = rest[len(c[0]):]
		}
	}
}

func (s *section) addSpan(r *run, part []*PolicyCandidate, c *credit.Counters) {
	for range part {
		s.spanOf = append(s.spanOf, int32(len(s.spans)))
	}
	s.candidates = append(s.candidates, part...)
	s.spans = append(s.spans, span{end: int32(len(s.candidates)), validity: r.validity})
	for col := range s.cells {
		s.cells[col] = append(s.cells[col], c[col])
	}
}

// summarize fills in what spans tell of those before them.
func (s *section) summarize() {
	s.earliest = math.MaxInt64
	seen := make(map[string]bool, len(s.spans))
	all := ^fieldSet(0)
	for i := range s.spans {
		sp := &s.spans[i]
		for _, c := range s.candidates[s.end(i):sp.end] {
			all &= known(c)
		}
		seen[s.candidates[s.end(i)].WorkerID] = true
		sp.workers, sp.all = int32(len(seen)), all
		if sp.class == classUsable {
			s.usable, s.earliest = i+1, sp.until
		}
		if sp.class != classUnreachable {
			s.reachable = i + 1
		}
	}
	s.all = len(seen)
}

// end returns the end of the candidates of the first n spans.
func (s *section) end(n int) int {
	if n == 0 {
		return 0
	}
	return int(s.spans[n-1].end)
}

// live returns how many spans are fresh at now.
func (s *section) live(now time.Time) int {
	at := s.offset(now)
	if at < s.earliest {
		return s.usable
	}
	return lowest(0, s.usable, func(i int) bool { return s.spans[i].until <= at })
}

// open returns how many spans may be reached at now.
func (s *section) open(now time.Time) int {
	at := s.offset(now)
	return lowest(s.reachable, len(s.spans), func(i int) bool { return s.spans[i].until > at })
}

// lowest returns the first index from low on for which ok holds, as it does
// for all after it; high for none.
func lowest(low, high int, ok func(int) bool) int {
	for low < high {
		if mid := (low + high) / 2; ok(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func (s *section) freshWorkers(live int) int {
	if live == 0 {
		return 0
	}
	return int(s.spans[live-1].workers)
}

// place is where a candidate stands: its index, its span, and its index in it.
type place struct{ i, span, at int }

func (s *section) place(i int) place {
	n := int(s.spanOf[i])
	return place{i, n, i - s.end(n)}
}

// load returns a counter of a candidate.
func (s *section) load(col credit.Column, p place) int64 { return s.cells[col][p.span][p.at].Load() }

// local returns the counters of a candidate.
func (s *section) local(p place) credit.Local {
	return credit.Local{InFlight: s.load(credit.InFlight, p), Credit: s.load(credit.Credit, p), Tokens: s.load(credit.Tokens, p)}
}

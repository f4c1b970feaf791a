package pick

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// modelDispatch is a dispatch as the model has it.
type modelDispatch struct {
	real     *credit.Dispatch
	worker   string
	rank     int32
	at       time.Time
	tokens   int64
	deadline time.Time
	open     bool
	credited bool
}

// model keeps the books as a list of all dispatches ever, beside the ledger.
type model struct {
	now        time.Time
	ledger     *credit.Ledger
	picker     *Picker
	ranks      *Picker
	dispatches []*modelDispatch
	listed     map[string]credit.Receipt
	tables     []*Table
	instances  int
}

const (
	modelWorkers  = 4
	modelInterval = time.Second
)

func newModel() *model {
	m := &model{now: start, listed: map[string]credit.Receipt{}}
	clock := func() time.Time { return m.now }
	m.ledger = credit.NewLedger(credit.Options{Now: clock, AssumedTokens: 3})
	m.picker, _ = NewPicker(Options{Now: clock, Rand: seeded(3)})
	m.ranks, _ = NewPicker(Options{Now: clock, Rand: seeded(4), PerRank: true, Policy: LeastLoad})
	return m
}

func drawWorker(t *rapid.T) string {
	return fmt.Sprintf("w%d", rapid.IntRange(0, modelWorkers-1).Draw(t, "worker"))
}

// dispatch sends a request to a choice of a view, which may be an old one, or
// to any worker that the router thought of itself.
func (m *model) dispatch(t *rapid.T) {
	c := credit.Target{WorkerID: drawWorker(t), Rank: rapid.Int32Range(-1, 5).Draw(t, "rank")}
	if len(m.tables) > 0 && rapid.Bool().Draw(t, "picked") {
		p := m.picker
		if rapid.Bool().Draw(t, "rank") {
			p = m.ranks
		}
		picked, err := p.Pick(rapid.SampledFrom(m.tables).Draw(t, "table"), Request{})
		if err != nil {
			return
		}
		c = picked.Target
	}
	d := &modelDispatch{worker: c.WorkerID, rank: c.Rank, at: m.now, tokens: rapid.Int64Range(0, 9).Draw(t, "tokens"), credited: true}
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		d.deadline = m.now.Add(time.Duration(rapid.IntRange(-1, 30).Draw(t, "deadline")) * modelInterval / 10)
		d.real = m.ledger.DispatchUntil(c, d.tokens, d.deadline)
	} else {
		d.open, d.real = true, m.ledger.Dispatch(c, d.tokens)
	}
	if d.tokens == 0 {
		d.tokens = 3
	}
	m.dispatches = append(m.dispatches, d)
}

// end ends any dispatch, whether it ended before or not.
func (m *model) end(t *rapid.T) {
	if len(m.dispatches) == 0 {
		return
	}
	d := rapid.SampledFrom(m.dispatches).Draw(t, "dispatch")
	d.real.End()
	d.open, d.credited = false, false
}

func (m *model) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "tenths")) * modelInterval / 10)
}

// register lists a worker, or another engine behind a worker that is listed.
func (m *model) register(t *rapid.T) {
	id := drawWorker(t)
	if _, ok := m.listed[id]; ok {
		m.drop(id)
	}
	m.instances++
	m.listed[id] = credit.Receipt{
		WorkerID: id, Row: uint32(m.instances), Interval: modelInterval, Polled: rapid.Bool().Draw(t, "polled"),
	}
	m.sync()
}

// report has a listed worker report, after a restart at times.
func (m *model) report(t *rapid.T) {
	id := drawWorker(t)
	r, ok := m.listed[id]
	if !ok {
		return
	}
	if r.Instance == "" || rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
		if r.Instance != "" {
			m.drop(id)
		}
		m.instances++
		r.Instance = fmt.Sprint(m.instances)
	}
	r.At = m.now.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * modelInterval / 10)
	m.listed[id] = r
	m.cover(r)
	if rapid.Bool().Draw(t, "alone") {
		m.ledger.Observe(r)
		return
	}
	m.sync()
}

func (m *model) remove(t *rapid.T) {
	delete(m.listed, drawWorker(t))
	m.sync()
}

// drop forgets the credit of a worker.
func (m *model) drop(id string) {
	for _, d := range m.dispatches {
		d.credited = d.credited && d.worker != id
	}
}

func (m *model) cover(r credit.Receipt) {
	after := r.Interval
	if r.Polled {
		after = 2 * r.Interval
	}
	for _, d := range m.dispatches {
		if d.worker == r.WorkerID && r.At.Sub(d.at) > after {
			d.credited = false
		}
	}
}

// sync shows the ledger all that is listed, and takes a table of it.
func (m *model) sync() {
	var all []credit.Receipt
	var candidates []PolicyCandidate
	for i := range modelWorkers {
		id := fmt.Sprintf("w%d", i)
		r, ok := m.listed[id]
		if !ok {
			m.drop(id)
			continue
		}
		m.cover(r)
		all = append(all, r)
		candidates = append(candidates, m.candidatesOf(r)...)
	}
	m.ledger.Sync(all)
	m.tables = append(m.tables, NewTable(candidates, TableOptions{Ledger: m.ledger}))
	m.tables = m.tables[max(0, len(m.tables)-4):]
}

// candidatesOf gives a worker a number of ranks that changes with its
// instances.
func (m *model) candidatesOf(r credit.Receipt) []PolicyCandidate {
	all := []PolicyCandidate{candidate(r.WorkerID, requests(1))}
	for n := range int32(m.instances % 6) {
		all = append(all, candidate(r.WorkerID, requests(1), rank(n)))
	}
	for i := range all {
		all[i].ValidUntil = r.At.Add(3 * modelInterval)
	}
	return all
}

// local adds up the dispatches.
func (m *model) local(id string, rank int32) (l credit.Local) {
	for _, d := range m.dispatches {
		if !d.deadline.IsZero() && !m.now.Before(d.deadline) {
			d.credited = false
		}
		if d.worker != id || rank != NoRank && d.rank != rank {
			continue
		}
		if d.open {
			l.InFlight++
		}
		if d.credited {
			l.Credit++
			l.Tokens += d.tokens
		}
	}
	return l
}

// compare holds the ledger to the model, and what a pick would see to both.
func (m *model) compare(t *rapid.T) {
	for i := range modelWorkers {
		id := fmt.Sprintf("w%d", i)
		for rank := NoRank; rank < 6; rank++ {
			if got, want := m.ledger.Local(credit.Target{WorkerID: id, Rank: rank}), m.local(id, rank); got != want {
				t.Fatalf("%s %d: %+v, want %+v", id, rank, got, want)
			}
		}
	}
	if len(m.tables) == 0 {
		return
	}
	newest := m.tables[len(m.tables)-1]
	for _, s := range []*section{&newest.workers, &newest.ranks} {
		for i, c := range s.candidates {
			if got, want := s.local(s.place(i)), m.local(c.WorkerID, c.Rank); got != want {
				t.Fatalf("a pick of %s %d sees %+v, want %+v", c.WorkerID, c.Rank, got, want)
			}
		}
	}
}

// kept demands that a view without workers leaves only those with open
// requests, and that these go when they end.
func (m *model) kept(t *rapid.T) {
	clear(m.listed)
	m.sync()
	m.compare(t)
	open := map[string]bool{}
	for _, d := range m.dispatches {
		if d.open {
			open[d.worker] = true
		}
	}
	if m.ledger.Len() != len(open) {
		t.Fatalf("%d workers are kept, %d have open requests", m.ledger.Len(), len(open))
	}
	for _, d := range slices.Backward(m.dispatches) {
		d.real.End()
		d.open, d.credited = false, false
	}
	m.compare(t)
	if m.ledger.Len() != 0 {
		t.Fatalf("%d workers are kept for nothing", m.ledger.Len())
	}
}

// TestBug21BooksFollowAModel runs random sequences of dispatches, ends,
// reports, restarts, removals and registrations.
func TestBug21BooksFollowAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel()
		t.Repeat(map[string]func(*rapid.T){
			"":         m.compare,
			"dispatch": m.dispatch,
			"send":     m.dispatch, // twice as often
			"end":      m.end,
			"pass":     m.pass,
			"register": m.register,
			"report":   m.report,
			"remove":   m.remove,
		})
		m.kept(t)
	})
}

// TestPickFollowsAModel compares least-load picks of random tables with a
// search that knows no columns.
func TestPickFollowsAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := credit.NewLedger(credit.Options{Now: fixed(start)})
		all := drawFleet(t)
		added := map[credit.Target]int64{}
		for range rapid.IntRange(0, 30).Draw(t, "dispatches") {
			to := target(rapid.SampledFrom(all).Draw(t, "to"))
			l.Dispatch(to, 0)
			added[to]++
		}
		var avoid []credit.Target
		for range rapid.IntRange(0, 4).Draw(t, "avoid") {
			a := target(rapid.SampledFrom(all).Draw(t, "avoided"))
			if rapid.Bool().Draw(t, "whole") {
				a.Rank = NoRank
			}
			avoid = append(avoid, a)
		}
		avoided := func(x credit.Target) bool {
			return slices.Contains(avoid, x) || slices.Contains(avoid, credit.Target{WorkerID: x.WorkerID, Rank: NoRank})
		}
		now := start.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "now")) * time.Second)
		least := int64(-1)
		for _, c := range all {
			v, _ := c.requests()
			v += float64(added[target(c)])
			if now.Before(c.ValidUntil) && !avoided(target(c)) && (least < 0 || int64(v) < least) {
				least = int64(v)
			}
		}
		p, _ := NewPicker(Options{Policy: LeastLoad, PerRank: true, FailClosed: true, Now: fixed(now)})
		got, err := p.Pick(NewTable(all, TableOptions{Ledger: l}), Request{Avoid: avoid})
		if (err != nil) != (least < 0) || err == nil && got.Score != float64(least) {
			t.Fatalf("picked %+v, error %v, want at %d", got, err, least)
		}
		if err == nil && avoided(got.Target) {
			t.Fatalf("picked %+v, which is avoided", got)
		}
	})
}

func target(c PolicyCandidate) credit.Target {
	return credit.Target{WorkerID: c.WorkerID, Rank: c.Rank}
}

// drawFleet draws workers of up to 19 ranks, which are fresh for 1 to 3 s.
func drawFleet(t *rapid.T) (all []PolicyCandidate) {
	for i := range rapid.IntRange(1, 6).Draw(t, "workers") {
		until := start.Add(time.Duration(rapid.IntRange(1, 3).Draw(t, "until")) * time.Second)
		for r := range rapid.Int32Range(1, 19).Draw(t, "ranks") {
			c := candidate(fmt.Sprintf("w%d", i), rank(r), requests(rapid.Int64Range(0, 5).Draw(t, "requests")))
			c.ValidUntil = until
			all = append(all, c)
		}
	}
	return all
}

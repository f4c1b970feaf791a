package credit

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// book is a ledger with a clock that stands still.
type book struct {
	*Ledger
	t   *testing.T
	now time.Time
}

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func newBook(t *testing.T, o Options) *book {
	b := &book{t: t, now: start}
	o.Now = func() time.Time { return b.now }
	b.Ledger = NewLedger(o)
	return b
}

func (b *book) want(id string, rank int32, want Local) {
	b.t.Helper()
	if got := b.Local(Target{id, rank}); got != want {
		b.t.Errorf("%s %d: %+v, want %+v", id, rank, got, want)
	}
}

func at(id string, rank int32) Target { return Target{id, rank} }

func TestDispatchCountsWorkerAndRank(t *testing.T) {
	b := newBook(t, Options{})
	first := b.Dispatch(at("a", 2), 100)
	second := b.Dispatch(at("a", NoRank), 0)
	third := b.Dispatch(at("a", 5), -7)
	far := b.Dispatch(at("a", MaxRanks), 1)
	b.want("a", NoRank, Local{4, 4, 101})
	b.want("a", 2, Local{1, 1, 100})
	b.want("a", 5, Local{1, 1, 0})
	b.want("a", 0, Local{})
	b.want("a", MaxRanks, Local{})
	b.want("b", NoRank, Local{})
	for range 2 { // twice: the second end changes nothing
		first.End()
		b.want("a", NoRank, Local{3, 3, 1})
		b.want("a", 2, Local{})
	}
	for _, d := range []*Dispatch{second, third, far, third} {
		d.End()
	}
	b.want("a", NoRank, Local{})
	if b.Len() != 0 {
		t.Errorf("%d workers are left", b.Len())
	}
}

func TestTokensOfADispatch(t *testing.T) {
	b := newBook(t, Options{AssumedTokens: 300})
	b.Dispatch(at("a", NoRank), 0)
	b.want("a", NoRank, Local{1, 1, 300})
	b.Dispatch(at("a", NoRank), 20)
	b.want("a", NoRank, Local{2, 2, 320})
	b.Dispatch(at("a", NoRank), 1<<62)
	b.want("a", NoRank, Local{3, 3, 320 + maxTokens})
}

func TestReportsCover(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name    string
		r       Receipt
		covered bool
	}{
		{"later than an interval", Receipt{At: start.Add(s + 1), Interval: s}, true},
		{"at an interval", Receipt{At: start.Add(s), Interval: s}, false},
		{"before", Receipt{At: start.Add(-s), Interval: s}, false},
		{"polled, later than two", Receipt{At: start.Add(2*s + 1), Interval: s, Polled: true}, true},
		{"polled, at two", Receipt{At: start.Add(2 * s), Interval: s, Polled: true}, false},
		{"no report", Receipt{Interval: s}, false},
		{"no interval", Receipt{At: start.Add(1)}, true},
		{"sampled since", Receipt{At: start.Add(s + 1), Sampled: start.Add(1), Interval: s}, true},
		{"sampled at the dispatch", Receipt{At: start.Add(s + 1), Sampled: start, Interval: s}, false},
		{"polled, sampled before", Receipt{At: start.Add(9 * s), Sampled: start.Add(-1), Interval: s, Polled: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook(t, Options{})
			d := b.Dispatch(at("a", 1), 10)
			c.r.WorkerID = "a"
			b.Sync([]Receipt{c.r})
			want := Local{1, 1, 10}
			if c.covered {
				want = Local{1, 0, 0}
			}
			b.want("a", 1, want)
			b.want("a", NoRank, want)
			d.End()
			b.want("a", NoRank, Local{})
		})
	}
}

// TestCoverInOrder has dispatches of which a report covers the older ones.
func TestCoverInOrder(t *testing.T) {
	b := newBook(t, Options{})
	var all []*Dispatch
	for range 5 {
		all = append(all, b.Dispatch(at("a", NoRank), 1))
		b.now = b.now.Add(time.Second)
	}
	all[2].End()
	b.Observe(Receipt{WorkerID: "a", At: start.Add(2*time.Second + 1), Interval: time.Second})
	b.want("a", NoRank, Local{4, 2, 2})
	all[4].End()
	all[3].End()
	b.want("a", NoRank, Local{2, 0, 0})
}

func TestRestartDropsCreditAndKeepsOpenRequests(t *testing.T) {
	for _, c := range []struct {
		name    string
		before  Receipt
		after   Receipt
		dropped bool
	}{
		{"new instance", Receipt{Instance: "x"}, Receipt{Instance: "y"}, true},
		{"new row", Receipt{Row: 1}, Receipt{Row: 2}, true},
		{"first instance", Receipt{}, Receipt{Instance: "x", Row: 1}, false},
		{"same", Receipt{Instance: "x", Row: 1}, Receipt{Instance: "x", Row: 1}, false},
		{"not known", Receipt{Instance: "x", Row: 1}, Receipt{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook(t, Options{})
			c.before.WorkerID, c.after.WorkerID = "a", "a"
			b.Sync([]Receipt{c.before})
			d := b.Dispatch(at("a", 0), 5)
			b.Sync([]Receipt{c.after})
			want := Local{1, 1, 5}
			if c.dropped {
				want = Local{1, 0, 0}
			}
			b.want("a", 0, want)
			b.Dispatch(at("a", 0), 7) // of the engine that is there now
			b.Sync([]Receipt{c.after})
			b.want("a", 0, Local{2, want.Credit + 1, want.Tokens + 7})
			d.End()
			b.want("a", 0, Local{1, 1, 7})
		})
	}
	t.Run("the first instance of a new row is no restart", func(t *testing.T) {
		b := newBook(t, Options{})
		b.Sync([]Receipt{{WorkerID: "a", Row: 1, Instance: "x"}})
		b.Sync([]Receipt{{WorkerID: "a", Row: 2}})
		b.Dispatch(at("a", NoRank), 0)
		b.Sync([]Receipt{{WorkerID: "a", Row: 2, Instance: "y"}})
		b.want("a", NoRank, Local{1, 1, 0})
	})
}

func TestDispatchUntil(t *testing.T) {
	const s = time.Second
	b := newBook(t, Options{})
	b.Sync([]Receipt{{WorkerID: "a"}})
	b.DispatchUntil(at("a", 0), 10, start.Add(3*s))
	b.DispatchUntil(at("a", 0), 20, start.Add(1*s)) // earlier
	b.DispatchUntil(at("a", 0), 30, start.Add(2*s)).End()
	b.want("a", 0, Local{0, 2, 30})
	b.now = start.Add(s - 1)
	b.want("a", 0, Local{0, 2, 30})
	b.now = start.Add(s)
	b.want("a", 0, Local{0, 1, 10})
	b.Observe(Receipt{WorkerID: "a", At: start.Add(s + 1), Interval: s})
	b.want("a", 0, Local{})
	b.now = start.Add(10 * s)
	b.want("a", 0, Local{})
	b.DispatchUntil(at("a", 0), 10, start) // past
	b.want("a", 0, Local{})
	b.DispatchUntil(at("gone", 0), 10, start.Add(11*s))
	if b.want("gone", 0, Local{0, 1, 10}); b.Len() != 2 {
		t.Errorf("%d workers, want 2", b.Len())
	}
	b.now = start.Add(11 * s)
	if b.want("gone", 0, Local{}); b.Len() != 1 || len(b.due) != 0 {
		t.Errorf("%d workers and %d deadlines are left", b.Len(), len(b.due))
	}
}

// TestBug21DispatchMeetsRemoval has a worker that no view has, whose counters
// go whenever its last request ends.
func TestBug21DispatchMeetsRemoval(t *testing.T) {
	l := NewLedger(Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20_000 {
				d := l.Dispatch(at("a", NoRank), 1)
				if got := l.Local(at("a", NoRank)); got.InFlight < 1 || got.InFlight > 4 {
					t.Errorf("%d requests are open, one to four should be", got.InFlight)
					return
				}
				d.End()
			}
		})
	}
	wg.Wait()
	if l.Len() != 0 {
		t.Errorf("%d workers are left", l.Len())
	}
}

// TestCounters asks for ranks in parts, as tables do.
func TestCounters(t *testing.T) {
	b := newBook(t, Options{})
	b.Dispatch(at("a", 1), 5)
	for _, c := range []struct {
		first, last int32
		parts       []int
	}{
		{NoRank, NoRank, []int{1}},
		{0, 1, []int{2}},
		{0, 4, []int{2, 3}},
		{1, 6, []int{1, 3, 2}},
		{3, 3, []int{1}},
		{5, 6, []int{2}},
	} {
		var got []int
		credit := int64(0)
		for _, part := range b.Counters("a", c.first, c.last) {
			got = append(got, part.len())
			for i := range part.len() {
				credit += part[Credit][i].Load()
			}
		}
		want := int64(0)
		if c.first <= 1 {
			want = 1
		}
		if !slices.Equal(got, c.parts) || credit != want {
			t.Errorf("ranks %d to %d: parts of %v, credit %d, want %v, %d", c.first, c.last, got, credit, c.parts, want)
		}
	}
}

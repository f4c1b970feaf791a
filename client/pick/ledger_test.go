package pick

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// book is a ledger with a clock that stands still.
type book struct {
	*credit.Ledger
	t   *testing.T
	now time.Time
}

func newBook(t *testing.T, o credit.Options) *book {
	b := &book{t: t, now: start}
	o.Now = func() time.Time { return b.now }
	b.Ledger = credit.NewLedger(o)
	return b
}

func (b *book) want(id string, rank int32, want credit.Local) {
	b.t.Helper()
	if got := b.Local(credit.Target{WorkerID: id, Rank: rank}); got != want {
		b.t.Errorf("%s %d: %+v, want %+v", id, rank, got, want)
	}
}

func TestRemovedWorkersKeepOpenRequests(t *testing.T) {
	b := newBook(t, credit.Options{})
	all := []PolicyCandidate{candidate("a", requests(0)), candidate("a", rank(0), requests(0))}
	b.Sync([]credit.Receipt{{WorkerID: "a"}})
	old := NewTable(all, TableOptions{Ledger: b.Ledger})
	p := picker(t, Options{PerRank: true})
	d := b.Dispatch(mustPick(t, p, old, Request{}).Target, 5)
	b.Sync(nil)
	b.want("a", 0, credit.Local{InFlight: 1, Credit: 0, Tokens: 0})
	late := b.Dispatch(mustPick(t, p, old, Request{}).Target, 5) // by a view that has it yet
	b.want("a", 0, credit.Local{InFlight: 2, Credit: 1, Tokens: 5})
	d.End()
	late.End()
	b.want("a", 0, credit.Local{})
	if b.Len() != 0 {
		t.Fatalf("%d workers are left", b.Len())
	}
	again := b.Dispatch(mustPick(t, p, old, Request{}).Target, 5)
	b.Sync([]credit.Receipt{{WorkerID: "a"}}) // registered again
	b.want("a", 0, credit.Local{InFlight: 1, Credit: 1, Tokens: 5})
	fresh := NewTable(all, TableOptions{Ledger: b.Ledger})
	if c := mustPick(t, p, fresh, Request{}); c.Score != 1 {
		t.Errorf("picked %+v, want the credit that was kept", c)
	}
	again.End()
	b.want("a", 0, credit.Local{})
	if c := mustPick(t, p, fresh, Request{}); c.Score != 0 || b.Len() != 1 {
		t.Errorf("picked %+v of %d workers", c, b.Len())
	}
}

// TestRanksComeAndGo grows, shrinks and thins out the ranks of a worker.
func TestRanksComeAndGo(t *testing.T) {
	b := newBook(t, credit.Options{})
	p := picker(t, Options{PerRank: true, Policy: LeastLoad})
	var open []*credit.Dispatch
	for _, ranks := range [][]int32{{0, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {2, 3}, {1, 4, 5, 6, 12}, {20, 3, 4, 0}} {
		var all []PolicyCandidate
		for _, r := range ranks {
			all = append(all, candidate("a", rank(r), requests(0)))
		}
		table := NewTable(all, TableOptions{Ledger: b.Ledger})
		for range 40 {
			c := mustPick(t, p, table, Request{})
			if want := b.Local(credit.Target{WorkerID: "a", Rank: c.Rank}).Credit; c.Score != float64(want) {
				t.Fatalf("rank %d of %v is picked at %v, has a credit of %d", c.Rank, ranks, c.Score, want)
			}
			open = append(open, b.Dispatch(c.Target, 1))
		}
	}
	for _, d := range open {
		d.End()
	}
	for r := range int32(21) {
		b.want("a", r, credit.Local{})
	}
}

// TestPickSeesDeadlines picks, without any other call in between, after the
// credit of an answer ran out.
func TestPickSeesDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := credit.NewLedger(credit.Options{})
		table := NewTable(equals(2, requests(0), func(c *PolicyCandidate) { c.ValidUntil = time.Now().Add(time.Hour) }), TableOptions{Ledger: l})
		p, err := NewPicker(Options{Policy: LeastLoad})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			l.DispatchUntil(mustPick(t, p, table, Request{}).Target, 0, time.Now().Add(3*time.Second))
		}
		if c := mustPick(t, p, table, Request{}); c.Score != 2 {
			t.Errorf("picked %+v, want two credits on each", c)
		}
		<-time.After(3 * time.Second)
		if c := mustPick(t, p, table, Request{}); c.Score != 0 {
			t.Errorf("picked %+v, want no credit", c)
		}
	})
}

// TestFallbackSpreadsAnswers has a plane that answers picks while nothing is
// fresh: it opens no requests of its own.
func TestFallbackSpreadsAnswers(t *testing.T) {
	b := newBook(t, credit.Options{})
	table := NewTable(equals(4, as(Stale)), TableOptions{Ledger: b.Ledger})
	p := picker(t, Options{})
	got := map[string]int{}
	for range 40 {
		c := mustPick(t, p, table, Request{})
		b.DispatchUntil(c.Target, 0, start.Add(3*time.Second))
		got[c.WorkerID]++
	}
	for id, n := range got {
		if n != 10 {
			t.Errorf("%s got %d of 40", id, n)
		}
	}
}

// TestChoiceOfAnotherLedger counts by the names of a choice.
func TestChoiceOfAnotherLedger(t *testing.T) {
	b := newBook(t, credit.Options{})
	table := NewTable([]PolicyCandidate{candidate("a", requests(0))}, TableOptions{})
	b.Dispatch(mustPick(t, picker(t, Options{}), table, Request{}).Target, 3)
	b.want("a", NoRank, credit.Local{InFlight: 1, Credit: 1, Tokens: 3})
	if c := mustPick(t, picker(t, Options{}), table, Request{}); c.Score != 0 {
		t.Errorf("the other ledger's table has %v", c.Score)
	}
}

// TestBug21ConcurrentUse has goroutines that pick, dispatch and end, twice at
// times, while views come and workers go. Nothing is left, and nothing is ever
// negative.
func TestBug21ConcurrentUse(t *testing.T) {
	l := credit.NewLedger(credit.Options{})
	all, receipts := fleet(6, 3, time.Now().Add(time.Hour))
	tables := make(chan *Table, 1)
	tables <- NewTable(all, TableOptions{Ledger: l})
	current := func() *Table {
		table := <-tables
		tables <- table
		return table
	}
	var wg sync.WaitGroup
	for g := range uint64(6) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 1))
			p, err := NewPicker(Options{PerRank: g%2 == 0, Policy: Policy(g % 4)})
			if err != nil {
				t.Error(err)
				return
			}
			var open []*credit.Dispatch
			for range 400 {
				c, err := p.Pick(current(), Request{})
				if err != nil {
					t.Error(err)
					return
				}
				d := l.Dispatch(c.Target, 10)
				if open = append(open, d); rng.IntN(4) == 0 {
					l.DispatchUntil(c.Target, 10, time.Now())
				}
				if rng.IntN(2) == 0 {
					wg.Go(d.End)
				}
			}
			for _, d := range open {
				d.End()
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			some := receipts[:2+i%5]
			for j := range some {
				some[j].At, some[j].Instance = time.Now(), fmt.Sprint(i/10)
				some[j].Interval = 0
			}
			l.Sync(some)
			<-tables
			tables <- NewTable(all, TableOptions{Ledger: l})
			for _, c := range all {
				if got := l.Local(credit.Target{WorkerID: c.WorkerID, Rank: c.Rank}); got.InFlight < 0 || got.Credit < 0 || got.Tokens < 0 {
					t.Errorf("%s %d: %+v", c.WorkerID, c.Rank, got)
				}
			}
		}
	})
	wg.Wait()
	for _, c := range all {
		if got := l.Local(credit.Target{WorkerID: c.WorkerID, Rank: c.Rank}); got != (credit.Local{}) {
			t.Errorf("%s %d: %+v is left", c.WorkerID, c.Rank, got)
		}
	}
	if l.Sync(nil); l.Len() != 0 {
		t.Errorf("%d workers are left", l.Len())
	}
}

// TestPickWhileOthersDispatch has one candidate whose credit changes under the
// scan.
func TestPickWhileOthersDispatch(t *testing.T) {
	l := credit.NewLedger(credit.Options{})
	table := NewTable([]PolicyCandidate{candidate("a", requests(0))}, TableOptions{Ledger: l})
	p := picker(t, Options{Policy: LeastLoad})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				l.Dispatch(credit.Target{WorkerID: "a", Rank: NoRank}, 0).End()
			}
		}
	})
	for range 100_000 {
		if _, err := p.Pick(table, Request{}); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	wg.Wait()
}

package pick

import (
	"fmt"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// shares counts picks by worker and rank.
func shares(t *testing.T, p *Picker, table *Table, n int) map[credit.Target]int {
	t.Helper()
	got := map[credit.Target]int{}
	for range n {
		c := mustPick(t, p, table, Request{})
		got[c.Target]++
	}
	return got
}

// chiSquare is the statistic of counts that should be equal.
func chiSquare(got map[credit.Target]int, cells, n int) (x float64) {
	want := float64(n) / float64(cells)
	seen := 0
	for _, count := range got {
		x += (float64(count) - want) * (float64(count) - want) / want
		seen++
	}
	return x + float64(cells-seen)*want
}

// critical is the value that the statistic passes once in a thousand times, by
// degrees of freedom.
var critical = map[int]float64{2: 13.82, 9: 27.88, 15: 37.70}

// equalShares demands that ten workers, or a number of cells, get as much.
func equalShares(t *testing.T, got map[credit.Target]int, cells, n int) {
	t.Helper()
	if x := chiSquare(got, cells, n); x > critical[cells-1] {
		t.Errorf("chi-square %.1f of %d cells, at most %.1f: %v", x, cells, critical[cells-1], got)
	}
}

func equals(n int, change ...func(*PolicyCandidate)) (all []PolicyCandidate) {
	for i := range n {
		all = append(all, candidate(fmt.Sprintf("w%d", i), change...))
	}
	return all
}

func TestEqualCandidatesGetEqualShares(t *testing.T) {
	const n = 20_000
	everything := func(c *PolicyCandidate) {
		requests(4)(c)
		tokens(Count(10), Count(20), Count(100))(c)
		prefill(Count(10), Known(1000))(c)
	}
	flat := func(*PolicyCandidate, credit.Local, Request) (float64, bool) { return 1, true }
	for _, o := range []Options{
		{}, {K: 1}, {K: 3}, {K: 16}, {Policy: LeastLoad}, {Policy: FreeTokens}, {Policy: ExpectedWait},
		{Policy: Custom, Score: flat}, {Policy: Custom, Score: flat, K: 2},
	} {
		t.Run(fmt.Sprintf("%s %d", o.Policy, o.K), func(t *testing.T) {
			equalShares(t, shares(t, picker(t, o), NewTable(equals(10, everything), TableOptions{}), n), 10, n)
			stale := NewTable(equals(10, everything, as(Stale)), TableOptions{})
			equalShares(t, shares(t, picker(t, o), stale, n), 10, n)
		})
	}
}

// TestTiesAmongOthers has three equal candidates at uneven distances.
func TestTiesAmongOthers(t *testing.T) {
	const n = 6000
	all := equals(40, requests(9))
	for _, i := range []int{3, 4, 31} {
		requests(2)(&all[i])
	}
	score := func(c *PolicyCandidate, _ credit.Local, _ Request) (float64, bool) { return c.requests() }
	for _, o := range []Options{{Policy: LeastLoad}, {Policy: Custom, Score: score}} {
		got := shares(t, picker(t, o), NewTable(all, TableOptions{}), n)
		if len(got) != 3 {
			t.Errorf("%s picked of %v", o.Policy, got)
		}
		equalShares(t, got, 3, n)
	}
}

// TestTiesWithinWorkers has ties within one worker's ranks and between workers
// of which one has more of them.
func TestTiesWithinWorkers(t *testing.T) {
	const n = 6000
	var all []PolicyCandidate
	for _, id := range []string{"a", "b", "c"} {
		for r := range int32(9) {
			all = append(all, candidate(id, rank(r), requests(7)))
		}
	}
	for _, i := range []int{0, 8, 20} {
		requests(1)(&all[i])
	}
	p := picker(t, Options{Policy: LeastLoad, PerRank: true})
	equalShares(t, shares(t, p, NewTable(all, TableOptions{}), n), 3, n)
}

func TestPowerOfKPrefersTheLessLoaded(t *testing.T) {
	const n = 20_000
	all := equals(10, requests(9))
	requests(1)(&all[4])
	table := NewTable(all, TableOptions{})
	for k, want := range map[int]float64{1: 0.1, 2: 0.2, 4: 0.4, 10: 1} {
		got := shares(t, picker(t, Options{K: k}), table, n)[credit.Target{WorkerID: "w4", Rank: NoRank}]
		// K of ten are drawn, and it wins whenever it is among them.
		if share := float64(got) / n; share < want-0.02 || share > want+0.02 {
			t.Errorf("K %d: share %.3f, want %.3f", k, share, want)
		}
	}
	most := equals(2, requests(0))
	requests(9)(&most[1])
	if got := shares(t, picker(t, Options{}), NewTable(most, TableOptions{}), 100); len(got) != 1 {
		t.Errorf("picked of %v, want the idle one of two only", got)
	}
}

// TestNoHerd has twenty routers that see one stale view, in which one worker
// looks idle.
func TestNoHerd(t *testing.T) {
	all := equals(40, requests(5))
	requests(0)(&all[7])
	herd := func(o Options) map[credit.Target]int {
		got := map[credit.Target]int{}
		for router := range uint64(20) {
			o.Rand = seeded(router)
			c := mustPick(t, picker(t, o), NewTable(all, TableOptions{}), Request{})
			got[c.Target]++
		}
		return got
	}
	if got := herd(Options{Policy: LeastLoad}); len(got) != 1 {
		t.Errorf("least-load picked of %v; the idle one should draw all", got)
	}
	got := herd(Options{})
	for _, n := range got {
		if n > 5 {
			t.Errorf("%d of 20 routers picked the same: %v", n, got)
		}
	}
	if len(got) < 10 {
		t.Errorf("20 routers picked of %d workers only: %v", len(got), got)
	}
}

// TestBurstSpreads sends a burst from one router within one report interval.
func TestBurstSpreads(t *testing.T) {
	for _, o := range []Options{{}, {Policy: LeastLoad}, {Policy: FreeTokens}, {Policy: ExpectedWait}} {
		l := credit.NewLedger(credit.Options{Now: fixed(start), AssumedTokens: 1000})
		table := NewTable(equals(10, requests(0), tokens(Count(0), Count(0), Count(100_000)), prefill(Count(0), Known(1000))), TableOptions{Ledger: l})
		p := picker(t, o)
		got := map[string]int{}
		for range 100 {
			c := mustPick(t, p, table, Request{})
			l.Dispatch(c.Target, 0)
			got[c.WorkerID]++
		}
		for id, n := range got {
			if n > 13 || o.Policy != PowerOfK && n != 10 {
				t.Errorf("%s: %s got %d of 100: %v", o.Policy, id, n, got)
			}
		}
		if len(got) != 10 {
			t.Errorf("%s: %d of 10 workers were used", o.Policy, len(got))
		}
	}
}

// TestBug28TiesAreRandom has ranks that never reported, and ranks that all
// report zero.
func TestBug28TiesAreRandom(t *testing.T) {
	const n = 16_000
	for name, change := range map[string]func(*PolicyCandidate){"never reported": as(Missing), "all zero": requests(0)} {
		t.Run(name, func(t *testing.T) {
			var all []PolicyCandidate
			for _, id := range []string{"a", "b"} {
				all = append(all, candidate(id, change))
				for r := range int32(8) {
					all = append(all, candidate(id, change, rank(r)))
				}
			}
			for _, o := range []Options{{PerRank: true}, {PerRank: true, Policy: LeastLoad}} {
				equalShares(t, shares(t, picker(t, o), NewTable(all, TableOptions{}), n), 16, n)
			}
		})
	}
}

// TestBug29ReportKeepsNewerCredit has a view that came after a dispatch and
// was made before it.
func TestBug29ReportKeepsNewerCredit(t *testing.T) {
	now := start
	clock := func() time.Time { return now }
	l := credit.NewLedger(credit.Options{Now: clock})
	p := picker(t, Options{Policy: LeastLoad, Now: clock})
	all := []PolicyCandidate{candidate("a", requests(0)), candidate("b", requests(1))}
	view := func(received time.Duration) *Table {
		for _, id := range []string{"a", "b"} {
			l.Observe(credit.Receipt{WorkerID: id, At: start.Add(received), Interval: time.Second})
		}
		return NewTable(all, TableOptions{Ledger: l})
	}
	view(-time.Second)
	for range 3 {
		l.Dispatch(credit.Target{WorkerID: "a", Rank: NoRank}, 0)
	}
	now = now.Add(500 * time.Millisecond)
	for _, received := range []time.Duration{0, 500 * time.Millisecond, time.Second} {
		if c := mustPick(t, p, view(received), Request{}); c.WorkerID != "b" {
			t.Errorf("a report of %v wiped the credit: %+v", received, c)
		}
	}
	if c := mustPick(t, p, view(time.Second+1), Request{}); c.WorkerID != "a" || c.Score != 0 {
		t.Errorf("the report covers all dispatches, picked %+v", c)
	}
}

package pick

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// fleet returns workers of some ranks each with random load, and receipts.
func fleet(workers, ranks int, now time.Time) ([]PolicyCandidate, []credit.Receipt) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []PolicyCandidate
	var receipts []credit.Receipt
	for w := range workers {
		id := fmt.Sprintf("http://10.0.%d.%d:30000", w/256, w%256)
		for r := range ranks + 1 {
			c := usable(id, now.Add(3*time.Second))
			c.Rank = int32(r) - 1
			c.Running, c.Waiting = Count(rng.Int64N(200)), Count(rng.Int64N(20))
			c.MaxRunning, c.PrefillThroughput = Count(256), Known(1000+20000*rng.Float64())
			c.WaitingUncachedTokens = Count(rng.Int64N(30000))
			c.UsedTokens, c.Capacity = Count(rng.Int64N(400000)), Count(436000)
			all = append(all, c)
		}
		receipts = append(receipts, credit.Receipt{WorkerID: id, At: now, Interval: time.Second})
	}
	return all, receipts
}

// usable is a candidate that is fresh until a time.
func usable(id string, until time.Time) PolicyCandidate {
	return PolicyCandidate{WorkerID: id, URL: id, Rank: NoRank, Role: RolePlain, Freshness: Usable, ValidUntil: until}
}

// credits leaves dispatches open all over a table.
func credits(l *credit.Ledger, t *Table, n int) {
	p, _ := NewPicker(Options{PerRank: true})
	for range n {
		if c, err := p.Pick(t, Request{}); err == nil {
			l.Dispatch(c.Target, 500)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, bench := range []struct {
		name string
		o    Options
	}{
		{"power of 2 of 8000 ranks", Options{PerRank: true}},
		{"power of 2 of 1000 workers", Options{}},
		{"least load of 8000 ranks", Options{Policy: LeastLoad, PerRank: true}},
		{"least load of 1000 workers", Options{Policy: LeastLoad}},
		{"free tokens of 8000 ranks", Options{Policy: FreeTokens, PerRank: true}},
		{"expected wait of 8000 ranks", Options{Policy: ExpectedWait, PerRank: true}},
		{"own score of 8000 ranks", Options{Policy: Custom, PerRank: true, Score: func(c *PolicyCandidate, l credit.Local, _ Request) (float64, bool) {
			running, ok := c.Running.Value()
			return running + float64(l.Credit), ok
		}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			l := credit.NewLedger(credit.Options{})
			all, receipts := fleet(1000, 8, time.Now().Add(time.Hour))
			l.Sync(receipts)
			t := NewTable(all, TableOptions{Ledger: l})
			credits(l, t, 4000)
			p, err := NewPicker(bench.o)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Pick(t, Request{PromptTokens: 100}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPickAllEqual has a tie of all 8,000 ranks.
func BenchmarkPickAllEqual(b *testing.B) {
	all, _ := fleet(1000, 8, time.Now().Add(time.Hour))
	for i := range all {
		all[i].Running, all[i].Waiting = Count(0), Count(0)
	}
	t := NewTable(all, TableOptions{})
	p, _ := NewPicker(Options{Policy: LeastLoad, PerRank: true})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Pick(t, Request{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBaseline is the scan as one would write it first: a slice of
// candidates, and a map of credits.
func BenchmarkBaseline(b *testing.B) {
	type key struct {
		id   string
		rank int32
	}
	now := time.Now()
	all, _ := fleet(1000, 8, now)
	credit := map[key]int64{}
	for i := range all {
		credit[key{all[i].WorkerID, all[i].Rank}] = int64(i % 2)
	}
	b.ReportAllocs()
	sum := 0
	for b.Loop() {
		best, least := -1, 0.0
		for i := range all {
			c := &all[i]
			if c.Rank < 0 || c.Freshness != Usable || !now.Before(c.ValidUntil) {
				continue
			}
			running, okR := c.Running.Value()
			waiting, okW := c.Waiting.Value()
			v := running + waiting + float64(credit[key{c.WorkerID, c.Rank}])
			if okR && okW && (best < 0 || v < least) {
				best, least = i, v
			}
		}
		sum += best
	}
	_ = sum
}

func BenchmarkDispatchEnd(b *testing.B) {
	l := credit.NewLedger(credit.Options{})
	all, _ := fleet(1000, 8, time.Now().Add(time.Hour))
	t := NewTable(all, TableOptions{Ledger: l})
	p, _ := NewPicker(Options{PerRank: true})
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, err := p.Pick(t, Request{})
			if err != nil {
				b.Error(err)
				return
			}
			l.Dispatch(c.Target, 500).End()
		}
	})
}

func BenchmarkNewTable(b *testing.B) {
	l := credit.NewLedger(credit.Options{})
	all, receipts := fleet(1000, 8, time.Now())
	b.ReportAllocs()
	for b.Loop() {
		l.Sync(receipts)
		NewTable(all, TableOptions{Ledger: l})
	}
}

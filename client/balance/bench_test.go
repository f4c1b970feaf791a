package balance

import (
	"fmt"
	"testing"

	"github.com/loadplane/loadplane/client/pick"
)

// BenchmarkPick has the cost of a pick by a view that was met before, and by
// one that is new.
func BenchmarkPick(b *testing.B) {
	for _, perRank := range []bool{false, true} {
		var all []entry
		for i := range 1000 {
			all = append(all, worker(fmt.Sprintf("10.0.%d.%d:30000", i/256, i%256), int64(i%50), ranked(8)))
		}
		h := &held{}
		balancer, err := New(Options{Watcher: h, Model: model, Pick: pick.Options{PerRank: perRank, Now: (&at{}).clock()}})
		if err != nil {
			b.Fatal(err)
		}
		t := &bench{TB: b, held: h, clock: &at{}, Balancer: balancer}
		t.show(all...)
		b.Run(fmt.Sprintf("of 1000 workers, per rank %t", perRank), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := balancer.Pick(Request{})
				if err != nil {
					b.Fatal(err)
				}
				r.Done()
			}
		})
		b.Run(fmt.Sprintf("of a new view of 1000 workers, per rank %t", perRank), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				t.show(all...)
				b.StartTimer()
				r, err := balancer.Pick(Request{})
				if err != nil {
					b.Fatal(err)
				}
				r.Done()
			}
		})
	}
}

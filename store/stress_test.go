package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Writers, discovery and readers at once on the real clock: no reader ever
// sees a version or a sequence go back, nor a version with two contents.
func TestReadersNeverGoBack(t *testing.T) {
	clock := store.NewClock()
	st, err := store.New(store.Options{
		Lineage: "l", Clock: clock, StaleAfter: 3 * time.Second, Settle: time.Millisecond,
		ReportInterval: time.Second, Discovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running, writers sync.WaitGroup
	running.Go(func() { _ = st.Run(ctx) })
	written := make(chan struct{})
	for w := range 4 {
		writers.Go(func() { churn(st, clock, fmt.Sprint("w", w)) })
	}
	for range 4 {
		running.Go(func() { watch(t, st, written) })
	}
	writers.Wait()
	close(written)
	if err := st.Check(); err != nil {
		t.Error(err)
	}
	stop()
	running.Wait()
}

// churn reports for a worker that is discovered anew now and then.
func churn(st *store.Store, clock *store.Clock, id string) {
	for range 10 {
		sl := st.NewSlot(worker(id))
		st.Apply(store.Discovery{Added: []*store.Slot{sl}, Synced: true})
		sl.Bind(store.Stream{Source: "s", Generation: 1})
		for seq := range uint64(200) {
			sl.Offer(1, &store.Load{
				Source: "s", Sequence: seq + 1, Status: store.StatusHealthy, Ranks: []store.Rank{rank(0, int64(seq))},
				Samples: unknownSamples(1), Received: clock.Now(),
			})
		}
		st.Apply(store.Discovery{Removed: []*store.Slot{sl}})
	}
}

func watch(t *testing.T, st *store.Store, done <-chan struct{}) {
	sequences := map[uint32]uint64{}
	last, stale := st.Current()
	for {
		for _, l := range last.Live {
			if l != nil && l.Sequence < sequences[l.Row] {
				t.Errorf("row %d went back to sequence %d", l.Row, l.Sequence)
			}
			if l != nil {
				sequences[l.Row] = l.Sequence
			}
		}
		select {
		case <-stale:
		case <-done:
			return
		}
		next, s := st.Current()
		if next.Version <= last.Version || next.Tick <= last.Tick {
			t.Errorf("version %d tick %d after %d and %d", next.Version, next.Tick, last.Version, last.Tick)
		}
		last, stale = next, s
	}
}

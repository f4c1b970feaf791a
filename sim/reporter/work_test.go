package reporter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/sim/queue"
)

// do serves a request in the background; the channel has what became of it.
func do(ctx context.Context, p *Process, w queue.Work, emit func(int, int64) error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- p.Do(ctx, w, emit) }()
	return ended
}

func ignore(int, int64) error { return nil }

func TestDoServesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain, NoTraffic: true})
		after(t, p, time.Minute) // the time before is without the request
		var mu sync.Mutex
		var seen []int64
		began := time.Now()
		err := <-do(t.Context(), p, queue.Work{Rank: 1, PromptTokens: 1500, OutputTokens: 8}, func(rank int, tokens int64) error {
			mu.Lock()
			defer mu.Unlock()
			if rank != 1 {
				t.Errorf("rank %d", rank)
			}
			seen = append(seen, tokens)
			return nil
		})
		// A tenth of a second of prefill, and eight tokens of 25 ms.
		if took := time.Since(began); err != nil || took < 290*ms || took > 340*ms {
			t.Errorf("%v after %v", err, took)
		}
		if len(seen) != 8 || seen[0] != 1 || seen[7] != 8 {
			t.Errorf("tokens %v", seen)
		}
	})
}

func TestRequestsOfDoCountInTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain, NoTraffic: true})
		ctx, leave := context.WithCancel(t.Context())
		var ended []<-chan error
		for range 4 {
			ended = append(ended, do(ctx, p, queue.Work{Rank: queue.AnyRank, PromptTokens: 15_000, OutputTokens: 400}, ignore))
		}
		s := after(t, p, 1500*ms)
		for _, r := range s.Ranks {
			if r.NumRunningReqs != 1 || r.NumWaitingReqs != 1 || r.NumWaitingUncachedTokens > 8000 {
				t.Errorf("load %v, want one running and one half prefilled", r)
			}
		}
		leave()
		for _, e := range ended {
			if err := <-e; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want that the caller left", err)
			}
		}
		if r := after(t, p, time.Second).Ranks[0]; r.NumRunningReqs+r.NumWaitingReqs != 0 {
			t.Errorf("load %v after the callers left", r)
		}
	})
}

func TestDoEnds(t *testing.T) {
	work := queue.Work{PromptTokens: 10, OutputTokens: 1000}
	synctest.Test(t, func(t *testing.T) {
		p, faults := process(t, Config{Role: rolePlain, NoTraffic: true})
		refused := errors.New("refused")
		if err := <-do(t.Context(), p, work, func(int, int64) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("error %v, want that of emit", err)
		}
		if err := <-do(t.Context(), p, queue.Work{Rank: 9, PromptTokens: 1, OutputTokens: 1}, ignore); !errors.Is(err, queue.ErrNoRank) {
			t.Errorf("error %v, want that there is no rank", err)
		}
		faults.Freeze.Store(true)
		frozen := do(t.Context(), p, work, ignore)
		select {
		case err := <-frozen:
			t.Errorf("a frozen process answered: %v", err)
		case <-time.After(time.Hour):
		}
		p.Close()
		if err := <-frozen; !errors.Is(err, ErrClosed) {
			t.Errorf("error %v, want that the process ended", err)
		}
		if err := p.Do(t.Context(), work, ignore); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v, want that the process has ended", err)
		}
	})
}

// While nothing is served, no goroutine runs.
func TestNothingMovesTheLoadWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain, NoTraffic: true})
		for range 3 {
			if err := p.Do(t.Context(), queue.Work{PromptTokens: 1, OutputTokens: 2}, ignore); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			p.mu.Lock()
			if p.served != 0 || p.driven {
				t.Errorf("%d served, driven: %t", p.served, p.driven)
			}
			p.mu.Unlock()
		}
	})
}

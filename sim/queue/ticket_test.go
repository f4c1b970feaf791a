package queue

import (
	"errors"
	"math"
	"testing"
	"time"
)

// quiet returns a model that makes up nothing.
func quiet(ranks int) *Model { return New(Config{Ranks: ranks, Role: rolePlain, Seed: 1, Quiet: true}) }

// until steps a model until done, and returns the time that this took.
func until(t *testing.T, m *Model, done func() bool) time.Duration {
	t.Helper()
	for took := time.Duration(0); took < time.Hour; took += 10 * ms {
		if done() {
			return took
		}
		m.Step(10 * ms)
	}
	t.Fatal("not within an hour")
	return 0
}

func TestRequestsTakeTheirTime(t *testing.T) {
	m := quiet(1)
	one, err := m.Add(Work{Rank: 0, PromptTokens: 15_000, OutputTokens: 40})
	if err != nil {
		t.Fatal(err)
	}
	two, err := m.Add(Work{Rank: 0, PromptTokens: 1500, OutputTokens: 20})
	if err != nil {
		t.Fatal(err)
	}
	if r := m.Load(0)[0]; r.NumWaitingReqs != 2 || r.NumWaitingUncachedTokens != 16_500 || r.NumTotalTokens != 16_500 {
		t.Errorf("two requests wait: %v", r)
	}
	// A second of prefill, then a token each 25 ms.
	if took := until(t, m, func() bool { return one.Tokens > 0 }); took < time.Second || took > 1100*ms {
		t.Errorf("the first token took %v", took)
	}
	select {
	case <-one.News:
	default:
		t.Error("no news of the first token")
	}
	if r := m.Load(0)[0]; r.NumRunningReqs == 0 || r.NumUsedTokens < 15_000 {
		t.Errorf("one request runs: %v", r)
	}
	took := until(t, m, func() bool { return one.Over && two.Over })
	if took < 900*ms || took > 1100*ms || one.Tokens != 40 || two.Tokens != 20 {
		t.Errorf("%d and %d tokens after %v more", one.Tokens, two.Tokens, took)
	}
	c := m.Counters()[0]
	if r := m.Load(0)[0]; r.NumRunningReqs+r.NumWaitingReqs+r.NumUsedTokens != 0 || c.Finished != 2 || c.PromptTokens != 16_500 || c.GeneratedTokens < 59 || c.GeneratedTokens > 60 || r.CacheHitRate != 0 {
		t.Errorf("in the end %v, %+v", r, c)
	}
}

func TestAddRefuses(t *testing.T) {
	m := quiet(2)
	cases := []struct {
		name string
		work Work
		want error
	}{
		{"a rank above", Work{Rank: 2, PromptTokens: 1, OutputTokens: 1}, ErrNoRank},
		{"a negative rank", Work{Rank: -2, PromptTokens: 1, OutputTokens: 1}, ErrNoRank},
		{"a long prompt", Work{Rank: 0, PromptTokens: CapacityTokens, OutputTokens: 1}, ErrTooLong},
		{"an overflow", Work{Rank: 0, PromptTokens: 10, OutputTokens: math.MaxInt64}, ErrTooLong},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := m.Add(c.work); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	for range maxWaiting {
		if _, err := m.Add(Work{Rank: 0, PromptTokens: 1, OutputTokens: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Add(Work{Rank: 0, PromptTokens: 1, OutputTokens: 1}); !errors.Is(err, ErrFull) {
		t.Errorf("error %v, want that the queue is full", err)
	}
	for _, want := range []int{0, 1, 0} {
		ticket, err := m.Add(Work{Rank: AnyRank, PromptTokens: 1, OutputTokens: 1})
		if want == 0 {
			if !errors.Is(err, ErrFull) {
				t.Errorf("error %v, want that rank 0 is full", err)
			}
			continue
		}
		if err != nil || ticket.Rank != want {
			t.Errorf("rank %v, %v, want %d", ticket, err, want)
		}
	}
}

// A prefill rank holds a request for its transfer, whatever output is asked
// for: that is what counts against its size, so that no request waits for ever.
func TestPrefillRanksCountTheirOwnOutput(t *testing.T) {
	m := New(Config{Ranks: 1, Role: rolePrefill, Seed: 1, Quiet: true})
	if _, err := m.Add(Work{Rank: 0, PromptTokens: CapacityTokens - holdTokens + 1, OutputTokens: 1}); !errors.Is(err, ErrTooLong) {
		t.Errorf("error %v, want that it is too long", err)
	}
	for _, w := range []Work{
		{Rank: 0, PromptTokens: CapacityTokens - holdTokens, OutputTokens: 1},
		{Rank: 0, PromptTokens: 100, OutputTokens: CapacityTokens},
		{Rank: 0, PromptTokens: 100, OutputTokens: math.MaxInt64},
	} {
		ticket, err := m.Add(w)
		if err != nil {
			t.Fatalf("%+v: %v", w, err)
		}
		until(t, m, func() bool { return ticket.Over })
	}
}

func TestRemoveFreesWhatARequestHolds(t *testing.T) {
	m := quiet(1)
	running, err := m.Add(Work{Rank: 0, PromptTokens: 100, OutputTokens: 1000})
	if err != nil {
		t.Fatal(err)
	}
	until(t, m, func() bool { return running.Tokens > 5 })
	waiting, err := m.Add(Work{Rank: 0, PromptTokens: 100, OutputTokens: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if r := m.ranks[0]; len(r.running) != 1 || len(r.waiting) != 1 || r.reserved != 1100 {
		t.Fatalf("%d running, %d waiting, %d tokens", len(r.running), len(r.waiting), r.reserved)
	}
	for range 2 {
		m.Remove(waiting)
		m.Remove(running)
	}
	if r := m.ranks[0]; len(r.running)+len(r.waiting) != 0 || r.reserved != 0 {
		t.Errorf("%d running, %d waiting, %d tokens", len(r.running), len(r.waiting), r.reserved)
	}
}

func TestQuietModelsAreIdle(t *testing.T) {
	m := quiet(2)
	m.Step(MaxStep)
	for _, r := range m.Load(0) {
		if r.NumRunningReqs+r.NumWaitingReqs != 0 || r.MaxTotalNumTokens != CapacityTokens {
			t.Errorf("load %v", r)
		}
	}
}

package queue

import (
	"math"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/protobuf/proto"
)

const (
	ms        = time.Millisecond
	rolePlain = pb.WorkerType_WORKER_TYPE_REGULAR
)

func TestModelKeepsItsInvariants(t *testing.T) {
	for _, role := range []pb.WorkerType{rolePlain, rolePrefill, roleDecode} {
		t.Run(role.String(), func(t *testing.T) {
			m := New(Config{Ranks: 2, Role: role, Seed: 7, Stream: 1})
			var most pb.RankLoad
			for i := range 100_000 {
				m.Step(time.Duration(i%4) * 33 * ms)
				for _, r := range m.Load(int64(i)) {
					if fault := fault(r); fault != "" {
						t.Fatalf("step %d: %s: %v", i, fault, r)
					}
					most.NumRunningReqs = max(most.NumRunningReqs, r.NumRunningReqs)
					most.NumWaitingReqs = max(most.NumWaitingReqs, r.NumWaitingReqs)
				}
			}
			if most.NumRunningReqs < 10 || most.NumWaitingReqs < 2 {
				t.Errorf("at most %d running and %d waiting: no load to speak of", most.NumRunningReqs, most.NumWaitingReqs)
			}
		})
	}
}

// fault names what is wrong with a load, if anything.
func fault(r *pb.RankLoad) string {
	for _, v := range []float64{r.TokenUsage, r.GenThroughput, r.CacheHitRate, r.Utilization, r.PrefillThroughput} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return "a float is negative or not finite"
		}
	}
	switch {
	case min(r.NumRunningReqs, r.NumWaitingReqs, r.NumWaitingUncachedTokens, r.NumUsedTokens) < 0:
		return "a count is negative"
	case r.NumUsedTokens > r.MaxTotalNumTokens:
		return "used above capacity"
	case r.NumRunningReqs > r.MaxRunningRequests:
		return "running above maximum"
	case r.NumTotalTokens < r.NumUsedTokens || r.NumWaitingReqs == 0 && r.NumTotalTokens != r.NumUsedTokens:
		return "total is not used and queued"
	case r.NumWaitingUncachedTokens > r.NumTotalTokens-r.NumUsedTokens:
		return "more uncached than queued tokens"
	case r.NumRunningReqs == 0 && r.NumUsedTokens != 0:
		return "tokens used by nobody"
	case r.TokenUsage != round(float64(r.NumUsedTokens)/float64(r.MaxTotalNumTokens), 1e4):
		return "token usage is not used over capacity in four digits"
	case r.GenThroughput != round(r.GenThroughput, 1e2):
		return "throughput has more than two digits"
	case max(r.TokenUsage, r.CacheHitRate, r.Utilization) > 1:
		return "a ratio is above 1"
	}
	return ""
}

func TestSeedsAndEnginesDiffer(t *testing.T) {
	used := func(seed, stream uint64) int64 {
		m := New(Config{Ranks: 1, Role: rolePlain, Seed: seed, Stream: stream})
		m.Step(10 * time.Second)
		return m.ranks[0].load().NumUsedTokens
	}
	if used(1, 1) == used(2, 1) || used(1, 1) == used(1, 2) {
		t.Error("another seed or engine gives the same load")
	}
}

func TestModelRepeats(t *testing.T) {
	a, b := New(Config{Ranks: 3, Role: roleDecode, Seed: 5, Stream: 1}), New(Config{Ranks: 3, Role: roleDecode, Seed: 5, Stream: 1})
	for i := range 500 {
		a.Step(70 * ms)
		b.Step(70 * ms)
		for r := range a.ranks {
			if x, y := a.ranks[r].load(), b.ranks[r].load(); !proto.Equal(x, y) {
				t.Fatalf("step %d: %v and %v", i, x, y)
			}
		}
	}
}

func TestModelMovesByTenSecondsAtMost(t *testing.T) {
	a, b := New(Config{Ranks: 1, Role: rolePlain, Seed: 5, Stream: 1}), New(Config{Ranks: 1, Role: rolePlain, Seed: 5, Stream: 1})
	a.Step(10 * time.Second)
	b.Step(10 * time.Hour)
	if a.elapsed != b.elapsed || a.elapsed < 9.99 || a.elapsed > 10.01 {
		t.Errorf("moved by %v and %v seconds", a.elapsed, b.elapsed)
	}
}

func TestThroughputSticksWhenIdle(t *testing.T) {
	m := New(Config{Ranks: 1, Role: rolePlain, Seed: 5, Stream: 1})
	m.Step(10 * time.Second)
	r := m.ranks[0]
	r.waiting, r.running, r.reserved = nil, nil, 0
	before := r.load().GenThroughput
	r.decode(1)
	if got := r.load(); before == 0 || got.GenThroughput != before || got.NumUsedTokens != 0 {
		t.Errorf("throughput went from %v to %v", before, got.GenThroughput)
	}
}

func TestOneRankIsHotNowAndThen(t *testing.T) {
	m := New(Config{Ranks: 4, Role: rolePlain, Seed: 3, Stream: 1})
	steps, hot, others := 0, 0.0, 0.0
	for range 20_000 {
		m.Step(100 * ms)
		if m.elapsed >= m.hot.until {
			continue
		}
		steps++
		for i, r := range m.ranks {
			requests := float64(len(r.running) + len(r.waiting))
			if i == m.hotRank {
				hot += requests
			} else {
				others += requests / 3
			}
		}
	}
	if steps < 2000 || steps > 8000 || hot < 1.3*others {
		t.Errorf("in %d of 20000 steps the hot rank has %.2f times the requests of another", steps, hot/others)
	}
}

func TestRolesReportWhatTheyHave(t *testing.T) {
	for _, role := range []pb.WorkerType{rolePlain, rolePrefill, roleDecode} {
		m := New(Config{Ranks: 1, Role: role, Seed: 3, Stream: 1})
		m.Step(10 * time.Second)
		r := m.ranks[0].load()
		if (r.GenThroughput > 0) != (role != rolePrefill) || (r.PrefillThroughput > 0) != (role != roleDecode) {
			t.Errorf("%v: generates %v, prefills %v", role, r.GenThroughput, r.PrefillThroughput)
		}
	}
}

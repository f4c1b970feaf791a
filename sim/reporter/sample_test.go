package reporter

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
	"google.golang.org/protobuf/proto"
)

const (
	ms          = time.Millisecond
	rolePlain   = pb.WorkerType_WORKER_TYPE_REGULAR
	rolePrefill = pb.WorkerType_WORKER_TYPE_PREFILL
	roleDecode  = pb.WorkerType_WORKER_TYPE_DECODE
	prefillRate = 15_000.
)

// process returns a process of two ranks and its faults.
func process(t *testing.T, config Config) (*Process, *Faults) {
	t.Helper()
	faults := &Faults{}
	config.Ranks, config.Model, config.Seed, config.Faults = 2, "m", 3, faults
	p := New(config)
	t.Cleanup(p.Close)
	return p, faults
}

// after lets time pass and returns the sample then.
func after(t *testing.T, p *Process, d time.Duration) Sample {
	t.Helper()
	<-time.After(d)
	s, err := p.Sample()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCountersGrowWithTheLoad(t *testing.T) {
	for _, role := range []pb.WorkerType{rolePlain, rolePrefill, roleDecode} {
		t.Run(role.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := process(t, Config{Role: role})
				last := after(t, p, 0)
				if last.Counters[0] != (Counters{}) || last.Counters[1] != (Counters{}) {
					t.Errorf("a new process has done %+v", last.Counters)
				}
				for range 200 {
					now := after(t, p, 500*ms)
					for i, c := range now.Counters {
						if fault := counterFault(last.Counters[i], c); fault != "" {
							t.Fatalf("rank %d: %s: %+v after %+v", i, fault, c, last.Counters[i])
						}
					}
					last = now
				}
				checkTotals(t, role, last.Counters[0])
			})
		})
	}
}

// counterFault names what is wrong with counters half a second later.
func counterFault(before, c Counters) string {
	switch {
	case c.PromptTokens < before.PromptTokens, c.CachedTokens < before.CachedTokens, c.GeneratedTokens < before.GeneratedTokens,
		c.Finished < before.Finished, c.PrefillBusy < before.PrefillBusy, c.DecodeBusy < before.DecodeBusy:
		return "a counter went back"
	case c.CachedTokens > c.PromptTokens:
		return "more cached than prompt tokens"
	case c.PrefillBusy-before.PrefillBusy > 501*ms, c.DecodeBusy-before.DecodeBusy > 501*ms:
		return "busier than time passed"
	}
	return ""
}

// checkTotals holds the counters of 100 s against what the role does.
func checkTotals(t *testing.T, role pb.WorkerType, c Counters) {
	t.Helper()
	if c.PromptTokens < 100_000 || c.Finished < 100 || c.PrefillBusy < time.Second || c.DecodeBusy < time.Second {
		t.Errorf("hardly anything was done: %+v", c)
	}
	if (c.GeneratedTokens > 20_000) != (role != rolePrefill) || (c.CachedTokens > 10_000) != (role != roleDecode) {
		t.Errorf("not what the role does: %+v", c)
	}
}

func TestPrefillRateIsThatOfTheCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain})
		var c Counters
		for range 100 {
			c = after(t, p, time.Second).Counters[0]
		}
		rate := float64(c.PromptTokens-c.CachedTokens) / c.PrefillBusy.Seconds()
		if math.Abs(rate-prefillRate) > 0.05*prefillRate {
			t.Errorf("%.0f uncached tokens a busy second, want about %.0f", rate, 15_000.)
		}
	})
}

func TestSampleIsAtMostAPagePeriodOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain, Warm: true})
		first := after(t, p, 0)
		if again := after(t, p, pagePeriod-1); again.Ranks[0] != first.Ranks[0] {
			t.Error("sampled again at once")
		}
		later := after(t, p, 1)
		if later.Ranks[0].SnapshotTimeUnixMs != later.At.UnixMilli() || later.Ranks[0] == first.Ranks[0] {
			t.Errorf("a sample of %d at %d", later.Ranks[0].SnapshotTimeUnixMs, later.At.UnixMilli())
		}
		if got := first.At.Sub(first.Started); got != queue.MaxStep {
			t.Errorf("a process with %v of work started %v ago", queue.MaxStep, got)
		}
	})
}

func TestFirstSampleComesAfterTheFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := process(t, Config{Role: rolePlain, FirstSample: time.Second})
		for range 2 {
			if s, err := p.Sample(); !errors.Is(err, ErrNoSample) || len(s.Ranks) != 0 || s.Started.IsZero() {
				t.Fatalf("%+v, %v", s, err)
			}
			<-time.After(999 * ms / 2)
		}
		if s := after(t, p, 2*ms); len(s.Ranks) != 2 {
			t.Errorf("%d ranks", len(s.Ranks))
		}
	})
}

// countersOf returns counters that are all different.
func countersOf(n int64) Counters {
	return Counters{
		PromptTokens: n, CachedTokens: 2 * n, GeneratedTokens: 3 * n, Finished: 4 * n,
		PrefillBusy: time.Duration(5 * n), DecodeBusy: time.Duration(6 * n),
	}
}

func TestTotalSumsRanks(t *testing.T) {
	s := Sample{
		Ranks: []*pb.RankLoad{
			{NumRunningReqs: 1, NumWaitingReqs: 2, NumUsedTokens: 3, MaxTotalNumTokens: 4, MaxRunningRequests: 5, TokenUsage: 0.2, GenThroughput: 6, PrefillThroughput: 7, CacheHitRate: 0.4},
			{NumRunningReqs: 10, NumWaitingReqs: 20, NumUsedTokens: 30, MaxTotalNumTokens: 40, MaxRunningRequests: 50, TokenUsage: 0.4, GenThroughput: 60, PrefillThroughput: 70, CacheHitRate: 0.8},
		},
		Counters: []Counters{countersOf(1), countersOf(10)},
	}
	load, c := s.Total()
	want := &pb.RankLoad{
		NumRunningReqs: 11, NumWaitingReqs: 22, NumUsedTokens: 33, MaxTotalNumTokens: 44, MaxRunningRequests: 55,
		TokenUsage: load.TokenUsage, GenThroughput: 66, PrefillThroughput: 77, CacheHitRate: load.CacheHitRate,
	}
	if !proto.Equal(load, want) || math.Abs(load.TokenUsage-0.3) > 1e-9 || math.Abs(load.CacheHitRate-0.6) > 1e-9 || c != countersOf(11) {
		t.Errorf("%v, %+v", load, c)
	}
}

func TestFaultsOfSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, faults := process(t, Config{Role: rolePlain, Warm: true})
		before := after(t, p, 0)

		faults.Fail.Store(true)
		<-time.After(time.Second)
		s, err := p.Sample()
		if !errors.Is(err, ErrSampling) || s.Ranks[0] != before.Ranks[0] {
			t.Errorf("failing: %v, %v", err, s.Ranks)
		}
		faults.Fail.Store(false)

		faults.Freeze.Store(true)
		s = after(t, p, time.Second)
		if s.Counters[0] != before.Counters[0] || s.Ranks[0].NumUsedTokens != before.Ranks[0].NumUsedTokens {
			t.Errorf("frozen: %+v, %v", s.Counters[0], s.Ranks[0])
		}
		faults.Freeze.Store(false)

		faults.Idle.Store(true)
		s = after(t, p, time.Second)
		if s.Counters[0] != before.Counters[0] || s.Ranks[0].NumUsedTokens != 0 || s.Ranks[0].MaxTotalNumTokens != CapacityTokens {
			t.Errorf("idle: %+v, %v", s.Counters[0], s.Ranks[0])
		}
		faults.Idle.Store(false)

		if s = after(t, p, time.Second); s.Counters[0] == before.Counters[0] {
			t.Errorf("the counters still stand: %+v", s.Counters[0])
		}
	})
}

func TestSwitchesOfFaults(t *testing.T) {
	var f Faults
	for word, want := range map[string]*atomic.Bool{
		"freeze": &f.Freeze, "silent": &f.Silent, "fail": &f.Fail, "zero_capacity": &f.ZeroCapacity, "nan": &f.NaN, "idle": &f.Idle, "down": nil, "": nil,
	} {
		if got := f.Switch(word); got != want {
			t.Errorf("%q names another one", word)
		}
	}
}

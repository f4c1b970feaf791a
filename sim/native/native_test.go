package native

import (
	"testing"
	"testing/synctest"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engineOf returns an engine with two ranks and its faults. It is for a bubble.
func engineOf(t *testing.T, first time.Duration) (Config, *reporter.Faults) {
	t.Helper()
	faults := &reporter.Faults{}
	p := reporter.New(reporter.Config{Model: "m", Ranks: 2, Seed: 1, Warm: true, FirstSample: first, Faults: faults})
	t.Cleanup(p.Close)
	return Config{Process: func() *reporter.Process { return p }, Faults: faults}, faults
}

func TestReportsHaveAllThatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := engineOf(t, 0)
		now := time.Now()
		r := c.report(now)
		s, err := c.Process().Sample()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetSourceInstanceId() != c.Process().Source() || r.GetSequence() != 1 || r.GetReportTimeUnixMs() != now.UnixMilli() ||
			r.GetStatus() != loadplanev1.Status_STATUS_HEALTHY || r.GetLastError() != "" || len(r.GetRanks()) != 2 {
			t.Fatalf("report %v", r)
		}
		for i, got := range r.GetRanks() {
			want, counters, load := s.Ranks[i], s.Counters[i], got.GetLoad()
			for name, pair := range map[string][2]float64{
				"dp_rank":                       {float64(load.GetDpRank()), float64(i)},
				"num_running_reqs":              {float64(load.GetNumRunningReqs()), float64(want.NumRunningReqs)},
				"num_waiting_reqs":              {float64(load.GetNumWaitingReqs()), float64(want.NumWaitingReqs)},
				"num_waiting_uncached_tokens":   {float64(load.GetNumWaitingUncachedTokens()), float64(want.NumWaitingUncachedTokens)},
				"num_used_tokens":               {float64(load.GetNumUsedTokens()), float64(want.NumUsedTokens)},
				"num_total_tokens":              {float64(load.GetNumTotalTokens()), float64(want.NumTotalTokens)},
				"max_total_num_tokens":          {float64(load.GetMaxTotalNumTokens()), float64(want.MaxTotalNumTokens)},
				"max_running_requests":          {float64(load.GetMaxRunningRequests()), float64(want.MaxRunningRequests)},
				"token_usage":                   {load.GetTokenUsage(), want.TokenUsage},
				"gen_throughput":                {load.GetGenThroughput(), want.GenThroughput},
				"cache_hit_rate":                {load.GetCacheHitRate(), want.CacheHitRate},
				"utilization":                   {load.GetUtilization(), want.Utilization},
				"prefill_throughput":            {load.GetPrefillThroughput(), want.PrefillThroughput},
				"snapshot_time_unix_ms":         {float64(got.GetSnapshotTimeUnixMs()), float64(want.SnapshotTimeUnixMs)},
				"total_prefill_uncached_tokens": {float64(got.GetTotalPrefillUncachedTokens()), float64(counters.PromptTokens - counters.CachedTokens)},
				"total_prefill_busy_us":         {float64(got.GetTotalPrefillBusyUs()), float64(counters.PrefillBusy.Microseconds())},
				"total_generated_tokens":        {float64(got.GetTotalGeneratedTokens()), float64(counters.GeneratedTokens)},
			} {
				if pair[0] != pair[1] {
					t.Errorf("rank %d: %s is %v, sampled was %v", i, name, pair[0], pair[1])
				}
			}
			fields := load.ProtoReflect().Descriptor().Fields()
			for j := range fields.Len() {
				f := fields.Get(j)
				known := f.Number() <= 14
				if f.HasPresence() && load.ProtoReflect().Has(f) != known {
					t.Errorf("rank %d: %s is known: %v", i, f.Name(), !known)
				}
			}
		}
		if again := c.report(now); again.GetSequence() != 2 {
			t.Errorf("the next report is number %d", again.GetSequence())
		}
	})
}

func TestReportsWithoutAGoodSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, faults := engineOf(t, time.Second)
		if r := c.report(time.Now()); r.GetStatus() != loadplanev1.Status_STATUS_UNREACHABLE || r.GetLastError() != "no successful load sample" || len(r.GetRanks()) != 0 {
			t.Errorf("before the first sample: %v", r)
		}
		<-time.After(time.Second)
		if r := c.report(time.Now()); r.GetStatus() != loadplanev1.Status_STATUS_HEALTHY {
			t.Errorf("with the first sample: %v", r)
		}
		faults.Fail.Store(true)
		<-time.After(time.Second)
		if r := c.report(time.Now()); r.GetStatus() != loadplanev1.Status_STATUS_STALE || r.GetLastError() != "simulated sampling failure" || len(r.GetRanks()) != 2 {
			t.Errorf("with a failure: %v", r)
		}
		faults.Silent.Store(true)
		if r := c.report(time.Now()); r != nil || c.Process().Sequence() != 3 {
			t.Errorf("in a silence: %v, sequence %d", r, c.Process().Sequence())
		}
	})
}

func TestRunNeedsAnAddress(t *testing.T) {
	c, _ := engineOf(t, 0)
	c.URL, c.Plane = "http://127.0.0.1:30000", func() string { return "nowhere" }
	if err := Run(t.Context(), c); err == nil {
		t.Error("an address that is none is no error")
	}
}

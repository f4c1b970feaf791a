package sample

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

// counters returns a vLLM page with token counters.
func counters(generated, prompt, cached, queries, hits int) string {
	return fmt.Sprintf("vllm:num_requests_running 1\nvllm:generation_tokens_total %d\nvllm:prompt_tokens_total %d\n"+
		"vllm:prompt_tokens_cached_total %d\nvllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\n",
		generated, prompt, cached, queries, hits)
}

func TestRates(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	f.gap = 2 * time.Second
	f.want(counters(100, 1000, 400, 50, 10), "0: run=1 #uncached=600 #gen=100")
	f.want(counters(300, 1500, 600, 150, 60), "0: run=1 gen=100 hit=0.5 wall=150 #uncached=900 #gen=300")
	// Nobody asked the cache: the last rate stands. Nothing was generated: 0.
	f.want(counters(300, 1500, 600, 150, 60), "0: run=1 gen=0 hit=0.5 wall=0 #uncached=900 #gen=300")
	f.want(counters(300, 1500, 600, 250, 60), "0: run=1 gen=0 hit=0 wall=0 #uncached=900 #gen=300")
	// The cached counter ran ahead of the other: no rate, and no restart.
	f.want(counters(301, 1500, 700, 250, 60), "0: run=1 gen=0.5 hit=0 #uncached=800 #gen=301")
	// Hits without queries make no sense.
	f.want(counters(301, 1500, 700, 251, 69), "0: run=1 gen=0 wall=0 #uncached=800 #gen=301")
}

func TestRatesNeedAShortGap(t *testing.T) {
	for _, c := range []struct {
		gap  time.Duration
		want string
	}{
		{30 * time.Second, "0: run=1 gen=10 hit=0.5 wall=1 #uncached=630 #gen=400"},
		{30*time.Second + 1, "0: run=1 hit=0.5 #uncached=630 #gen=400"},
		{0, "0: run=1 hit=0.5 #uncached=630 #gen=400"},
		{-time.Second, "0: run=1 hit=0.5 #uncached=630 #gen=400"},
	} {
		f := newFeed(t, "vllm /metrics")
		f.text(counters(100, 1000, 400, 50, 10))
		f.gap = c.gap
		f.want(counters(400, 1030, 400, 150, 60), c.want)
	}
}

func TestRestartIsSeenByCounters(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	f.text(counters(100, 1000, 400, 50, 10))
	f.text(counters(200, 1000, 400, 60, 20))
	f.want(counters(300, 10, 4, 5, 1), "0: run=1 #uncached=6 #gen=300\npage: restarted")
	f.want(counters(301, 10, 4, 5, 1), "0: run=1 gen=1 wall=0 #uncached=6 #gen=301")
}

func TestOneStartTimeOfManyIsNone(t *testing.T) {
	page := "process_start_time_seconds{pid=\"1\"} 1000\nprocess_start_time_seconds{pid=\"2\"} 1001\n" + vllmPage(1, 0)
	newFeed(t, "vllm /metrics").want(page, "0: run=1 wait=0\npage: models=m")
	newFeed(t, "vllm /metrics").want("process_start_time_seconds NaN\n"+vllmPage(1, 0), "0: run=1 wait=0\npage: models=m")
}

// TestStartTimeOnOnePageOnly: a start time that comes or goes does not say that
// another process answers.
func TestStartTimeOnOnePageOnly(t *testing.T) {
	const start = "process_start_time_seconds 1000\n"
	f := newFeed(t, "vllm /metrics")
	f.text(counters(100, 1000, 400, 50, 10))
	f.want(start+counters(200, 1000, 400, 50, 10), "0: run=1 gen=100 wall=0 #uncached=600 #gen=200\npage: process=1000")
	f.want(counters(300, 1000, 400, 50, 10), "0: run=1 gen=100 wall=0 #uncached=600 #gen=300")
}

func TestCountersGoBackInOneProcess(t *testing.T) {
	const start = "process_start_time_seconds 1000\n"
	f := newFeed(t, "vllm /metrics")
	f.text(start + counters(100, 1000, 400, 50, 10))
	// One of its workers died: no rate, and still the same process.
	f.want(start+counters(60, 1001, 400, 50, 10), "0: run=1 wall=1 #uncached=601 #gen=60\npage: process=1000")
}

func TestARankThatIsNewHasNoRates(t *testing.T) {
	page := func(ranks int, tokens int) string {
		text := ""
		for e := range ranks {
			text += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} 1\nvllm:generation_tokens_total{engine=\"%d\"} %d\n", e, e, tokens)
		}
		return text
	}
	f := newFeed(t, "vllm /metrics")
	f.text(page(1, 10))
	f.want(page(2, 20), "0: run=1 gen=10 #gen=20\n1: run=1 #gen=20")
	f.want(page(1, 30), "0: run=1 gen=10 #gen=30")
}

func TestRefusedPageChangesNothing(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	f.text(counters(100, 1000, 400, 50, 10))
	f.text(counters(200, 1000, 400, 150, 60))
	f.now -= store.Instant(2 * f.gap)
	for _, page := range []string{
		"", "<html>", "vllm:generation_tokens_total 1\n", "vllm:num_requests_running NaN\nprocess_start_time_seconds 5\n",
		"process_start_time_seconds 5\nvllm:generation_tokens_total 1\nvllm:num_requests_running{engine=\"x\"} 1\n",
	} {
		f.now -= store.Instant(f.gap)
		if _, refusal := f.read(page); refusal == nil {
			t.Fatalf("page %q is not refused", page)
		}
	}
	f.now += store.Instant(2 * f.gap)
	f.want(counters(300, 1000, 400, 150, 60), "0: run=1 gen=100 hit=0.5 wall=0 #uncached=600 #gen=300")
}

func TestGaugeIsStickyWhenIdle(t *testing.T) {
	page := func(running int, counter string, tokens int) string {
		return fmt.Sprintf("sglang:num_running_reqs %d\nsglang:gen_throughput 86.5\nsglang:%s %d\n", running, counter, tokens)
	}
	for _, c := range []struct {
		name, counter   string
		running, tokens int
		want            string
	}{
		{"no step", "realtime_tokens_total{mode=\"decode\"}", 1, 500, "0: run=1 gen=0 #gen=500"},
		{"a step", "realtime_tokens_total{mode=\"decode\"}", 1, 501, "0: run=1 gen=86.5 #gen=501"},
		// This one counts when a request ends.
		{"none ended, none runs", "generation_tokens_total", 0, 500, "0: run=0 gen=0 #gen=500"},
		{"none ended, one runs", "generation_tokens_total", 1, 500, "0: run=1 gen=86.5 #gen=500"},
		{"one ended", "generation_tokens_total", 0, 700, "0: run=0 gen=86.5 #gen=700"},
		{"restarted", "generation_tokens_total", 0, 5, "0: run=0 gen=86.5 #gen=5\npage: restarted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFeed(t, "sglang /metrics")
			f.text(page(c.running, c.counter, 500))
			f.want(page(c.running, c.counter, c.tokens), c.want)
		})
	}
}

// idlePage is a page of /v1/loads, which has no token counter.
func idlePage(running int, rate string) string {
	return fmt.Sprintf(`{"loads": [{"dp_rank": 0, "num_running_reqs": %d, "gen_throughput": %s}]}`, running, rate)
}

// TestGaugeIsStickyWhereNothingIsCounted: 0 is shown once nothing ran on two
// pages in a row and the gauge stood still between them.
func TestGaugeIsStickyWhereNothingIsCounted(t *testing.T) {
	f := newFeed(t, "sglang /v1/loads")
	f.want(idlePage(3, "210.5"), "0: run=3 gen=210.5")
	f.want(idlePage(0, "210.5"), "0: run=0 gen=210.5")
	f.want(idlePage(0, "210.5"), "0: run=0 gen=0")
	f.want(idlePage(0, "210.5"), "0: run=0 gen=0")
	f.want(idlePage(2, "210.5"), "0: run=2 gen=210.5")
	f.want(idlePage(0, "210.5"), "0: run=0 gen=210.5")
	// Something ran and ended between two pages.
	f.want(idlePage(0, "180.25"), "0: run=0 gen=180.25")
	f.want(idlePage(0, "180.25"), "0: run=0 gen=0")
}

func TestGaugeIsBelievedWhereNothingSaysIdle(t *testing.T) {
	for name, c := range map[string]struct{ before, now, want string }{
		"one runs": {idlePage(1, "210.5"), idlePage(1, "210.5"), "0: run=1 gen=210.5"},
		"running unknown": {
			`{"loads": [{"dp_rank": 0, "num_waiting_reqs": 0, "gen_throughput": 210.5}]}`,
			`{"loads": [{"dp_rank": 0, "num_waiting_reqs": 0, "gen_throughput": 210.5}]}`, "0: wait=0 gen=210.5",
		},
		"running unknown before": {
			`{"loads": [{"dp_rank": 0, "num_waiting_reqs": 0, "gen_throughput": 210.5}]}`, idlePage(0, "210.5"), "0: run=0 gen=210.5",
		},
		"no gauge before": {idlePage(0, "null"), idlePage(0, "210.5"), "0: run=0 gen=210.5"},
		"another rank before": {
			`{"loads": [{"dp_rank": 1, "num_running_reqs": 0, "gen_throughput": 210.5}]}`, idlePage(0, "210.5"), "0: run=0 gen=210.5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t, "sglang /v1/loads")
			f.text(c.before)
			f.want(c.now, c.want)
		})
	}
	// The counter stands outside of the ranks and is dropped.
	page := "sglang:num_running_reqs{dp_rank=\"0\"} 0\nsglang:gen_throughput{dp_rank=\"0\"} 86.5\nsglang:generation_tokens_total %d\n"
	f := newFeed(t, "sglang /metrics")
	f.want(fmt.Sprintf(page, 1), "0: run=0 gen=86.5")
	f.want(fmt.Sprintf(page, 2), "0: run=0 gen=0")
}

func TestRateWhereSGLangHasNoGauge(t *testing.T) {
	f := newFeed(t, "sglang /metrics")
	const page = "sglang:num_running_reqs 1\nsglang:realtime_tokens_total{mode=\"decode\"} %d\nsglang:realtime_tokens_total{mode=\"prefill_compute\"} %d\n"
	f.text(fmt.Sprintf(page, 10, 100))
	f.want(fmt.Sprintf(page, 30, 150), "0: run=1 gen=20 wall=50 #uncached=150 #gen=30")
}

func TestWallRateIsTheStoresWhereTheEngineTimesItsSamples(t *testing.T) {
	f := newFeed(t, "sglang /v1/loads")
	const page = `{"loads": [{"dp_rank": 0, "timestamp": %d, "num_running_reqs": 1, "total_prefill_uncached_tokens": %d, "total_prefill_busy_us": 7}]}`
	f.text(fmt.Sprintf(page, 100, 10))
	f.want(fmt.Sprintf(page, 101, 20), "0: run=1 at=101000 #uncached=20 #busy=7")
}

func TestGaugeOfV0YieldsToTheCounter(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	page := func(tokens int) string {
		return vllmPage(1, 0, "vllm:avg_generation_throughput_toks_per_s 55", fmt.Sprintf("vllm:generation_tokens_total %d", tokens))
	}
	f.want(page(10), "0: run=1 wait=0 #gen=10\npage: models=m")
	f.want(page(12), "0: run=1 wait=0 gen=2 #gen=12\npage: models=m")
}

func TestCountersOfProcessesAreSummed(t *testing.T) {
	newFeed(t, "vllm /metrics").want("vllm:num_requests_running 1\n"+
		"vllm:generation_tokens_total{pid=\"1\"} 10\nvllm:generation_tokens_total{pid=\"2\"} 5\n", "0: run=1 #gen=15")
	newFeed(t, "vllm /metrics").want("vllm:num_requests_running 1\n"+
		"vllm:generation_tokens_total{pid=\"1\"} 10\nvllm:generation_tokens_total{pid=\"2\"} -5\n", "0: run=1\npage: unusable=map[negative_value:1]")
}

func TestUnlabelledCountersBesideRanks(t *testing.T) {
	const page = "sglang:num_running_reqs{dp_rank=\"0\"} 1\nsglang:generation_tokens_total 10\n"
	f := newFeed(t, "sglang /metrics")
	f.want(page, "0: run=1")
	f.hints.DPSize = 1
	f.want(page, "0: run=1 #gen=10")
	f.hints.DPSize = 2
	f.want(page, "0: run=1\npage: ranks_unknown")
}

func TestEmptyRankLabelIsNone(t *testing.T) {
	const page = "sglang:num_running_reqs{dp_rank=\"\"} 1\nsglang:num_queue_reqs 2\n"
	f := newFeed(t, "sglang /metrics")
	f.hints.DPSize = 2
	f.want(page, "0: run=1 wait=2\npage: ranks_unknown")
	newFeed(t, "sglang /metrics").want("sglang:num_running_reqs{dp_rank=\"1\"} 3\n"+page,
		"1: run=3\npage: unusable=map[ambiguous:2]")
}

func TestCacheConfigIsJoinedByEngine(t *testing.T) {
	for name, c := range map[string][2]string{
		"by label":               {"vllm:num_requests_running{engine=\"0\"} 1\nvllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"50\"} 1\n", "0: run=1 cap=50"},
		"no label on either":     {"vllm:num_requests_running 1\nvllm:cache_config_info{kv_cache_size_tokens=\"50\"} 1\n", "0: run=1 cap=50"},
		"no label on the info":   {"vllm:num_requests_running{engine=\"0\"} 1\nvllm:cache_config_info{kv_cache_size_tokens=\"50\"} 1\n", "0: run=1\npage: unusable=map[ambiguous:1]"},
		"two of them":            {"vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"1\",num_gpu_blocks=\"5\"} 1\nvllm:cache_config_info{block_size=\"2\",num_gpu_blocks=\"5\"} 1\n", "0: run=1\npage: unusable=map[ambiguous:1]"},
		"all None":               {"vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n", "0: run=1"},
		"absurd":                 {"vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"999999999999999\",num_gpu_blocks=\"16\"} 1\n", "0: run=1\npage: unusable=map[above_limit:1]"},
		"tokens before blocks":   {"vllm:num_requests_running 1\nvllm:cache_config_info{kv_cache_size_tokens=\"9\",block_size=\"16\",num_gpu_blocks=\"2\"} 1\n", "0: run=1 cap=9"},
		"usage without capacity": {"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n", "0: run=1 usage=0.5"},
		"usage above one":        {"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 1.25\nvllm:cache_config_info{kv_cache_size_tokens=\"50\"} 1\n", "0: run=1 used=50 cap=50 usage=1.25"},
	} {
		t.Run(name, func(t *testing.T) { newFeed(t, "vllm /metrics").want(c[0], c[1]) })
	}
}

func TestSleep(t *testing.T) {
	state := func(engine int, word string, v int) string {
		return fmt.Sprintf("vllm:engine_sleep_state{engine=\"%d\",sleep_state=%q} %d\n", engine, word, v)
	}
	const load = "vllm:num_requests_running{engine=\"0\"} 0\n"
	for name, c := range map[string][2]string{
		"awake":            {load + state(0, "awake", 1) + state(0, "weights_offloaded", 0), "0: run=0"},
		"asleep":           {load + state(0, "awake", 0) + state(0, "weights_offloaded", 1), "0: run=0\npage: asleep=weights_offloaded"},
		"one of two":       {load + state(0, "awake", 1) + state(1, "discard_all", 1), "0: run=0\npage: asleep=discard_all"},
		"two words":        {load + state(0, "weights_offloaded", 1) + state(1, "discard_all", 1), "0: run=0\npage: asleep=weights_offloaded"},
		"two words, again": {load + state(0, "discard_all", 1) + state(1, "weights_offloaded", 1), "0: run=0\npage: asleep=weights_offloaded"},
		"endless word":     {load + state(0, strings.Repeat("z", cells.MaxWord+1), 1), "0: run=0"},
		"no word":          {load + state(0, "", 1), "0: run=0"},
	} {
		t.Run(name, func(t *testing.T) { newFeed(t, "vllm /metrics").want(c[0], c[1]) })
	}
}

func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		page, want string
		hints      Hints
	}{
		"used above capacity": {"tgi_batch_current_max_tokens 20\ntgi_batch_max_total_tokens 10\n", "0: used=20\npage: unusable=map[over_bound:1]", Hints{}},
		"used above the hint": {"tgi_batch_current_max_tokens 20\n", "0: used=20\npage: unusable=map[over_bound:1]", Hints{CapacityTokens: 10}},
		"running above hint":  {"tgi_batch_current_size 20\n", "0: run=20\npage: unusable=map[over_bound:1]", Hints{MaxRunning: 10}},
		"page before hint":    {"tgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 10\n", "0: used=5 cap=10 usage=0.5", Hints{CapacityTokens: 99}},
		"utilization":         {"tgi_batch_current_size 4\ntgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 10\n", "0: run=4 used=5 cap=10 max=5 usage=0.5 util=0.8", Hints{MaxRunning: 5}},
		"zero capacity":       {"tgi_batch_current_max_tokens 0\ntgi_batch_max_total_tokens 0\n", "0: used=0 cap=0", Hints{}},
		"absurd hint":         {"tgi_batch_current_size 4\n", "0: run=4", Hints{MaxRunning: -1, CapacityTokens: ingest.MaxCount + 1}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t, "tgi /metrics")
			f.hints = c.hints
			f.want(c.page, c.want)
		})
	}
}

// TestBadUsageIsNotComputed: an engine that says a usage of no use is not known
// better by its tokens.
func TestBadUsageIsNotComputed(t *testing.T) {
	const tokens = "sglang:num_running_reqs 1\nsglang:num_used_tokens 5\nsglang:max_total_num_tokens 10\n"
	newFeed(t, "sglang /metrics").want(tokens, "0: run=1 used=5 cap=10 usage=0.5")
	newFeed(t, "sglang /metrics").want(tokens+"sglang:token_usage NaN\n", "0: run=1 used=5 cap=10\npage: unusable=map[not_finite:1]")
}

func TestQueuesMustAllBeUsable(t *testing.T) {
	for page, want := range map[string]string{
		"sglang:num_queue_reqs 1\nsglang:num_decode_transfer_queue_reqs NaN\nsglang:num_decode_prealloc_queue_reqs 2\n": "0: prealloc=2\npage: unusable=map[not_finite:1]",
		"sglang:num_queue_reqs 1\nsglang:num_decode_retracted_queue_reqs 4\nsglang:num_retracted_reqs 8\n":              "0: wait=5 retracted=4",
		"sglang:num_running_reqs 1\nsglang:num_decode_prealloc_queue_reqs 2\n":                                          "0: run=1 prealloc=2",
		"sglang:num_running_reqs 1\nsglang:num_queue_reqs 1125899906842624\nsglang:num_decode_prealloc_queue_reqs 1\n":  "0: run=1 prealloc=1\npage: unusable=map[above_limit:1]",
	} {
		newFeed(t, "sglang /metrics").want(page, want)
	}
}

func TestPercentOfOldPages(t *testing.T) {
	for _, c := range []struct{ running, rate, want string }{
		{"num_requests_running", "87.5", "0: run=1 hit=0.875"},
		{"num_requests_running", "0.0", "0: run=1 hit=0"},
		{"num_requests_running", "0.5", "0: run=1\npage: unusable=map[unclear_unit:1]"},
		{"num_requests_running", "1.0", "0: run=1\npage: unusable=map[unclear_unit:1]"},
		{"num_requests_running", "1.5", "0: run=1 hit=0.015"},
		{"num_requests_running", "500", "0: run=1\npage: unusable=map[above_limit:1]"},
		{"num_running_reqs", "0.5", "0: run=1 hit=0.5"},
		{"num_running_reqs", "87.5", "0: run=1\npage: unusable=map[above_limit:1]"},
	} {
		newFeed(t, "sglang /metrics").want(fmt.Sprintf("sglang:%s 1\nsglang:cache_hit_rate %s\n", c.running, c.rate), c.want)
	}
}

func TestOpenMetricsPage(t *testing.T) {
	newFeed(t, "vllm /metrics").want("# TYPE vllm:num_requests_running gauge\r\n# UNIT x y\r\nvllm:num_requests_running 1 1700000000.5\r\n"+
		"vllm:generation_tokens_total 5 # {trace_id=\"a\"} 1 1.5\r\nvllm:generation_tokens_created 1.7e9\r\n# EOF", "0: run=1 #gen=5")
}

func TestTritonModels(t *testing.T) {
	const page = "nv_trt_llm_request_metrics{model=\"a\",request_type=\"active\",version=\"1\"} 1\n"
	newFeed(t, "triton /metrics").want(page+strings.Replace(page, `"1"`, `"2"`, 1), string(ReasonNoLoad))
	newFeed(t, "triton /metrics").want(page+strings.Replace(page, `"a"`, `"b"`, 1), string(ReasonSeveralModels))
}

func TestManyProcessesAreNotToldApart(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	for i := range 2 * cells.Window {
		page := "vllm:num_requests_running{pid=\"1000\"} 1\n"
		for pid := range 32 {
			page += fmt.Sprintf("vllm:num_requests_running{pid=\"%d\"} 7\n", pid)
		}
		page += fmt.Sprintf("vllm:num_requests_waiting %d\n", i)
		f.want(page, fmt.Sprintf("0: wait=%d\npage: unusable=map[ambiguous:1]", i))
	}
}

// TestFrozenProcessOfOneRank: the ranks of a page are judged each by itself.
func TestFrozenProcessOfOneRank(t *testing.T) {
	f := newFeed(t, "sglang /metrics")
	var last string
	for i := range cells.Window + 1 {
		last = f.rank(fmt.Sprintf("sglang:num_running_reqs{dp_rank=\"0\",pid=\"1\"} 5\n"+
			"sglang:num_running_reqs{dp_rank=\"1\",pid=\"1\"} 5\nsglang:num_running_reqs{dp_rank=\"1\",pid=\"2\"} %d\n"+
			"sglang:num_running_reqs{dp_rank=\"3\",pid=\"1\"} %d\nsglang:num_running_reqs{dp_rank=\"3\",pid=\"2\"} 6\n", i, i), 1)
	}
	if want := fmt.Sprintf("1: run=%d", cells.Window); last != want {
		t.Errorf("rank 1 is read as %s, want %s", last, want)
	}
	if got := show(&f.s.reading.Ranks[2]); got != fmt.Sprintf("3: run=%d", cells.Window) {
		t.Errorf("rank 3 is read as %s", got)
	}
}

func TestRecognize(t *testing.T) {
	for page, want := range map[string]Family{
		"sglang_x 1\n": SGLang, "# TYPE vllm:num_requests_running gauge\n": VLLM, "ray_vllm:a 1\n": VLLM, "trtllm:a 1\n": TensorRTLLM,
		"pytrtllm:a 1\n": TensorRTLLM, "nv_trt_llm_a 1\n": Triton, "tgi_a 1\n": TGI, "llamacpp:a 1\n": LlamaCPP,
		"[]": TensorRTLLM, `[{"iter": 1}]`: TensorRTLLM, "tgi_a 1\nvllm:a 1\nvllm:b 1\n": VLLM,
		"": "", "<html>": "", "{}": "", `[{"dp_rank": 0}]`: "", "[": "", "go_goroutines 1\n": "", "sglang:": "", "my_sglang:a 1\n": "",
	} {
		if got, ok := Recognize([]byte(page)); got != want || ok != (want != "") {
			t.Errorf("%q is recognized as %q, %t, want %q", page, got, ok, want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Endpoints() {
		if seen[e.Name] || !strings.HasPrefix(e.Name, string(e.Family)+" /") || !strings.HasPrefix(e.Path, "/") || e.Accept == "" {
			t.Errorf("endpoint %+v", e)
		}
		seen[e.Name] = true
	}
	Endpoints()[0] = nil
	if Endpoints()[0] == nil {
		t.Error("the table can be changed")
	}
}

// TestTable: kinds fit the inputs, and no name stands twice with one selector.
func TestTable(t *testing.T) {
	for _, rows := range [][]cells.Row{
		sglangRows, vllmRows, trtllmRows, tritonRows, tgiRows, llamaRows, loadsRows, getLoadRows, scalarRows, iterationRows,
	} {
		seen := map[string]bool{}
		for _, r := range rows {
			if (r.Kind == cells.Counter) != (r.To >= cells.FirstCounter) || len(r.Names) == 0 {
				t.Errorf("%q are of the wrong kind", r.Names)
			}
			for _, n := range r.Names {
				if seen[n] {
					t.Errorf("%s stands twice", n)
				}
				seen[n] = true
			}
		}
	}
}

func TestModelsAreRemembered(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	f.want("vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 1\nvllm:num_requests_running{engine=\"1\",model_name=\"a\\\"\"} 1\n", "0: run=1\n1: run=1\npage: models=a\",b")
	f.want("vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"\"} 1\n", "0: run=1\npage: models=a\"")
	f.want("vllm:num_requests_running{engine=\"0\",model_name=\"c\"} 1\n", "0: run=1\npage: models=c")
}

// vllm100KB is a page of about 100 KB with four engines, as vLLM makes it.
func vllm100KB(step int) []byte {
	var b strings.Builder
	each := func(name string, value float64) {
		fmt.Fprintf(&b, "# HELP vllm:%s Some words about %s.\n# TYPE vllm:%s gauge\n", name, name, name)
		for e := range 4 {
			fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %g\n", name, e, value)
		}
	}
	b.WriteString("process_start_time_seconds 1.7426e+09\n")
	for e := range 4 {
		fmt.Fprintf(&b, "vllm:cache_config_info{block_size=\"16\",engine=\"%d\",num_gpu_blocks=\"27000\"} 1.0\n", e)
	}
	each("num_requests_running", 8)
	each("num_requests_waiting", 3)
	each("kv_cache_usage_perc", 0.25)
	for _, name := range []string{
		"num_preemptions_total", "prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total",
		"prefix_cache_queries_total", "prefix_cache_hits_total",
	} {
		each(name, float64(100000+step))
	}
	for i := range 14 {
		for e := range 4 {
			labels := fmt.Sprintf("engine=\"%d\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"", e)
			for le := range 18 {
				fmt.Fprintf(&b, "vllm:request_part_%d_seconds_bucket{%s,le=\"%g\"} %d.0\n", i, labels, float64(le)*0.5, le*10)
			}
		}
	}
	return []byte(b.String())
}

func TestReadHardlyAllocates(t *testing.T) {
	pages := [][]byte{vllm100KB(0), vllm100KB(10)}
	s := NewSampler(endpoint(t, "vllm /metrics"))
	at := store.Instant(1)
	i := 0
	read := func() {
		at = at.Add(time.Second)
		if _, refusal := s.Read(pages[i%2], at, Hints{}); refusal != nil {
			t.Fatal(refusal)
		}
		i++
	}
	read()
	read()
	// The race detector keeps loops over functions from being inlined; without
	// it there are none.
	if allocs := testing.AllocsPerRun(20, read); allocs > 16 {
		t.Errorf("%g allocations for a page, want at most 16", allocs)
	}
}

func BenchmarkReadVLLM(b *testing.B) {
	page := vllm100KB(0)
	benchmark(b, "vllm /metrics", page)
}

func BenchmarkReadLoads(b *testing.B) {
	benchmark(b, "sglang /v1/loads", []byte(fixture(b, "sglang_loads_dp2.json")))
}

func benchmark(b *testing.B, name string, page []byte) {
	s := NewSampler(endpoint(b, name))
	at := store.Instant(1)
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Second)
		if _, refusal := s.Read(page, at, Hints{}); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

// TestCloneStays: what was read of a page stays as it was, whatever is read
// next.
func TestCloneStays(t *testing.T) {
	const page = "vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1\nvllm:num_requests_waiting{engine=\"0\"} -1\n"
	for name, next := range map[string]string{
		"a page":         "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 2\nvllm:num_requests_waiting{engine=\"0\"} NaN\n",
		"a refused page": "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} NaN\n",
		"no page":        "",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed(t, "vllm /metrics")
			r, _ := f.read(page)
			clone, before := r.Clone(), transcript(r, nil)
			f.text(next)
			if got := transcript(clone, nil); got != before || len(clone.Matches) != 1 {
				t.Errorf("it is now\n%s\nwant\n%s", got, before)
			}
			if got := transcript(r, nil); got == before {
				t.Errorf("the reading itself stayed:\n%s", got)
			}
		})
	}
}

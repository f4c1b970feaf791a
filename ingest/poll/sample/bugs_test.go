package sample

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

// Tests of public faults in reading load, by their numbers.

// vllmPage returns a page of a vLLM with one rank and no labels but the model.
func vllmPage(running, waiting int, more ...string) string {
	return fmt.Sprintf("vllm:num_requests_running{model_name=\"m\"} %d.0\nvllm:num_requests_waiting{model_name=\"m\"} %d.0\n%s\n",
		running, waiting, strings.Join(more, "\n"))
}

func TestBug01FourEnginesOnOnePage(t *testing.T) {
	page := ""
	for e, n := range []int{27, 5, 0, 0} {
		page += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\",model_name=\"m\"} %d.0\n", e, n)
	}
	want := "0: run=27\n1: run=5\n2: run=0\n3: run=0\npage: models=m"
	for seed := range uint64(6) {
		newFeed(t, "vllm /metrics").want(shuffled(page, seed), want)
	}
}

func TestBug02OnlyTheRankLabelIsARank(t *testing.T) {
	page := ""
	for r := range 8 {
		page += fmt.Sprintf("sglang:num_queue_reqs{dp_rank=\"%d\",pp_rank=\"0\",tp_rank=\"%d\"} %d\n", r, r, r)
		if r != 1 {
			page += fmt.Sprintf("sglang:gen_throughput{dp_rank=\"%d\",pid=\"%d\",pp_rank=\"0\",tp_rank=\"%d\"} 10\n", r, 910+r, r)
		}
	}
	r, refusal := newFeed(t, "sglang /metrics").read(page)
	if refusal != nil || len(r.Ranks) != 8 {
		t.Fatalf("read as %s", transcript(r, refusal))
	}
	for i := range r.Ranks {
		want := fmt.Sprintf("%d: wait=%d gen=10", i, i)
		if i == 1 {
			want = "1: wait=1"
		}
		if got := show(&r.Ranks[i]); got != want {
			t.Errorf("rank is read as %s, want %s", got, want)
		}
	}
}

func TestBug03RenamedGauge(t *testing.T) {
	const info = `vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1`
	for name, usage := range map[string]string{
		"old":  "vllm:gpu_cache_usage_perc 0.9",
		"both": "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.9",
		"new":  "vllm:kv_cache_usage_perc 0.9",
	} {
		t.Run(name, func(t *testing.T) {
			newFeed(t, "vllm /metrics").want(vllmPage(1, 0, info, usage), "0: run=1 wait=0 used=1440 cap=1600 usage=0.9\npage: models=m")
		})
	}
	t.Run("neither", func(t *testing.T) {
		newFeed(t, "vllm /metrics").want(vllmPage(1, 0, info), "0: run=1 wait=0 cap=1600\npage: models=m")
	})
}

func TestBug04AbsentIsNotZero(t *testing.T) {
	f := newFeed(t, "sglang /v1/loads")
	f.want(`{"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_uncached_tokens": 0}]}`, "0: run=0 waittok=0")
	newFeed(t, "vllm /metrics").want(vllmPage(0, 0), "0: run=0 wait=0\npage: models=m")
}

func TestBug05BothGenerationsOfLoads(t *testing.T) {
	const rank = `{"dp_rank": 0, "num_running_reqs": 7, "num_waiting_reqs": 5, "num_used_tokens": 700, "num_total_tokens": 1200}`
	const want = "0: run=7 wait=5 used=700 total=1200"
	newFeed(t, "sglang /v1/loads").want(`{"loads": [`+rank+`]}`, want)
	newFeed(t, "sglang /v1/loads").want(`{"dp_rank_count": 1, "loads": [`+rank+`], "aggregate": {"total_tokens": 1}}`, want)
	newFeed(t, "sglang /get_load").want(
		`[{"dp_rank": 0, "num_reqs": 12, "num_waiting_reqs": 5, "num_tokens": 1200, "num_pending_tokens": 500}]`, want)
}

func TestBug06ThreeShapesOfGetLoad(t *testing.T) {
	for page, want := range map[string]string{
		`[{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 9}]`: "0: run=2 wait=1 total=9",
		`[{"num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 9}]`:               "0: run=2 wait=1 total=9",
		`{"load": 33}`:  "0: total=33",
		`{"loads": 33}`: string(ReasonUnsupportedSchema),
		`[33]`:          string(ReasonUnsupportedSchema),
		`[]`:            string(ReasonNoData),
	} {
		newFeed(t, "sglang /get_load").want(page, want)
	}
}

func TestBug07RanksUnknownAreNotMultiplied(t *testing.T) {
	const page = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_used_tokens{model_name=\"m\"} 900\n"
	f := newFeed(t, "sglang /metrics")
	f.hints = Hints{DPSize: 8, CapacityTokens: 500, MaxRunning: 16}
	f.want(page, "0: run=4 used=900\npage: models=m ranks_unknown")
	f.hints.DPSize = 1
	f.hints.CapacityTokens = 1000
	f.want(page, "0: run=4 used=900 cap=1000 max=16 usage=0.9 util=0.9\npage: models=m")
	for name, page := range map[string]string{
		"sglang /get_load":      `{"load": 33}`,
		"tensorrt-llm /metrics": `[{"iter": 1, "numActiveRequests": 1}]`,
		"sglang /v1/loads":      `{"loads": [{"num_running_reqs": 1}]}`,
	} {
		f := newFeed(t, name)
		f.hints.DPSize = 2
		if r, refusal := f.read(page); refusal != nil || len(r.Ranks) != 1 || r.Flags != store.FlagRanksUnknown {
			t.Errorf("%s is read as %s", name, transcript(r, refusal))
		}
	}
}

func TestBug08NaN(t *testing.T) {
	newFeed(t, "sglang /metrics").want("sglang:num_running_reqs 1\nsglang:utilization NaN\nsglang:gen_throughput +Inf\nsglang:fwd_occupancy NaN\n",
		"0: run=1\npage: unusable=map[not_finite:2]")
}

func TestBug09RepeatedTypeLine(t *testing.T) {
	page := "# TYPE light counter\nlight{id=\"0\"} 1.0\n# TYPE light counter\nlight 2.0\n" + fixture(t, "sglang_metrics_pd_decode.prom")
	newFeed(t, "sglang /metrics").want(page,
		"0: run=3 wait=321 boot=0 inflight=0 prealloc=20 transfer=300\npage: models=m/pd unusable=map[repeated_type:1]")
}

func TestBug11UntypedAndEmptyPages(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	f.want("vllm:num_requests_running{engine=\"0\"} 8.0\nvllm:num_requests_running{engine=\"1\"} 8.0\n", "0: run=8\n1: run=8")
	f.want("", string(ReasonNoData))
	f.want("# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n", string(ReasonNoData))
}

func TestBug28EveryRankIsListed(t *testing.T) {
	// Ranks without load, in order of their numbers whatever they carry.
	newFeed(t, "sglang /v1/loads").want(`{"loads": [{"dp_rank": 2, "num_running_reqs": 1}, {"dp_rank": 1}, {"dp_rank": 0}]}`,
		"0:\n1:\n2: run=1")
}

func TestBug32HalfOfTheMetrics(t *testing.T) {
	newFeed(t, "vllm /metrics").want("vllm:num_requests_waiting 2\n", "0: wait=2")
}

func TestBug33OptionalMetricsAreNoErrors(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	for range 100 {
		if r, _ := f.read(vllmPage(1, 0)); len(r.Unusable) != 0 {
			t.Fatalf("unusable %v", r.Unusable)
		}
	}
}

func TestBug34MixedLabelSets(t *testing.T) {
	// A series without rank label beside those with one belongs to no rank.
	newFeed(t, "sglang /metrics").want("sglang:num_running_reqs{dp_rank=\"0\"} 1\nsglang:num_running_reqs{dp_rank=\"1\"} 2\nsglang:num_queue_reqs 3\n",
		"0: run=1\n1: run=2\npage: unusable=map[ambiguous:1]")
}

func TestBug35TwoModels(t *testing.T) {
	const page = "vllm:num_requests_running{model_name=\"model-a\"} 1\nvllm:num_requests_running{model_name=\"model-b\"} 2\nvllm:kv_cache_usage_perc 0.5\n"
	f := newFeed(t, "vllm /metrics")
	f.want(page, string(ReasonSeveralModels))
	f.hints.Models = []string{"model-b"}
	f.want(page, "0: run=2 usage=0.5\npage: models=model-a,model-b")
	f.hints.Models = []string{"model-a", "model-b"}
	f.want(page, string(ReasonSeveralModels))
	f.hints.Models = []string{"model-c"}
	f.want(page, string(ReasonSeveralModels))
}

func TestBug35NamesThatAreNone(t *testing.T) {
	for name, models := range map[string]string{"undefined": "", "": "", "/models/llama/": "\npage: models=/models/llama"} {
		newFeed(t, "vllm /metrics").want(fmt.Sprintf("vllm:num_requests_running{model_name=%q} 1\n", name), "0: run=1"+models)
	}
	f := newFeed(t, "vllm /metrics")
	f.hints.Models = []string{"/models/llama"}
	f.want("vllm:num_requests_running{model_name=\"/models/llama/\"} 1\nvllm:num_requests_running{model_name=\"b\"} 2\n",
		"0: run=1\npage: models=/models/llama,b")
}

func TestBug36PrefillWorkerIsNotIdle(t *testing.T) {
	newFeed(t, "sglang /metrics").want("sglang:num_running_reqs{engine_type=\"unified\"} 0\nsglang:num_queue_reqs 0\n"+
		"sglang:num_prefill_bootstrap_queue_reqs 4\nsglang:num_prefill_inflight_queue_reqs 12\n",
		"0: run=0 wait=4 boot=4 inflight=12")
}

func TestBug37TransferIsNotCountedTwice(t *testing.T) {
	newFeed(t, "sglang /v1/loads").want(`{"loads": [{"dp_rank": 0, "num_running_reqs": 12, "num_waiting_reqs": 31,
		"num_waiting_uncached_tokens": 7000, "num_used_tokens": 90000, "num_total_tokens": 97000,
		"disaggregation": {"mode": "decode", "decode_transfer_queue_reqs": 19}}]}`,
		"0: run=12 wait=31 waittok=7000 used=90000 total=97000 transfer=19")
}

func TestBug38NegativeIsUnknown(t *testing.T) {
	newFeed(t, "sglang /v1/loads").want(`{"loads": [{"dp_rank": 0, "num_running_reqs": 1, "num_waiting_reqs": -1, "num_used_tokens": null,
		"cache_hit_rate": -1.0, "utilization": -1}]}`, "0: run=1\npage: unusable=map[negative_value:3]")
	newFeed(t, "vllm /metrics").want(vllmPage(1, -1, "vllm:gpu_prefix_cache_hit_rate -1.0"),
		"0: run=1\npage: models=m unusable=map[negative_value:2]")
}

func TestBug39RatesOfOneProcessOnly(t *testing.T) {
	page := func(start float64, tokens int) string {
		return vllmPage(1, 0, fmt.Sprintf("process_start_time_seconds %f\nvllm:generation_tokens_total %d", start, tokens))
	}
	f := newFeed(t, "vllm /metrics")
	f.want(page(1000, 5000), "0: run=1 wait=0 #gen=5000\npage: process=1000 models=m")
	f.want(page(1000, 5100), "0: run=1 wait=0 gen=100 #gen=5100\npage: process=1000 models=m")
	f.want(page(1001, 3), "0: run=1 wait=0 #gen=3\npage: process=1001 restarted models=m")
	f.want(page(1001, 5), "0: run=1 wait=0 gen=2 #gen=5\npage: process=1001 models=m")
	// A jump up is no rate either when the process is another one.
	f.want(page(1002, 1e9), "0: run=1 wait=0 #gen=1000000000\npage: process=1002 restarted models=m")
}

func TestBug41IterationsOfTensorRT(t *testing.T) {
	f := newFeed(t, "tensorrt-llm /metrics")
	f.want("[]", string(ReasonNoData))
	var items []string
	for i := range 40 {
		n := (i + 17) % 40
		items = append(items, fmt.Sprintf(`{"iter": %d, "numActiveRequests": %d, "numQueuedRequests": 0}`, n, n))
	}
	f.want("["+strings.Join(items, ",")+"]", "0: run=39 wait=0")
	f.want("[]", string(ReasonNoData))
	f.want(`[{"iter": 2, "numActiveRequests": 1}]`, "0: run=1\npage: restarted")
	newFeed(t, "tensorrt-llm /prometheus/metrics").want("[]", string(ReasonJSONPage))
}

// TestBug41ExpositionInPlaceOfTheQueue: other servers have TensorRT-LLM's
// exposition under the path of the queue. Only the queue is marked as one.
func TestBug41ExpositionInPlaceOfTheQueue(t *testing.T) {
	f := newFeed(t, "tensorrt-llm /metrics")
	for page, queue := range map[string]bool{
		"trtllm_num_requests_running 1\n":             false,
		"trtllm:num_requests_running 1\n":             false,
		"pytrtllm:num_requests_running 1\n":           false,
		`[{"iter": 1, "numActiveRequests": 1}]`:       true,
		`[{"iter": 2, "numActiveRequests": 1}, null]`: true,
	} {
		if r, refusal := f.read(page); refusal != nil || r.Queue != queue || show(&r.Ranks[0]) != "0: run=1" {
			t.Errorf("%q is read as %s", page, transcript(r, refusal))
		}
	}
	for _, name := range []string{"sglang /v1/loads", "sglang /get_load"} {
		if r, refusal := newFeed(t, name).read(`{"loads": [{"dp_rank": 0, "num_running_reqs": 1}], "load": 1}`); refusal != nil || r.Queue {
			t.Errorf("%s is read as %s", name, transcript(r, refusal))
		}
	}
	f.want("vllm:num_requests_running 1\n", string(ReasonNotRecognised))
	f.want("trtllm_request_success_total 1\n", string(ReasonNoLoad))
}

func TestBug42NoKVCache(t *testing.T) {
	f := newFeed(t, "llama.cpp /metrics")
	f.hints.MaxRunning = 4
	f.want("llamacpp:requests_processing 3\nllamacpp:requests_deferred 9\n", "0: run=3 wait=9 max=4")
}

func TestBug43Prefixes(t *testing.T) {
	for page, c := range map[string][2]string{
		"sglang:num_running_reqs 1\n":                {"sglang /metrics", "0: run=1"},
		"sglang_num_running_reqs 1\n":                {"sglang /metrics", "0: run=1"},
		"vllm:num_requests_running 1\n":              {"vllm /metrics", "0: run=1"},
		"ray_vllm:num_requests_running 1\n":          {"vllm /metrics", "0: run=1"},
		"trtllm_num_requests_running 1\n":            {"tensorrt-llm /prometheus/metrics", "0: run=1"},
		"trtllm:num_requests_running 1\n":            {"tensorrt-llm /prometheus/metrics", "0: run=1"},
		"pytrtllm:num_requests_running 1\n":          {"tensorrt-llm /prometheus/metrics", "0: run=1"},
		"my_vllm:num_requests_running 1\n":           {"vllm /metrics", string(ReasonNotRecognised)},
		"num_requests_running 1\n":                   {"vllm /metrics", string(ReasonNotRecognised)},
		"sglang:num_running_reqs{dp_rank=\"0\"} 1\n": {"vllm /metrics", string(ReasonNotRecognised)},
	} {
		newFeed(t, c[0]).want(page, c[1])
	}
}

func TestBug44FrozenProcess(t *testing.T) {
	page := func(moving int) string {
		return fmt.Sprintf("sglang:num_running_reqs{pid=\"7\"} 99\nsglang:num_running_reqs{pid=\"8\"} %d\nsglang:num_queue_reqs 1\n", moving)
	}
	f := newFeed(t, "sglang /metrics")
	for i := range cells.Window {
		f.want(page(i%2), "0: wait=1\npage: unusable=map[ambiguous:1]")
	}
	f.want(page(5), "0: run=5 wait=1\npage: frozen_series")
	// It stays the one when it goes quiet as well.
	for range 3 * cells.Window {
		f.want(page(6), "0: run=6 wait=1\npage: frozen_series")
	}
	// And is not any more once the other one moves.
	f.want(strings.Replace(page(6), "99", "98", 1), "0: run=98 wait=1\npage: frozen_series")
	f.want(strings.Replace(page(7), "99", "98", 1), "0: wait=1\npage: unusable=map[ambiguous:1]")
}

func TestBug45AlternatingProcesses(t *testing.T) {
	page := func(start, tokens int) string {
		return vllmPage(start%10, 0, fmt.Sprintf("process_start_time_seconds %d\nvllm:generation_tokens_total %d", start, tokens))
	}
	f := newFeed(t, "vllm /metrics")
	f.want(page(1001, 100), "0: run=1 wait=0 #gen=100\npage: process=1001 models=m")
	f.want(page(1002, 900), "0: run=2 wait=0 #gen=900\npage: process=1002 restarted models=m")
	for i := range 3 {
		f.want(page(1001, 110+i), "0: run=1 wait=0\npage: process=1001 models=m unstable_source")
		f.want(page(1002, 910+i), "0: run=2 wait=0\npage: process=1002 models=m unstable_source")
	}
	// Ten pages of one process, and it is stable.
	for i := range cells.Window - 1 {
		f.want(page(1002, 920+i), "0: run=2 wait=0\npage: process=1002 models=m unstable_source")
	}
	f.want(page(1002, 1000), "0: run=2 wait=0 gen=72 #gen=1000\npage: process=1002 models=m")
}

// TestBug45AlternatingProcessesWithoutStartTime: where pages have no start
// time, or a new one each, three restarts within ten pages are several
// processes.
func TestBug45AlternatingProcessesWithoutStartTime(t *testing.T) {
	page := func(tokens int) string { return vllmPage(1, 0, fmt.Sprintf("vllm:generation_tokens_total %d", tokens)) }
	f := newFeed(t, "vllm /metrics")
	f.text(page(100))
	for i := range 2 {
		f.text(page(9000 + i))
		f.want(page(110+i), fmt.Sprintf("0: run=1 wait=0 #gen=%d\npage: restarted models=m", 110+i))
	}
	f.text(page(9010))
	for i := range 2 * cells.Window {
		f.want(page(120+i), "0: run=1 wait=0\npage: models=m unstable_source")
		f.want(page(9020+i), "0: run=1 wait=0\npage: models=m unstable_source")
	}
	// It is stable again ten pages after the last restart.
	for i := range cells.Window - 2 {
		f.want(page(9100+i), "0: run=1 wait=0\npage: models=m unstable_source")
	}
	f.want(page(9200), "0: run=1 wait=0 gen=93 #gen=9200\npage: models=m")
	// A restart is one again then.
	f.want(page(5), "0: run=1 wait=0 #gen=5\npage: restarted models=m")
}

func TestBug45NewStartTimeOnEachPage(t *testing.T) {
	page := func(i int) string {
		return vllmPage(1, 0, fmt.Sprintf("process_start_time_seconds %d\nvllm:generation_tokens_total %d", 1000+i, 10*i))
	}
	f := newFeed(t, "vllm /metrics")
	f.want(page(0), "0: run=1 wait=0 #gen=0\npage: process=1000 models=m")
	for i := 1; i < 3; i++ {
		f.want(page(i), fmt.Sprintf("0: run=1 wait=0 #gen=%d\npage: process=%d restarted models=m", 10*i, 1000+i))
	}
	for i := 3; i < 3*cells.Window; i++ {
		f.want(page(i), fmt.Sprintf("0: run=1 wait=0\npage: process=%d models=m unstable_source", 1000+i))
	}
}

// TestRestartsFarApart: a process that restarts now and then is the only one.
func TestRestartsFarApart(t *testing.T) {
	f := newFeed(t, "vllm /metrics")
	for i := range 6 * cells.Window {
		// Every fifth page: never three within ten.
		r, refusal := f.read(vllmPage(1, 0, fmt.Sprintf("vllm:generation_tokens_total %d", i%5)))
		if refusal != nil || r.Flags != 0 || r.Restarted != (i > 0 && i%5 == 0) {
			t.Fatalf("page %d is read as %s", i, transcript(r, refusal))
		}
	}
}

func TestBug68OddButRealValues(t *testing.T) {
	newFeed(t, "vllm /metrics").want("vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"0\"} 117\n"+
		"vllm:num_requests_running{engine=\"1\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 0\n", "0: run=0 wait=117\n1: run=0 wait=0")
}

func TestBug69CountersComeWithZeroLoad(t *testing.T) {
	// The store flags the worker by them.
	f := newFeed(t, "sglang /metrics")
	for i := range 3 {
		f.want(fmt.Sprintf("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:num_used_tokens 0\nsglang:generation_tokens_total %d\n", i),
			fmt.Sprintf("0: run=0 wait=0 used=0%s #gen=%d", []string{"", " gen=1", " gen=1"}[i], i))
	}
}

func TestBug70NullLoads(t *testing.T) {
	for page, endpoint := range map[string]string{
		`{"timestamp": "2026-03-01T10:00:00+00:00", "version": "0.5.15", "loads": []}`: "sglang /v1/loads",
		`{"loads": null}`:         "sglang /v1/loads",
		`{"loads": [null, null]}`: "sglang /v1/loads",
		`{"load": null}`:          "sglang /get_load",
		`[null]`:                  "sglang /get_load",
	} {
		newFeed(t, endpoint).want(page, string(ReasonNoData))
	}
}

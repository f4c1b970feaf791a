package face

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/sim/reporter"
)

// value returns one value of a page; series is a pattern.
func value(t *testing.T, page, series string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + series + ` (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no %s in:\n%s", series, page)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestPagesAgree reads one engine through the pages of every family.
func TestPagesAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := engine(t, "null", 1)
		s, err := e.Sample()
		if err != nil {
			t.Fatal(err)
		}
		r, c := s.Ranks[0], s.Counters[0]
		blocks := math.Ceil(float64(r.NumUsedTokens) / trtBlock)
		tests := []struct {
			pages        http.Handler
			path, series string
			want         float64
		}{
			{SGLang(e), "/metrics", `sglang:num_running_reqs\{.*\}`, float64(r.NumRunningReqs)},
			{SGLang(e), "/metrics", `sglang:num_queue_reqs\{.*\}`, float64(r.NumWaitingReqs)},
			{SGLang(e), "/metrics", `sglang:num_used_tokens\{.*\}`, float64(r.NumUsedTokens)},
			{SGLang(e), "/metrics", `sglang:realtime_tokens_total\{.*prefill_compute.*\}`, float64(c.PromptTokens - c.CachedTokens)},
			{SGLang(e), "/metrics", `sglang:generation_tokens_total\{.*\}`, float64(c.GeneratedTokens)},
			{VLLM(e), "/metrics", `vllm:num_requests_running\{.*\}`, float64(r.NumRunningReqs)},
			{VLLM(e), "/metrics", `vllm:num_requests_waiting\{.*\}`, float64(r.NumWaitingReqs)},
			{VLLM(e), "/metrics", `vllm:kv_cache_usage_perc\{.*\}`, r.TokenUsage},
			{VLLM(e), "/metrics", `vllm:prompt_tokens_total\{.*\}`, float64(c.PromptTokens)},
			{VLLM(e), "/metrics", `vllm:generation_tokens_total\{.*\}`, float64(c.GeneratedTokens)},
			{VLLM(e), "/metrics", `process_start_time_seconds`, float64(s.Started.Unix())},
			{TGI(e), "/metrics", `tgi_batch_current_size`, float64(r.NumRunningReqs)},
			{TGI(e), "/metrics", `tgi_queue_size`, float64(r.NumWaitingReqs)},
			{TGI(e), "/metrics", `tgi_batch_max_total_tokens`, reporter.CapacityTokens},
			{TGI(e), "/metrics", `tgi_request_generated_tokens_sum`, float64(c.GeneratedTokens)},
			{LlamaCPP(e), "/metrics", `llamacpp:requests_processing`, float64(r.NumRunningReqs)},
			{LlamaCPP(e), "/metrics", `llamacpp:requests_deferred`, float64(r.NumWaitingReqs)},
			{LlamaCPP(e), "/metrics", `llamacpp:tokens_predicted_total`, float64(c.GeneratedTokens)},
			{TensorRTLLM(e), "/prometheus/metrics", `trtllm_num_requests_running\{.*\}`, float64(r.NumRunningReqs)},
			{TensorRTLLM(e), "/prometheus/metrics", `trtllm_kv_cache_used_blocks\{.*\}`, blocks},
			{TensorRTLLM(e), "/prometheus/metrics", `trtllm_max_num_active_requests\{.*\}`, reporter.MaxRunning},
			{Triton(e), "/metrics", `nv_trt_llm_request_metrics\{.*"waiting".*\}`, float64(r.NumWaitingReqs)},
			{Triton(e), "/metrics", `nv_trt_llm_kv_cache_block_metrics\{.*"used".*\}`, blocks},
			{Triton(e), "/metrics", `nv_trt_llm_kv_cache_block_metrics\{.*"max".*\}`, reporter.CapacityTokens / trtBlock},
		}
		for _, tt := range tests {
			if got := value(t, body(t, tt.pages, tt.path), tt.series); math.Abs(got-tt.want) > 1e-3 {
				t.Errorf("%s is %v, want %v", tt.series, got, tt.want)
			}
		}
	})
}

// crowded returns an engine in which requests wait on some rank, with its last
// sample.
func crowded(t *testing.T) (Engine, reporter.Sample) {
	t.Helper()
	e, _ := engine(t, "null", 8)
	for range 600 {
		s, err := e.Sample()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Ranks {
			if r.NumWaitingReqs > 0 && r.NumRunningReqs > 0 {
				return e, s
			}
		}
		<-time.After(time.Second)
	}
	t.Fatal("no request waits in ten minutes")
	return e, reporter.Sample{}
}

// TestPartsAddUp: the reasons to wait are parts of what waits, what the prefix
// cache had are the cached tokens, and /get_load counts what runs and waits.
func TestPartsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := crowded(t)
		page := body(t, VLLM(e), "/metrics")
		var list []struct {
			Rank    int   `json:"dp_rank"`
			All     int64 `json:"num_reqs"`
			Waiting int64 `json:"num_waiting_reqs"`
		}
		if err := json.Unmarshal([]byte(body(t, SGLang(e), "/get_load")), &list); err != nil || len(list) != len(s.Ranks) {
			t.Fatalf("%+v, %v", list, err)
		}
		for i, r := range s.Ranks {
			of := func(name, labels string) float64 {
				return value(t, page, fmt.Sprintf(`%s\{engine="%d",.*%s.*\}`, name, i, labels))
			}
			all := of("vllm:num_requests_waiting", "")
			parts := of("vllm:num_requests_waiting_by_reason", "capacity") + of("vllm:num_requests_waiting_by_reason", "deferred")
			if all != float64(r.NumWaitingReqs) || parts != all {
				t.Errorf("rank %d: %v wait by reason, %v in all, want %d", i, parts, all, r.NumWaitingReqs)
			}
			c := s.Counters[i]
			if hits := of("vllm:prefix_cache_hits_total", ""); c.CachedTokens == 0 || hits != float64(c.CachedTokens) || of("vllm:prefix_cache_queries_total", "") != float64(c.PromptTokens) {
				t.Errorf("rank %d: %v hits of %d cached tokens", i, hits, c.CachedTokens)
			}
			if l := list[i]; l.Rank != i || l.All != r.NumRunningReqs+r.NumWaitingReqs || l.Waiting != r.NumWaitingReqs {
				t.Errorf("rank %d: /get_load says %+v, %d run", i, l, r.NumRunningReqs)
			}
		}
	})
}

func TestVLLMPageHasTheSizeOfARealOne(t *testing.T) {
	e, _ := engine(t, "null", 4)
	if n := len(body(t, VLLM(e), "/metrics")); n < 60_000 || n > 300_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestBug72VLLMFamilies(t *testing.T) {
	want := map[string]string{}
	for line := range strings.Lines(outside(t, "vllm_families_v0.26.0.txt")) {
		if name, kind, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "vllm:") {
			want[name] = kind
		}
	}
	e, _ := engine(t, "null", 2)
	page := read(t, body(t, VLLM(e), "/metrics"))
	got := map[string]string{}
	for name, kind := range page.kinds {
		if strings.HasPrefix(name, "vllm:") {
			got[name] = kind
		}
	}
	if len(want) < 30 {
		t.Fatalf("only %v to hold against", want)
	}
	equal(t, got, want)
}

func TestBug72VLLMLabels(t *testing.T) {
	e, _ := engine(t, "null", 4)
	got := read(t, body(t, VLLM(e), "/metrics"))
	for _, file := range []string{"vllm_v1_dp4_even.prom", "vllm_v1_dp4_imbalanced.prom", "vllm_v1_dp2_idle.prom"} {
		t.Run("bug 72: "+file, func(t *testing.T) {
			want := read(t, outside(t, file))
			same(t, got.labels, want.labels)
		})
	}
	t.Run("bug 72: vllm_v1_0.8_production_stack.prom", func(t *testing.T) {
		want := read(t, outside(t, "vllm_v1_0.8_production_stack.prom")).kinds
		for _, gone := range []string{"vllm:gpu_cache_usage_perc", "process_cpu_seconds_total", "process_max_fds"} {
			delete(want, gone)
		}
		same(t, got.kinds, want)
	})
	t.Run("bug 72: labels of cache_config_info", func(t *testing.T) {
		names := read(t, outside(t, "vllm_v0_datadog_fixture_trimmed.prom")).labels["vllm:cache_config_info"]
		ours := strings.Split(got.labels["vllm:cache_config_info"][0], ",")
		for _, name := range []string{"block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"} {
			if !strings.Contains(names[0], name) || !strings.Contains(strings.Join(ours, ","), name) {
				t.Errorf("%s: ours %v, theirs %v", name, ours, names)
			}
		}
	})
}

func TestBug72TGINames(t *testing.T) {
	want := read(t, outside(t, "tgi_ibm_adapter_quoted_dict_label.prom"))
	e, _ := engine(t, "null", 1)
	got := read(t, body(t, TGI(e), "/metrics"))
	same(t, got.kinds, want.kinds)
	same(t, got.labels, want.labels)
}

func TestBug72LlamaCPPNames(t *testing.T) {
	want := read(t, outside(t, "llamacpp_2025-06_no_kv_metrics.prom"))
	e, _ := engine(t, "null", 1)
	got := read(t, body(t, LlamaCPP(e), "/metrics"))
	same(t, got.kinds, want.kinds)
	for name := range got.kinds {
		if strings.Contains(name, "kv_cache") {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestLlamaCPPSlots(t *testing.T) {
	e, _ := engine(t, "null", 1)
	page := body(t, LlamaCPP(e), "/metrics")
	var slots []struct {
		Busy    bool `json:"is_processing"`
		Context int  `json:"n_ctx"`
	}
	if err := json.Unmarshal([]byte(body(t, LlamaCPP(e), "/slots")), &slots); err != nil {
		t.Fatal(err)
	}
	var props struct {
		Slots    int `json:"total_slots"`
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := json.Unmarshal([]byte(body(t, LlamaCPP(e), "/props")), &props); err != nil {
		t.Fatal(err)
	}
	busy := 0
	for _, s := range slots {
		if s.Busy {
			busy++
		}
	}
	if props.Slots != reporter.MaxRunning || len(slots) != props.Slots || props.Settings.Context != slots[0].Context {
		t.Errorf("%+v and %d slots", props, len(slots))
	}
	if want := value(t, page, "llamacpp:requests_processing"); math.Abs(float64(busy)-want) > 2 || busy == 0 {
		t.Errorf("%d busy slots, %v requests", busy, want)
	}
}

func TestBug72TensorRTLLMNames(t *testing.T) {
	want := read(t, strings.ReplaceAll(outside(t, "trtllm_dynamo_doc.prom"), "\n\n", "\n"))
	e, _ := engine(t, "null", 1)
	got := read(t, body(t, TensorRTLLM(e), "/prometheus/metrics"))
	same(t, got.kinds, want.kinds)
	same(t, got.labels, want.labels)
}

func TestBug72TensorRTLLMIterations(t *testing.T) {
	lines := strings.Split(outside(t, "trtllm_serve_metrics_keys.txt"), "\n")
	e, _ := engine(t, "null", 1)
	got := shape(t, body(t, TensorRTLLM(e), "/metrics"))
	count := 0
	for _, line := range lines {
		group, keys, nested := strings.Cut(line, ": ")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if !nested {
			group, keys = "", line
		} else {
			group = "." + group
		}
		for _, key := range strings.Fields(keys) {
			count++
			if _, ok := got["[]"+group+"."+key]; !ok {
				t.Errorf("%s%s is missing", group, key)
			}
		}
	}
	if count < 30 {
		t.Fatalf("only %d keys to hold against", count)
	}
	same(t, got, map[string]string{"": "array", "[].numActiveRequests": "int", "[].kvCacheStats": "object", "[].inflightBatchingStats": "object"})
	doc := shape(t, outside(t, "trtllm_serve_metrics_json_doc.json"))
	same(t, got, doc)
}

func TestReadingIterationsDrainsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := engine(t, "null", 1)
		h := TensorRTLLM(e)
		read := func() int {
			var list []map[string]any
			if err := json.Unmarshal([]byte(body(t, h, "/metrics")), &list); err != nil || list == nil {
				t.Fatal(list, err)
			}
			return len(list)
		}
		first, again := read(), read()
		<-time.After(iteration)
		if later := read(); first != 1 || again != 0 || later != 1 {
			t.Errorf("%d, %d at once, %d after an iteration", first, again, later)
		}
	})
}

func TestBug72TritonSeries(t *testing.T) {
	want := read(t, strings.ReplaceAll(outside(t, "trtllm_triton_inflight_batcher.prom"), `"tensorrt_llm"`, `"m"`))
	e, _ := engine(t, "null", 1)
	got := read(t, body(t, Triton(e), "/metrics"))
	equal(t, got.kinds, want.kinds)
	equal(t, got.labels, want.labels)
	equal(t, got.values, want.values)
}

func TestWhatEnginesSayOfThemselves(t *testing.T) {
	e, _ := engine(t, "null", 1)
	tests := []struct {
		name  string
		pages http.Handler
		path  string
		want  []string
	}{
		{"sglang", SGLang(e), "/v1/models", []string{`"id":"m"`, `"owned_by":"sglang"`, `"max_model_len":131072`}},
		{"sglang", SGLang(e), "/server_info", []string{`"version":"0.5.15"`, `"served_model_name":"m"`, `"load_reporter_zone":null`}},
		{"vllm", VLLM(e), "/v1/models", []string{`"id":"m"`, `"owned_by":"vllm"`}},
		{"vllm", VLLM(e), "/version", []string{`{"version":"0.26.0"}`}},
		{"tgi", TGI(e), "/info", []string{`"model_id":"m"`, `"version":"3.3.6"`, `"router":"text-generation-router"`}},
		{"llamacpp", LlamaCPP(e), "/v1/models", []string{`"id":"m"`, `"owned_by":"llamacpp"`}},
		{"llamacpp", LlamaCPP(e), "/props", []string{`"build_info":"b8681-sim"`, `"total_slots":48`}},
		{"llamacpp", LlamaCPP(e), "/health", []string{`{"status":"ok"}`}},
		{"trtllm", TensorRTLLM(e), "/v1/models", []string{`"id":"m"`, `"owned_by":"tensorrt_llm"`}},
		{"trtllm", TensorRTLLM(e), "/version", []string{`{"version":"1.3.0"}`}},
	}
	for _, tt := range tests {
		w := get(t, tt.pages, tt.path)
		for _, want := range tt.want {
			if !strings.Contains(w.Body.String(), want) || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s %s lacks %s: %s", tt.name, tt.path, want, w.Body)
			}
		}
	}
}

func TestLlamaCPPNamesItsStartInAHeader(t *testing.T) {
	e, _ := engine(t, "null", 1)
	s, _ := e.Sample()
	if got := get(t, LlamaCPP(e), "/metrics").Header().Get("Process-Start-Time-Unix"); got != strconv.FormatInt(s.Started.UnixMicro(), 10) {
		t.Errorf("%q", got)
	}
}

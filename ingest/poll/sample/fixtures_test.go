package sample

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/ingest/poll/sample/series"
)

// fixtures are the pages of testdata with what is read of them. Rates are
// unknown on a first page.
var fixtures = []struct{ endpoint, file, want string }{
	{"sglang /v1/loads", "sglang_loads_dp2.json", `
0: run=0 used=0 total=0 cap=100000 max=64 usage=0 hit=0 at=1772359199500
1: run=4 wait=2 waittok=900 used=12000 total=14000 cap=100000 max=64 boot=0 inflight=0 prealloc=0 transfer=0 retracted=0 usage=0.12 gen=210.5 hit=0.5 util=0.2 at=1772359199750 #uncached=5000 #busy=2000000
page: at=1772359200250 unusable=map[negative_value:2 not_a_number:1]`},
	{"sglang /v1/loads", "sglang_loads_aggregate.json", `
0: run=7 wait=5 used=700 total=1200 cap=1000 max=8 boot=3 inflight=12 usage=0.7 gen=70 hit=0.1 util=0.6
page: at=1772359200000`},
	{"sglang /v1/loads", "sglang_loads_dp2.prom", `
0: run=0 wait=3 transfer=3 at=1772359199500
1: run=4 wait=2 waittok=900 transfer=0 at=1772359199750 #uncached=5000 #busy=2000000`},
	{"sglang /get_load", "sglang_get_load_array.json", `
0: run=3 wait=0 total=90
1: run=4 wait=2 total=800`},
	{"sglang /get_load", "sglang_get_load_shim.json", `
0: run=4 wait=2 used=500 total=800
1: wait=2 total=40
page: unusable=map[negative_value:2]`},
	{"sglang /get_load", "sglang_get_load_scalar.json", `
0: total=1234`},
	{"sglang /metrics", "sglang_metrics_dp2.prom", `
0: run=2 wait=1 used=300 cap=1000 usage=0.3 gen=81.5 #uncached=400 #gen=900
1: run=5 wait=0 cap=1000 usage=0.5
page: models=m/one unusable=map[not_finite:1]`},
	{"sglang /metrics", "sglang_metrics_2024.prom", `
0: run=10 wait=4 cap=1000 max=50 usage=0.1 hit=0.125 util=0.2
page: models=m/old`},
	{"sglang /metrics", "sglang_metrics_pd_decode.prom", `
0: run=3 wait=321 boot=0 inflight=0 prealloc=20 transfer=300
page: models=m/pd`},
	{"vllm /metrics", "vllm_v0.prom", `
0: run=3 wait=0 used=402 cap=1600 usage=0.251 gen=55.5
page: process=1718100000 models=m/v0 unusable=map[negative_value:1]`},
	{"vllm /metrics", "vllm_v1_dp2.prom", `
0: run=27 wait=117 used=98765 cap=100000 usage=0.98765 #uncached=600 #gen=5000
1: run=0 wait=0 used=0 cap=8000 usage=0 #uncached=8 #gen=50
page: process=1750000100 models=m/v1`},
	{"vllm /metrics", "ray_vllm.prom", `
0: run=2 wait=1
page: models=m/ray unusable=map[negative_value:1]`},
	{"tensorrt-llm /prometheus/metrics", "trtllm.prom", `
0: run=4 wait=2 used=800 cap=3200 max=8 usage=0.25 hit=0.75 util=0.5 #uncached=200 #gen=1000
page: models=m/trt`},
	{"tensorrt-llm /metrics", "trtllm_iterations.json", `
0: run=5 wait=0 used=1600 cap=3200 max=16 usage=0.5 util=0.5`},
	{"tensorrt-llm /metrics", "trtllm_served_at_metrics.prom", `
0: run=5 wait=1 used=640 cap=6400 max=16 usage=0.1 hit=0.5 util=0.3125 #uncached=300 #gen=2000
page: models=m/trt`},
	{"triton /metrics", "triton.prom", `
0: run=8 wait=3 used=640 cap=2560 max=16 usage=0.25 util=0.5`},
	{"tgi /metrics", "tgi.prom", `
0: run=4 wait=6 used=2048 cap=8192 usage=0.25 #gen=900`},
	{"llama.cpp /metrics", "llamacpp.prom", `
0: run=3 wait=9 #uncached=143 #gen=673`},
}

func TestFixtures(t *testing.T) {
	for _, c := range fixtures {
		t.Run(c.file, func(t *testing.T) {
			newFeed(t, c.endpoint).want(fixture(t, c.file), strings.TrimPrefix(c.want, "\n"))
		})
	}
}

func TestEveryFixtureHasARow(t *testing.T) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		t.Fatal("no fixtures", err)
	}
	rows := map[string]bool{}
	for _, c := range fixtures {
		rows[c.file] = true
	}
	for _, f := range files {
		if !rows[filepath.Base(f)] {
			t.Errorf("no row reads %s", f)
		}
	}
}

// shuffled returns a page with its lines in another order.
func shuffled(page string, seed uint64) string {
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	return strings.Join(lines, "\n") + "\n"
}

func TestLineOrderDoesNotMatter(t *testing.T) {
	for _, c := range fixtures {
		if !strings.HasSuffix(c.file, ".prom") {
			continue
		}
		page := fixture(t, c.file)
		for seed := range uint64(5) {
			got := newFeed(t, c.endpoint).text(shuffled(page, seed))
			if got != strings.TrimPrefix(c.want, "\n") {
				t.Errorf("%s, shuffled, is read as\n%s", c.file, got)
			}
		}
		family, ok := Recognize([]byte(shuffled(page, 7)))
		if want := endpoint(t, c.endpoint).Family; !ok || family != want {
			t.Errorf("%s is recognized as %s, want %s", c.file, family, want)
		}
	}
}

// TestMatches shows how a field was found, and that the list is made once.
func TestMatches(t *testing.T) {
	want := map[string]map[string]string{
		"sglang_metrics_pd_decode.prom": {
			"boot": "sglang:num_prefill_prealloc_queue_reqs",
			"wait": "sglang:num_queue_reqs + sglang:num_prefill_prealloc_queue_reqs + sglang:num_decode_prealloc_queue_reqs + sglang:num_decode_transfer_queue_reqs",
		},
		"vllm_v1_dp2.prom":          {"used": "vllm:kv_cache_usage_perc * max_total_num_tokens", "cap": "vllm:cache_config_info", "usage": "vllm:kv_cache_usage_perc", "max": "hint"},
		"sglang_get_load_shim.json": {"run": "num_reqs - num_waiting_reqs", "used": "num_tokens - num_pending_tokens"},
		"trtllm.prom":               {"gen": "rate(trtllm_generation_tokens_total)", "wall": "rate(trtllm_prompt_tokens_total - trtllm_prompt_cached_tokens_total)", "util": nameUtilization},
		"sglang_loads_dp2.json":     {"transfer": "disaggregation.decode_transfer_queue_reqs"},
	}
	for _, c := range fixtures {
		if want[c.file] == nil {
			continue
		}
		f := newFeed(t, c.endpoint)
		f.hints.MaxRunning = 512
		page := fixture(t, c.file)
		f.text(page)
		r, refusal := f.read(page)
		if refusal != nil {
			t.Fatal(refusal)
		}
		got := map[string]string{}
		for _, m := range r.Matches {
			got[short[m.Field]] = m.Name
		}
		for field, name := range want[c.file] {
			if got[field] != name {
				t.Errorf("%s: %s is found as %q, want %q", c.file, field, got[field], name)
			}
		}
		first := &r.Matches[0]
		if r, _ = f.read(page); &r.Matches[0] != first {
			t.Errorf("%s: the matches are made anew though nothing changed", c.file)
		}
	}
}

// outside are the pages of the folder of inputs: which endpoint reads them as
// what, or why nothing reads them.
var outside = map[string]struct{ endpoint, want string }{
	"vllm_2023_first_format.prom": {"vllm /metrics", "no_load"},
	"vllm_v0_datadog_fixture_trimmed.prom": {"vllm /metrics", `
0: run=0 wait=0 used=0 cap=116496 usage=0 #uncached=53 #gen=7
page: process=1718140558 models=facebook/opt-125m`},
	"vllm_v0_headers_without_samples.prom": {"vllm /metrics", "no_data"},
	"vllm_empty_200_response.txt":          {"vllm /metrics", "no_data"},
	"vllm_v1_0.8_production_stack.prom": {"vllm /metrics", `
0: run=0 wait=0 usage=0
page: process=1742624006 models=Qwen/Qwen2.5-Coder-32B-Instruct`},
	"vllm_v1_dp2_idle.prom": {"vllm /metrics", `
0: run=0
1: run=0
page: models=deepseek-v4-flash-w8a8-mtp`},
	"vllm_v1_dp4_even.prom": {"vllm /metrics", `
0: run=8 wait=0
1: run=8 wait=0
2: run=8 wait=0
3: run=8 wait=0
page: models=qwen3_4b_pcy`},
	"vllm_v1_dp4_imbalanced.prom": {"vllm /metrics", `
0: run=27 wait=0
1: run=5
2: run=0
3: run=0
page: models=qwen3_4b_pcy`},
	"vllm_dynamo_doc.prom": {"vllm /metrics", "no_load"},
	"sglang_2024-09_wip_names.prom": {"sglang /metrics", `
0: run=0 wait=0 usage=0 hit=0.875878
page: models=google/gemma-2-9b-it`},
	"sglang_2024-11_name_label.prom": {"sglang /metrics", `
0: run=0 wait=0 cap=161721 max=4097 usage=0.01 gen=0 hit=0.1061 util=0.01 #gen=424549
page: models=google/gemma-2-9b-it`},
	"sglang_2024-12_name_label.prom": {"sglang /metrics", `
0: run=0 wait=0 used=0 usage=0 gen=0 hit=0 #gen=8
page: models=meta-llama/Llama-3.1-8B-Instruct`},
	"sglang_2025-03_model_name.prom": {"sglang /metrics", `
0: run=162 wait=2826 used=123859 usage=0.28 gen=86.5081 hit=0.00750755 #gen=7557572
page: models=meta-llama/Llama-3.1-8B-Instruct`},
	"sglang_2026-07_docs.prom": {"sglang /metrics", `
0: run=162 wait=2826 used=123859 usage=0.28 gen=86.5081 hit=0.00750755 #gen=7557572
page: models=meta-llama/Llama-3.1-8B-Instruct`},
	"sglang_2025-03_engine_type.prom": {"sglang /metrics", `
0: run=0 used=0 usage=0 gen=0
page: models=/shared/public/models/Meta-Llama-3-8B-Instruct`},
	// Only a throughput, which is no load.
	"sglang_dp2_rank_labels.prom": {"sglang /metrics", "no_load"},
	"sglang_2025-07_pd_prefill.prom": {"sglang /metrics", `
0: run=0 used=0 usage=0
page: models=/home/user/models/deepseek-ai__DeepSeek-R1`},
	"sglang_0.5.1_single.prom": {"sglang /metrics", `
0: run=1 used=1 usage=0 gen=0.837128
page: models=Qwen-32B`},
	"sglang_dp8_attention_pid_labels.prom": {"sglang /metrics", `
0: gen=35.4238
1: wait=0
2: gen=35.4188
3: wait=0 gen=141.755
4: gen=141.744
5: gen=140.765
6: gen=35.4425
7: gen=35.437
page: models=deepseek-r1`},
	"tgi_ibm_adapter_quoted_dict_label.prom": {"tgi /metrics", "\n0: run=0 wait=0"},
	"trtllm_triton_inflight_batcher.prom": {"triton /metrics", `
0: run=0 wait=1 used=64 cap=399296 max=512 usage=0.000160282 util=0.000160282`},
	"trtllm_dynamo_doc.prom": {"tensorrt-llm /prometheus/metrics", "no_load"},
	"trtllm_pytrtllm_prefix_pr.prom": {"tensorrt-llm /prometheus/metrics", `
0: run=1 wait=0 #gen=81896
page: models=deepseek-ai/DeepSeek-V3-0324`},
	"trtllm_serve_metrics_json_doc.json": {"tensorrt-llm /metrics", "no_load"},
	// An excerpt without the gauges of requests.
	"llamacpp_2025-06_no_kv_metrics.prom":           {"llama.cpp /metrics", "no_load"},
	"invalid_second_type_line.prom":                 {"sglang /metrics", "not_recognised"},
	"dynamo_runtime_system_metrics.prom":            {"vllm /metrics", "not_recognised"},
	"loads_sglang_new_dp4.json":                     {"sglang /v1/loads", newLoads(true, true)},
	"loads_sglang_new_dp4_core.json":                {"sglang /v1/loads", newLoads(true, false)},
	"loads_sglang_new_dp4.prom":                     {"sglang /v1/loads", newLoads(true, true)},
	"loads_sglang_2026-01_to_05_aggregate_dp4.json": {"sglang /v1/loads", newLoads(false, true)},
	"loads_sglang_2026-01_to_05_dp4.prom":           {"sglang /v1/loads", newLoads(false, true)},
	"loads_sglang_new_empty.json":                   {"sglang /v1/loads", "no_data"},
	"loads_sglang_new_pd_decode.json": {"sglang /v1/loads", `
0: run=12 wait=31 waittok=7000 used=90000 total=97000 cap=436000 max=512 boot=0 inflight=0 prealloc=0 transfer=19 retracted=0 usage=0.2064 gen=141.75 hit=0.3311 util=0.61 at=1784500000250`},
	"get_load_sglang_legacy_2025-10.json": {"sglang /get_load", `
0: run=27 wait=0 total=158000
1: run=5 wait=3 total=46200
2: run=0 wait=0 total=0
3: run=1 wait=117 total=525900`},
	"get_load_sglang_shim_2026-07.json": {"sglang /get_load", `
0: run=27 wait=0 used=158000 total=158000
1: run=5 wait=3 used=41000 total=46200
2: run=0 wait=0 used=0 total=0
3: run=1 wait=117 used=434900 total=525900`},
	"get_load_sglang_legacy_scalar_2025-05.json": {"sglang /get_load", "\n0: total=33"},
	// Pages that are not of load, or not pages; they must be refused.
	"sglang_server_info_worker_variants.jsonl": {"sglang /v1/loads", "bad_json"},
	"dynamo_active_load_two_publishers.txt":    {"vllm /metrics", "not_recognised"},
	"orca_headers.txt":                         {"vllm /metrics", "not_recognised"},
	"k8s_aibrix_endpointslice.yaml":            {"vllm /metrics", "not_recognised"},
	"k8s_endpointslice_kubernetes_docs.yaml":   {"vllm /metrics", "not_recognised"},
	"INDEX.md":                                 {"vllm /metrics", "not_recognised"},
	// Lists of names: TestFamilyLists reads them.
	"sglang_2025-10_families_captured.txt": {},
	"vllm_0.10.2_families_captured.txt":    {},
	"vllm_families_v0.26.0.txt":            {},
	"trtllm_serve_metrics_keys.txt":        {},
}

// newLoads is what all forms of the same four ranks say, with and without what
// only new servers and only full answers have.
func newLoads(fresh, queues bool) string {
	lines := []string{
		"0: run=27 wait=0 waittok=0 used=158000 total=158000 cap=436000 max=512 QUEUES usage=0.3624 gen=141.75 hit=0.3311 util=0.61 at=1784500000250",
		"1: run=5 wait=3 waittok=5200 used=41000 total=46200 cap=436000 max=512 QUEUES usage=0.094 gen=141.75 hit=0.3311 util=0.61 at=1784500000650",
		"2: run=0 wait=0 waittok=0 used=0 total=0 cap=436000 max=512 QUEUES usage=0 gen=141.75 hit=0.3311 util=0.61 at=1784500001050",
		"3: run=1 wait=117 waittok=91000 used=434900 total=525900 cap=436000 max=512 QUEUES usage=0.9975 gen=141.75 hit=0.3311 util=0.61 at=1784500001450",
	}
	for i, line := range lines {
		var kept []string
		for _, word := range strings.Fields(line) {
			switch {
			case word == "QUEUES" && queues:
				word = "boot=0 inflight=0 prealloc=0 transfer=0 retracted=0"
			case word == "QUEUES", !fresh && (strings.HasPrefix(word, "at=") || strings.HasPrefix(word, "waittok=")):
				continue
			}
			kept = append(kept, word)
		}
		lines[i] = strings.Join(kept, " ")
	}
	return "\n" + strings.Join(lines, "\n")
}

// extraInputs returns the folder of inputs from outside.
func extraInputs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if dir == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS is not set: pages from outside are not read")
	}
	return dir
}

// TestOutsidePages reads every file of the folder. One without a row fails.
func TestOutsidePages(t *testing.T) {
	dir := extraInputs(t)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	missing := maps.Clone(outside)
	for _, file := range files {
		name := file.Name()
		c, ok := outside[name]
		delete(missing, name)
		if !ok {
			t.Errorf("no row says how %s is read", name)
			continue
		}
		if c.endpoint == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if body, ok := strings.CutPrefix(string(page), "HTTP/1.1 200 OK\n"); ok {
				_, body, _ = strings.Cut(body, "\n\n")
				page = []byte(body)
			}
			got := withoutPageTime(newFeed(t, c.endpoint).text(string(page)))
			if want := strings.TrimPrefix(c.want, "\n"); got != want {
				t.Errorf("read as\n%s\nwant\n%s", got, want)
			}
			if strings.HasSuffix(name, ".prom") {
				if again := withoutPageTime(newFeed(t, c.endpoint).text(shuffled(string(page), 3))); again != got {
					t.Errorf("shuffled, it is read as\n%s", again)
				}
			}
		})
	}
	for name := range missing {
		t.Errorf("the folder has no %s", name)
	}
}

// withoutPageTime drops the line of /v1/loads that differs between captures of
// the same ranks.
func withoutPageTime(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "page: at=") }), "\n")
}

// TestFamilyLists: every name of load on the lists is in the table, and every
// name that looks like one and is none is not.
func TestFamilyLists(t *testing.T) {
	dir := extraInputs(t)
	for _, c := range []struct {
		file string
		text *series.Family
		rows []cells.Row
		want []string
	}{
		{"sglang_2025-10_families_captured.txt", sglangText, nil, []string{
			"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_used_tokens", "sglang:token_usage", "sglang:gen_throughput",
			"sglang:cache_hit_rate", "sglang:num_prefill_prealloc_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
			"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs", "sglang:utilization",
		}},
		{"vllm_0.10.2_families_captured.txt", vllmText, nil, []string{
			"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
			"vllm:cache_config_info", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
			"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total",
		}},
		{"vllm_families_v0.26.0.txt", vllmText, nil, []string{
			"vllm:cache_config_info", "vllm:engine_sleep_state", "vllm:generation_tokens_total", "vllm:kv_cache_usage_perc",
			"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total",
			"vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_total",
		}},
		{"trtllm_serve_metrics_keys.txt", nil, iterationRows, []string{
			"numActiveRequests", "numQueuedRequests", "maxNumActiveRequests", "usedNumBlocks", "maxNumBlocks", "tokensPerBlock", "cacheHitRate", "iter",
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			listed := strings.FieldsFunc(string(page), func(r rune) bool { return strings.ContainsRune(" \n,()", r) })
			var used []string
			for _, name := range listed {
				if inTable(name, c.text, c.rows) && !slices.Contains(used, name) {
					used = append(used, name)
				}
			}
			if len(slices.DeleteFunc(slices.Clone(used), func(n string) bool { return slices.Contains(c.want, n) })) > 0 || len(used) != len(c.want) {
				t.Errorf("the table has %q of the list\nwant %q", used, c.want)
			}
		})
	}
}

func inTable(name string, text *series.Family, rows []cells.Row) bool {
	if text != nil {
		return slices.ContainsFunc(text.Names(), func(n string) bool {
			metric, _, _ := strings.Cut(n, "{")
			return metric == name
		})
	}
	return slices.ContainsFunc(rows, func(r cells.Row) bool {
		return slices.ContainsFunc(r.Names, func(n string) bool { return n == name || strings.HasSuffix(n, "."+name) })
	})
}

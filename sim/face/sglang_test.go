package face

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/sim/reporter"
)

func TestLoadsQueries(t *testing.T) {
	e, _ := engine(t, "null", 3)
	tests := []struct {
		query string
		code  int
		ranks int
		parts string // beside the core keys
	}{
		{"", 200, 3, "memory disaggregation queues"},
		{"?include=all", 200, 3, "memory disaggregation queues"},
		{"?include=core", 200, 3, ""},
		{"?include=core,queues", 200, 3, "queues"},
		{"?include=memory,%20disagg", 200, 3, "memory disaggregation"},
		{"?include=spec,lora", 200, 3, ""},
		{"?include=core,everything", 400, 0, ""},
		{"?include=core,", 400, 0, ""},
		{"?dp_rank=1", 200, 1, "memory disaggregation queues"},
		{"?dp_rank=3", 200, 0, ""},
		{"?dp_rank=-1", 200, 0, ""},
		{"?dp_rank=x", 400, 0, ""},
		{"?dp_rank=", 400, 0, ""},
	}
	for _, tt := range tests {
		w := get(t, SGLang(e), "/v1/loads"+tt.query)
		if w.Code != tt.code {
			t.Errorf("%q answers %d: %s", tt.query, w.Code, w.Body)
			continue
		}
		var page struct {
			Type  string
			Loads []map[string]any
		}
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		if tt.code == 400 && page.Type != "Bad Request" || len(page.Loads) != tt.ranks || page.Loads == nil && tt.code == 200 {
			t.Errorf("%q: %s", tt.query, w.Body)
		}
		for _, load := range page.Loads {
			var parts []string
			for _, key := range []string{"memory", "disaggregation", "queues"} {
				if load[key] != nil {
					parts = append(parts, key)
				}
			}
			if got := strings.Join(parts, " "); got != tt.parts {
				t.Errorf("%q has %q", tt.query, got)
			}
		}
	}
	if rank := shape(t, body(t, SGLang(e), "/v1/loads?dp_rank=3")); rank[".loads"] != "array" {
		t.Errorf("%v", rank)
	}
}

// FuzzLoadsQuery sends any query: the answer is a page or a refusal.
func FuzzLoadsQuery(f *testing.F) {
	f.Add("include=core&dp_rank=0&format=prometheus")
	f.Add("include=,&dp_rank=99999999999999999999&format=xml")
	f.Fuzz(func(t *testing.T, query string) {
		e, _ := engine(t, "null", 2)
		r := httptest.NewRequest(http.MethodGet, "/v1/loads", nil)
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		SGLang(e).ServeHTTP(w, r)
		text := r.URL.Query().Get("format") == "prometheus" && w.Code == http.StatusOK
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest || !text && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: %d %s", query, w.Code, w.Body)
		}
	})
}

// sglangRank is a rank of /v1/loads.
type sglangRank struct {
	Time     float64  `json:"timestamp"`
	Running  int64    `json:"num_running_reqs"`
	Waiting  int64    `json:"num_waiting_reqs"`
	Used     int64    `json:"num_used_tokens"`
	Total    int64    `json:"num_total_tokens"`
	Uncached int64    `json:"num_waiting_uncached_tokens"`
	Usage    *float64 `json:"token_usage"`
	Prefill  *int64   `json:"total_prefill_uncached_tokens"`
	Busy     *int64   `json:"total_prefill_busy_us"`
	Disagg   struct {
		Mode     string
		Inflight int64 `json:"prefill_inflight_queue_reqs"`
		Transfer int64 `json:"decode_transfer_queue_reqs"`
	} `json:"disaggregation"`
}

func loads(t *testing.T, e Engine) (ranks []sglangRank) {
	t.Helper()
	var page struct{ Loads []sglangRank }
	if err := json.Unmarshal([]byte(body(t, SGLang(e), "/v1/loads")), &page); err != nil {
		t.Fatal(err)
	}
	return page.Loads
}

func TestOnlyMainCountsPrefills(t *testing.T) {
	e, _ := engine(t, "null", 1)
	if r := loads(t, e)[0]; r.Prefill != nil || r.Busy != nil {
		t.Errorf("a release counts prefills: %+v", r)
	}
	e.Pushes = true
	if r := loads(t, e)[0]; r.Prefill == nil || *r.Prefill == 0 || r.Busy == nil || *r.Busy == 0 {
		t.Errorf("main counts no prefills: %+v", r)
	}
}

// TestBug36PrefillRunsNothing: what a prefill engine holds is in flight.
func TestBug36PrefillRunsNothing(t *testing.T) {
	e, _ := engine(t, "prefill", 2)
	var used, inflight int64
	for i, r := range loads(t, e) {
		used, inflight = used+r.Used, inflight+r.Disagg.Inflight
		if r.Running != 0 || r.Disagg.Transfer != 0 || r.Disagg.Mode != "prefill" || (r.Used > 0) != (r.Disagg.Inflight > 0) {
			t.Errorf("rank %d: %+v", i, r)
		}
	}
	if used == 0 || inflight == 0 {
		t.Errorf("%d tokens used by %d requests", used, inflight)
	}
	page := body(t, SGLang(e), "/metrics")
	for rank := range 2 {
		labels := fmt.Sprintf(`{dp_rank="%d",engine_type="unified",model_name="m",pp_rank="0",tp_rank="%d"}`, rank, rank)
		if !strings.Contains(page, "sglang:num_running_reqs"+labels+" 0.0\n") {
			t.Errorf("rank %d runs requests:\n%s", rank, page)
		}
	}
}

// TestBug37DecodeCountsTransfersOnce: what waits in a decode engine is in its
// transfer queue, and none of it is uncached.
func TestBug37DecodeCountsTransfersOnce(t *testing.T) {
	e, _ := engine(t, "decode", 4)
	for i, r := range loads(t, e) {
		if r.Disagg.Transfer != r.Waiting || r.Uncached != 0 || r.Disagg.Inflight != 0 || r.Disagg.Mode != "decode" || r.Running == 0 {
			t.Errorf("rank %d: %+v", i, r)
		}
	}
}

func TestNaNIsNullInJSON(t *testing.T) {
	e, faults := engine(t, "null", 2)
	faults.NaN.Store(true)
	if r := loads(t, e); r[0].Usage != nil || r[1].Usage == nil {
		t.Errorf("%+v", r)
	}
	if page := body(t, SGLang(e), "/v1/loads?format=prometheus"); !strings.Contains(page, "sglang_token_usage{dp_rank=\"0\"} nan\n") {
		t.Errorf("no NaN:\n%s", page)
	}
}

func TestFailingLoadsKeepTheLastSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, faults := engine(t, "null", 1)
		before := loads(t, e)[0]
		faults.Fail.Store(true)
		<-time.After(time.Second)
		if now := loads(t, e)[0]; now.Used != before.Used || now.Time != before.Time {
			t.Errorf("%+v, before %+v", now, before)
		}
		body(t, SGLang(e), "/get_load")
		if w := get(t, SGLang(e), "/metrics"); w.Code != http.StatusInternalServerError {
			t.Errorf("/metrics answers %d", w.Code)
		}
	})
}

// TestBug06LoadsHaveTheShapeOfTheEngine holds the bodies against those of the
// real serialiser: the same keys, and values of the same kinds.
func TestBug06LoadsHaveTheShapeOfTheEngine(t *testing.T) {
	tests := []struct{ file, mode, path string }{
		{"loads_sglang_new_dp4.json", "null", "/v1/loads"},
		{"loads_sglang_new_dp4_core.json", "null", "/v1/loads?include=core"},
		{"loads_sglang_new_empty.json", "null", "/v1/loads?dp_rank=4"},
		{"loads_sglang_new_pd_decode.json", "decode", "/v1/loads"},
		{"get_load_sglang_shim_2026-07.json", "null", "/get_load"},
	}
	for _, tt := range tests {
		t.Run("bug 6: "+tt.file, func(t *testing.T) {
			want := outside(t, tt.file)
			e, _ := engine(t, tt.mode, 4)
			equal(t, shape(t, body(t, SGLang(e), tt.path)), shape(t, want))
		})
	}
}

// TestBug06OlderLoads holds the ranks of older generations against ours: they
// have the same keys but for those that are gone.
func TestBug06OlderLoads(t *testing.T) {
	e, _ := engine(t, "null", 4)
	t.Run("bug 6: aggregate generation", func(t *testing.T) {
		want := shape(t, outside(t, "loads_sglang_2026-01_to_05_aggregate_dp4.json"))
		for key := range want {
			if strings.HasPrefix(key, ".aggregate") || key == ".dp_rank_count" || key == ".loads[].num_total_reqs" {
				delete(want, key)
			}
		}
		got := shape(t, body(t, SGLang(e), "/v1/loads"))
		delete(got, ".loads[].timestamp")
		delete(got, ".loads[].num_waiting_uncached_tokens")
		equal(t, got, want)
	})
	t.Run("bug 6: array of /get_load", func(t *testing.T) {
		same(t, shape(t, body(t, SGLang(e), "/get_load")), shape(t, outside(t, "get_load_sglang_legacy_2025-10.json")))
	})
}

func TestBug72LoadsPage(t *testing.T) {
	want := read(t, outside(t, "loads_sglang_new_dp4.prom"))
	e, _ := engine(t, "null", 4)
	got := read(t, body(t, SGLang(e), "/v1/loads?format=prometheus"))
	equal(t, got.kinds, want.kinds)
	equal(t, got.labels, want.labels)
	equal(t, got.values, want.values)
}

// TestBug72SGLangNames holds /metrics against dumps of engines. Families that
// were renamed or removed, or that only come with features which are not
// simulated, are named here.
func TestBug72SGLangNames(t *testing.T) {
	e, _ := engine(t, "null", 4)
	got := read(t, body(t, SGLang(e), "/metrics"))
	gone := []string{
		"sglang:time_per_output_token_seconds", "sglang:func_latency_seconds", "sglang:spec_num_steps", "sglang:spec_num_draft_tokens",
		"sglang:num_prefill_prealloc_queue_reqs", "sglang:swa_token_usage", "sglang:avg_request_queue_latency", "sglang:total_retracted_reqs",
		"sglang:engine_startup_time", "sglang:engine_load_weights_time",
	}
	for _, file := range []string{"sglang_2026-07_docs.prom", "sglang_0.5.1_single.prom", "sglang_2025-07_pd_prefill.prom", "sglang_2025-03_engine_type.prom"} {
		t.Run("bug 72: "+file, func(t *testing.T) {
			want := read(t, outside(t, file)).kinds
			for name := range want {
				if slices.Contains(gone, name) {
					delete(want, name)
				}
			}
			if len(want) < 3 {
				t.Fatalf("only %v to hold against", want)
			}
			same(t, got.kinds, want)
		})
	}
	t.Run("bug 72: sglang_2025-10_families_captured.txt", func(t *testing.T) {
		for line := range strings.Lines(outside(t, "sglang_2025-10_families_captured.txt")) {
			words := strings.Fields(line)
			if words[0] != "gauge" {
				continue
			}
			for _, name := range words[1:] {
				if got.kinds[name] != "gauge" && !slices.Contains(gone, name) {
					t.Errorf("%s is %q", name, got.kinds[name])
				}
			}
		}
	})
	t.Run("bug 72: labels of ranks", func(t *testing.T) {
		want := read(t, outside(t, "sglang_dp2_rank_labels.prom"))
		same(t, got.labels, want.labels)
		if ranks := got.values["sglang:gen_throughput dp_rank"]; len(ranks) != 4 {
			t.Errorf("ranks %v", ranks)
		}
	})
}

func TestServerInfoHasAStateForEachRank(t *testing.T) {
	e, _ := engine(t, "null", 3)
	var info struct {
		States []struct {
			Running int `json:"effective_max_running_requests_per_dp"`
			Memory  struct {
				Capacity int `json:"token_capacity"`
			} `json:"memory_usage"`
		} `json:"internal_states"`
	}
	if err := json.Unmarshal([]byte(body(t, SGLang(e), "/server_info")), &info); err != nil || len(info.States) != 3 {
		t.Fatalf("%+v, %v", info, err)
	}
	for _, s := range info.States {
		if s.Running != reporter.MaxRunning || s.Memory.Capacity != reporter.CapacityTokens {
			t.Errorf("%+v", s)
		}
	}
}

// TestServerInfoNamesPorts has the keys that routers read, of the kinds that
// the engine writes, beside those that are always there.
func TestServerInfoNamesPorts(t *testing.T) {
	e, _ := engine(t, "null", 4)
	plain := shape(t, body(t, SGLang(e), "/server_info"))
	if plain[".load_reporter_port"] != "<nil>" || plain[".kv_events.load_topic"] != "" || plain[".version"] != "string" {
		t.Errorf("without ports: %v", plain)
	}
	for _, tt := range []struct {
		reporter, load int
		version        string
		want           map[string]string
	}{
		{0, 0, sglangReleased, nil},
		{31_000, 0, sglangMain, map[string]string{".load_reporter_port": "int"}},
		{0, 5561, sglangLoadStat, map[string]string{".kv_events.load_endpoint_port_base": "int", ".kv_events.load_topic": "string"}},
	} {
		e.ReporterPort, e.LoadPort = tt.reporter, tt.load
		text := body(t, SGLang(e), "/server_info")
		want := maps.Clone(plain)
		maps.Copy(want, tt.want)
		equal(t, shape(t, text), want)
		var info struct {
			Version  string
			Reporter int `json:"load_reporter_port"`
			Events   struct {
				Load int `json:"load_endpoint_port_base"`
			} `json:"kv_events"`
		}
		if err := json.Unmarshal([]byte(text), &info); err != nil || info.Version != tt.version || info.Reporter != tt.reporter || info.Events.Load != tt.load {
			t.Errorf("%+v, %v, want %+v", info, err, tt)
		}
		if rank := shape(t, body(t, SGLang(e), "/v1/loads")); rank[".loads[].total_prefill_busy_us"] != "" {
			t.Errorf("a page of %s has what only main has", tt.version)
		}
	}
}

func TestBarePages(t *testing.T) {
	for path, code := range map[string]int{"/health": 200, "/metrics": 404, "/v1/models": 404} {
		if w := get(t, Bare(), path); w.Code != code {
			t.Errorf("%s answers %d", path, w.Code)
		}
	}
}

func TestBug72ServerInfo(t *testing.T) {
	e, _ := engine(t, "prefill", 1)
	e.ReporterPort, e.LoadPort = 31_000, 5561
	got := shape(t, body(t, SGLang(e), "/server_info"))
	for line := range strings.Lines(outside(t, "sglang_server_info_worker_variants.jsonl")) {
		want := shape(t, line)
		delete(want, ".disaggregation_bootstrap_port")
		same(t, got, want)
	}
}

package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// TestUpstreamShape holds the bytes of the upstream shape: names, order, nulls
// and time format.
func TestUpstreamShape(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		whole, missing, partial, down := newWorker("a:1"), newWorker("b:1"), newWorker("c:1"), newWorker("d:1")
		whole.Role = store.RolePrefill
		p.add(whole, missing, partial, down)
		l := p.newLoad("a:1", 42, 2, 1)
		l.ReportUnixMs, l.LastError = 1795982044732, "line\nbreak"
		l.Ranks[0].SetFloat(store.GenThroughput, 10)
		p.slots["a:1"].Offer(1, l)
		l = p.newLoad("c:1", 1, 2, 1)
		l.Ranks[0] = store.Rank{DPRank: 0}
		l.Ranks[0].SetCount(store.NumRunningReqs, 1)
		p.slots["c:1"].Offer(1, l)
		l = p.newLoad("d:1", 1, 2, 0)
		l.Status = store.StatusUnreachable
		p.slots["d:1"].Offer(1, l)
		p.after(settle + 990*time.Millisecond)

		got := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot?shape=upstream").body
		got = regexp.MustCompile(`"version":\d+`).ReplaceAllString(got, `"version":7`)
		tail := `"received_at":"2000-01-01T00:00:00.000Z","expires_at":"2000-01-01T00:00:03.000Z"`
		want := `{"enabled":true,"version":7,"captured_at":"2000-01-01T00:00:01.000Z","workers":[` +
			`{"worker_id":"a:1","url":"http://a:1","mode":"prefill","model_ids":["qwen3"],"freshness":"fresh",` +
			`"source_instance_id":"source-a:1","sequence_id":42,"report_time_unix_ms":1795982044732,"last_error":"line\nbreak",` + tail +
			`,"aggregate":{"rank_count":1,"num_running_reqs":2,"num_waiting_reqs":2,"total_requests":4,"num_waiting_uncached_tokens":2,` +
			`"num_used_tokens":2,"num_total_tokens":2,"max_total_num_tokens":1000,"max_running_requests":100,"free_tokens":998,` +
			`"available_slots":98,"queue_pressure":0.2,"request_utilization":0.02,"weighted_token_usage":0.5,"max_rank_token_usage":0.5,` +
			`"gen_throughput":10.0,"prefill_throughput":0.0},` +
			`"ranks":[{"dp_rank":0,"snapshot_time_unix_ms":123,"num_running_reqs":2,"num_waiting_reqs":2,"num_waiting_uncached_tokens":2,` +
			`"num_used_tokens":2,"num_total_tokens":2,"max_total_num_tokens":1000,"max_running_requests":100,"token_usage":0.5,` +
			`"gen_throughput":10.0,"cache_hit_rate":0.5,"utilization":0.5,"prefill_throughput":0.0}]},` +
			`{"worker_id":"b:1","url":"http://b:1","mode":"plain","model_ids":["qwen3"],"freshness":"missing","source_instance_id":null,` +
			`"sequence_id":null,"report_time_unix_ms":null,"last_error":null,"received_at":null,"expires_at":null,"aggregate":null,"ranks":[]},` +
			`{"worker_id":"c:1","url":"http://c:1","mode":"plain","model_ids":["qwen3"],"freshness":"fresh","source_instance_id":"source-c:1",` +
			`"sequence_id":1,"report_time_unix_ms":946684800025,"last_error":null,` + tail + `,"aggregate":null,"ranks":[]},` +
			`{"worker_id":"d:1","url":"http://d:1","mode":"plain","model_ids":["qwen3"],"freshness":"unreachable","source_instance_id":"source-d:1",` +
			`"sequence_id":1,"report_time_unix_ms":946684800025,"last_error":null,` + tail + `,"aggregate":null,"ranks":[]}]}`
		if got != want {
			p.Errorf("got\n%s\nwant\n%s", strings.ReplaceAll(got, `},{"w`, "},\n{\"w"), strings.ReplaceAll(want, `},{"w`, "},\n{\"w"))
		}
	})
}

// TestExtraKeys checks what the snapshot shows beside the upstream keys.
func TestExtraKeys(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		a := newWorker("a:1")
		a.Zone, a.Labels, a.Draining = "eu", map[string]string{"z": "\"1\"", "a": "é"}, true
		p.add(a, newWorker("b:1"))
		l := p.newLoad("a:1", 1, 2, 1)
		l.Ranks[0] = store.Rank{}
		l.Ranks[0].SetCount(store.NumRunningReqs, 0)
		l.Flags = store.FlagRatioAboveOne
		p.slots["a:1"].Offer(1, l)
		p.after(settle + 490*time.Millisecond)

		m := decode(p, p.do(p.client(true), http.MethodGet, "/v1/load_monitor/snapshot").body)
		want(p, m, map[string]any{"lineage": "lineage-1", "epoch": 7.0, "warming": true,
			"published_at": "2000-01-01T00:00:00.010Z", "captured_at": "2000-01-01T00:00:00.500Z",
			"server_id": "server-1", "stale_after_ms": 3000.0})
		heard, silent := m["workers"].([]any)[0].(map[string]any), m["workers"].([]any)[1].(map[string]any)
		want(p, heard, map[string]any{"dialect": "push", "freshness_reason": nil, "age_ms": 500.0, "valid_for_ms": 2500.0,
			"zone": "eu", "draining": true, "partial": true, "flags": []any{"ratio_above_one"},
			"labels": map[string]any{"z": "\"1\"", "a": "é"}})
		want(p, heard["ranks"].([]any)[0].(map[string]any), map[string]any{"num_running_reqs": 0.0, "num_waiting_reqs": nil,
			"prefill_throughput": nil, "decode_prealloc_reqs": nil, "prefill_throughput_wall": nil})
		want(p, heard["aggregate"].(map[string]any), map[string]any{"num_running_reqs": 0.0, "total_requests": nil,
			"prefill_throughput": nil, "token_usage_imbalance": nil, "request_imbalance": nil, "prefill_wait_seconds": nil})
		want(p, silent, map[string]any{"freshness": "missing", "freshness_reason": "no_report", "age_ms": nil,
			"valid_for_ms": nil, "zone": nil, "labels": map[string]any{}, "draining": false, "partial": false, "flags": []any{},
			"aggregate": nil, "ranks": []any{}})
		want(p, m["pools"].([]any)[0].(map[string]any), map[string]any{"model": "qwen3", "mode": "plain", "workers": 2.0,
			"fresh": 1.0, "missing": 1.0, "stale": 0.0, "unreachable": 0.0, "coverage": 0.5, "expected": 2.0, "heard": 1.0})
	})
}

// want checks some keys of an object.
func want(p *plane, got, want map[string]any) {
	p.Helper()
	for k, v := range want {
		g, there := got[k]
		if !there || fmt.Sprint(g) != fmt.Sprint(v) {
			p.Errorf("%s: got %v (there: %t), want %v", k, g, there, v)
		}
	}
}

func TestNothingIsFreshPastItsTime(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 1, 1)
		p.after(settle)
		p.stopStore() // nobody commits the expiry
		for _, c := range []struct {
			wait            time.Duration
			freshness, word string
		}{
			{staleAfter - settle - time.Millisecond, "fresh", "<nil>"},
			{time.Millisecond, "stale", "age"},
		} {
			p.after(c.wait)
			m := decode(p, p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot").body)
			w := m["workers"].([]any)[0].(map[string]any)
			if w["freshness"] != c.freshness || fmt.Sprint(w["freshness_reason"]) != c.word {
				p.Errorf("got %v (%v), want %s", w["freshness"], w["freshness_reason"], c.freshness)
			}
		}
	})
}

func TestDisabled(t *testing.T) {
	inBubble(t, func(s *setup) { s.store.Discovery = false }, func(p *plane) {
		for _, path := range []string{"", "?shape=upstream"} {
			a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot"+path)
			if a.body != `{"enabled":false,"version":0,"captured_at":null,"workers":[]}` {
				p.Errorf("%s: %s", path, a.body)
			}
		}
	})
}

func TestRoutes(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		c := p.client(false)
		for _, r := range []struct {
			method, path string
			status       int
			contains     string
		}{
			{"GET", "/", 200, "/v1/load_monitor/snapshot"},
			{"GET", "/other", 404, ""},
			{"HEAD", "/v1/load_monitor/snapshot", 200, ""},
			{"HEAD", "/v1/load_monitor/watch", 200, ""},
			{"POST", "/v1/load_monitor/snapshot", 405, ""},
			{"DELETE", "/v1/load_monitor/watch", 405, ""},
			{"GET", "/v1/load_monitor/snapshot?models=m", 400, `the query key \"models\" does not exist`},
			{"GET", "/v1/load_monitor/snapshot?shape=", 400, "shape"},
			{"GET", "/v1/load_monitor/snapshot?shape=other", 400, `\"other\"`},
			{"GET", "/v1/load_monitor/snapshot?shape=upstream&shape=upstream", 400, "once"},
			{"GET", "/v1/load_monitor/snapshot?%zz", 400, "parsed"},
			{"GET", "/v1/load_monitor/watch?wait=1s", 400, `\"wait\" does not exist`},
			{"GET", "/loadplane.v1.SnapshotService/WatchSnapshots", 405, ""},
		} {
			a := p.do(c, r.method, r.path)
			if a.StatusCode != r.status || !strings.Contains(a.body, r.contains) {
				p.Errorf("%s %s: %d %s", r.method, r.path, a.StatusCode, a.body)
			}
			cache := "no-store"
			if r.status == http.StatusOK && strings.HasPrefix(r.path, "/v1/load_monitor/snapshot") {
				cache = "no-cache" // and checked by its tag
			}
			if a.Header.Get("X-Content-Type-Options") != "nosniff" || a.Header.Get("Cache-Control") != cache {
				p.Errorf("%s %s: headers %v", r.method, r.path, a.Header)
			}
			if r.status == http.StatusMethodNotAllowed && a.Header.Get("Allow") == "" {
				p.Errorf("%s %s: no Allow", r.method, r.path)
			}
			if r.status == http.StatusBadRequest && decode(p, a.body)["code"] != "invalid_argument" {
				p.Errorf("%s %s: %s", r.method, r.path, a.body)
			}
		}
		if a := p.do(c, "HEAD", "/v1/load_monitor/snapshot"); a.ContentLength < 100 || a.Header.Get("Content-Type") != "application/json" {
			p.Errorf("HEAD: %d bytes, %v", a.ContentLength, a.Header)
		}
	})
}

func TestOps(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		if a := p.ops("/livez"); a.StatusCode != http.StatusOK || a.body != "ok" {
			p.Errorf("livez: %d %s", a.StatusCode, a.body)
		}
		if a := p.ops("/readyz"); a.StatusCode != http.StatusServiceUnavailable || a.body != `{"ready":false,"failed":["warming"],"sources":[],"pools":{"expected":0,"heard":0,"fresh":0}}`+"\n" {
			p.Errorf("readyz while warming: %d %s", a.StatusCode, a.body)
		}
		p.store.NoteSources([]store.SourceStatus{
			{Name: "file", Synced: true, Workers: 1, Listed: p.clock.Now(), Error: "gone"}, {Name: "dns"},
			{Name: "kubernetes", Error: "no list yet: forbidden"},
		})
		sources := `"sources":[{"name":"file","synced":true,"listed_age_ms":%d,"error":"gone"},{"name":"dns","synced":false},` +
			`{"name":"kubernetes","synced":false,"error":"no list yet: forbidden"}]`
		want := `{"ready":false,"failed":["warming"],` + fmt.Sprintf(sources, 0) + `,"pools":{"expected":0,"heard":0,"fresh":0}}` + "\n"
		if a := p.ops("/readyz"); a.body != want {
			p.Errorf("readyz while sources are waited for: %s", a.body)
		}
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 1, 1)
		p.after(250 * time.Millisecond)
		want = `{"ready":true,"failed":[],` + fmt.Sprintf(sources, 250) + `,"pools":{"expected":1,"heard":1,"fresh":1}}` + "\n"
		if a := p.ops("/readyz"); a.StatusCode != http.StatusOK || a.body != want || a.Header.Get("Content-Type") != "application/json" {
			p.Errorf("readyz: %d %s %v", a.StatusCode, a.body, a.Header)
		}
		p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot")
		page := p.ops("/metrics").body
		for _, line := range []string{
			`loadplane_api_workers{freshness="fresh"} 1`, `loadplane_api_workers{freshness="stale"} 0`, "loadplane_api_warming 0",
			"loadplane_api_watchers 0", `loadplane_api_snapshot_requests_total{code="2xx"} 1`,
			fmt.Sprintf("loadplane_api_snapshot_version %d", func() uint64 { s, _ := p.store.Current(); return s.Version }()),
		} {
			if !strings.Contains(page, line+"\n") {
				p.Errorf("/metrics lacks %s", line)
			}
		}
		p.stopStore()
		p.after(4 * time.Second)
		if a := p.ops("/readyz"); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.body, "store_stalled") {
			p.Errorf("readyz without a committer: %d %s", a.StatusCode, a.body)
		}
		if a := p.ops("/livez"); a.StatusCode != http.StatusOK {
			p.Error("livez without a committer:", a.StatusCode)
		}
	})
}

func TestWatchMetrics(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		l := p.lines(p.client(false))
		bytes := len(fmt.Sprint(l.next("full")))
		p.report("a:1", 1, 1, 1)
		l.next("delta")
		l.next("heartbeat")
		p.after(0) // a message is counted after it was sent
		for label, n := range map[string]float64{"full": 1, "delta": 1, "heartbeat": 1, "go_away": 0} {
			if got := p.metric("loadplane_api_messages_sent_total", label); got != n {
				p.Errorf("%s: counted %v, want %v", label, got, n)
			}
		}
		if got := p.metric("loadplane_api_publish_to_send_seconds", ""); got != 1 {
			p.Errorf("%v delays were observed, want that of the delta", got)
		}
		if got := p.metric("loadplane_api_sent_bytes_total", ""); got < float64(bytes) {
			p.Errorf("counted %v bytes, want at least %d", got, bytes)
		}
	})
}

func TestNewChecksItsOptions(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		ok := api.Options{ServerID: "s", Snapshots: p.views}
		if _, err := api.New(ok); err != nil {
			p.Error(err)
		}
		for name, change := range map[string]func(*api.Options){
			"no snapshots":      func(o *api.Options) { o.Snapshots = nil },
			"no server id":      func(o *api.Options) { o.ServerID = "" },
			"negative limit":    func(o *api.Options) { o.MaxWatchers = -1 },
			"negative answers":  func(o *api.Options) { o.MaxAnswers = -1 },
			"negative beat":     func(o *api.Options) { o.Heartbeat = -1 },
			"negative time":     func(o *api.Options) { o.WriteTimeout = -1 },
			"registered before": func(o *api.Options) { o.Registerer = p.reg },
		} {
			o := ok
			change(&o)
			if _, err := api.New(o); err == nil {
				p.Errorf("%s: no error", name)
			}
		}
	})
}

func FuzzSnapshotQuery(f *testing.F) {
	for _, q := range []string{"", "shape=upstream", "shape=%ff", "a=b;c", "&", "shape=upstream&x=\x00", "model=a&label.b=", "zone="} {
		f.Add(q)
	}
	var handler http.Handler
	f.Fuzz(func(t *testing.T, query string) {
		if handler == nil {
			st, err := store.New(store.Options{
				Lineage: "l", Clock: store.NewClock(), StaleAfter: staleAfter, Settle: settle, ReportInterval: interval, Discovery: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			a, err := api.New(api.Options{ServerID: "s", Snapshots: snapshot.New(st)})
			if err != nil {
				t.Fatal(err)
			}
			handler = a.Handler()
		}
		r := httptest.NewRequest(http.MethodGet, "/v1/load_monitor/snapshot", nil)
		r.URL.RawQuery = query
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		m := decode(t, rec.Body.String())
		switch rec.Code {
		case http.StatusOK:
			if rec.Header().Get("ETag") == "" || m["workers"] == nil {
				t.Errorf("%q: %v %v", query, rec.Header(), m)
			}
		case http.StatusBadRequest:
			if r := m["reason"]; r != "unknown_parameter" && r != "bad_parameter" && r != "bad_filter" {
				t.Errorf("%q: %v", query, m)
			}
		default:
			t.Errorf("%q: status %d", query, rec.Code)
		}
	})
}

package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/service"
	serviceconfig "github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/sim"
)

func TestReportsSayHowTheEngineIs(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 3)
	r := newRouter(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--stale-after=1s", "--sample-timeout=300ms", "--advertise=HTTP://Engine.example", "--zone=z1")
	until(t, "ready", func() bool { code, _ := p.get("/readyz"); return code == 200 })
	if code, body := p.ask(r, 50*time.Millisecond, time.Minute); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	m := r.await(t, 0, "a healthy report", healthy)
	w := m.GetWorker()
	if w.GetWorkerAddr() != "http://engine.example:80" || w.GetZone() != "z1" || w.GetModel() != e.Info().Model || len(m.GetRanks()) != 3 {
		t.Errorf("report %v", m)
	}

	mark := func() int { _, _, n := r.counts(); return n }
	for _, test := range []struct {
		name  string
		fault sim.Fault
		is    func(*pb.LoadReport) bool
		err   string
	}{
		{"slow", sim.Fault{Kind: sim.FaultSlow, Delay: time.Hour}, stale, "timeout"},
		{"slow for long", sim.Fault{Kind: sim.FaultSlow, Delay: time.Hour}, gone, "timeout"},
		{"failing", sim.Fault{Kind: sim.FaultSilent}, stale, "503"},
		{"gone", sim.Fault{Kind: sim.FaultDown}, gone, "connect"},
	} {
		n := mark()
		e.SetFault(test.fault)
		got := r.await(t, n, test.name, test.is)
		if !strings.Contains(got.GetLastError(), test.err) || (len(got.GetRanks()) == 3) != stale(got) {
			t.Errorf("%s: report %v", test.name, got)
		}
		e.ClearFault(test.fault.Kind)
		r.await(t, mark(), "a healthy report after "+test.name, healthy)
	}
	if code, _ := p.get("/readyz"); code != 200 {
		t.Errorf("not ready: %d", code)
	}
	n := mark()
	e.Restart()
	r.await(t, n, "another source instance", func(now *pb.LoadReport) bool {
		return healthy(now) && now.GetSourceInstanceId() != m.GetSourceInstanceId()
	})
	for i, last := 1, r.since(0); i < len(last); i++ {
		if last[i].GetSequenceId() <= last[i-1].GetSequenceId() {
			t.Fatalf("sequence %d after %d", last[i].GetSequenceId(), last[i-1].GetSequenceId())
		}
	}
}

// An engine that is not there yet must be reported as such, and found later.
func TestEngineComesLater(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	e.SetFault(sim.Fault{Kind: sim.FaultDown})
	r := newRouter(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir())
	if code, _ := p.get("/readyz"); code != 503 {
		t.Errorf("ready without a sample: %d", code)
	}
	until(t, "a registration", func() bool { code, _ := p.ask(r, interval, time.Minute); return code == 200 })
	m := r.await(t, 0, "an unreachable report", gone)
	if !strings.HasPrefix(m.GetLastError(), "no successful load sample") || len(m.GetRanks()) != 0 {
		t.Errorf("report %v", m)
	}
	e.ClearFault(sim.FaultDown)
	r.await(t, 0, "a healthy report", healthy)
}

func TestHintHasAReportGoOutEarly(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	r := newRouter(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir())
	until(t, "ready", func() bool { code, _ := p.get("/readyz"); return code == 200 })
	// One report an hour: what comes besides the first one was hurried.
	if code, body := p.ask(r, time.Hour, 2*time.Hour); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	r.await(t, 0, "the first report", healthy)
	until(t, "an early report", func() bool {
		if code, body := p.do("POST", "/refresh", `{"reason":"completion"}`); code != 202 {
			t.Fatalf("%d %s", code, body)
		}
		_, _, n := r.counts()
		return n >= 2
	})
}

func TestTargetOfAnotherHostIsRefused(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir())
	code, body := p.do("POST", "/v1/start_reporting", `{"ip":"192.0.2.7","port":1,"report_interval_ms":100,"lease_ttl_ms":1000}`)
	if code != 403 || !strings.Contains(body, "--push-targets") {
		t.Errorf("%d %s", code, body)
	}
}

func TestUnknownFieldsGoAsZeroWhereThatIsAsked(t *testing.T) {
	e := engine(t, sim.KindVLLM, 1)
	r := newRouter(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--push-unknown=zero", "--max-running=256")
	until(t, "ready", func() bool { code, _ := p.get("/readyz"); return code == 200 })
	if code, body := p.ask(r, interval, time.Minute); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	m := r.await(t, 0, "a healthy report", healthy)
	if m.GetRanks()[0].GetMaxRunningRequests() != 256 || m.GetRanks()[0].GetMaxTotalNumTokens() == 0 {
		t.Errorf("report %v", m)
	}
	if !strings.Contains(p.logged(), "unknown fields go to routers as 0") {
		t.Error("nobody is warned")
	}
}

// plane runs a plane in this process and returns the addresses of its API and
// its ingest listener. It knows of workers, as --worker names them.
func plane(t *testing.T, workers ...string) (api, ingest string) {
	t.Helper()
	return planeWith(t, func(c *serviceconfig.Config) { c.Worker = workers })
}

// planeWith is plane with another change of its settings.
func planeWith(t *testing.T, change func(*serviceconfig.Config)) (api, ingest string) {
	t.Helper()
	cfg := serviceconfig.Default()
	change(&cfg)
	cfg.APIListen, cfg.IngestListen, cfg.OpsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	s, err := service.New(cfg, service.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	apiAddr, ingestAddr, _ := s.Addrs()
	return "http://" + apiAddr.String(), "http://" + ingestAddr.String()
}

// worker is what the tests read of a plane's view.
type worker struct {
	ID        string `json:"worker_id"`
	Dialect   string
	Freshness string
	Reported  int64 `json:"report_time_unix_ms"`
	Ranks     []map[string]any
}

func workers(t *testing.T, api string) []worker {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api+"/v1/load_monitor/snapshot", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var view struct{ Workers []worker }
	body, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(body, &view) != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return view.Workers
}

func TestNativeReportsOfEveryFamily(t *testing.T) {
	for kind, unknown := range map[sim.Kind]string{
		sim.KindSGLangPoll: "", sim.KindVLLM: "num_waiting_uncached_tokens", sim.KindTGI: "cache_hit_rate",
		sim.KindLlamaCPP: "num_waiting_uncached_tokens", sim.KindTRTLLM: "num_waiting_uncached_tokens", sim.KindTriton: "num_waiting_uncached_tokens",
	} {
		t.Run(string(kind), func(t *testing.T) {
			e := engine(t, kind, 2)
			api, ingest := plane(t)
			p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--plane="+ingest, "--interval=100ms", "--label=rack=r1")
			var w worker
			until(t, "one fresh worker", func() bool {
				all := workers(t, api)
				if len(all) == 1 {
					w = all[0]
				}
				return w.Freshness == "fresh"
			})
			if w.Dialect != "native" || len(w.Ranks) == 0 || w.Ranks[0]["num_running_reqs"] == nil {
				t.Errorf("worker %+v", w)
			}
			if v, ok := w.Ranks[0][unknown]; unknown != "" && (!ok || v != nil) {
				t.Errorf("%s is %v, want unknown", unknown, v)
			}
			// What is learned of the engine later begins a stream anew.
			until(t, "it says so", func() bool {
				s := p.status()
				return s.plane().Connected && s.plane().Worker == w.ID
			})
			e.SetFault(sim.Fault{Kind: sim.FaultDown})
			until(t, "the worker is unreachable", func() bool { all := workers(t, api); return len(all) == 1 && all[0].Freshness == "unreachable" })
		})
	}
}

// The engine is sampled as often as the plane wants reports, not as often as was
// asked for: here it grants a third of a second for an hour.
func TestEngineIsSampledAtTheGrantedInterval(t *testing.T) {
	e := engine(t, sim.KindVLLM, 1)
	_, ingest := planeWith(t, func(c *serviceconfig.Config) {
		c.ReportInterval, c.StaleAfter = 300*time.Millisecond, time.Second
	})
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--plane="+ingest, "--interval=1h")
	until(t, "a grant", func() bool { return p.status().plane().IntervalMs == 333 })
	samples := func() float64 { return p.metric(`loadplane_source_samples_total{result="ok"}`) }
	before, sent := samples(), p.status().plane().Reports
	until(t, "15 reports", func() bool { return p.status().plane().Reports >= sent+15 })
	if n := samples() - before; n < 10 {
		t.Errorf("%v samples for 15 reports", n)
	}
}

func TestTakeoverOfANativeRegistration(t *testing.T) {
	e := engine(t, sim.KindVLLM, 1)
	api, ingest := plane(t)
	owner, standby := pair(t, "--engine="+e.Info().URL, "--plane="+ingest, "--interval=100ms")
	until(t, "one fresh worker", func() bool { all := workers(t, api); return len(all) == 1 && all[0].Freshness == "fresh" })
	owner.kill()
	until(t, "the standby reports", func() bool {
		s := standby.status()
		return s.Role == "owner" && s.plane().Connected
	})
	until(t, "still one fresh worker", func() bool { all := workers(t, api); return len(all) == 1 && all[0].Freshness == "fresh" })
	standby.kill()
	// Nobody is left.
	until(t, "the worker is no longer fresh", func() bool { all := workers(t, api); return len(all) == 0 || all[0].Freshness != "fresh" })
}

// What a report says is what the engine's own page says, field by field.
func TestValuesAreTheEngines(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 4)
	r := newRouter(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir())
	until(t, "a registration", func() bool { code, _ := p.ask(r, interval, time.Minute); return code == 200 })
	r.await(t, 0, "a healthy report", healthy)
	e.SetFault(sim.Fault{Kind: sim.FaultFreeze})
	page := loads(t, e)
	_, _, n := r.counts()
	until(t, "a report with the values of the page", func() bool {
		for _, m := range r.since(n) {
			if difference(m, page) == "" {
				return true
			}
		}
		return false
	})
}

// loads returns the ranks of the engine's page.
func loads(t *testing.T, e *sim.Engine) []map[string]any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.Info().URL+"/v1/loads", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var page struct{ Loads []map[string]any }
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || len(page.Loads) == 0 {
		t.Fatal(err, page)
	}
	return page.Loads
}

// difference names a field in which a report is not as the page.
func difference(m *pb.LoadReport, page []map[string]any) string {
	if len(m.GetRanks()) != len(page) {
		return "ranks"
	}
	for i, r := range m.GetRanks() {
		for name, want := range map[string]float64{
			"num_running_reqs": float64(r.GetNumRunningReqs()), "num_waiting_reqs": float64(r.GetNumWaitingReqs()),
			"num_waiting_uncached_tokens": float64(r.GetNumWaitingUncachedTokens()), "num_used_tokens": float64(r.GetNumUsedTokens()),
			"num_total_tokens": float64(r.GetNumTotalTokens()), "max_total_num_tokens": float64(r.GetMaxTotalNumTokens()),
			"max_running_requests": float64(r.GetMaxRunningRequests()), "token_usage": r.GetTokenUsage(),
			"gen_throughput": r.GetGenThroughput(), "cache_hit_rate": r.GetCacheHitRate(), "utilization": r.GetUtilization(),
		} {
			if page[i][name] != want {
				return name
			}
		}
	}
	return ""
}

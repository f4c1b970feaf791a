package sim

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/push"
)

// loadPage is where each kind tells its load.
var loadPage = map[Kind]string{
	KindSGLang: "/v1/loads", KindSGLangMonitor: "/v1/loads", KindSGLangLoadStat: "/v1/loads", KindSGLangPoll: "/v1/loads",
	KindVLLM: "/metrics", KindTGI: "/metrics",
	KindLlamaCPP: "/metrics", KindTRTLLM: "/prometheus/metrics", KindTriton: "/metrics",
}

// eachKind runs a test with one engine of each kind that discovery lists.
func eachKind(t *testing.T, f func(t *testing.T, b *bench, kind Kind)) {
	t.Helper()
	for _, kind := range Kinds() {
		if !kind.listed() {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			inBubble(t, Options{Kinds: []Kind{kind}, Ranks: 2, Model: "m", Seed: 1}, func(b *bench) { f(t, b, kind) })
		})
	}
}

const sglangPages = "/v1/loads /get_load /metrics /server_info /get_server_info /v1/models /health"

func TestPagesOfEachKind(t *testing.T) {
	pages := map[Kind]string{
		KindSGLang:         sglangPages,
		KindSGLangMonitor:  sglangPages,
		KindSGLangLoadStat: sglangPages,
		KindSGLangPoll:     sglangPages,
		KindVLLM:           "/metrics /v1/models /version /health",
		KindTGI:            "/metrics /info /v1/models /health",
		KindLlamaCPP:       "/metrics /props /slots /v1/models /health",
		KindTRTLLM:         "/prometheus/metrics /metrics /v1/models /version /health",
		KindTriton:         "/metrics /v2/health/ready",
	}
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		has := map[string]bool{}
		for _, path := range strings.Fields(pages[kind]) {
			has[path] = true
		}
		for _, list := range pages {
			for _, path := range strings.Fields(list) {
				if w := b.get(0, path); (w.Code == http.StatusOK) != has[path] || w.Code != http.StatusOK && w.Code != http.StatusNotFound {
					t.Errorf("%s answers %d", path, w.Code)
				}
			}
		}
	})
}

func TestOnlyThePushKindRegisters(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		post, get := http.StatusNotFound, http.StatusNotFound
		if kind == KindSGLang {
			post, get = http.StatusOK, http.StatusMethodNotAllowed
		}
		if got := b.register(7401, 1000, 15_000); got != post {
			t.Errorf("POST answers %d, want %d", got, post)
		}
		if got := b.get(0, push.Path).Code; got != get {
			t.Errorf("GET answers %d, want %d", got, get)
		}
	})
}

func TestPagesShowWhatReportsSay(t *testing.T) {
	inBubble(t, Options{Ranks: 2}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 15_000)
		b.pass(2000 * ms)
		reports := p.reports()
		last := reports[len(reports)-1].report
		var page struct{ Loads []map[string]float64 }
		b.json(0, "/v1/loads?include=core", &page)
		for i, r := range last.Ranks {
			got := page.Loads[i]
			want := map[string]float64{
				"num_running_reqs": float64(r.NumRunningReqs), "num_waiting_reqs": float64(r.NumWaitingReqs),
				"num_used_tokens": float64(r.NumUsedTokens), "token_usage": r.TokenUsage, "gen_throughput": r.GenThroughput,
				"timestamp": float64(r.SnapshotTimeUnixMs) / 1e3,
			}
			for key, v := range want {
				if got[key] != v {
					t.Errorf("rank %d: %s is %v on the page and %v in the report", i, key, got[key], v)
				}
			}
		}
	})
}

func TestTheLoadOfEachKindMoves(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		before := b.get(0, loadPage[kind]).Body.String()
		b.pass(5000 * ms)
		if b.get(0, loadPage[kind]).Body.String() == before {
			t.Error("the page is as before")
		}
	})
}

func TestKindsWithoutRanksHaveOne(t *testing.T) {
	want := map[Kind]int{
		KindSGLang: 2, KindSGLangMonitor: 2, KindSGLangLoadStat: 2, KindSGLangPoll: 2, KindVLLM: 2, KindTGI: 1, KindLlamaCPP: 1, KindTRTLLM: 1, KindTriton: 1,
	}
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		s, err := b.engine().current().Sample()
		if err != nil || len(s.Ranks) != want[kind] {
			t.Errorf("%d ranks, %v", len(s.Ranks), err)
		}
	})
}

func TestFaultsOfPages(t *testing.T) {
	codes := map[FaultKind]int{FaultSilent: 503, FaultFail: 500}
	for _, fault := range []FaultKind{FaultSilent, FaultFail, FaultFreeze, FaultIdle, FaultZeroCapacity, FaultNaN} {
		t.Run(string(fault), func(t *testing.T) {
			eachKind(t, func(t *testing.T, b *bench, kind Kind) {
				before := b.get(0, loadPage[kind]).Body.String()
				b.engine().SetFault(Fault{Kind: fault})
				b.pass(1000 * ms)
				w := b.get(0, loadPage[kind])
				want := orDefault(codes[fault], 200)
				if fault == FaultFail && kind.sglang() {
					want = 200
				}
				if w.Code != want {
					t.Fatalf("answers %d, want %d", w.Code, want)
				}
				checkFault(t, kind, fault, [2]string{before, w.Body.String()})
				b.engine().ClearFault(fault)
				b.pass(1000 * ms)
				if got := b.get(0, loadPage[kind]); got.Code != 200 || got.Body.String() == before {
					t.Errorf("answers %d, or is as before, after the fault", got.Code)
				}
			})
		})
	}
}

// checkFault holds a page under a fault against the one before.
func checkFault(t *testing.T, kind Kind, fault FaultKind, pages [2]string) {
	t.Helper()
	before, page := running(t, kind, pages[0]), pages[1]
	switch fault {
	case FaultFreeze, FaultFail:
		if fault == FaultFail && !kind.sglang() {
			return
		}
		if got := running(t, kind, page); got != before || before == "0" {
			t.Errorf("%s requests run, and %s did", got, before)
		}
		if stands := stamp(pages[0]) == stamp(page); kind.sglang() && stands != (fault == FaultFail) {
			t.Errorf("the time of the sample stands: %v", stands)
		}
	case FaultIdle, FaultZeroCapacity:
		if got := strings.TrimSuffix(running(t, kind, page), ".0"); got != "0" {
			t.Errorf("%s requests run", got)
		}
		if capacity := strings.Contains(page, "131072"); kind.sglang() && capacity != (fault == FaultIdle) {
			t.Errorf("there is a capacity: %v", capacity)
		}
	case FaultNaN:
		if !regexp.MustCompile(` NaN\n|"token_usage":null`).MatchString(page) {
			t.Errorf("there is no NaN:\n%s", page)
		}
	}
}

// running returns the first number of running requests of a page.
func running(t *testing.T, kind Kind, page string) string {
	t.Helper()
	name := map[Kind]string{
		KindSGLang: `"num_running_reqs":`, KindSGLangMonitor: `"num_running_reqs":`, KindSGLangLoadStat: `"num_running_reqs":`,
		KindSGLangPoll: `"num_running_reqs":`, KindVLLM: `\nvllm:num_requests_running\{[^}]*\} `,
		KindTGI: `\ntgi_batch_current_size `, KindLlamaCPP: `\nllamacpp:requests_processing `,
		KindTRTLLM: `\ntrtllm_num_requests_running\{[^}]*\} `, KindTriton: `request_type="active"[^}]*\} `,
	}[kind]
	m := regexp.MustCompile(name + `([0-9.]+)`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no number of running requests:\n%s", page)
	}
	return m[1]
}

// stamp returns the first time of a rank's sample in /v1/loads.
func stamp(page string) string {
	return regexp.MustCompile(`\[\{"timestamp":[0-9.]+`).FindString(page)
}

func TestSlowPages(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		b.engine().SetFault(Fault{Kind: FaultSlow, Delay: 3 * time.Second})
		begun := time.Now()
		b.get(0, loadPage[kind])
		b.get(0, "/health")
		want := 6 * time.Second
		if kind == KindSGLang {
			want = 0
		}
		if took := time.Since(begun); took != want {
			t.Errorf("two pages took %v, want %v", took, want)
		}
	})
}

func TestDownOfAPolledEngine(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindVLLM}}, func(b *bench) {
		b.engine().SetFault(Fault{Kind: FaultDown})
		b.pass(0)
		if r, err := memClient(b.net).Get(b.fleet.URLs()[0] + "/metrics"); err == nil {
			_ = r.Body.Close()
			t.Error("an engine that is down answers")
		}
	})
}

func TestRestartOfAPolledEngine(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindVLLM}, Ranks: 1}, func(b *bench) {
		read := func() (started, tokens float64) {
			page := b.get(0, "/metrics").Body.String()
			for name, into := range map[string]*float64{"process_start_time_seconds": &started, `vllm:generation_tokens_total\{[^}]*\}`: &tokens} {
				m := regexp.MustCompile(`\n` + name + ` (\S+)`).FindStringSubmatch(page)
				v, err := strconv.ParseFloat(m[1], 64)
				if err != nil {
					t.Fatal(err)
				}
				*into = v
			}
			return started, tokens
		}
		b.pass(5000 * ms)
		started, tokens := read()
		b.engine().Restart()
		restarted, none := read()
		if tokens == 0 || none != 0 || restarted-started != 15 {
			t.Errorf("%v tokens since %v, after a restart %v since %v", tokens, started, none, restarted)
		}
	})
}

func TestAFirstSampleThatIsNotThereYet(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindSGLangPoll, KindTGI}, Engines: 2, FirstSample: time.Second}, func(b *bench) {
		for i, path := range []string{"/v1/loads", "/get_load", "/metrics"} {
			if w := b.get(i/2, path); w.Code != 500 {
				t.Errorf("%s answers %d", path, w.Code)
			}
		}
		b.pass(1000 * ms)
		if w := b.get(0, "/v1/loads"); w.Code != 200 {
			t.Errorf("answers %d", w.Code)
		}
	})
}

// TestPollingLeavesReportsAlone reads pages all the time.
func TestPollingLeavesReportsAlone(t *testing.T) {
	inBubble(t, Options{Ranks: 2}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 60_000)
		for range 100 {
			b.pass(50 * ms)
			b.get(0, "/v1/loads")
		}
		reports := p.reports()
		if len(reports) != 6 {
			t.Errorf("%d reports in five seconds", len(reports))
		}
		for _, a := range reports {
			age := a.report.ReportTimeUnixMs - a.report.Ranks[0].SnapshotTimeUnixMs
			if a.report.Status != pb.ReportStatus_REPORT_STATUS_HEALTHY || age > 1000 {
				t.Errorf("%v with a sample %d ms old", a.report.Status, age)
			}
		}
	})
}

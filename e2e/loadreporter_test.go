package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// sidecar is a running reporter.
type sidecar struct {
	*process
	api string // host:port
}

// report starts a reporter beside an engine; it shares no state with others,
// unless args say so.
func report(t *testing.T, engine string, args ...string) *sidecar {
	t.Helper()
	s := &sidecar{process: startAs(t, exec.Command(beside, append([]string{"--engine=" + engine, "--state-dir=" + t.TempDir(),
		"--listen=127.0.0.1:0", "--log-format=json"}, args...)...))}
	var said struct{ Listen string }
	line := s.next(s.lines, func(line string) bool { return strings.Contains(line, `"msg":"load reporter started"`) })
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	s.api = said.Listen
	return s
}

func (s *sidecar) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// role is what the reporter says it is for its engine.
func (s *sidecar) role() string {
	s.t.Helper()
	_, body := get(s.t, "http://"+s.api+"/v1/status")
	var status struct{ Role string }
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		s.t.Fatalf("%q: %v", body, err)
	}
	return status.Role
}

// await waits until ok holds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// numbersOf returns what a message has of a rank, by the names of the fields.
func numbersOf(t *testing.T, r *loadplanev1.RankLoad) map[string]float64 {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	var fields map[string]any
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for name, v := range fields {
		switch v := v.(type) {
		case float64:
			values[name] = v
		case string: // as JSON has integers of 64 bits
			if values[name], err = strconv.ParseFloat(v, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return values
}

// series returns the value of one series of a page of metrics.
func series(t *testing.T, page, name string) float64 {
	t.Helper()
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no series %s", name)
	return 0
}

// capture returns the number that stands first in the brackets of a pattern.
func capture(t *testing.T, page, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("nothing like %s in\n%s", pattern, page)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// pages read the load of each rank off the page of an engine of a kind, here
// without any help of the product.
var pages = map[string]func(t *testing.T, url string) []map[string]float64{
	"sglang-poll": sglangPage, "vllm": vllmPage, "tgi": tgiPage, "llamacpp": llamaPage, "trtllm": trtllmPage, "triton": tritonPage,
}

func sglangPage(t *testing.T, url string) (ranks []map[string]float64) {
	_, body := get(t, url+"/v1/loads?include=core,disagg,queues")
	var page struct{ Loads []map[string]any }
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatal(err)
	}
	for _, load := range page.Loads {
		rank := map[string]float64{}
		for _, name := range numbers {
			if v, ok := load[name].(float64); ok {
				rank[name] = v
			}
		}
		ranks = append(ranks, rank)
	}
	return ranks
}

func vllmPage(t *testing.T, url string) (ranks []map[string]float64) {
	_, page := get(t, url+"/metrics")
	for engine := range 2 {
		labels := fmt.Sprintf(`{engine="%d",model_name="sim-model"}`, engine)
		info := capture(t, page, fmt.Sprintf(`cache_config_info\{[^}]*engine="%d"[^}]*num_gpu_blocks="(\d+)"`, engine))
		tokens, usage := 16*info, series(t, page, "vllm:kv_cache_usage_perc"+labels)
		ranks = append(ranks, map[string]float64{
			"num_running_reqs": series(t, page, "vllm:num_requests_running"+labels),
			"num_waiting_reqs": series(t, page, "vllm:num_requests_waiting"+labels),
			"token_usage":      usage, "max_total_num_tokens": tokens, "num_used_tokens": math.Round(usage * tokens),
		})
	}
	return ranks
}

func tgiPage(t *testing.T, url string) []map[string]float64 {
	_, page := get(t, url+"/metrics")
	_, info := get(t, url+"/info")
	return []map[string]float64{{
		"num_running_reqs":     series(t, page, "tgi_batch_current_size"),
		"num_waiting_reqs":     series(t, page, "tgi_queue_size"),
		"num_used_tokens":      series(t, page, "tgi_batch_current_max_tokens"),
		"max_total_num_tokens": series(t, page, "tgi_batch_max_total_tokens"),
		"max_running_requests": capture(t, info, `"max_concurrent_requests":(\d+)`),
	}}
}

func llamaPage(t *testing.T, url string) []map[string]float64 {
	_, page := get(t, url+"/metrics")
	_, props := get(t, url+"/props")
	return []map[string]float64{{
		"num_running_reqs":     series(t, page, "llamacpp:requests_processing"),
		"num_waiting_reqs":     series(t, page, "llamacpp:requests_deferred"),
		"max_running_requests": capture(t, props, `"total_slots":(\d+)`),
	}}
}

func trtllmPage(t *testing.T, url string) []map[string]float64 {
	_, page := get(t, url+"/prometheus/metrics")
	value := func(name string) float64 {
		return series(t, page, "trtllm_"+name+`{engine_type="trtllm",model_name="sim-model"}`)
	}
	block := value("kv_cache_tokens_per_block")
	return []map[string]float64{{
		"num_running_reqs": value("num_requests_running"), "num_waiting_reqs": value("num_requests_waiting"),
		"num_used_tokens": block * value("kv_cache_used_blocks"), "max_total_num_tokens": block * value("kv_cache_max_blocks"),
		"max_running_requests": value("max_num_active_requests"), "token_usage": value("kv_cache_utilization"),
	}}
}

func tritonPage(t *testing.T, url string) []map[string]float64 {
	_, page := get(t, url+"/metrics")
	requests := func(what string) float64 {
		return series(t, page, `nv_trt_llm_request_metrics{model="sim-model",request_type="`+what+`",version="1"}`)
	}
	blocks := func(what string) float64 {
		return series(t, page, `nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="`+what+`",model="sim-model",version="1"}`)
	}
	return []map[string]float64{{
		"num_running_reqs": requests("scheduled"), "num_waiting_reqs": requests("waiting"), "max_running_requests": requests("max"),
		"num_used_tokens": blocks("used") * blocks("tokens_per"), "max_total_num_tokens": blocks("max") * blocks("tokens_per"),
	}}
}

// differences says in which numbers a worker is not as the page of its engine.
func differences(t *testing.T, w *loadplanev1.Worker, page []map[string]float64) (all []string) {
	if len(w.GetRanks()) != len(page) {
		return []string{fmt.Sprintf("%d ranks, on the page %d", len(w.GetRanks()), len(page))}
	}
	for i, want := range page {
		got := numbersOf(t, w.GetRanks()[i])
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if v, known := got[name]; !known || v != want[name] {
				all = append(all, fmt.Sprintf("rank %d: %s is %v (known: %v), on the page %v", i, name, v, known, want[name]))
			}
		}
	}
	return all
}

// A reporter beside an engine of each kind that has only pages, and one that is
// asked to push: once the load of the engines stands still the plane shows the
// numbers of their pages, and all that a plane shows that reads them by itself.
func TestReporterShowsThePages(t *testing.T) {
	t.Parallel()
	names := append(slices.Sorted(maps.Keys(pages)), "sglang-poll")
	pushed := len(names) - 1
	urls, workers := sims(t, len(names), "--ranks=2", "--kinds="+strings.Join(names, ","), "--fault=freeze:after=5s")
	port := freePort(t)
	settings := []string{"--report-interval=200ms", "--stale-after=3s"}
	p := serve(t, append(settings, "--worker="+urls[pushed]+",dialect=push,reporter_port="+port)...)
	direct := serve(t, append(settings, "--workers-file="+workers)...)
	for i, url := range urls {
		if i == pushed {
			report(t, url, "--listen=127.0.0.1:"+port)
		} else {
			report(t, url, "--plane=http://"+p.ingest, "--interval=200ms")
		}
	}
	var wrong []string
	v := p.until(40*time.Second, "the numbers of the pages", func(v *view) bool {
		if v.fresh() != len(urls) {
			return false
		}
		wrong = wrong[:0]
		for i, url := range urls {
			wrong = append(wrong, differences(t, v.worker(url), pages[names[i]](t, url))...)
		}
		return len(wrong) == 0
	})
	shown := p.snapshot()
	for i, url := range urls {
		k, dialect := kindOf(names[i]), "native"
		if i == pushed {
			dialect = "push"
		}
		// Only the page of Triton does not name the model.
		if w := shown[url]; w.Dialect != dialect || len(w.Ranks) != k.ranks || w.Freshness != "fresh" || (len(w.ModelIDs) == 0) != (k.engine == "") {
			t.Errorf("%s is shown as %+v", names[i], w)
		}
		if w := v.worker(url); w.GetRanks()[0].GetNumRunningReqs() == 0 {
			t.Errorf("%s has no load", names[i])
		}
	}
	samePlanes(t, p, direct, urls[:pushed])
}

// sameRank compares all but the hit rate, which is that of the last interval in
// which requests asked the cache, and so depends on when pages were read.
func sameRank(a, b *loadplanev1.RankLoad) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.CacheHitRate, b.CacheHitRate = nil, nil
	return proto.Equal(a, b)
}

// samePlanes waits until two planes show the same of some workers.
func samePlanes(t *testing.T, a, b *plane, urls []string) {
	t.Helper()
	now := func(p *plane) *view { return p.until(10*time.Second, "a view", func(*view) bool { return true }) }
	var differ string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(differ)
		}
	})
	await(t, "two planes that show the same ranks", func() bool {
		have, want := now(a), now(b)
		for _, url := range urls {
			x, y := have.worker(url), want.worker(url)
			same := len(x.GetRanks()) > 0 && slices.EqualFunc(x.GetRanks(), y.GetRanks(), sameRank)
			if !same || len(x.GetModels()) > 0 && !slices.Equal(x.GetModels(), y.GetModels()) {
				differ = fmt.Sprintf("one plane shows %v\nthe other one  %v", x, y)
				return false
			}
		}
		return true
	})
}

// trouble is a plane with reporters, whose engines get into some. Nothing ages
// meanwhile: it is the reporters that say what is wrong.
type trouble struct {
	*plane
	engines []*engine
}

func startTrouble(t *testing.T) *trouble {
	t.Helper()
	const staleAfter = "--stale-after=20s"
	port := freePort(t)
	x := &trouble{}
	for _, name := range []string{"sglang-poll", "vllm", "tgi", "llamacpp", "trtllm", "triton", "sglang-poll"} {
		x.engines = append(x.engines, launch(t, kindOf(name), freePort(t)))
	}
	last := len(x.engines) - 1
	x.plane = serve(t, "--report-interval=200ms", staleAfter, "--worker="+x.engines[last].url()+",dialect=push,reporter_port="+port)
	for i, e := range x.engines {
		args := []string{"--sample-timeout=500ms", staleAfter}
		if i == last {
			args = append(args, "--listen=127.0.0.1:"+port)
		} else {
			args = append(args, "--plane=http://"+x.ingest, "--interval=200ms")
		}
		report(t, e.url(), args...)
	}
	x.all("fresh engines", func(_ *view, _ *engine, w *loadplanev1.Worker) bool { return isFresh(w) })
	return x
}

// all waits until ok accepts all engines, and returns when it did each.
func (x *trouble) all(what string, ok func(*view, *engine, *loadplanev1.Worker) bool) {
	x.t.Helper()
	began, took := time.Now(), map[string]time.Duration{}
	x.until(30*time.Second, what, func(v *view) bool {
		for _, e := range x.engines {
			name := e.kind.name + " by " + strings.ToLower(strings.TrimPrefix(e.worker(v).GetDialect().String(), "DIALECT_"))
			if _, done := took[name]; !done && ok(v, e, e.worker(v)) {
				took[name] = time.Since(began).Round(time.Millisecond)
			}
		}
		return len(took) == len(x.engines)
	})
	x.t.Logf("%s after: %v", what, took)
	for name, d := range took {
		if d > 15*time.Second {
			x.t.Errorf("%s: %s only after %v", what, name, d)
		}
	}
}

// told says whether a worker is in a state for a reason that its reporter gave,
// and is heard.
func told(v *view, w *loadplanev1.Worker, f loadplanev1.Freshness, reason, text string) bool {
	r := v.receipt(w)
	return w.GetFreshness() == f && w.GetFreshnessReason() == reason && strings.HasPrefix(r.GetLastError(), text)
}

// A reporter says at once that its engine hangs or is gone, and why; the plane
// does not wait for an age.
func TestReporterTellsOfTrouble(t *testing.T) {
	t.Parallel()
	x := startTrouble(t)
	for _, e := range x.engines {
		e.signal(syscall.SIGSTOP)
	}
	x.all("engines that hang", func(v *view, e *engine, w *loadplanev1.Worker) bool {
		if n := len(w.GetRanks()); n != e.kind.ranks {
			t.Errorf("%s has %d ranks", e.kind.name, n)
		}
		return told(v, w, loadplanev1.Freshness_FRESHNESS_STALE, "engine_stale", "timeout")
	})
	for _, e := range x.engines {
		e.signal(syscall.SIGCONT)
	}
	x.all("engines that go on", func(v *view, _ *engine, w *loadplanev1.Worker) bool { return isFresh(w) })
	sources := map[string]string{}
	x.all("their sources", func(_ *view, e *engine, w *loadplanev1.Worker) bool {
		sources[e.url()] = w.GetSourceInstanceId()
		return true
	})
	for _, e := range x.engines {
		e.kill()
	}
	x.all("engines that are gone", func(v *view, _ *engine, w *loadplanev1.Worker) bool {
		return told(v, w, loadplanev1.Freshness_FRESHNESS_UNREACHABLE, "engine_unreachable", "connect_failed")
	})
	for i, e := range x.engines {
		x.engines[i] = e.again()
	}
	x.all("engines that are back", func(_ *view, e *engine, w *loadplanev1.Worker) bool {
		return isFresh(w) && w.GetSourceInstanceId() != sources[e.url()]
	})
}

// gaps follows the receipts of a worker.
type gaps struct {
	received, longest uint64
	reports           int
	sources           []string
}

// see takes a view of the worker.
func (g *gaps) see(v *view, w *loadplanev1.Worker) {
	if !slices.Contains(g.sources, w.GetSourceInstanceId()) {
		g.sources = append(g.sources, w.GetSourceInstanceId())
	}
	received := v.receipt(w).GetReceivedMs()
	if g.received != 0 {
		g.longest = max(g.longest, received-g.received)
	}
	if received != g.received {
		g.reports++
	}
	g.received = received
}

// seats are two reporters for one engine that know of each other.
func seats(t *testing.T, engine string, args ...string) (owner, standby *sidecar) {
	t.Helper()
	args = append(args, "--state-dir="+t.TempDir())
	owner = report(t, engine, args...)
	await(t, "an owner", func() bool { return owner.role() == "owner" })
	standby = report(t, engine, args...)
	await(t, "a standby that hears the owner", func() bool {
		code, _ := get(t, "http://"+standby.api+"/readyz")
		return code == http.StatusOK && standby.role() == "standby"
	})
	return owner, standby
}

// Of two reporters one reports. When it is killed the other one goes on, so
// that the plane misses two reports at most; when it is stopped nobody does
// until it ends.
func TestReporterTakesOver(t *testing.T) {
	t.Parallel()
	const interval, staleAfter = 500, 4000 // ms
	e := launch(t, kindOf("vllm"), freePort(t))
	p := serve(t, fmt.Sprintf("--report-interval=%dms", interval), fmt.Sprintf("--stale-after=%dms", staleAfter))
	args := []string{"--plane=http://" + p.ingest, fmt.Sprintf("--interval=%dms", interval)}
	owner, standby := seats(t, e.url(), args...)
	p.until(20*time.Second, "a fresh worker", func(v *view) bool { return isFresh(e.worker(v)) })
	g, killed, end := &gaps{}, false, 0
	p.until(30*time.Second, "reports of the next owner", func(v *view) bool {
		w := e.worker(v)
		if g.see(v, w); !killed {
			killed = true
			owner.kill()
		}
		if !isFresh(w) || len(w.GetRanks()) != 2 {
			t.Errorf("the worker is %v/%s with %d ranks", w.GetFreshness(), w.GetFreshnessReason(), len(w.GetRanks()))
		}
		if end == 0 && standby.role() == "owner" {
			end = g.reports + 4
		}
		return end != 0 && g.reports >= end
	})
	if len(g.sources) != 1 {
		t.Errorf("one engine was reported as %q", g.sources)
	}
	t.Logf("the longest gap between two reports was %d ms, at an interval of %d ms", g.longest, interval)
	if g.longest > 4*interval {
		t.Errorf("the longest gap between two reports was %d ms", g.longest)
	}
	if n := p.metric(`loadplane_native_registrations_refused_total{reason="lease_held"}`); n != 0 {
		t.Errorf("%v registrations refused", n)
	}
}

func TestReporterThatIsStopped(t *testing.T) {
	t.Parallel()
	e := launch(t, kindOf("vllm"), freePort(t))
	p := serve(t, "--report-interval=500ms", "--stale-after=2s")
	owner, standby := seats(t, e.url(), "--plane=http://"+p.ingest, "--interval=500ms")
	fresh := func(v *view) bool { return isFresh(e.worker(v)) }
	source := e.worker(p.until(20*time.Second, "a fresh worker", fresh)).GetSourceInstanceId()
	owner.signal(syscall.SIGSTOP)
	p.until(20*time.Second, "a stale worker", func(v *view) bool { return e.worker(v).GetFreshnessReason() == "age" })
	await(t, "the standby says that it does no good", func() bool {
		code, _ := get(t, "http://"+standby.api+"/readyz")
		return code == http.StatusServiceUnavailable
	})
	if role := standby.role(); role != "standby" {
		t.Errorf("the standby is %s beside an owner that is stopped", role)
	}
	owner.signal(syscall.SIGCONT)
	if again := e.worker(p.until(20*time.Second, "a fresh worker", fresh)).GetSourceInstanceId(); again != source {
		t.Errorf("the source is %s after the stop, before %s", again, source)
	}
	owner.signal(syscall.SIGSTOP)
	owner.kill()
	await(t, "the standby goes on", func() bool { return standby.role() == "owner" })
	if again := e.worker(p.until(20*time.Second, "reports of the standby", fresh)).GetSourceInstanceId(); again != source {
		t.Errorf("the source is %s by the standby, before %s", again, source)
	}
}

// Two reporters with one configuration and nothing in common but the engine, as
// on two hosts: the plane keeps to one, refuses the other and counts that, and
// takes the other once the first is gone.
func TestBug23TwoReportersOfOneEngine(t *testing.T) {
	t.Parallel()
	e := launch(t, kindOf("sglang-poll"), freePort(t))
	p := serve(t, "--report-interval=200ms", "--stale-after=2s")
	args := []string{"--plane=http://" + p.ingest, "--interval=200ms"}
	first := report(t, e.url(), args...)
	v := p.until(20*time.Second, "a fresh worker", func(v *view) bool { return isFresh(e.worker(v)) })
	source := e.worker(v).GetSourceInstanceId()
	second := report(t, e.url(), args...)
	refused := `loadplane_native_registrations_refused_total{reason="lease_held"}`
	views := 0
	p.until(30*time.Second, "that the second reporter was refused twice", func(v *view) bool {
		views++
		w := e.worker(v)
		if len(v.workers) != 1 || !isFresh(w) || len(w.GetRanks()) != 2 || w.GetSourceInstanceId() != source {
			t.Errorf("%d workers; %v/%s with %d ranks of %s, before %s", len(v.workers), w.GetFreshness(), w.GetFreshnessReason(), len(w.GetRanks()), w.GetSourceInstanceId(), source)
		}
		return views > 10 && p.metric(refused) >= 2
	})
	if a, b := first.role(), second.role(); a != "owner" || b != "owner" {
		t.Errorf("the reporters are %s and %s of their engine", a, b)
	}
	_, status := get(t, "http://"+second.api+"/v1/status")
	if !strings.Contains(status, "lease") {
		t.Errorf("the second reporter does not say why it is not heard:\n%s", status)
	}
	first.kill()
	p.until(30*time.Second, "reports of the second reporter", func(v *view) bool {
		w := e.worker(v)
		return isFresh(w) && w.GetSourceInstanceId() != source && filepath.Base(w.GetWorkerId()) == "127.0.0.1:"+e.port
	})
}

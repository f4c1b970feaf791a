package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// kind is a kind of simulated engine and what the plane shows of it.
type kind struct {
	name, dialect string
	// engine is what the plane calls it; empty for an engine that does not say.
	engine string
	ranks  int
	// unknown are the fields of a rank that stay so.
	unknown []string
}

// queues are the fields of prefill and decode engines.
var queues = []string{
	"decode_prealloc_reqs", "decode_retracted_reqs", "decode_transfer_reqs", "prefill_bootstrap_reqs", "prefill_inflight_reqs",
}

// listed are the kinds that discovery lists.
var listed = []kind{
	{name: "sglang", dialect: "push", engine: "sglang", ranks: 2, unknown: slices.Concat(queues, []string{"prefill_throughput_wall"})},
	{name: "sglang-monitor", dialect: "monitor", engine: "sglang", ranks: 2, unknown: slices.Concat(queues, []string{
		"prefill_throughput", "prefill_throughput_wall",
	})},
	{name: "sglang-loadstat", dialect: "loadstat", engine: "sglang", ranks: 2, unknown: slices.Concat(queues, []string{
		"cache_hit_rate", "gen_throughput", "prefill_throughput_wall", "snapshot_time_unix_ms", "utilization",
	})},
	{name: "sglang-poll", dialect: "poll", engine: "sglang", ranks: 2, unknown: []string{
		"prefill_throughput", "prefill_throughput_wall",
	}},
	{name: "vllm", dialect: "poll", engine: "vllm", ranks: 2, unknown: slices.Concat(queues, []string{
		"max_running_requests", "num_total_tokens", "num_waiting_uncached_tokens", "prefill_throughput",
		"snapshot_time_unix_ms", "utilization",
	})},
	{name: "tgi", dialect: "poll", engine: "tgi", ranks: 1, unknown: slices.Concat(queues, []string{
		"cache_hit_rate", "num_total_tokens", "num_waiting_uncached_tokens", "prefill_throughput",
		"prefill_throughput_wall", "snapshot_time_unix_ms",
	})},
	{name: "llamacpp", dialect: "poll", engine: "llama.cpp", ranks: 1, unknown: slices.Concat(queues, []string{
		"cache_hit_rate", "max_total_num_tokens", "num_total_tokens", "num_used_tokens", "num_waiting_uncached_tokens",
		"prefill_throughput", "snapshot_time_unix_ms", "token_usage", "utilization",
	})},
	{name: "trtllm", dialect: "poll", engine: "tensorrt-llm", ranks: 1, unknown: slices.Concat(queues, []string{
		"num_total_tokens", "num_waiting_uncached_tokens", "prefill_throughput", "snapshot_time_unix_ms",
	})},
	{name: "triton", dialect: "poll", ranks: 1, unknown: slices.Concat(queues, []string{
		"cache_hit_rate", "gen_throughput", "num_total_tokens", "num_waiting_uncached_tokens", "prefill_throughput",
		"prefill_throughput_wall", "snapshot_time_unix_ms",
	})},
}

// native is the kind that registers itself.
var native = kind{name: "native", dialect: "native", engine: "sim", ranks: 2, unknown: queues}

// kinds are all kinds.
var kinds = slices.Concat(listed, []kind{native})

// kindOf returns the kind of a name.
func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

// engine is a process with one simulated engine of a kind.
type engine struct {
	*process
	kind kind
	port string
	args []string
}

func (e *engine) url() string { return "http://127.0.0.1:" + e.port }

// launch starts an engine on a port; with two ranks, unless args say otherwise.
func launch(t *testing.T, k kind, port string, args ...string) *engine {
	t.Helper()
	e := &engine{kind: k, port: port, args: args}
	e.process = start(t, append([]string{"sim", "--engines=1", "--ranks=2", "--kinds=" + k.name, "--base-port=" + port}, args...)...)
	e.next(e.out, func(line string) bool { return strings.Contains(line, e.url()) })
	return e
}

// again starts the engine once more, with further arguments.
func (e *engine) again(args ...string) *engine {
	e.t.Helper()
	return launch(e.t, e.kind, e.port, slices.Concat(e.args, args)...)
}

func (e *engine) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

// flag is the argument by which a native engine finds the plane.
func (p *plane) flag() string { return "--plane=http://" + p.ingest }

// mixed is a plane with two engines of each kind, of which it was told the
// URL or, where they register themselves, nothing: victims, a process each, and
// bystanders.
type mixed struct {
	*plane
	victims []*engine
	// sources are the instances of all engines once they were fresh.
	sources map[string]string
}

func startMixed(t *testing.T) *mixed {
	t.Helper()
	m := &mixed{sources: map[string]string{}}
	var names []string
	for _, k := range listed {
		names = append(names, k.name)
	}
	_, bystanders := fleet(t, fmt.Sprintf("--engines=%d", len(listed)), "--ranks=2", "--kinds="+strings.Join(names, ","))
	args := []string{"--workers-file=" + bystanders, "--report-interval=500ms", "--stale-after=3s"}
	for _, k := range listed {
		e := launch(t, k, freePort(t))
		m.victims = append(m.victims, e)
		args = append(args, "--worker="+e.url())
	}
	m.plane = serve(t, args...)
	m.victims = append(m.victims, launch(t, native, freePort(t), m.flag()))
	launch(t, native, freePort(t), m.flag())
	v := m.until(30*time.Second, "all engines with all that is known of their kinds", func(v *view) bool {
		return v.fresh() == 2*len(kinds) && !slices.ContainsFunc(m.victims, func(e *engine) bool { return !e.complete(v) })
	})
	for _, w := range v.workers {
		m.sources[w.GetWorkerId()] = w.GetSourceInstanceId()
	}
	return m
}

// worker is what a view has of the engine; never nil.
func (e *engine) worker(v *view) *loadplanev1.Worker {
	for _, w := range v.workers {
		if w.GetWorkerId() == e.url() {
			return w
		}
	}
	return &loadplanev1.Worker{}
}

// complete says whether a view has every number that can be known of the
// engine; rates come with the second page.
func (e *engine) complete(v *view) bool {
	ranks := e.worker(v).GetRanks()
	for _, r := range ranks {
		m := r.ProtoReflect()
		for i := range m.Descriptor().Fields().Len() {
			f := m.Descriptor().Fields().Get(i)
			if f.HasPresence() && !m.Has(f) && !slices.Contains(e.kind.unknown, string(f.Name())) {
				return false
			}
		}
	}
	return len(ranks) > 0
}

// follow waits until ok accepts all victims. Bystanders must be as they were in
// each view on the way.
func (m *mixed) follow(what string, ok func(*view, *engine) bool) *view {
	m.t.Helper()
	return m.until(30*time.Second, what, func(v *view) bool {
		for _, w := range v.workers {
			id := w.GetWorkerId()
			if m.victim(id) == nil && (w.GetFreshness() != loadplanev1.Freshness_FRESHNESS_FRESH || w.GetSourceInstanceId() != m.sources[id]) {
				m.t.Errorf("while waiting for %s, a bystander is %v/%s, %s, before %s", what, w.GetFreshness(), w.GetFreshnessReason(), w.GetSourceInstanceId(), m.sources[id])
			}
		}
		all := true
		for _, e := range m.victims {
			all = ok(v, e) && all
		}
		return all
	})
}

func (m *mixed) victim(id string) *engine {
	for _, e := range m.victims {
		if e.url() == id {
			return e
		}
	}
	return nil
}

// goStale waits until all victims are stale by age, and checks when each is
// shown so.
func (m *mixed) goStale() {
	m.t.Helper()
	ages := map[string]uint64{}
	m.follow("stale engines", func(v *view, e *engine) bool {
		w := e.worker(v)
		if w.GetFreshness() != loadplanev1.Freshness_FRESHNESS_STALE {
			return false
		}
		if _, seen := ages[e.kind.name]; !seen {
			ages[e.kind.name] = v.last.GetServerClockMs() - v.receipt(w).GetReceivedMs()
			if r := w.GetFreshnessReason(); r != "age" {
				m.t.Errorf("%s is stale for reason %q", e.kind.name, r)
			}
		}
		return true
	})
	for name, age := range ages {
		if age < 3000 || age > 5500 {
			m.t.Errorf("%s is shown stale at age %d ms, want 3000 and at most an interval and 2 s more", name, age)
		}
	}
	m.t.Logf("shown stale at ages in ms: %v", ages)
}

// goFresh waits until all victims are fresh, and until accept takes their
// source instances.
func (m *mixed) goFresh(what string, accept func(e *engine, source string) bool) {
	m.t.Helper()
	began, took := time.Now(), map[string]time.Duration{}
	m.follow(what, func(v *view, e *engine) bool {
		w := e.worker(v)
		if w.GetFreshness() != loadplanev1.Freshness_FRESHNESS_FRESH || !accept(e, w.GetSourceInstanceId()) {
			return false
		}
		if took[e.kind.name] == 0 {
			took[e.kind.name] = time.Since(began).Round(time.Millisecond)
		}
		return true
	})
	m.t.Logf("fresh again after: %v", took)
}

// An engine of any kind that is killed is stale by age, and fresh once it is
// back, with another source instance where anything tells its processes apart.
// Engines beside it are not touched.
func TestKindsKilled(t *testing.T) {
	t.Parallel()
	m := startMixed(t)
	for _, e := range m.victims {
		e.kill()
	}
	m.goStale()
	for i, e := range m.victims {
		m.victims[i] = e.again()
	}
	m.goFresh("restarted engines", func(e *engine, source string) bool {
		return source != m.sources[e.url()]
	})
}

// An engine of any kind whose process is stopped is stale by age, and fresh
// with its old source instance once it goes on.
func TestKindsFrozen(t *testing.T) {
	t.Parallel()
	m := startMixed(t)
	for _, e := range m.victims {
		e.signal(syscall.SIGSTOP)
	}
	m.goStale()
	for _, e := range m.victims {
		e.signal(syscall.SIGCONT)
	}
	m.goFresh("continued engines", func(e *engine, source string) bool {
		if source != m.sources[e.url()] {
			t.Errorf("%s has the source instance %s, before %s", e.kind.name, source, m.sources[e.url()])
		}
		return true
	})
}

// An engine of any kind with DP ranks that comes back with half of them is
// shown with these alone, and never with ranks of both.
func TestKindsReranked(t *testing.T) {
	t.Parallel()
	m := &mixed{sources: map[string]string{}}
	args := []string{"--report-interval=500ms", "--stale-after=3s"}
	for _, k := range listed {
		if k.ranks > 1 {
			e := launch(t, k, freePort(t), "--ranks=8")
			m.victims, args = append(m.victims, e), append(args, "--worker="+e.url())
		}
	}
	m.plane = serve(t, args...)
	m.victims = append(m.victims, launch(t, native, freePort(t), "--ranks=8", m.flag()))
	has := func(ranks int) func(*view, *engine) bool {
		return func(v *view, e *engine) bool {
			w := e.worker(v)
			fresh := w.GetFreshness() == loadplanev1.Freshness_FRESHNESS_FRESH
			if n := len(w.GetRanks()); n != 8 && n != ranks && (n != 0 || fresh) {
				t.Errorf("%s is %v with %d ranks", e.kind.name, w.GetFreshness(), n)
			}
			for i, r := range w.GetRanks() {
				if int(r.GetDpRank()) != i {
					t.Errorf("%s has rank %d in place %d", e.kind.name, r.GetDpRank(), i)
				}
			}
			return fresh && len(w.GetRanks()) == ranks
		}
	}
	v := m.follow("eight ranks of each", has(8))
	for i, e := range m.victims {
		m.sources[e.url()] = e.worker(v).GetSourceInstanceId()
		e.kill()
		m.victims[i] = e.again("--ranks=4")
	}
	m.follow("four ranks of each", func(v *view, e *engine) bool {
		w := e.worker(v)
		// Nothing on a polled page need tell the processes apart.
		if e.kind.dialect != "poll" && len(w.GetRanks()) == 4 && w.GetSourceInstanceId() == m.sources[e.url()] {
			t.Errorf("%s has four ranks of its old instance", e.kind.name)
		}
		return has(4)(v, e)
	})
}

// shownWorker is a worker as the JSON snapshot has it.
type shownWorker struct {
	WorkerID         string `json:"worker_id"`
	Dialect          string
	ModelIDs         []string `json:"model_ids"`
	Freshness        string
	FreshnessReason  *string `json:"freshness_reason"`
	SourceInstanceID *string `json:"source_instance_id"`
	AgeMs            *int64  `json:"age_ms"`
	ValidForMs       *int64  `json:"valid_for_ms"`
	Partial          bool
	Aggregate        map[string]any
	Ranks            []map[string]any
}

// numbers are the keys of a rank that are null where unknown.
var numbers = slices.Concat(queues, []string{
	"cache_hit_rate", "gen_throughput", "max_running_requests", "max_total_num_tokens", "num_running_reqs", "num_total_tokens",
	"num_used_tokens", "num_waiting_reqs", "num_waiting_uncached_tokens", "prefill_throughput", "prefill_throughput_wall",
	"snapshot_time_unix_ms", "token_usage", "utilization",
})

func (p *plane) snapshot() map[string]shownWorker {
	p.t.Helper()
	return snapshotOf(p.t, "http://"+p.api)
}

func snapshotOf(t *testing.T, server string) map[string]shownWorker {
	t.Helper()
	_, body := get(t, server+"/v1/load_monitor/snapshot")
	var page struct{ Workers []shownWorker }
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatalf("%v:\n%s", err, body)
	}
	workers := map[string]shownWorker{}
	for _, w := range page.Workers {
		workers[w.WorkerID] = w
	}
	return workers
}

// check compares what is shown of a fresh engine with what its kind has.
func (k kind) check(t *testing.T, w shownWorker) {
	t.Helper()
	var models []string
	if k.engine != "" {
		models = []string{"sim-model"}
	}
	if w.Dialect != k.dialect || w.Freshness != "fresh" || w.FreshnessReason != nil || len(w.Ranks) != k.ranks || !slices.Equal(w.ModelIDs, models) {
		t.Errorf("%s is shown as %+v", k.name, w)
	}
	if w.SourceInstanceID == nil || w.AgeMs == nil || w.ValidForMs == nil {
		t.Errorf("%s is shown without a source instance, its age or its validity", k.name)
	} else if all := *w.AgeMs + *w.ValidForMs; *w.AgeMs < 0 || all < 2999 || all > 3001 {
		t.Errorf("%s is %d ms old and valid for %d ms, together not 3 s", k.name, *w.AgeMs, *w.ValidForMs)
	}
	want := slices.Sorted(slices.Values(k.unknown))
	for _, r := range w.Ranks {
		got := nulls(r)
		if k.dialect == "loadstat" {
			// It is unknown between reports without a prefill.
			got = slices.DeleteFunc(got, func(name string) bool { return name == "prefill_throughput" })
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has null for\n%v, want\n%v", k.name, got, want)
		}
		for _, key := range numbers {
			value, there := r[key]
			if sum, summed := w.Aggregate[key]; !there || summed && (sum == nil) != (value == nil) {
				t.Errorf("%s has %s %v, of all ranks %v", k.name, key, value, sum)
			}
		}
	}
	whole := strings.HasPrefix(k.name, "sglang") || k.name == native.name
	if partial := !whole || k.dialect == "loadstat"; w.Partial != partial {
		t.Errorf("%s is partial: %v, want %v", k.name, w.Partial, partial)
	}
}

// nulls returns the keys without a value, sorted.
func nulls(rank map[string]any) (keys []string) {
	for key, value := range rank {
		if value == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// command runs a command of the program to its end and returns what it wrote.
func command(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out.String(), errs.String())
	}
	return out.String()
}

// The snapshot has each kind with its dialect, values, unknowns and freshness,
// and the commands name the dialect.
func TestKindsShown(t *testing.T) {
	t.Parallel()
	m := startMixed(t)
	shown := m.snapshot()
	if len(shown) != 2*len(kinds) {
		t.Errorf("%d workers", len(shown))
	}
	list := command(t, "workers", "list", "--server=http://"+m.api)
	for _, e := range m.victims {
		e.kind.check(t, shown[e.url()])
		if e.kind.name == native.name {
			continue // It has no page to ask.
		}
		probed := strings.Fields(command(t, "probe", e.url()))
		if i := slices.Index(probed, "dialect"); i < 0 || probed[i+1] != e.kind.dialect {
			t.Errorf("the probe of %s names no dialect %s:\n%v", e.kind.name, e.kind.dialect, probed)
		}
		isRow := func(line string) bool {
			words := strings.Fields(line)
			return len(words) > 3 && words[0] == "127.0.0.1:"+e.port && slices.Contains(words, e.kind.dialect) && slices.Contains(words, "fresh")
		}
		if !slices.ContainsFunc(strings.Split(list, "\n"), isRow) {
			t.Errorf("%s with dialect %s is not listed:\n%s", e.url(), e.kind.dialect, list)
		}
	}
}

// One demo shows the kinds in one snapshot.
func TestDemoMixed(t *testing.T) {
	t.Parallel()
	demo := start(t, "demo", "--mixed", "--engines=11", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--log-format=json")
	line := demo.next(demo.out, func(l string) bool { return strings.Contains(l, "/v1/load_monitor/snapshot") })
	address, _, _ := strings.Cut(line[strings.Index(line, "http://")+len("http://"):], "/")
	p := &plane{process: demo, api: address}
	p.until(20*time.Second, "eleven fresh engines", func(v *view) bool { return v.fresh() == 11 })
	var list struct {
		Workers []struct {
			Worker struct{ WorkerID, Dialect, Freshness string }
			Engine string
		}
	}
	if err := json.Unmarshal([]byte(command(t, "workers", "list", "--server=http://"+address, "--output=json")), &list); err != nil {
		t.Fatal(err)
	}
	shown, seen := p.snapshot(), map[string]int{}
	for _, w := range list.Workers {
		dialect := shown[w.Worker.WorkerID].Dialect
		seen[w.Engine+" "+dialect]++
		if s := shown[w.Worker.WorkerID]; s.Freshness != "fresh" || len(s.Ranks) == 0 || s.Ranks[0]["num_running_reqs"] == nil {
			t.Errorf("%s is shown as %+v", w.Worker.WorkerID, s)
		}
	}
	for _, k := range kinds {
		if seen[k.engine+" "+k.dialect] == 0 {
			t.Errorf("no %s that uses %s: %v", k.name, k.dialect, seen)
		}
	}
	demo.terminate(15 * time.Second)
}

// otherPages are pages that no simulated engine is read by, with the fixtures
// that show what is read of them.
var otherPages = map[string][]string{
	"sglang /metrics":       {"sglang_metrics_dp2.prom", "sglang_metrics_pd_decode.prom", "sglang_metrics_2024.prom"},
	"sglang /get_load":      {"sglang_get_load_array.json", "sglang_get_load_shim.json", "sglang_get_load_scalar.json"},
	"tensorrt-llm /metrics": {"trtllm_iterations.json"},
}

// fieldsOf returns the fields that are known by the second of two equal pages,
// of any rank of any of the files.
func fieldsOf(t *testing.T, e *sample.Endpoint, files []string) (fields []string) {
	t.Helper()
	for _, file := range files {
		page, err := os.ReadFile(filepath.Join("..", "ingest", "poll", "sample", "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		s := sample.NewSampler(e)
		for at := range store.Instant(2) {
			r, refusal := s.Read(page, (1+at)*store.Instant(time.Second), sample.Hints{})
			if refusal != nil {
				t.Fatalf("%s: %v", file, refusal)
			}
			for f := range store.NumFields {
				known := func(r ingest.RankReport) bool { return r.Rank.Has(f) }
				if slices.ContainsFunc(r.Ranks, known) {
					fields = append(fields, store.Fields[f].Name)
				}
			}
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

var code = regexp.MustCompile("`([^`]+)`")

// spans returns what stands in backquotes.
func spans(text string) (all []string) {
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// table returns the rows of the table whose head begins like that, a cell each.
func table(page, head string) (rows [][]string) {
	_, rest, _ := strings.Cut(page, head)
	_, rest, _ = strings.Cut(rest, "|---|\n")
	for line := range strings.SplitSeq(rest, "\n") {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

// The page about engines says of each kind what TestKindsShown sees of it, and
// of other pages what is read of the fixtures.
func TestEnginesPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "engines.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	head := "| field |"
	for _, k := range listed {
		head += " `" + k.name + "` |"
	}
	var fields []string
	for _, row := range table(page, head) {
		field := strings.Trim(row[0], "`")
		fields = append(fields, field)
		for i, k := range listed {
			want := "yes"
			if slices.Contains(k.unknown, field) {
				want = "-"
			}
			if row[i+1] != want {
				t.Errorf("the page says %q of %s for %s, want %q", row[i+1], field, k.name, want)
			}
		}
	}
	slices.Sort(fields)
	if want := slices.Sorted(slices.Values(numbers)); !slices.Equal(fields, want) {
		t.Errorf("the page lists the fields\n%v, want\n%v", fields, want)
	}
	rows := map[string][]string{}
	for _, row := range table(page, "| page | fields |") {
		rows[strings.Trim(row[0], "`")] = slices.Sorted(slices.Values(spans(row[1])))
	}
	for _, e := range sample.Endpoints() {
		if !strings.Contains(page, "`"+e.Name+"`") {
			t.Errorf("the page does not name %s", e.Name)
		}
		if files := otherPages[e.Name]; files != nil && !slices.Equal(rows[e.Name], fieldsOf(t, e, files)) {
			t.Errorf("the page lists for %s\n%v, want\n%v", e.Name, rows[e.Name], fieldsOf(t, e, files))
		}
	}
	if len(rows) != len(otherPages) {
		t.Errorf("the page lists %d other pages, want %d", len(rows), len(otherPages))
	}
}

package hostile

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/ingest/push"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// page is a good page of a vLLM engine with two ranks; its values stand still.
const page = `process_start_time_seconds 1.75e+09
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="1",model_name="m"} 1
vllm:generation_tokens_total{engine="0",model_name="m"} 10
vllm:generation_tokens_total{engine="1",model_name="m"} 10
`

// villain is an engine whose pages are polled, and which makes of them what no
// engine should.
type villain struct {
	name  string
	serve http.HandlerFunc
	// reason is shown where it is to be polled, and auto where that is to be
	// found out; empty where its page is read all the same.
	reason, auto store.Reason
	// says is what the error that is shown must name.
	says string
	// flags are those of the worker.
	flags []string
}

var villains = []villain{
	{name: "endless body", serve: endless("vllm:x 1\n"), reason: survey.ReasonTooLarge, auto: survey.ReasonTooLarge, says: "too large"},
	{name: "redirect", serve: redirect("http://127.0.0.1:9/metrics"), reason: registry.ReasonRedirected, auto: registry.ReasonRedirected, says: "302"},
	{name: "redirect to itself", serve: redirect(""), reason: registry.ReasonRedirected, auto: registry.ReasonRedirected, says: "302"},
	{name: "gzip bomb", serve: bomb, reason: survey.ReasonCompressed, auto: survey.ReasonCompressed, says: "compressed"},
	{name: "header of 10 MB", serve: largeHeader, reason: survey.ReasonTooLarge, auto: survey.ReasonTooLarge, says: "a header above"},
	{name: "HTML", serve: answer(http.StatusOK, "<!DOCTYPE html><html>it works</html>"), reason: sample.ReasonHTMLPage, auto: registry.ReasonBadAnswer, says: "html_page"},
	{name: "503 with a good page", serve: answer(http.StatusServiceUnavailable, page), reason: registry.ReasonEngineError, auto: registry.ReasonEngineError, says: "503"},
	{name: "401", serve: answer(http.StatusUnauthorized, page), reason: registry.ReasonAuth, auto: registry.ReasonAuth, says: "401"},
	{name: "a byte a second", serve: drip, reason: survey.ReasonTimeout, auto: survey.ReasonTimeout, says: "in time"},
	{name: "1,000,000 series", serve: onMetrics(many(1_000_000, `vllm:num_requests_running{engine="0",x="`)), reason: survey.ReasonTooLarge, auto: survey.ReasonTooLarge, says: "too large"},
	{name: "100,000 series of one rank", serve: onMetrics(many(100_000, `vllm:num_requests_running{engine="0",x="`)), reason: sample.ReasonTooManySeries, auto: sample.ReasonTooManySeries, says: "too_many_series"},
	{name: "100,000 ranks", serve: onMetrics(many(100_000, `vllm:num_requests_running{engine="`)), reason: ingest.ReasonBadRank, auto: ingest.ReasonBadRank, says: "bad_rank"},
	{name: "100,000 ranks in JSON", serve: on("/v1/loads", ranksInJSON), reason: ingest.ReasonTooManyRanks, auto: ingest.ReasonTooManyRanks, says: "too_many_ranks"},
	{name: "two start times by turns", serve: byTurns(), flags: []string{"unstable_source"}},
	{name: "names with line breaks, escapes and marks of direction", serve: odd},
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func endless(line string) http.HandlerFunc {
	chunk := []byte(strings.Repeat(line, (64<<10)/len(line)))
	return func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
}

// zeros are 64 MiB in 64 KiB.
var zeros = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	_, _ = zip.Write(make([]byte, 64<<20))
	_ = zip.Close()
	return b.Bytes()
})

func bomb(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = w.Write(zeros())
}

func drip(w http.ResponseWriter, r *http.Request) {
	for i := 0; ; i++ {
		_, _ = io.WriteString(w, page[i%len(page):][:1])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// redirect sends elsewhere, or to the same address where there is no other.
func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, cmp.Or(to, r.URL.String()), http.StatusFound)
	}
}

func largeHeader(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Large", strings.Repeat("a", 10<<20))
	_, _ = io.WriteString(w, page)
}

// many sends n series, with their numbers as the last label.
func many(n int, series string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var lines []byte
		for i := range n {
			lines = append(strconv.AppendInt(append(lines, series...), int64(i), 10), "\"} 1\n"...)
			if len(lines) < 64<<10 && i < n-1 {
				continue
			}
			if _, err := w.Write(lines); err != nil {
				return
			}
			lines = lines[:0]
		}
	}
}

func ranksInJSON(w http.ResponseWriter, _ *http.Request) {
	body := []byte(`{"loads":[`)
	for i := range 100_000 {
		body = fmt.Appendf(body, `{"dp_rank":%d,"num_running_reqs":1},`, i)
	}
	_, _ = w.Write(append(body, `{"dp_rank":100000}]}`...))
}

// byTurns has two processes that answer by turns.
func byTurns() http.HandlerFunc {
	var mu sync.Mutex
	asked := map[string]int{}
	return onMetrics(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.Host]++
		start := 1_750_000_000 + asked[r.Host]%2
		mu.Unlock()
		_, _ = fmt.Fprintf(w, "process_start_time_seconds %d\n%s", start, page[strings.Index(page, "\n")+1:])
	})
}

func onMetrics(h http.HandlerFunc) http.HandlerFunc { return on("/metrics", h) }

// on answers one path and has no other.
func on(path string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		h(w, r)
	}
}

const oddName = "a\nb\r\x1b[31mred\u202edrawkcab\u2066\x00"

// odd has names that would write over a terminal.
func odd(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/metrics":
		label := strings.NewReplacer("\n", `\n`).Replace(oddName)
		_, _ = io.WriteString(w, "bad\x1b[31m{ 1\n"+strings.ReplaceAll(page, `model_name="m"`, `model_name="`+label+`"`))
	case "/v1/models":
		_ = json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]any{"id": oddName, "owned_by": "vllm"}}})
	case "/version":
		_ = json.NewEncoder(w).Encode(map[string]any{"version": oddName})
	default:
		http.NotFound(w, r)
	}
}

const (
	polled = 5 // good engines that are polled
	rounds = 12
)

// place is a worker of the arena for polls and who answers there.
type place struct {
	id      string
	villain *villain
	auto    bool
	serve   http.HandlerFunc
}

// places returns good engines and, where told so, villains: each once as an
// engine to be polled, and once as one to be asked what it is. A listener that
// nobody serves holds the address of each, for it is looked at whether it
// takes connections at all.
func places(t *testing.T, attacked bool) (all []place) {
	t.Helper()
	add := func(p place) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		p.id = "http://" + l.Addr().String()
		all = append(all, p)
	}
	for range polled {
		add(place{auto: true, serve: onMetrics(answer(http.StatusOK, page))})
	}
	for i := range villains {
		if v := &villains[i]; attacked {
			add(place{villain: v, serve: v.serve})
			add(place{villain: v, auto: true, serve: v.serve})
		}
	}
	return all
}

// workers returns the flags of places and of the healthy engines, which push.
func workers(places []place) (flags []string) {
	for i := range healthy {
		flags = append(flags, healthyID(i)+",dialect=push")
	}
	for _, p := range places {
		if p.auto {
			flags = append(flags, p.id)
		} else {
			flags = append(flags, p.id+",dialect=poll")
		}
	}
	return flags
}

// newPollArena starts a plane that polls places.
func newPollArena(t *testing.T, places []place) *arena {
	t.Helper()
	a := &arena{T: t, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, reg: prometheus.NewRegistry(), histories: map[string][]string{}}
	quiet := slog.New(slog.DiscardHandler)
	clock := store.NewClock()
	var err error
	a.store, err = store.New(store.Options{
		Lineage: "hostile", Epoch: 1, Clock: clock, StaleAfter: staleAfter, Settle: settle, ReportInterval: interval,
		Discovery: true, SleptFor: func() time.Duration { return 0 }, Registerer: a.reg, Logger: quiet,
	})
	a.must(err)
	dial := a.serve(places)
	poller, err := poll.New(poll.Options{Clock: clock, StaleAfter: staleAfter, Dial: dial, Registerer: a.reg, Logger: quiet})
	a.must(err)
	prober, err := probe.New(probe.Options{Clock: clock, Dial: dial})
	a.must(err)
	known, err := registry.New(registry.Options{
		Store: a.store, Workers: workers(places), ReportInterval: interval, StaleAfter: staleAfter, Lease: 15 * time.Second,
		ReportPort: func() uint16 { return 7401 }, Registerer: a.reg, Logger: quiet,
		Prober: prober, Dialers: map[store.Dialect]registry.Dialer{store.DialectPoll: poller},
	})
	a.must(err)
	server, err := ingest.NewServer(ingest.ServerOptions{Registerer: a.reg, Logger: quiet})
	a.must(err)
	pushed, err := push.New(push.Options{Registry: known, Clock: clock, Registerer: a.reg})
	a.must(err)
	pushed.Register(server.Registrar())
	a.builder = snapshot.New(a.store)
	served, err := api.New(api.Options{Snapshots: a.builder, ServerID: "hostile", Registerer: a.reg, Gatherer: a.reg, Logger: quiet})
	a.must(err)
	a.handler = served.Handler()
	a.run(a.store.Run, known.Run, func(ctx context.Context) error { return server.Run(ctx, a.pipes) })
	a.watch(api.NewHTTPServer(a.handler, nil, quiet), a.take)
	return a
}

// run runs parts of the plane until the arena ends.
func (a *arena) run(parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	for _, part := range parts {
		runs.Go(func() { a.must(part(ctx)) })
	}
	a.Cleanup(func() { cancel(); runs.Wait() })
	synctest.Wait()
}

// serve answers for places and returns how to connect to them.
func (a *arena) serve(places []place) func(context.Context, string, string) (net.Conn, error) {
	handlers := map[string]http.HandlerFunc{}
	for _, p := range places {
		handlers[strings.TrimPrefix(p.id, "http://")] = p.serve
	}
	listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handlers[r.Host](w, r) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	var runs sync.WaitGroup
	runs.Go(func() { _ = server.Serve(listener) })
	a.Cleanup(func() { _ = server.Close(); runs.Wait() })
	return func(_ context.Context, _, addr string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		near, err := listener.dial(netip.MustParseAddrPort("127.0.0.1:9"))
		if err != nil {
			return nil, err
		}
		return &pipeEnd{near, net.TCPAddrFromAddrPort(to)}, nil
	}
}

// list asks the plane for its workers, over its API.
func (a *arena) list() map[string]*pb.WorkerInfo {
	a.Helper()
	req := httptest.NewRequest(http.MethodPost, "/loadplane.v1.WorkerService/ListWorkers", strings.NewReader("{}"))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	a.handler.ServeHTTP(rec, req)
	var answer pb.ListWorkersResponse
	if err := protojson.Unmarshal(rec.Body.Bytes(), &answer); err != nil {
		a.Fatalf("status %d, %v: %s", rec.Code, err, rec.Body)
	}
	infos := map[string]*pb.WorkerInfo{}
	for _, info := range answer.GetWorkers() {
		infos[info.GetWorker().GetWorkerId()] = info
		a.printable(info.ProtoReflect())
	}
	return infos
}

// printable checks every text of a message.
func (a *arena) printable(m protoreflect.Message) {
	a.Helper()
	text := func(f protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch f.Kind() {
		case protoreflect.StringKind:
			if s := v.String(); strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				a.Errorf("%s is %q", f.FullName(), s)
			}
		case protoreflect.MessageKind:
			a.printable(v.Message())
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				text(f, v.List().Get(i))
			}
		default:
			text(f, v)
		}
		return true
	})
}

// outcome is what a run of the arena for polls leaves.
type outcome struct {
	histories map[string][]string
	version   uint64
	heap      uint64 // the most that was in use after a round, bytes
}

func runPolls(t *testing.T, attacked bool) (o outcome) {
	there := places(t, attacked)
	synctest.Test(t, func(t *testing.T) {
		a := newPollArena(t, there)
		engines := a.engines()
		before := heapInUse()
		for round := range rounds {
			began := time.Now()
			for i, e := range engines {
				e.send(report(healthyID(i), "healthy", uint64(round+1), int64(round*100+i)))
			}
			pass(settle)
			now := heapInUse()
			o.heap = max(o.heap, now-min(before, now))
			pass(interval - time.Since(began))
		}
		a.goodPolls(there)
		a.villainous(there)
		a.readable()
		if err := a.builder.Check(); err != nil {
			t.Error(err)
		}
		view, _ := a.builder.Current()
		o.histories, o.version = a.histories, view.Version
	})
	return o
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// goodPolls checks that the good engines were read once an interval.
func (a *arena) goodPolls(there []place) {
	a.Helper()
	infos := a.list()
	for _, p := range there {
		if p.villain != nil {
			continue
		}
		info := infos[p.id]
		e, live := a.entry(p.id)
		running, _ := e.Load.Ranks[1].Count(store.NumRunningReqs)
		if info.GetWorker().GetFreshness() != pb.Freshness_FRESHNESS_FRESH || len(e.Load.Ranks) != 2 || running != 4 {
			a.Errorf("a good engine is shown as %v", info)
		}
		if live.Sequence < rounds-3 || live.Sequence > rounds+3 || info.GetPollIntervalMs() != uint32(interval.Milliseconds()) {
			a.Errorf("a good engine was read %d times in %d intervals, the last of %d ms", live.Sequence, rounds, info.GetPollIntervalMs())
		}
	}
}

// villainous checks that each villain is shown with its reason, and has no
// load where its page must not be read.
func (a *arena) villainous(there []place) {
	a.Helper()
	infos := a.list()
	for _, p := range there {
		if p.villain == nil {
			continue
		}
		info, want := infos[p.id], p.villain.reason
		if p.auto {
			want = p.villain.auto
		}
		w := info.GetWorker()
		if got := store.Reason(w.GetFreshnessReason()); got != want {
			a.Errorf("%s, auto %v: the reason is %q, want %q: %v", p.villain.name, p.auto, got, want, info)
		}
		if read := w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH; read != (want == "") || !slices.Equal(w.GetFlags(), p.villain.flags) {
			a.Errorf("%s, auto %v: %v with flags %q", p.villain.name, p.auto, w.GetFreshness(), w.GetFlags())
		}
		if e, _ := a.entry(p.id); (e.Load != nil) != (want == "") {
			a.Errorf("%s, auto %v: it has the load %v", p.villain.name, p.auto, e.Load)
		}
		if said := info.GetRegistrationError(); !strings.Contains(said, p.villain.says) {
			a.Errorf("%s, auto %v: the error is %q, which does not say %q", p.villain.name, p.auto, said, p.villain.says)
		}
	}
}

// Engines whose pages are polled, and are what no page should be, change
// nothing for others and are named with a reason each.
func TestPolledVillains(t *testing.T) {
	alone, beside := runPolls(t, false), runPolls(t, true)
	if len(alone.histories) != healthy {
		t.Errorf("%d histories", len(alone.histories))
	}
	for id, want := range alone.histories {
		if got := beside.histories[id]; !slices.Equal(got, want) || len(want) < rounds {
			t.Errorf("%s has the history\n%v, without the others\n%v", id, got, want)
		}
	}
	// Each villain may change a few times: its reason, its dialect, its source.
	if most := alone.version + uint64(2*len(villains)*6); beside.version > most {
		t.Errorf("%d versions, without the others %d", beside.version, alone.version)
	}
	if beside.heap > 64<<20 {
		t.Errorf("%d bytes are in use after a round", beside.heap)
	}
	t.Logf("versions: alone %d, beside %d; most heap in use: alone %d KiB, beside %d KiB", alone.version, beside.version, alone.heap>>10, beside.heap>>10)
}

// sampled is an SGLang engine that samples its load once in a while, whenever
// it is asked for it.
func sampled(began time.Time, every time.Duration) http.HandlerFunc {
	return on("/v1/loads", func(w http.ResponseWriter, _ *http.Request) {
		n := int64(time.Since(began) / every)
		at := began.Add(time.Since(began).Truncate(every))
		_, _ = fmt.Fprintf(w, `{"timestamp":%q,"loads":[{"dp_rank":0,"timestamp":%d.%03d,"num_running_reqs":%d,"num_waiting_reqs":0}]}`,
			at.UTC().Format(time.RFC3339Nano), at.Unix(), at.Nanosecond()/1e6, n)
	})
}

// follow watches the plane over its API, beside the arena's own watcher.
func (a *arena) follow(take func(*client.View)) {
	var replica client.Replica
	a.watch(api.NewHTTPServer(a.handler, nil, slog.New(slog.DiscardHandler)), func(m *pb.WatchSnapshotsResponse) {
		view, err := replica.Apply(m, time.Now())
		if err != nil {
			a.Error(err)
			return
		}
		take(view)
	})
}

// TestBug30AgeFromSampleToDelivery polls engines that sample once an interval,
// each at a time of its own, and takes the age of each sample when a watcher is
// told of it.
func TestBug30AgeFromSampleToDelivery(t *testing.T) {
	const engines = 40
	synctest.Test(t, func(t *testing.T) {
		var there []place
		for i := range engines {
			began := time.Now().Add(-time.Duration(i) * interval / engines)
			there = append(there, place{id: fmt.Sprintf("http://127.5.0.%d:1", i+1), serve: sampled(began, interval)})
		}
		a := newPollArena(t, there)
		var mu sync.Mutex
		var ages []time.Duration
		seen := map[string]int64{}
		a.follow(func(v *client.View) {
			mu.Lock()
			defer mu.Unlock()
			for _, w := range v.Workers() {
				r := v.Receipt(w)
				if r == nil || r.OldestSampleUnixMs == nil || r.GetOldestSampleUnixMs() == seen[w.GetWorkerId()] {
					continue
				}
				seen[w.GetWorkerId()] = r.GetOldestSampleUnixMs()
				ages = append(ages, time.Since(time.UnixMilli(r.GetOldestSampleUnixMs())))
			}
		})
		pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(ages)
		if len(ages) < engines*50 || len(seen) != engines {
			t.Fatalf("%d samples of %d engines in a minute", len(ages), len(seen))
		}
		p50, p99 := ages[len(ages)/2], ages[len(ages)*99/100]
		t.Logf("%d samples of %d engines, polled each %s: age at the delivery p50 %s, p99 %s, most %s", len(ages), engines, interval, p50, p99, ages[len(ages)-1])
		if p99 > interval+100*time.Millisecond || ages[0] < 0 {
			t.Errorf("p99 is %s, the least %s", p99, ages[0])
		}
	})
}

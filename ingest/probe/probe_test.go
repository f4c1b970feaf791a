package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testURL = "http://10.0.0.1:30000"

// engine answers in memory: the paths of a map, where "status N" stands for a
// status without a body, and others with 404.
type engine struct {
	mu     sync.Mutex
	bodies map[string]string
	asked  []string
	conns  []net.Conn
}

func (e *engine) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	e.mu.Lock()
	e.conns = append(e.conns, far)
	e.mu.Unlock()
	go e.serve(far)
	return tcpConn{near}, nil
}

func (e *engine) serve(c net.Conn) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		body, late := e.answer(req)
		if late {
			_, _ = io.Copy(io.Discard, requests)
			return
		}
		status := http.StatusNotFound
		if body != "" {
			status = http.StatusOK
			_, _ = fmt.Sscanf(body, "status %d", &status)
		}
		w.WriteHeader(status)
		_, _ = w.WriteString(body)
		res := w.Result()
		res.ContentLength = int64(len(body))
		if res.Write(c) != nil {
			return
		}
	}
}

// answer returns the body for a request; late says that there is none ever.
func (e *engine) answer(r *http.Request) (body string, late bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, r.Method+" "+r.URL.Path)
	body = e.bodies[r.URL.Path]
	return body, body == "late"
}

func (e *engine) set(bodies map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bodies = bodies
}

type tcpConn struct{ net.Conn }

func (tcpConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:30000"))
}

func newProber(t *testing.T, dial func(context.Context, string, string) (net.Conn, error)) *Prober {
	t.Helper()
	p, err := New(Options{Clock: store.NewClock(), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	serverInfo = `{"model_path":"/models/m1","served_model_name":"m1","dp_size":2,"disaggregation_mode":"null",` +
		`"version":"0.5.19","max_running_requests":100,"internal_states":[` +
		`{"effective_max_running_requests_per_dp":50,"memory_usage":{"token_capacity":9000}},` +
		`{"effective_max_running_requests_per_dp":50,"memory_usage":{"token_capacity":9000}}]}`
	sglangLoads = `{"timestamp":"2026-08-01T00:00:00Z","loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":0,"token_usage":0.5}]}`
	vllmModels  = `{"object":"list","data":[{"id":"m2","owned_by":"vllm","max_model_len":4096},{"id":"lora","owned_by":"vllm"}]}`
	vllmPage    = "vllm:num_requests_running{engine=\"0\",model_name=\"m2\"} 1\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m2\"} 0\n"
	tgiInfo     = `{"model_id":"org/m3","version":"3.3.4","max_concurrent_requests":128,"max_batch_total_tokens":16000,"sha":null}`
	llamaModels = `{"data":[{"id":"m4.gguf","owned_by":"llamacpp"}]}`
	llamaProps  = `{"total_slots":4,"model_path":"/models/m4.gguf","build_info":"b5000-abc"}`
)

// kinds are engines, with what is learned of each.
var kinds = map[string]struct {
	bodies map[string]string
	facts  registry.Facts
	push   registry.Verdict
	poll   registry.Verdict
	why    store.Reason
}{
	"sglang with push": {
		map[string]string{"/server_info": serverInfo, "/v1/start_reporting": "status 405", "/v1/loads": sglangLoads},
		registry.Facts{Family: "sglang", Version: "0.5.19", Models: []string{"m1"}, Role: store.RoleRegular, DPSize: 2, CapacityTokens: 9000, MaxRunning: 50},
		registry.VerdictOffered, registry.VerdictOffered, "",
	},
	"old sglang": {
		map[string]string{"/get_server_info": `{"model_path":"/m/","disaggregation_mode":"decode"}`, "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`},
		registry.Facts{Family: "sglang", Models: []string{"/m"}, Role: store.RoleDecode},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"vllm": {
		map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.11.0"}`, "/metrics": vllmPage},
		registry.Facts{Family: "vllm", Version: "0.11.0", Models: []string{"lora", "m2"}},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"vllm with its own server_info": {
		map[string]string{"/server_info": `{"vllm_config":"x"}`, "/v1/models": vllmModels, "/version": `{"version":"0.11.0"}`, "/metrics": vllmPage},
		registry.Facts{Family: "vllm", Version: "0.11.0", Models: []string{"lora", "m2"}},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"tgi": {
		map[string]string{"/info": tgiInfo, "/v1/models": `{"data":[{"id":"org/m3","owned_by":"org/m3"}]}`, "/metrics": "tgi_queue_size 0\ntgi_batch_current_size 1\n"},
		registry.Facts{Family: "tgi", Version: "3.3.4", Models: []string{"org/m3"}, DPSize: 1, CapacityTokens: 16000, MaxRunning: 128},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"llama.cpp": {
		map[string]string{"/props": llamaProps, "/v1/models": llamaModels, "/metrics": "llamacpp:requests_processing 1\n"},
		registry.Facts{Family: "llama.cpp", Version: "b5000-abc", Models: []string{"m4.gguf"}, DPSize: 1, MaxRunning: 4},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"llama.cpp without a list": {
		map[string]string{"/props": llamaProps, "/metrics": "llamacpp:requests_processing 1\n"},
		registry.Facts{Family: "llama.cpp", Version: "b5000-abc", Models: []string{"/models/m4.gguf"}, DPSize: 1, MaxRunning: 4},
		registry.VerdictAbsent, registry.VerdictOffered, registry.ReasonUnsupported,
	},
	"nothing but a site": {
		map[string]string{}, registry.Facts{}, registry.VerdictAbsent, registry.VerdictAbsent, registry.ReasonUnsupported,
	},
}

func TestProbe(t *testing.T) {
	for name, c := range kinds {
		t.Run(name, func(t *testing.T) {
			e := &engine{bodies: c.bodies}
			p := newProber(t, e.dial)
			f := p.Probe(t.Context(), registry.Target{URL: testURL})
			if !reflect.DeepEqual(f.Facts, c.facts) || !f.Complete {
				t.Errorf("facts %+v, complete %v", f.Facts, f.Complete)
			}
			if !slices.Equal(dialects(f.Offers), []store.Dialect{store.DialectMonitor, store.DialectPush, store.DialectLoadstat, store.DialectPoll}) {
				t.Fatalf("offers %+v", f.Offers)
			}
			push, poll := offer(f, store.DialectPush), offer(f, store.DialectPoll)
			if push.Verdict != c.push || push.Reason != c.why || poll.Verdict != c.poll || push.Detail == "" || poll.Detail == "" {
				t.Errorf("offers %+v", f.Offers)
			}
			if (poll.Verdict == registry.VerdictOffered) != (poll.Reason == "") {
				t.Errorf("poll is %s for %q", poll.Verdict, poll.Reason)
			}
			only := p.Facts(t.Context(), registry.Target{URL: testURL})
			if !reflect.DeepEqual(only.Facts, c.facts) || !only.Complete || only.Offers != nil {
				t.Errorf("Facts alone: %+v", only)
			}
			for _, a := range e.asked {
				if !strings.HasPrefix(a, "GET ") {
					t.Errorf("a probe sent %s", a)
				}
			}
		})
	}
}

func dialects(offers []registry.Offer) (list []store.Dialect) {
	for _, o := range offers {
		list = append(list, o.Dialect)
	}
	return list
}

// offer returns what was found of a dialect; the zero Offer for nothing.
func offer(f registry.Finding, d store.Dialect) registry.Offer {
	if i := slices.Index(dialects(f.Offers), d); i >= 0 {
		return f.Offers[i]
	}
	return registry.Offer{}
}

func TestPushVerdict(t *testing.T) {
	for answer, want := range map[string]struct {
		verdict registry.Verdict
		reason  store.Reason
	}{
		"status 405": {registry.VerdictOffered, ""},
		"status 404": {registry.VerdictAbsent, registry.ReasonUnsupported},
		"status 501": {registry.VerdictAbsent, registry.ReasonUnsupported},
		"status 401": {registry.VerdictAbsent, registry.ReasonAuth},
		"status 403": {registry.VerdictAbsent, registry.ReasonAuth},
		"status 503": {registry.VerdictUnknown, registry.ReasonEngineError},
		"status 307": {registry.VerdictUnknown, registry.ReasonRedirected},
		"<html>":     {registry.VerdictUnknown, registry.ReasonBadAnswer},
	} {
		e := &engine{bodies: map[string]string{"/v1/start_reporting": answer}}
		o := newProber(t, e.dial).Probe(t.Context(), registry.Target{URL: testURL}).Offers[1]
		if o.Verdict != want.verdict || o.Reason != want.reason || !strings.Contains(o.Detail, "/v1/start_reporting") {
			t.Errorf("%s: got %+v", answer, o)
		}
	}
}

func TestPollVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		bodies  map[string]string
		verdict registry.Verdict
		reason  store.Reason
	}{
		"auth":    {map[string]string{"/v1/loads": "status 401"}, registry.VerdictAbsent, registry.ReasonAuth},
		"5xx":     {map[string]string{"/v1/loads": "status 503"}, registry.VerdictUnknown, registry.ReasonEngineError},
		"cold":    {map[string]string{"/v1/loads": `{"loads":[]}`}, registry.VerdictUnknown, sample.ReasonNoData},
		"no page": {map[string]string{"/metrics": "<html></html>"}, registry.VerdictUnknown, sample.ReasonHTMLPage},
	} {
		e := &engine{bodies: c.bodies}
		o := newProber(t, e.dial).Probe(t.Context(), registry.Target{URL: testURL}).Offers[3]
		if o.Verdict != c.verdict || o.Reason != c.reason || o.Detail == "" {
			t.Errorf("%s: got %+v", name, o)
		}
	}
}

// TestNoDefiniteAnswer keeps facts open where an engine may say more later.
func TestNoDefiniteAnswer(t *testing.T) {
	for name, bodies := range map[string]map[string]string{
		"503":  {"/server_info": "status 503"},
		"auth": {"/server_info": "status 401"},
	} {
		e := &engine{bodies: bodies}
		if f := newProber(t, e.dial).Facts(t.Context(), registry.Target{URL: testURL}); f.Complete {
			t.Errorf("%s: got %+v", name, f)
		}
	}
}

func TestUnreachableIsAskedOnce(t *testing.T) {
	dials := 0
	p := newProber(t, func(context.Context, string, string) (net.Conn, error) {
		dials++
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	})
	f := p.Probe(t.Context(), registry.Target{URL: testURL})
	if dials != 1 || f.Complete || len(f.Offers) != 4 {
		t.Fatalf("%d dials, %+v", dials, f)
	}
	for _, o := range f.Offers {
		if o.Verdict != registry.VerdictUnknown || o.Reason != registry.ReasonConnectFailed || !strings.Contains(o.Detail, "refused") {
			t.Errorf("got %+v", o)
		}
	}
}

// TestBusyEngine has documents that never come, and a load page.
func TestBusyEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/server_info": "late", "/v1/models": "late", "/v1/loads": sglangLoads}}
		began := time.Now()
		f := newProber(t, e.dial).Probe(t.Context(), registry.Target{URL: testURL})
		if took := time.Since(began); took != poll.DefaultTimeout || f.Complete || f.Offers[3].Verdict != registry.VerdictOffered {
			t.Errorf("%+v after %s", f, took)
		}
		synctest.Wait()
	})
}

func TestInspect(t *testing.T) {
	e := &engine{bodies: kinds["sglang with push"].bodies}
	r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
	var asked []string
	for _, a := range r.Asked {
		asked = append(asked, fmt.Sprintf("%s %d %d %s %s", a.Path, a.Status, a.Bytes, a.Endpoint, a.Reason))
	}
	want := []string{
		fmt.Sprintf("/server_info 200 %d  ", len(serverInfo)),
		"/v1/start_reporting 405 10  unsupported",
		fmt.Sprintf("/v1/loads?include=core,disagg,queues 200 %d sglang /v1/loads ", len(sglangLoads)),
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if r.URL != testURL || !r.Complete || r.Dialect != store.DialectPush || !strings.Contains(r.Why, "; push: offered") {
		t.Errorf("got %+v", r)
	}
	if r.Endpoint.Name != "sglang /v1/loads" || len(r.Reading.Ranks) != 1 || len(r.Reading.Matches) == 0 {
		t.Errorf("reading %+v", r.Reading)
	}
	if !slices.Contains(r.Unknown, store.NumWaitingUncachedTokens) || slices.Contains(r.Unknown, store.NumRunningReqs) {
		t.Errorf("unknown %v", r.Unknown)
	}
}

func TestInspectWithoutOffer(t *testing.T) {
	r := newProber(t, (&engine{}).dial).Inspect(t.Context(), registry.Target{URL: testURL})
	if r.Dialect != store.DialectUnspecified || r.Endpoint != nil || r.Reading != nil || r.Unknown != nil || !strings.Contains(r.Why, "poll: unsupported") {
		t.Errorf("got %+v", r)
	}
	e := &engine{bodies: map[string]string{"/metrics": vllmPage}}
	r = newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
	if r.Dialect != store.DialectPoll || !strings.HasPrefix(r.Why, "monitor: unsupported (GET /server_info: 404); push: unsupported") || !strings.Contains(r.Why, "vllm /metrics, 1 rank") {
		t.Errorf("got %s by %q", r.Dialect, r.Why)
	}
}

// TestBug07RanksUnknown reads one series of an engine of eight ranks.
func TestBug07RanksUnknown(t *testing.T) {
	e := &engine{bodies: map[string]string{
		"/server_info": `{"model_path":"m","dp_size":8}`, "/metrics": "sglang:num_running_reqs 4\nsglang:num_queue_reqs 1\n",
	}}
	r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
	if r.Reading == nil || len(r.Reading.Ranks) != 1 || r.Reading.Flags&store.FlagRanksUnknown == 0 {
		t.Errorf("got %+v", r.Reading)
	}
}

// TestBug52FactsComeLater has an engine whose documents answer 503 for 20 s.
// Nothing new is discovered.
func TestBug52FactsComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/server_info": "status 503", "/v1/loads": sglangLoads}}
		st, stop := polledPlane(t, testURL+",dialect=poll", e.dial)
		<-time.After(20 * time.Second)
		models := func() (*store.Entry, []string) {
			s, _ := st.Current()
			return s.Entries[0], s.Entries[0].Worker.Models
		}
		if entry, m := models(); m != nil || entry.Freshness != store.Fresh {
			t.Errorf("before: models %q, %s", m, entry.Freshness)
		}
		e.set(map[string]string{"/server_info": serverInfo, "/v1/loads": sglangLoads})
		<-time.After(31 * time.Second)
		if entry, m := models(); !slices.Equal(m, []string{"m1"}) || entry.Freshness != store.Fresh {
			t.Errorf("after: models %q, %s", m, entry.Freshness)
		}
		stop()
		synctest.Wait()
	})
}

// TestBesideADialectInUse asks about the dialects preferred to it alone.
func TestBesideADialectInUse(t *testing.T) {
	const info, push = "GET /server_info", "GET /v1/start_reporting"
	for name, c := range map[string]struct {
		using  store.Dialect
		family string
		asked  []string
		offers int
	}{
		"poll":                {store.DialectPoll, "", []string{info, push}, 3},
		"poll of an SGLang":   {store.DialectPoll, "sglang", []string{info, push}, 3},
		"poll of another":     {store.DialectPoll, "vllm", []string{push, info}, 3}, // as it answers 405
		"loadstat":            {store.DialectLoadstat, "sglang", []string{info, push}, 2},
		"push":                {store.DialectPush, "sglang", []string{info}, 1},
		"push of another":     {store.DialectPush, "vllm", nil, 1},
		"monitor":             {store.DialectMonitor, "sglang", nil, 0},
		"none is above it":    {store.DialectNative, "sglang", nil, 0},
		"nothing is sent now": {store.DialectNone, "sglang", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{bodies: kinds["sglang with push"].bodies}
			f := newProber(t, e.dial).Probe(t.Context(), registry.Target{
				URL: testURL, Using: c.using, Behind: "/x", Facts: registry.Facts{Family: c.family},
			})
			if !slices.Equal(e.asked, c.asked) || len(f.Offers) != c.offers || f.Behind != "/x" || !f.Complete {
				t.Errorf("asked for %q, found %+v", e.asked, f)
			}
		})
	}
}

// TestSearchGoesOnBehindTimeouts has two pages that never come before one that
// can be read.
func TestSearchGoesOnBehindTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/v1/loads": "late", "/prometheus/metrics": "late", "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`}}
		p, target := newProber(t, e.dial), registry.Target{URL: testURL}
		first := p.Probe(t.Context(), target)
		target.Behind = first.Behind
		second := p.Probe(t.Context(), target)
		if first.Offers[3].Verdict != registry.VerdictUnknown || second.Offers[3].Verdict != registry.VerdictOffered {
			t.Errorf("first %+v, then %+v", first.Offers[3], second.Offers[3])
		}
		synctest.Wait()
	})
}

// TestQuestionsWaitInLine lets no question go while another request is under
// way, and each of them hold it up no longer than there is patience.
func TestQuestionsWaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/server_info": "late"}}
		target := registry.Target{URL: testURL, Line: egress.NewLine(), Patience: time.Second}
		leave, err := target.Line.Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		done := make(chan registry.Finding)
		go func() { done <- newProber(t, e.dial).Facts(t.Context(), target) }()
		<-time.After(time.Minute)
		synctest.Wait()
		if len(e.asked) != 0 {
			t.Errorf("asked for %q beside another request", e.asked)
		}
		leave()
		if f := <-done; f.Complete || time.Since(began) != time.Minute+target.Patience {
			t.Errorf("got %+v after %s", f, time.Since(began))
		}
		ctx, stop := context.WithCancel(t.Context())
		if _, err := target.Line.Join(ctx); err != nil {
			t.Fatal(err)
		}
		stop()
		if f := newProber(t, e.dial).Probe(ctx, target); f.Complete || len(f.Offers) != 4 || f.Offers[0].Verdict != registry.VerdictUnknown {
			t.Errorf("without a turn: %+v", f)
		}
		synctest.Wait()
	})
}

// TestBug10PanicLeavesTheQuestionOpen has code panic that connects, and code
// that reads.
func TestBug10PanicLeavesTheQuestionOpen(t *testing.T) {
	var lines strings.Builder
	p, err := New(Options{
		Clock: store.NewClock(), Logger: slog.New(slog.NewTextHandler(&lines, nil)),
		Dial: func(context.Context, string, string) (net.Conn, error) { panic("boom") },
	})
	if err != nil {
		t.Fatal(err)
	}
	target := registry.Target{URL: testURL, Line: egress.NewLine()}
	for range 2 {
		if f := p.Probe(t.Context(), target); f.Complete || f.Offers != nil {
			t.Errorf("Probe found %+v", f)
		}
		if f := p.Facts(t.Context(), target); f.Complete {
			t.Errorf("Facts found %+v", f)
		}
	}
	if r := p.Inspect(t.Context(), target); r.Complete || r.Dialect != store.DialectUnspecified {
		t.Errorf("Inspect found %+v", r)
	}
	if n := testutil.ToFloat64(p.metrics.panics); n != 5 || strings.Count(lines.String(), "boom") != 1 || !strings.Contains(lines.String(), "goroutine") {
		t.Errorf("%v panics counted, log:\n%s", n, &lines)
	}
	e := &engine{bodies: map[string]string{"/x": "text"}}
	s := newProber(t, e.dial).open(target)
	defer s.client.Close()
	if f, ok := s.read(t.Context(), document{"/x", func([]byte) (registry.Facts, bool) { panic("boom") }}); ok || !s.open || f.Family != "" {
		t.Errorf("read %+v, %v, open %v", f, ok, s.open)
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	o := Options{Clock: store.NewClock(), Registerer: prometheus.NewRegistry()}
	if _, err := New(o); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil {
		t.Error("the metrics were registered twice")
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{"Clock": {}, "Timeout": {Clock: store.NewClock(), Timeout: -1}} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestEngineThatRefusesEveryPath with 405 has no push reporter for that.
func TestEngineThatRefusesEveryPath(t *testing.T) {
	for _, using := range []store.Dialect{store.DialectUnspecified, store.DialectPoll} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{bodies: map[string]string{
				"/v1/start_reporting": "status 405", "/server_info": "status 405", "/get_server_info": "status 405",
			}}
			target := registry.Target{URL: "http://10.0.0.1:30000", Using: using}
			f := newProber(t, e.dial).Probe(t.Context(), target)
			if o := offer(f, store.DialectPush); o.Verdict != registry.VerdictAbsent || o.Reason != registry.ReasonUnsupported {
				t.Errorf("using %s: %+v", using, o)
			}
		})
	}
}

// TestPageLeftAloneIsShown among what was asked for.
func TestPageLeftAloneIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/prometheus/metrics": "status 503"}}
		r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: "http://10.0.0.1:30000"})
		if last := r.Asked[len(r.Asked)-1]; last.Path != "/metrics" || last.Reason != ReasonLeftAlone {
			t.Errorf("got %+v", last)
		}
	})
}

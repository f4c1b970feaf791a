package poll

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testWorker = "http://10.0.0.1:30000"
	testOrigin = "10.0.0.1:30000"
	testStale  = 3 * time.Second
	testSettle = 10 * time.Millisecond
)

// plane is a store and a registry that polls, in a bubble of fake time.
type plane struct {
	t        *testing.T
	store    *store.Store
	registry *registry.Registry
	poller   *Poller
	net      *network
	prom     *prometheus.Registry
	stop     context.CancelFunc
	runs     sync.WaitGroup
}

func newPlane(t *testing.T, change func(*registry.Options, *Options)) *plane {
	t.Helper()
	p := &plane{t: t, net: &network{engines: map[string]*engine{}}, prom: prometheus.NewPedanticRegistry()}
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: testStale, Settle: testSettle,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
	})
	p.must(err)
	polling := Options{Clock: clock, StaleAfter: testStale, Dial: p.net.dial, Registerer: p.prom, Logger: quiet}
	reg := registry.Options{
		Store: p.store, Workers: []string{testWorker + ",dialect=poll"}, ReportInterval: time.Second,
		StaleAfter: testStale, Lease: 15 * time.Second, ReportPort: func() uint16 { return 7401 }, Logger: quiet,
	}
	change(&reg, &polling)
	p.poller, err = New(polling)
	p.must(err)
	if reg.Dialers == nil {
		reg.Dialers = map[store.Dialect]registry.Dialer{store.DialectPoll: p.poller}
	}
	p.registry, err = registry.New(reg)
	p.must(err)
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) run() {
	ctx, stop := context.WithCancel(p.t.Context())
	p.stop = stop
	for _, part := range []func(context.Context) error{p.store.Run, p.registry.Run} {
		p.runs.Go(func() {
			if err := part(ctx); err != nil {
				p.t.Errorf("Run: %v", err)
			}
		})
	}
}

func (p *plane) close() {
	p.stop()
	p.runs.Wait()
	p.net.cut()
	// Engines that answer late notice late that nobody listens.
	after(3 * time.Second)
	if n := testutil.ToFloat64(p.poller.metrics.engines) + testutil.ToFloat64(p.poller.metrics.stretched); n != 0 {
		p.t.Errorf("the gauges of engines are off by %g at the end", n)
	}
}

// inBubble polls an engine that answers as told, and runs body.
func inBubble(t *testing.T, handle http.HandlerFunc, body func(p *plane, e *engine)) {
	t.Helper()
	inBubbleWith(t, func(*registry.Options, *Options) {}, func(p *plane) {
		e := p.net.add(testOrigin, handle)
		p.run()
		body(p, e)
	})
}

func inBubbleWith(t *testing.T, change func(*registry.Options, *Options), body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, change)
		body(p)
		p.close()
	})
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// entry returns what the store has of a worker, nil while it lists none.
func (p *plane) entry(id string) (*store.Entry, *store.Live, store.Diagnostics) {
	p.t.Helper()
	st, _ := p.store.Current()
	i := slices.IndexFunc(st.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
	if i < 0 {
		p.t.Fatalf("there is no worker %s", id)
	}
	_, d, _ := p.store.Inspect(st.Entries[i].Row)
	return st.Entries[i], st.Live[i], d
}

func (p *plane) source() string {
	e, _, _ := p.entry(testWorker)
	st, _, _ := p.store.Inspect(e.Row)
	return st.Source
}

// wantFailing checks that nothing was heard, and the shown reason.
func (p *plane) wantFailing(reason store.Reason) {
	p.t.Helper()
	e, _, d := p.entry(testWorker)
	if e.Load != nil || e.Freshness != store.Missing || e.Reason != reason || d.RegistrationError == "" {
		p.t.Errorf("got load %v, %s, reason %q, want %q; diagnostics %+v", e.Load, e.Freshness, e.Reason, reason, d)
	}
}

// polled returns how many polls had a result.
func (p *plane) polled(result store.Reason) int {
	return int(testutil.ToFloat64(p.poller.metrics.polls.WithLabelValues(string(result))))
}

// network connects to engines in memory.
type network struct {
	mu      sync.Mutex
	engines map[string]*engine
	far     map[net.Conn]bool
	dials   int
	peak    int
}

// engine is a process that listens. It refuses connections while it is down,
// and lets them wait for ever while it is black.
type engine struct {
	mu          sync.Mutex
	handle      http.HandlerFunc
	raw         func(net.Conn)
	down, black bool
	// peer is where connections lead, where that is not the address.
	peer       netip.AddrPort
	asked      []request
	busy, most int
}

type request struct {
	at   time.Time
	path string
}

func (n *network) add(addr string, handle http.HandlerFunc) *engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines[addr] = &engine{handle: handle}
	return n.engines[addr]
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	e := n.engines[addr]
	n.dials++
	n.mu.Unlock()
	e.mu.Lock()
	down, black, raw, peer := e.down, e.black, e.raw, e.peer
	e.mu.Unlock()
	switch {
	case down:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case black:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	n.track(far, true)
	go func() {
		defer n.track(far, false)
		defer far.Close()
		if raw != nil {
			raw(far)
			return
		}
		e.serve(far)
	}()
	if !peer.IsValid() {
		peer = netip.MustParseAddrPort(addr)
	}
	remote := net.TCPAddrFromAddrPort(peer)
	return tcpConn{near, remote}, nil
}

func (n *network) track(c net.Conn, open bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.far == nil {
		n.far = map[net.Conn]bool{}
	}
	delete(n.far, c)
	if open {
		n.far[c] = true
	}
	n.peak = max(n.peak, len(n.far))
}

// cut closes all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.far {
		c.Close()
	}
}

type tcpConn struct {
	net.Conn
	remote *net.TCPAddr
}

func (c tcpConn) RemoteAddr() net.Addr { return c.remote }

// serve answers requests until the connection ends.
func (e *engine) serve(c net.Conn) {
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		e.note(req)(w, req)
		e.done()
		res := w.Result()
		res.ContentLength = int64(w.Body.Len())
		if res.Write(c) != nil {
			return
		}
	}
}

func (e *engine) note(req *http.Request) http.HandlerFunc {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, request{time.Now(), req.URL.RequestURI()})
	e.busy++
	e.most = max(e.most, e.busy)
	return e.handle
}

func (e *engine) done() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy--
}

// set changes the engine.
func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

// forget returns the requests since it was last called.
func (e *engine) forget() []request {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := e.asked
	e.asked = nil
	return asked
}

func paths(asked []request) (list []string) {
	for _, r := range asked {
		list = append(list, r.path)
	}
	return list
}

// pages answers the paths of a map, and others with 404. A body that is a
// number is a status.
func pages(bodies map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.Path]
		status := 0
		if _, err := fmt.Sscanf(body, "status %d", &status); err == nil {
			w.WriteHeader(status)
			return
		}
		if !ok {
			http.Error(w, "Not Found", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(body))
	}
}

// vllm is a page of vLLM: a process that began at start, with so many requests
// running on each rank.
func vllm(start float64, running ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %f\n", start)
	for i, n := range running {
		fmt.Fprintf(&b, "vllm:num_requests_running{engine=\"%d\",model_name=\"m\"} %d\n", i, n)
		fmt.Fprintf(&b, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m\"} 1\n", i)
		fmt.Fprintf(&b, "vllm:kv_cache_usage_perc{engine=\"%d\",model_name=\"m\"} 0.5\n", i)
	}
	return b.String()
}

// loads is SGLang's /v1/loads of ranks with so many requests running.
func loads(running ...int) string {
	var ranks []string
	for i, n := range running {
		ranks = append(ranks, fmt.Sprintf(`{"dp_rank":%d,"timestamp":1.5,"num_running_reqs":%d,"num_waiting_reqs":0,`+
			`"num_waiting_uncached_tokens":0,"num_used_tokens":10,"num_total_tokens":10,"max_total_num_tokens":100,`+
			`"max_running_requests":50,"token_usage":0.1,"gen_throughput":1.5,"cache_hit_rate":0,"utilization":0.1}`, i, n))
	}
	return `{"timestamp":"2026-08-01T00:00:00Z","version":"0.5.19","loads":[` + strings.Join(ranks, ",") + `]}`
}

const (
	sglang = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 0\n"
	llama  = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n"
	tgi    = "tgi_batch_current_size 3\ntgi_queue_size 0\n"
	html   = "<!DOCTYPE html><html><body>Not Found</body></html>"
)

package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	settle     = 10 * time.Millisecond
)

// plane is a running store behind an API on a listener.
type plane struct {
	*testing.T
	store *store.Store
	views *snapshot.Builder
	api   *api.API
	clock *store.Clock
	reg   *prometheus.Registry
	dial  func(ctx context.Context) (net.Conn, error)
	url   string
	// stopStore ends the committer.
	stopStore func()
	slots     map[string]*store.Slot
}

type setup struct {
	api   api.Options
	store store.Options
	// chunk is the size at which events are cut, bytes; 0 for the default.
	chunk int
}

// inBubble runs body on a plane in fake time, over connections in memory that
// buffer 16 KiB.
func inBubble(t *testing.T, change func(*setup), body func(p *plane)) {
	t.Helper()
	inBubbleBehind(t, change, func(l net.Listener) net.Listener { return l }, body)
}

// inBubbleBehind is inBubble with a listener around that in memory.
func inBubbleBehind(t *testing.T, change func(*setup), around func(net.Listener) net.Listener, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(16 << 10)
		p, stop := start(t, change, around(listener))
		t.Cleanup(stop)
		p.dial = listener.DialContext
		p.url = "http://plane"
		synctest.Wait()
		body(p)
	})
}

// onLoopback runs body on a plane on a TCP port.
func onLoopback(t *testing.T, change func(*setup), body func(p *plane)) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, stop := start(t, change, listener)
	t.Cleanup(stop)
	p.url = "http://" + listener.Addr().String()
	p.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}
	body(p)
}

func start(t *testing.T, change func(*setup), listener net.Listener) (*plane, func()) {
	t.Helper()
	p := &plane{T: t, clock: store.NewClock(), reg: prometheus.NewRegistry(), slots: make(map[string]*store.Slot)}
	s := setup{
		store: store.Options{
			Lineage: "lineage-1", Epoch: 7, Clock: p.clock, StaleAfter: staleAfter, Settle: settle,
			ReportInterval: interval, Discovery: true,
			SleptFor: func() time.Duration { return 0 },
		},
		api: api.Options{ServerID: "server-1", Version: "test", Registerer: p.reg, Gatherer: p.reg},
	}
	if change != nil {
		change(&s)
	}
	var err error
	if p.store, err = store.New(s.store); err != nil {
		t.Fatal(err)
	}
	p.views = snapshot.New(p.store)
	s.api.Snapshots = p.views
	if p.api, err = api.New(s.api); err != nil {
		t.Fatal(err)
	}
	if s.chunk > 0 {
		p.api.SetChunk(s.chunk)
	}
	storeCtx, stopStore := context.WithCancel(context.Background())
	stopped, served := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		if err := p.store.Run(storeCtx); err != nil {
			t.Error("store:", err)
		}
	}()
	p.stopStore = func() {
		stopStore()
		<-stopped
	}
	server := api.NewHTTPServer(p.api.Handler(), nil, nil)
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	return p, func() {
		_ = server.Close()
		<-served
		p.stopStore()
	}
}

// after lets d pass in a bubble.
func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// client returns an HTTP client and closes its connections at the end.
func (p *plane) client(http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{
		Protocols:          protocols,
		DisableCompression: true,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) },
		HTTP2:              &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10},
	}
	p.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (p *plane) snapshots(opts ...connect.ClientOption) loadplanev1connect.SnapshotServiceClient {
	return loadplanev1connect.NewSnapshotServiceClient(p.client(true), p.url, opts...)
}

// add discovers workers and binds a stream to each.
func (p *plane) add(workers ...*store.Worker) {
	d := store.Discovery{Synced: true}
	for _, w := range workers {
		slot := p.store.NewSlot(w)
		slot.Bind(store.Stream{Source: "source-" + w.ID, Peer: "127.0.0.1:9", Generation: 1})
		p.slots[w.ID] = slot
		d.Added = append(d.Added, slot)
	}
	p.store.Apply(d)
}

func newWorker(id string) *store.Worker {
	return &store.Worker{
		ID: id, URL: "http://" + id, Origin: id, Role: store.RoleRegular, Models: []string{"qwen3"},
		Dialect: store.DialectPush, Interval: interval, DiscoveredBy: "flag",
	}
}

// report offers a healthy report in which every rank runs n requests.
func (p *plane) report(id string, sequence uint64, n int64, ranks int) {
	p.slots[id].Offer(1, p.newLoad(id, sequence, n, ranks))
}

func (p *plane) newLoad(id string, sequence uint64, n int64, ranks int) *store.Load {
	l := &store.Load{
		Source: "source-" + id, Sequence: sequence, Status: store.StatusHealthy,
		ReportUnixMs: time.Now().UnixMilli() + 25, Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
	for i := range ranks {
		r := store.Rank{DPRank: int32(i)}
		for f, info := range store.Fields {
			switch {
			case !info.Core:
			case info.Float:
				r.SetFloat(store.Field(f), 0.5)
			default:
				r.SetCount(store.Field(f), n)
			}
		}
		r.SetCount(store.MaxTotalNumTokens, 1000)
		r.SetCount(store.MaxRunningRequests, 100)
		l.Ranks = append(l.Ranks, r)
		l.Samples = append(l.Samples, store.Sample{
			TimeUnixMs: 123, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1,
		})
	}
	return l
}

// until waits for a state of the store.
func (p *plane) until(what string, holds func(*store.State) bool) *store.State {
	p.Helper()
	late := time.After(10 * time.Second)
	for {
		state, stale := p.store.Current()
		if holds(state) {
			return state
		}
		select {
		case <-stale:
		case <-late:
			p.Fatal("not reached:", what)
		}
	}
}

func fresh(n int) func(*store.State) bool {
	return func(s *store.State) bool {
		for _, e := range s.Entries {
			if e.Freshness == store.Fresh {
				n--
			}
		}
		return n == 0
	}
}

// stream is a watch whose messages are applied as they come.
type stream struct {
	p       *plane
	replica client.Replica
	*connect.ServerStreamForClient[pb.WatchSnapshotsResponse]
	stop context.CancelFunc
}

func (p *plane) watch(c loadplanev1connect.SnapshotServiceClient, req *pb.WatchSnapshotsRequest) *stream {
	p.Helper()
	ctx, stop := context.WithCancel(p.Context())
	s, err := c.WatchSnapshots(ctx, req)
	if err != nil {
		p.Fatal(err)
	}
	w := &stream{p: p, ServerStreamForClient: s, stop: stop}
	p.Cleanup(w.end)
	return w
}

func (s *stream) end() {
	s.stop()
	_ = s.Close()
}

// next returns the next message, which must continue those before it.
func (s *stream) next() *pb.WatchSnapshotsResponse {
	s.p.Helper()
	if !s.Receive() {
		s.p.Fatal("the stream ended:", s.Err())
	}
	if _, err := s.replica.Apply(s.Msg(), time.Now()); err != nil {
		s.p.Fatal(err)
	}
	return s.Msg()
}

// view returns what the messages so far add up to.
func (s *stream) view() *client.View { return s.replica.View() }

// delta returns the next message, which must be a delta.
func (s *stream) delta() *pb.WatchSnapshotsResponse {
	s.p.Helper()
	m := s.next()
	if m.GetDelta() == nil {
		s.p.Fatalf("got %T, want a delta", m.GetEvent())
	}
	return m
}

// full returns the next message, which must be full.
func (s *stream) full() *pb.WatchSnapshotsResponse {
	s.p.Helper()
	m := s.next()
	if m.GetFull() == nil {
		s.p.Fatalf("got %T, want a full", m.GetEvent())
	}
	return m
}

func (s *stream) heartbeat() *pb.WatchSnapshotsResponse {
	s.p.Helper()
	m := s.next()
	if m.GetHeartbeat() == nil {
		s.p.Fatalf("got %T, want a heartbeat", m.GetEvent())
	}
	return m
}

// answer is an HTTP answer that was read whole.
type answer struct {
	*http.Response
	body string
}

func (p *plane) do(c *http.Client, method, path string) answer {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), method, p.url+path, nil)
	if err != nil {
		p.Fatal(err)
	}
	return p.read(c.Do(req))
}

func (p *plane) read(res *http.Response, err error) answer {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answer{res, string(body)}
}

// ops asks the handler of the ops listener.
func (p *plane) ops(path string) answer {
	p.Helper()
	rec := httptest.NewRecorder()
	p.api.Ops().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return p.read(rec.Result(), nil)
}

// lines is a watch over NDJSON.
type lines struct {
	p       *plane
	scanner *bufio.Scanner
}

func (p *plane) lines(c *http.Client) *lines {
	p.Helper()
	return p.linesOf(c, "")
}

// linesOf is lines with a query.
func (p *plane) linesOf(c *http.Client, query string) *lines {
	p.Helper()
	ctx, stop := context.WithCancel(p.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/v1/load_monitor/watch"+query, nil)
	if err != nil {
		p.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		stop()
		_ = res.Body.Close()
	})
	if got := res.Header.Get("Content-Type"); got != "application/x-ndjson" {
		p.Fatalf("Content-Type %q, status %d", got, res.StatusCode)
	}
	return &lines{p: p, scanner: bufio.NewScanner(res.Body)}
}

func (l *lines) next(wantType string) map[string]any {
	l.p.Helper()
	if !l.scanner.Scan() {
		l.p.Fatal("no further line:", l.scanner.Err())
	}
	m := decode(l.p, l.scanner.Text())
	if m["type"] != wantType {
		l.p.Fatalf("a line of type %v, want %s", m["type"], wantType)
	}
	return m
}

func decode(t testing.TB, body string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return m
}

// metric returns the value of a counter or gauge, by its name and one label.
func (p *plane) metric(name, label string) float64 {
	p.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	p.Fatalf("no metric %s{%s}", name, label)
	return 0
}

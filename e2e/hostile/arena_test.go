package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/push"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	routerpb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	settle     = 10 * time.Millisecond
	healthy    = 20
)

// amount returns how much of an attack to run: all of it only where
// LOADPLANE_HOSTILE asks for it.
func amount(usual, full int) int {
	if os.Getenv("LOADPLANE_HOSTILE") == "full" {
		return full
	}
	return usual
}

// attack is what is done beside the healthy engines.
type attack struct {
	// rounds is the number of seconds that it takes.
	rounds int
	// workers are discovered beside the healthy ones.
	workers []string
	// begin returns what to do in each round. It is called once.
	begin func(a *arena) func(round int)
}

// arena is a plane in a bubble of fake time, with healthy engines that report
// once a second.
type arena struct {
	*testing.T
	store   *store.Store
	builder *snapshot.Builder
	handler http.Handler
	reg     *prometheus.Registry
	pipes   *pipes

	// refused are the refusals that the attack must lead to, by reason; ended
	// those that the registry alone counts.
	mu             sync.Mutex
	refused, ended map[store.Reason]int
	replica        client.Replica
	histories      map[string][]string
}

// play runs the healthy engines alone and then beside the attack, and compares
// what a watcher sees of them.
func (x attack) play(t *testing.T) {
	alone := x.run(t, false)
	beside := x.run(t, true)
	for id, want := range alone {
		if len(want) < x.rounds {
			t.Errorf("%s has %d entries after %d rounds", id, len(want), x.rounds)
		}
		if got := beside[id]; !slices.Equal(got, want) {
			t.Errorf("%s has the history\n%v, without the attack\n%v", id, got, want)
		}
	}
	if len(alone) != healthy {
		t.Errorf("%d histories", len(alone))
	}
}

func (x attack) run(t *testing.T, attacked bool) (histories map[string][]string) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, x.workers)
		act := func(int) {}
		if attacked {
			act = x.begin(a)
		}
		engines := a.engines()
		for round := range x.rounds {
			began := time.Now()
			done := make(chan struct{})
			go func() { defer close(done); act(round) }()
			for i, e := range engines {
				e.send(report(healthyID(i), "healthy", uint64(round+1), int64(round*100+i)))
			}
			<-done
			pass(settle)
			pass(interval - time.Since(began))
		}
		histories = a.histories
		a.counted()
		if err := a.builder.Check(); err != nil {
			t.Error(err)
		}
	})
	return histories
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// idle returns when everything that was sent is done with. Other than pass, it
// may be called by several goroutines at once.
func idle() { <-time.After(time.Microsecond) }

func healthyID(i int) string { return fmt.Sprintf("http://127.3.0.%d:1", i+1) }

// identity is a worker that an attack may speak for from its own address.
func identity(i int) string { return fmt.Sprintf("http://127.4.%d.%d:1", i/200, i%200+1) }

func identities(n int) (ids []string) {
	for i := range n {
		ids = append(ids, identity(i))
	}
	return ids
}

// newArena starts a plane whose discovery runs once, and a watcher.
func newArena(t *testing.T, workers []string) *arena {
	t.Helper()
	a := &arena{
		T: t, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, reg: prometheus.NewRegistry(),
		refused: map[store.Reason]int{}, ended: map[store.Reason]int{}, histories: map[string][]string{},
	}
	for i := range healthy {
		workers = append(workers, healthyID(i))
	}
	quiet := slog.New(slog.DiscardHandler)
	clock := store.NewClock()
	var err error
	a.store, err = store.New(store.Options{
		Lineage: "hostile", Epoch: 1, Clock: clock, StaleAfter: staleAfter, Settle: settle, ReportInterval: interval,
		Discovery: true, SleptFor: func() time.Duration { return 0 }, Registerer: a.reg, Logger: quiet,
	})
	a.must(err)
	known, err := registry.New(registry.Options{
		Store: a.store, Workers: workers, ReportInterval: interval, StaleAfter: staleAfter, Lease: 15 * time.Second,
		ReportPort: func() uint16 { return 7401 }, Registerer: a.reg, Logger: quiet,
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

	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	t.Cleanup(func() { cancel(); runs.Wait() })
	runs.Go(func() { a.must(a.store.Run(ctx)) })
	_, found := a.store.Current()
	known.Rediscover()
	<-found
	runs.Go(func() { a.must(server.Run(ctx, a.pipes)) })
	a.watch(api.NewHTTPServer(a.handler, nil, quiet), a.take)
	return a
}

func (a *arena) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// watch has take follow the plane over the API until the arena ends.
func (a *arena) watch(server *http.Server, take func(*pb.WatchSnapshotsResponse)) {
	listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return listener.dial(netip.MustParseAddrPort("127.0.0.1:9"))
	}}
	var runs sync.WaitGroup
	runs.Go(func() { _ = server.Serve(listener) })
	stream, err := loadplanev1connect.NewSnapshotServiceClient(&http.Client{Transport: transport}, "http://plane").
		WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{})
	a.must(err)
	runs.Go(func() {
		for stream.Receive() {
			take(stream.Msg())
		}
	})
	a.Cleanup(func() {
		cancel()
		_ = stream.Close()
		transport.CloseIdleConnections()
		_ = server.Close()
		runs.Wait()
	})
}

// take notes what changed of the healthy workers. The version is not part of
// it: others change too.
func (a *arena) take(m *pb.WatchSnapshotsResponse) {
	view, err := a.replica.Apply(m, time.Now())
	if err != nil {
		a.Error(err)
		return
	}
	for i := range healthy {
		w := view.Worker(healthyID(i))
		r := view.Receipt(w)
		if w == nil || r == nil {
			continue
		}
		entry := fmt.Sprintf("%x %v seq %d received %d until %d", w.GetContentHash(), w.GetFreshness(),
			r.GetSequenceId(), r.GetReceivedMs(), r.GetValidUntilMs())
		h := a.histories[w.GetWorkerId()]
		if len(h) == 0 || h[len(h)-1] != entry {
			a.histories[w.GetWorkerId()] = append(h, entry)
		}
	}
}

// engines returns the streams of the healthy engines, one connection each.
func (a *arena) engines() []*stream {
	var all []*stream
	for i := range healthy {
		all = append(all, a.connect(fmt.Sprintf("127.3.0.%d", i+1)).open())
	}
	return all
}

// expect notes n refusals that the plane must count.
func (a *arena) expect(reason store.Reason, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused[reason] += n
}

// expectEnd notes n ends of bindings that only the registry counts.
func (a *arena) expectEnd(reason store.Reason, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[reason] += n
}

// counted checks that every refusal was counted once: by the dialect, and by
// the registry. A report that was on its way when its stream was superseded
// counts as refused or not.
func (a *arena) counted() {
	pushed := a.counts("loadplane_push_reports_refused_total")
	delete(pushed, registry.ReasonSuperseded)
	equal(a, "push", pushed, a.refused)
	for reason, n := range a.refused {
		a.ended[reason] += n
	}
	equal(a, "registry", a.counts("loadplane_registry_refused_total"), a.ended)
}

func equal(a *arena, who string, got, want map[store.Reason]int) {
	for _, m := range []map[store.Reason]int{got, want} {
		for reason := range m {
			if got[reason] != want[reason] {
				a.Errorf("%s counts %d refusals as %s, want %d", who, got[reason], reason, want[reason])
			}
		}
	}
}

// counts returns the counters of a vector that are not zero, by reason.
func (a *arena) counts(name string) map[store.Reason]int {
	counts := map[store.Reason]int{}
	for reason, v := range a.metric(name) {
		if v != 0 {
			counts[store.Reason(reason)] = int(v)
		}
	}
	return counts
}

// metric returns the values of a counter by its label; "" without one.
func (a *arena) metric(name string) map[string]float64 {
	a.Helper()
	families, err := a.reg.Gather()
	a.must(err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			label := ""
			if len(m.GetLabel()) > 0 {
				label = m.GetLabel()[0].GetValue()
			}
			if f.GetName() == name {
				values[label] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// entry returns what the store has of a worker.
func (a *arena) entry(id string) (*store.Entry, *store.Live) {
	a.Helper()
	st, _ := a.store.Current()
	for i, e := range st.Entries {
		if e.Worker.ID == id {
			return e, st.Live[i]
		}
	}
	a.Fatalf("there is no worker %s", id)
	return nil, nil
}

// readable checks that the view can be read as JSON and that every number in
// it is finite.
func (a *arena) readable() {
	a.Helper()
	rec := httptest.NewRecorder()
	a.handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/load_monitor/snapshot", nil))
	var page struct{ Workers []map[string]any }
	if err := json.Unmarshal(rec.Body.Bytes(), &page); err != nil {
		a.Fatalf("the snapshot is no JSON: %v", err)
	}
	st, _ := a.store.Current()
	if len(page.Workers) != len(st.Entries) {
		a.Errorf("the snapshot has %d workers of %d", len(page.Workers), len(st.Entries))
	}
	view, _ := a.builder.Current()
	for _, w := range view.Workers {
		for i := range w.Ranks {
			for f := store.TokenUsage; f < store.NumFields; f++ {
				if v, _ := w.Ranks[i].Float(f); math.IsNaN(v) || math.IsInf(v, 0) {
					a.Errorf("%s of %s is %g", store.Fields[f].Name, w.Worker.ID, v)
				}
			}
		}
	}
}

// report is a good report.
func report(id, source string, sequence uint64, value int64) *routerpb.LoadReport {
	return &routerpb.LoadReport{
		SourceInstanceId: source, SequenceId: sequence, ReportTimeUnixMs: time.Now().UnixMilli(),
		Status: routerpb.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &routerpb.Worker{WorkerAddr: id, WorkerType: routerpb.WorkerType_WORKER_TYPE_REGULAR},
		Ranks:  []*routerpb.RankLoad{rank(0, value), rank(1, value+1)},
	}
}

func rank(dp int32, value int64) *routerpb.RankLoad {
	return &routerpb.RankLoad{
		DpRank: dp, NumTotalTokens: value, NumRunningReqs: 1, MaxRunningRequests: 10,
		NumUsedTokens: 5, MaxTotalNumTokens: 100, TokenUsage: 0.5, GenThroughput: float64(value % 1000),
	}
}

// pipes is a listener in memory whose connections have chosen addresses.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) dial(from netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- &pipeEnd{far, net.TCPAddrFromAddrPort(from)}:
		return near, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	}
}

// pipeEnd is the plane's end of a connection.
type pipeEnd struct {
	net.Conn
	remote net.Addr
}

func (c *pipeEnd) RemoteAddr() net.Addr { return c.remote }

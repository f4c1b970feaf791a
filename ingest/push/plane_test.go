package push

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// testPeer is an address of the worker at testAddr.
	testPeer   = "127.0.0.2:5000"
	testSettle = 10 * time.Millisecond
)

const testAddr = "http://127.0.0.2:9"

// sample returns a healthy report with n ranks.
func sample(seq uint64, n int) *loadmonitorv1.LoadReport {
	r := &loadmonitorv1.LoadReport{
		SourceInstanceId: "0b6b9d34-6d39-4d8a-9f3c-0c8d8a1f2e11", SequenceId: seq, ReportTimeUnixMs: 1_790_000_000_000,
		Worker: &loadmonitorv1.Worker{
			WorkerAddr: testAddr, WorkerType: loadmonitorv1.WorkerType_WORKER_TYPE_REGULAR,
			Model: proto.String("m"), Zone: proto.String("z"),
		},
		Status: loadmonitorv1.ReportStatus_REPORT_STATUS_HEALTHY,
	}
	for i := range n {
		r.Ranks = append(r.Ranks, &loadmonitorv1.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: 1_790_000_000_000 - int64(i), NumRunningReqs: 17, NumWaitingReqs: 3,
			NumWaitingUncachedTokens: 4096, NumUsedTokens: 120_000, NumTotalTokens: 140_000,
			MaxTotalNumTokens: 400_000, MaxRunningRequests: 256, TokenUsage: 0.3, GenThroughput: 1234.5,
			CacheHitRate: 0.25, Utilization: 0.5,
		})
	}
	return r
}

// slicesOf returns varint fields with the numbers from to to.
func slicesOf(from, to protowire.Number) (b []byte) {
	for n := from; n <= to; n++ {
		b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(n))
	}
	return b
}

// plane is a store, a registry and an ingest server with the push dialect.
type plane struct {
	t        *testing.T
	store    *store.Store
	registry *registry.Registry
	service  *Service
	server   *ingest.Server
	pipes    *pipes
	stop     context.CancelFunc
	runs     sync.WaitGroup
}

// newPlane makes a plane that does not run yet.
func newPlane(t *testing.T, opts registry.Options) *plane {
	t.Helper()
	p := &plane{t: t, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}}
	clock := store.NewClock()
	quiet := slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: 3 * time.Second, Settle: testSettle,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
	})
	p.must(err)
	opts.Store, opts.Logger = p.store, quiet
	opts.ReportInterval, opts.StaleAfter, opts.Lease = time.Second, 3*time.Second, 15*time.Second
	opts.ReportPort = func() uint16 { return 7401 }
	p.registry, err = registry.New(opts)
	p.must(err)
	p.service, err = New(Options{Registry: p.registry, Clock: clock, Registerer: prometheus.NewPedanticRegistry()})
	p.must(err)
	p.server, err = ingest.NewServer(ingest.ServerOptions{Logger: quiet})
	p.must(err)
	p.service.Register(p.server.Registrar())
	return p
}

// run starts the parts of the plane; they stop with the test.
func (p *plane) run(parts ...func(context.Context) error) {
	ctx, stop := context.WithCancel(p.t.Context())
	p.stop = stop
	for _, part := range parts {
		p.runs.Go(func() {
			if err := part(ctx); err != nil {
				p.t.Errorf("Run: %v", err)
			}
		})
	}
	p.t.Cleanup(func() { stop(); p.runs.Wait() })
}

func (p *plane) serve(ctx context.Context) error { return p.server.Run(ctx, p.pipes) }

// inBubble runs body with a running plane of the workers in fake time.
func inBubble(t *testing.T, workers []string, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, registry.Options{Workers: workers})
		p.run(p.store.Run, p.registry.Run, p.serve)
		p.settle()
		body(p)
	})
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// settle lets what was sent be received and committed.
func (p *plane) settle() {
	synctest.Wait()
	<-time.After(testSettle)
	synctest.Wait()
}

// entry returns what the store has of a worker.
func (p *plane) entry(id string) *store.Entry {
	p.t.Helper()
	st, _ := p.store.Current()
	i := slices.IndexFunc(st.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
	if i < 0 {
		p.t.Fatalf("there is no worker %s", id)
	}
	return st.Entries[i]
}

func (p *plane) refused(reason store.Reason) float64 {
	return testutil.ToFloat64(p.service.metrics.refused.WithLabelValues(string(reason)))
}

func (p *plane) ended(reason store.Reason) float64 {
	return testutil.ToFloat64(p.service.metrics.ended.WithLabelValues(string(reason)))
}

// engine is a client with one stream, or none yet.
type engine struct {
	t      *testing.T
	cc     *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
}

// engine connects from an address.
func (p *plane) engine(from string, opts ...grpc.DialOption) *engine {
	p.t.Helper()
	opts = append(opts, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return p.pipes.dial(from) }))
	return dialEngine(p.t, "passthrough:///pipes", opts...)
}

func dialEngine(t *testing.T, target string, opts ...grpc.DialOption) *engine {
	t.Helper()
	cc, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	e := &engine{t: t, cc: cc}
	e.open()
	return e
}

// open opens another stream on the engine's connection.
func (e *engine) open() {
	e.t.Helper()
	// A stream that does not end fails in time and does not hang.
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	e.t.Cleanup(cancel)
	desc := &grpc.StreamDesc{ClientStreams: true}
	st, err := e.cc.NewStream(ctx, desc, loadmonitorv1.LoadMonitorService_Report_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		e.t.Fatal(err)
	}
	e.stream, e.cancel = st, cancel
}

// send sends reports, or frames as bytes. A stream that ended is no error.
func (e *engine) send(messages ...any) *engine {
	e.t.Helper()
	for _, m := range messages {
		if err := e.stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
			e.t.Fatal(err)
		}
	}
	return e
}

// end waits for the status that the plane ends the stream with.
func (e *engine) end() *status.Status {
	var reply []byte
	if err := e.stream.RecvMsg(&reply); err != nil && !errors.Is(err, io.EOF) {
		return status.Convert(err)
	}
	return status.New(codes.OK, "")
}

// rawCodec sends bytes as they are, and takes any reply.
type rawCodec struct{}

func (rawCodec) Name() string                             { return "proto" }
func (rawCodec) Unmarshal(_ mem.BufferSlice, _ any) error { return nil }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		var err error
		if b, err = proto.Marshal(v.(proto.Message)); err != nil {
			return nil, err
		}
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
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

func (p *pipes) dial(from string) (net.Conn, error) {
	addr, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case p.conns <- &pipeEnd{far, addr}:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// pipeEnd is the plane's end of a connection.
type pipeEnd struct {
	net.Conn
	remote net.Addr
}

func (c *pipeEnd) RemoteAddr() net.Addr { return c.remote }

package native

import (
	"bytes"
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
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
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
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// testURL is an engine whose host is the address of testPeer.
	testURL    = "http://127.0.0.2:30000"
	testPeer   = "127.0.0.2:5000"
	testSettle = 10 * time.Millisecond
	staleAfter = 3 * time.Second
	lease      = 15 * time.Second
)

// plane is a store, a registry and an ingest server with the native dialect.
type plane struct {
	t        *testing.T
	store    *store.Store
	registry *registry.Registry
	service  *Service
	server   *ingest.Server
	pipes    *pipes
	log      *syncBuffer
	stop     context.CancelFunc
	runs     sync.WaitGroup
}

// setup is what differs between planes.
type setup struct {
	registry registry.Options
	service  Options
}

// newPlane makes a plane that does not run yet.
func newPlane(t *testing.T, s setup) *plane {
	t.Helper()
	p := &plane{t: t, pipes: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, log: new(syncBuffer)}
	clock := store.NewClock()
	log := slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: staleAfter, Settle: testSettle,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: log,
	})
	p.must(err)
	o := s.registry
	o.Store, o.Logger = p.store, log
	o.ReportInterval, o.StaleAfter, o.Lease = time.Second, staleAfter, lease
	o.ReportPort = func() uint16 { return 7401 }
	p.registry, err = registry.New(o)
	p.must(err)
	s.service.Registry, s.service.Clock, s.service.Logger = p.registry, clock, log
	s.service.Registerer = prometheus.NewPedanticRegistry()
	p.service, err = New(s.service)
	p.must(err)
	p.server, err = ingest.NewServer(ingest.ServerOptions{Logger: log})
	p.must(err)
	p.service.Register(p.server.Registrar())
	return p
}

// run starts the parts of the plane; they stop with the test.
func (p *plane) run() {
	ctx, stop := context.WithCancel(p.t.Context())
	p.stop = stop
	serve := func(ctx context.Context) error { return p.server.Run(ctx, p.pipes) }
	for _, part := range []func(context.Context) error{p.store.Run, p.registry.Run, serve} {
		p.runs.Go(func() {
			if err := part(ctx); err != nil {
				p.t.Errorf("Run: %v", err)
			}
		})
	}
	p.t.Cleanup(func() { stop(); p.runs.Wait() })
}

// inBubble runs body with a running plane in fake time.
func inBubble(t *testing.T, s setup, body func(t *testing.T, p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, s)
		p.run()
		p.settle()
		body(t, p)
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

// find returns what the store has of a worker; nil for nothing.
func (p *plane) find(id string) *store.Entry {
	st, _ := p.store.Current()
	i := slices.IndexFunc(st.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
	if i < 0 {
		return nil
	}
	return st.Entries[i]
}

// entry returns what the store has of a worker.
func (p *plane) entry(id string) *store.Entry {
	p.t.Helper()
	e := p.find(id)
	if e == nil {
		p.t.Fatalf("there is no worker %s", id)
	}
	return e
}

func (p *plane) refused(reason store.Reason) float64 {
	return testutil.ToFloat64(p.service.metrics.refused.WithLabelValues(string(reason)))
}

func (p *plane) ended(reason store.Reason) float64 {
	return testutil.ToFloat64(p.service.metrics.ended.WithLabelValues(string(reason)))
}

func (p *plane) denied(reason store.Reason) float64 {
	return testutil.ToFloat64(p.service.metrics.denied.WithLabelValues(string(reason)))
}

// reporter is a client by grpc-go with one connection, from an address.
type reporter struct {
	t      *testing.T
	cc     *grpc.ClientConn
	calls  loadplanev1.RegistrationServiceClient
	lease  string
	stream grpc.ClientStream
	cancel context.CancelFunc
}

func (p *plane) reporter(from string) *reporter {
	p.t.Helper()
	cc, err := grpc.NewClient("passthrough:///pipes", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return p.pipes.dial(from) }))
	p.must(err)
	p.t.Cleanup(func() { cc.Close() })
	return &reporter{t: p.t, cc: cc, calls: loadplanev1.NewRegistrationServiceClient(cc)}
}

// registered returns a reporter from testPeer with a lease and a stream that was
// granted it.
func (p *plane) registered() *reporter {
	p.t.Helper()
	r := p.reporter(testPeer)
	r.register(&loadplanev1.RegisterRequest{Url: testURL})
	r.open()
	r.send(&loadplanev1.ReportRequest{LeaseId: r.lease})
	if g := r.answer().GetGrant(); g.GetReportIntervalMs() == 0 {
		p.t.Fatalf("the first answer is the grant %v", g)
	}
	return r
}

// register begins or renews the lease.
func (r *reporter) register(req *loadplanev1.RegisterRequest) *loadplanev1.RegisterResponse {
	r.t.Helper()
	req.LeaseId = r.lease
	answer, err := r.calls.Register(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.lease = answer.GetLeaseId()
	return answer
}

func (r *reporter) renew() *loadplanev1.RegisterResponse {
	r.t.Helper()
	return r.register(&loadplanev1.RegisterRequest{Url: testURL})
}

// open opens a stream.
func (r *reporter) open() *reporter {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Hour)
	r.t.Cleanup(cancel)
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	st, err := r.cc.NewStream(ctx, desc, loadplanev1.ReportService_Report_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.stream, r.cancel = st, cancel
	return r
}

// send sends reports, requests, or frames as bytes. A stream that ended is no
// error.
func (r *reporter) send(messages ...any) *reporter {
	r.t.Helper()
	for _, m := range messages {
		if report, ok := m.(*loadplanev1.EngineReport); ok {
			m = &loadplanev1.ReportRequest{Report: report}
		}
		if err := r.stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
			r.t.Fatal(err)
		}
	}
	return r
}

// answer waits for the next answer.
func (r *reporter) answer() *loadplanev1.ReportResponse {
	r.t.Helper()
	m := new(loadplanev1.ReportResponse)
	if err := r.stream.RecvMsg(m); err != nil {
		r.t.Fatalf("in place of an answer: %v", err)
	}
	return m
}

// refusal waits for the next answer that is no grant.
func (r *reporter) refusal() *loadplanev1.ReportRefusal {
	r.t.Helper()
	for {
		if m := r.answer(); m.GetGrant() == nil {
			return m.GetRefusal()
		}
	}
}

// end waits for the status that the plane ends the stream with.
func (r *reporter) end() *status.Status {
	for {
		err := r.stream.RecvMsg(new(loadplanev1.ReportResponse))
		if errors.Is(err, io.EOF) {
			return status.New(codes.OK, "")
		}
		if err != nil {
			return status.Convert(err)
		}
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Unmarshal(b mem.BufferSlice, m any) error {
	return proto.Unmarshal(b.Materialize(), m.(proto.Message))
}

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

// syncBuffer is a log that goroutines share.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
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

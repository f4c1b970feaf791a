package report

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/native"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testURL    = "http://127.0.0.2:30000"
	testHost   = "127.0.0.2"
	testSettle = 10 * time.Millisecond
	staleAfter = 3 * time.Second
	lease      = 15 * time.Second
)

var errDown = errors.New("connection refused")

// network connects reporters to what serves, in memory. What they dial does not
// matter, but from where.
type network struct {
	mu    sync.Mutex
	up    *listener
	conns []*conn
	// lost holds dials until their context ends.
	lost bool
}

// dialer returns what a reporter at an address dials with.
func (n *network) dialer(from string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		n.mu.Lock()
		up, lost := n.up, n.lost
		n.mu.Unlock()
		if lost {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if up == nil {
			return nil, errDown
		}
		near, far := pipe()
		c := &conn{Conn: near, held: make(chan struct{}), closed: make(chan struct{})}
		select {
		case up.conns <- &pipeEnd{far, &net.TCPAddr{IP: net.ParseIP(from), Port: 5000}}:
		case <-up.closed:
			return nil, errDown
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns = append(n.conns, c)
		return c, nil
	}
}

// pipe returns the two ends of a connection that holds a few bytes.
func pipe() (near, far net.Conn) {
	l := bufconn.Listen(8 << 10)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	near, _ = l.Dial()
	return near, <-accepted
}

// lose makes the network lose everything: what is written is thrown away, and
// nothing can be read; dials wait.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	for _, c := range n.conns {
		c.hole.Store(true)
	}
}

// heal ends that for new connections.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = false
}

// hold makes writes wait until release is called.
func (n *network) hold() (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.holding.Store(true)
	}
	conns := n.conns
	return func() {
		for _, c := range conns {
			c.holding.Store(false)
			close(c.held)
		}
	}
}

// conn is the reporter's end of a connection.
type conn struct {
	net.Conn
	hole, holding atomic.Bool
	held, closed  chan struct{}
	once          sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.hole.Load() {
			return n, err
		}
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if c.hole.Load() {
		return len(p), nil
	}
	if c.holding.Load() {
		select {
		case <-c.held:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	if c.hole.Load() {
		return c.SetReadDeadline(time.Unix(0, 0)) // the other end does not learn of it
	}
	return c.Conn.Close()
}

// listener is what a server accepts from.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// pipeEnd is the server's end of a connection.
type pipeEnd struct {
	net.Conn
	remote net.Addr
}

func (c *pipeEnd) RemoteAddr() net.Addr { return c.remote }

// listen makes a listener the one that is up.
func (n *network) listen() *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up = &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	return n.up
}

// down makes dials fail.
func (n *network) down() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up = nil
}

// plane is a real store, registry and ingest server with the native dialect.
type plane struct {
	*testing.T
	net      *network
	store    *store.Store
	registry *registry.Registry
	stop     func()
}

// start runs a plane on a network until it is stopped, or the test ends.
func (n *network) start(t *testing.T, change func(r *registry.Options, s *ingest.ServerOptions)) *plane {
	t.Helper()
	p := &plane{T: t, net: n}
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: staleAfter, Settle: testSettle,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
	})
	must(err)
	o := registry.Options{
		Store: p.store, Logger: quiet, ReportInterval: time.Second, StaleAfter: staleAfter, Lease: lease,
		ReportPort: func() uint16 { return 7401 },
	}
	so := ingest.ServerOptions{Logger: quiet}
	if change != nil {
		change(&o, &so)
	}
	p.registry, err = registry.New(o)
	must(err)
	service, err := native.New(native.Options{Registry: p.registry, Clock: clock, Logger: quiet})
	must(err)
	server, err := ingest.NewServer(so)
	must(err)
	service.Register(server.Registrar())
	listener := n.listen()
	p.serve(p.store.Run, p.registry.Run, func(ctx context.Context) error { return server.Run(ctx, listener) })
	synctest.Wait() // discovery is complete
	return p
}

func (p *plane) serve(parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	for _, part := range parts {
		runs.Go(func() {
			if err := part(ctx); err != nil {
				p.Errorf("Run: %v", err)
			}
		})
	}
	p.stop = sync.OnceFunc(func() {
		p.net.down()
		p.registry.Drain()
		cancel()
		runs.Wait()
	})
	p.Cleanup(p.stop)
}

// settle lets what was sent be received and committed.
func settle() {
	synctest.Wait()
	<-time.After(testSettle)
	synctest.Wait()
}

// entry returns what the plane has of a worker; nil for nothing.
func (p *plane) entry(id string) *store.Entry {
	st, _ := p.store.Current()
	i := slices.IndexFunc(st.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
	if i < 0 {
		return nil
	}
	return st.Entries[i]
}

// fresh says that a worker is listed and fresh.
func (p *plane) fresh(id string) bool {
	e := p.entry(id)
	return e != nil && e.Freshness == store.Fresh
}

// engine is what a reporter reports.
type engine struct {
	mu       sync.Mutex
	source   string
	sequence uint64
	// at has when a report was asked for.
	at []time.Time
	// change, if not nil, changes a report.
	change func(r *pb.EngineReport) *pb.EngineReport
}

func (e *engine) report(now time.Time) *pb.EngineReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = append(e.at, now)
	e.sequence++
	n := int64(e.sequence)
	r := &pb.EngineReport{
		SourceInstanceId: e.source, Sequence: e.sequence, Status: pb.Status_STATUS_HEALTHY,
		Ranks: []*pb.RankSample{{Load: &pb.RankLoad{NumRunningReqs: &n}}},
	}
	if e.change != nil {
		return e.change(r)
	}
	return r
}

// asked returns when reports were asked for since a time, as distances to it.
func (e *engine) asked(since time.Time) (times []time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, at := range e.at {
		if !at.Before(since) {
			times = append(times, at.Sub(since))
		}
	}
	return times
}

func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

// running is a reporter that runs.
type running struct {
	*Reporter
	engine *engine
	// stop ends Run and waits for it.
	stop func()
}

// report runs a reporter of an engine at testHost.
func (n *network) report(t *testing.T, change func(o *Options)) *running {
	t.Helper()
	e := &engine{source: "a"}
	o := Options{Address: "http://plane:7401", Registration: &pb.RegisterRequest{Url: testURL}, Report: e.report}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.dial = n.dialer(testHost)
	r.random = func(n int64) int64 { return n - 1 }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &running{r, e, stop}
}

// script is a plane that answers as a test wants.
type script struct {
	pb.UnimplementedRegistrationServiceServer
	pb.UnimplementedReportServiceServer

	mu       sync.Mutex
	register func(*pb.RegisterRequest) (*pb.RegisterResponse, error)
	report   func(pb.ReportService_ReportServer) error
	calls    []time.Time
}

func (s *script) Register(_ context.Context, r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	s.mu.Lock()
	s.calls = append(s.calls, time.Now())
	answer := s.register
	s.mu.Unlock()
	return answer(r)
}

func (s *script) Deregister(context.Context, *pb.DeregisterRequest) (*pb.DeregisterResponse, error) {
	return &pb.DeregisterResponse{}, nil
}

func (s *script) Report(stream pb.ReportService_ReportServer) error {
	s.mu.Lock()
	answer := s.report
	s.mu.Unlock()
	return answer(stream)
}

// called returns how often a registration was asked for since a time.
func (s *script) called(since time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.calls {
		if !at.Before(since) {
			n++
		}
	}
	return n
}

// script serves what a test wants on a network.
func (n *network) script(t *testing.T, s *script) {
	t.Helper()
	server := grpc.NewServer()
	pb.RegisterRegistrationServiceServer(server, s)
	pb.RegisterReportServiceServer(server, s)
	done, listener := make(chan struct{}), n.listen()
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
}

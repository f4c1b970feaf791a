package monitor

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testWorker = "http://10.0.0.1:30000"
	testPort   = "10.0.0.1:31000"
	otherOne   = "http://10.0.0.2:30000"
	otherPort  = "10.0.0.2:31000"
	asMonitor  = ",dialect=monitor,reporter_port=31000"
	testStale  = 3 * time.Second
	testLease  = 15 * time.Second
	testSettle = 10 * time.Millisecond
	testRouter = "loadplane-test"
)

// plane is a store and a registry that opens sessions, in a bubble of fake
// time.
type plane struct {
	t        testing.TB
	store    *store.Store
	registry *registry.Registry
	monitor  *Monitor
	net      *network
	// scrapes has the metrics of all parts.
	scrapes *prometheus.Registry
	// served is the engine that was served last, and ends are what Serve
	// returned.
	mu     sync.Mutex
	served *registry.Engine
	ends   []store.Reason
	stop   context.CancelFunc
	runs   sync.WaitGroup
}

// Serve is that of the monitor, with a record of what it returned.
func (p *plane) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	p.mu.Lock()
	p.served = e
	p.mu.Unlock()
	reason := p.monitor.Serve(ctx, e)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = append(p.ends, reason)
	return reason
}

func (p *plane) ended() []store.Reason {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ends)
}

func newPlane(t testing.TB, change func(*registry.Options, *Options)) *plane {
	t.Helper()
	p := &plane{t: t, net: &network{engines: map[string]*engine{}, conns: map[net.Conn]bool{}, over: make(chan struct{})}}
	p.scrapes = prometheus.NewPedanticRegistry()
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: testStale, Settle: testSettle,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
		Registerer: p.scrapes,
	})
	p.must(err)
	opts := Options{
		Clock: clock, StaleAfter: testStale, Dial: p.net.dial, RouterID: testRouter,
		Registerer: p.scrapes, Logger: quiet,
	}
	reg := registry.Options{
		Store: p.store, Workers: []string{testWorker + asMonitor}, ReportInterval: time.Second, StaleAfter: testStale,
		Lease: testLease, ReportPort: func() uint16 { return 7401 }, Logger: quiet, Registerer: p.scrapes,
		Dialers: map[store.Dialect]registry.Dialer{store.DialectMonitor: p},
	}
	change(&reg, &opts)
	p.monitor, err = New(opts)
	p.must(err)
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

// close stops the plane, which has to be soon whatever the engines do.
func (p *plane) close() {
	began := time.Now()
	p.stop()
	p.runs.Wait()
	if took := time.Since(began); took > 3*time.Second {
		p.t.Errorf("the plane stopped after %s", took)
	}
	if n := testutil.ToFloat64(p.monitor.metrics.sessions); n != 0 {
		p.t.Errorf("%g sessions at the end", n)
	}
	synctest.Wait()
	if open := p.net.open(); open != 0 {
		p.t.Errorf("%d connections are open at the end", open)
	}
	p.net.close()
}

// inBubble runs body with a running plane whose worker is an engine that
// behaves as told.
func inBubble(t *testing.T, behave behaviour, body func(p *plane, e *engine)) {
	t.Helper()
	inBubbleWith(t, func(*registry.Options, *Options) {}, func(p *plane) {
		e := p.net.add(testPort, behave)
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

// entry returns what the store has of a worker.
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

func (p *plane) stream(id string) store.Stream {
	e, _, _ := p.entry(id)
	st, _, _ := p.store.Inspect(e.Row)
	return st
}

// want checks the freshness and the last accepted sequence of the worker.
func (p *plane) want(f store.Freshness, sequence uint64) {
	p.t.Helper()
	e, live, d := p.entry(testWorker)
	if e.Freshness != f || live == nil || live.Sequence != sequence {
		p.t.Errorf("%s (%s), %+v, want %s at %d; %+v", e.Freshness, e.Reason, live, f, sequence, d)
	}
}

func (p *plane) failed(word store.Reason) int {
	return int(testutil.ToFloat64(p.monitor.metrics.ended.WithLabelValues(string(word))))
}

func (p *plane) refused(reason store.Reason) int {
	return int(testutil.ToFloat64(p.monitor.metrics.refused.WithLabelValues(string(reason))))
}

// network connects to engines in memory.
type network struct {
	mu      sync.Mutex
	engines map[string]*engine
	// conns are the plane's ends, until the plane closes them.
	conns map[net.Conn]bool
	dials []time.Time
	// over ends what peers that are no gRPC servers do.
	over  chan struct{}
	peers sync.WaitGroup
}

// peer is what a peer that is no gRPC server does with a connection.
type peer func(c net.Conn, over <-chan struct{})

// behaviour is what an engine does with a session.
type behaviour func(e *engine, s pb.LoadMonitorService_MonitorServer) error

// engine is a process with a load reporter: a gRPC server, or whatever raw does
// with its connections.
type engine struct {
	pb.UnimplementedLoadMonitorServiceServer
	behave behaviour
	raw    peer
	listen *pipes
	server *grpc.Server
	done   chan struct{}

	mu     sync.Mutex
	down   bool
	source string
	seq    uint64
	// got are the frames that came, and sessions when each one began.
	got      []arrival
	sessions []time.Time
}

type arrival struct {
	at    time.Time
	frame *pb.RouterFrame
}

func (n *network) add(addr string, behave behaviour) *engine {
	e := &engine{behave: behave, source: "process-1", done: make(chan struct{})}
	n.mu.Lock()
	n.engines[addr] = e
	n.mu.Unlock()
	e.start()
	return e
}

// addRaw adds a peer that is no gRPC server.
func (n *network) addRaw(addr string, raw peer) *engine {
	e := &engine{raw: raw}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines[addr] = e
	return e
}

func (e *engine) listener() *pipes {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.listen
}

func (e *engine) start() {
	listen := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	e.set(func(e *engine) { e.listen = listen })
	e.server = grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterLoadMonitorServiceServer(e.server, e)
	go func() {
		defer close(e.done)
		_ = e.server.Serve(listen)
	}()
}

// Monitor serves a session.
func (e *engine) Monitor(s pb.LoadMonitorService_MonitorServer) error {
	e.mu.Lock()
	e.sessions = append(e.sessions, time.Now())
	behave := e.behave
	e.mu.Unlock()
	return behave(e, s)
}

func (n *network) close() {
	close(n.over)
	n.peers.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.engines {
		if e.server != nil {
			e.server.Stop()
			<-e.done
		}
	}
}

func (n *network) open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}

func (n *network) dialled() []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.dials)
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	e := n.engines[addr]
	n.dials = append(n.dials, time.Now())
	n.mu.Unlock()
	if e == nil || e.isDown() {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	c := &tcpConn{Conn: near, remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)), net: n}
	if e.raw != nil {
		n.peers.Go(func() {
			defer far.Close()
			e.raw(far, n.over)
		})
	} else if !e.listener().give(ctx, far) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = true
	return c, nil
}

type tcpConn struct {
	net.Conn
	remote *net.TCPAddr
	net    *network
}

func (c *tcpConn) RemoteAddr() net.Addr { return c.remote }

func (c *tcpConn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}

// pipes is a listener in memory.
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

func (p *pipes) give(ctx context.Context, c net.Conn) bool {
	select {
	case p.conns <- c:
		return true
	case <-p.closed:
	case <-ctx.Done():
	}
	return false
}

// set changes the engine.
func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) isDown() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// recv takes the next frame and records it.
func (e *engine) recv(s pb.LoadMonitorService_MonitorServer) (*pb.RouterFrame, error) {
	f, err := s.Recv()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, arrival{time.Now(), f})
	return f, nil
}

// arrivals returns the frames that a filter takes.
func (e *engine) arrivals(take func(f *pb.RouterFrame) bool) (list []arrival) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.got {
		if take(a.frame) {
			list = append(list, a)
		}
	}
	return list
}

func isKeepAlive(f *pb.RouterFrame) bool { return f.GetKeepAlive() != nil }
func isRegister(f *pb.RouterFrame) bool  { return f.GetRegister() != nil }
func isStop(f *pb.RouterFrame) bool      { return f.GetStop() != nil }

func (e *engine) opened() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sessions)
}

// next returns the engine's next report, with n ranks.
func (e *engine) next(n int) *pb.LoadReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	return sample(e.source, e.seq, n)
}

// sample returns a healthy report of an engine that is bound to all its
// interfaces and does not know its own name.
func sample(source string, seq uint64, n int) *pb.LoadReport {
	now := time.Now().UnixMilli()
	r := &pb.LoadReport{
		SourceInstanceId: source, SequenceId: seq, ReportTimeUnixMs: now,
		Worker: &pb.Worker{WorkerAddr: "0.0.0.0:31000"}, Status: pb.ReportStatus_REPORT_STATUS_HEALTHY,
	}
	for i := range n {
		r.Ranks = append(r.Ranks, &pb.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: now - 20, NumRunningReqs: 17, NumWaitingReqs: 3,
			NumWaitingUncachedTokens: 4096, NumUsedTokens: 120_000, NumTotalTokens: 140_000,
			MaxTotalNumTokens: 400_000, MaxRunningRequests: 256, TokenUsage: 0.3, GenThroughput: 1234.5,
			CacheHitRate: 0.25, Utilization: 0.5,
		})
	}
	return r
}

func report(r *pb.LoadReport) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Report{Report: r}}
}

func registered(lease, renew int64) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Registered{Registered: &pb.RegisterResponse{LeaseTtlMs: lease, RenewAfterMs: renew}}}
}

func refusing(code, message string) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Error{Error: &pb.StreamError{Code: code, Message: message}}}
}

// accept takes the register frame and answers it as the engines do: the wanted
// lease, to be renewed after a third of it.
func (e *engine) accept(s pb.LoadMonitorService_MonitorServer) (*pb.RegisterRequest, error) {
	f, err := e.recv(s)
	if err != nil {
		return nil, err
	}
	r := f.GetRegister()
	if r == nil {
		return nil, fmt.Errorf("the first frame is %v", f)
	}
	return r, s.Send(registered(r.LeaseTtlMs, max(1, r.LeaseTtlMs/3)))
}

// read brings the further frames until the session ends, at the latest with the
// lease.
func (e *engine) read(s pb.LoadMonitorService_MonitorServer) <-chan *pb.RouterFrame {
	frames := make(chan *pb.RouterFrame)
	go func() {
		defer close(frames)
		for {
			f, err := e.recv(s)
			if err != nil {
				return
			}
			select {
			case frames <- f:
			case <-s.Context().Done():
				return
			}
		}
	}()
	return frames
}

// honest behaves as the engines of two generations do: the first report follows
// the answer at once; in the newer one the second follows it after 2 ms.
func honest(newer bool) behaviour {
	return func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		reg, err := e.accept(s)
		if err != nil {
			return err
		}
		const ms = time.Millisecond
		interval, lease := time.Duration(reg.ReportIntervalMs)*ms, time.Duration(reg.LeaseTtlMs)*ms
		end := time.NewTimer(lease)
		defer end.Stop()
		due := time.NewTimer(2 * time.Millisecond)
		defer due.Stop()
		if !newer {
			due.Reset(interval)
		}
		if err := s.Send(report(e.next(2))); err != nil {
			return err
		}
		frames := e.read(s)
		for {
			select {
			case f, ok := <-frames:
				if !ok || f.GetStop() != nil {
					return nil
				}
				if u := f.GetUpdateConfig(); u != nil {
					interval, lease = time.Duration(u.GetReportIntervalMs())*ms, time.Duration(u.GetLeaseTtlMs())*ms
					due.Reset(interval)
				}
				end.Reset(lease)
			case <-due.C:
				due.Reset(interval)
				if err := s.Send(report(e.next(2))); err != nil {
					return err
				}
			case <-end.C:
				return nil
			}
		}
	}
}

// sends answers the registration, sends frames, and then waits for the end.
func sends(frames ...*pb.WorkerFrame) behaviour {
	return func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for _, f := range frames {
			if err := s.Send(f); err != nil {
				return err
			}
		}
		return e.drain(s)
	}
}

// drain takes frames until a stop or the end of the session.
func (e *engine) drain(s pb.LoadMonitorService_MonitorServer) error {
	for {
		f, err := e.recv(s)
		if err != nil || f.GetStop() != nil {
			return err
		}
	}
}

// swallow reads all and answers nothing.
func swallow(c net.Conn, _ <-chan struct{}) { _, _ = io.Copy(io.Discard, c) }

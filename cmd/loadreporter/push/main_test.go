package push

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// router is a gRPC server that takes reports, and as planes do refuses one that
// is of another source or engine than the first one of its stream. end ends a stream after the
// number of reports that it returns, with its error; nil never ends one.
// deaf reads nothing, and rude does not answer when a stream is closed.
type router struct {
	pb.UnimplementedLoadMonitorServiceServer
	end  func(stream int) (after int, err error)
	deaf bool
	rude bool

	mu      sync.Mutex
	conns   int
	streams int
	opened  []time.Time
	ended   []error
	at      []time.Time
	got     []*pb.LoadReport
}

func (r *router) Report(stream grpc.ClientStreamingServer[pb.LoadReport, emptypb.Empty]) error {
	r.mu.Lock()
	n := r.streams
	r.streams++
	r.opened = append(r.opened, time.Now())
	r.mu.Unlock()
	err := r.receive(stream, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, err)
	return err
}

func (r *router) receive(stream grpc.ClientStreamingServer[pb.LoadReport, emptypb.Empty], n int) error {
	after, end := -1, error(nil)
	if r.end != nil {
		after, end = r.end(n)
	}
	if r.deaf {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	var first claim
	for i := 0; ; i++ {
		if i == after {
			if end == nil {
				return stream.SendAndClose(&emptypb.Empty{})
			}
			return end
		}
		m, err := stream.Recv()
		if err != nil && r.rude {
			<-stream.Context().Done()
		}
		if err != nil {
			return err
		}
		if i == 0 {
			first = claimOf(m)
		}
		if claimOf(m) != first {
			return status.Error(codes.InvalidArgument, "claim_changed")
		}
		r.mu.Lock()
		r.at, r.got = append(r.at, time.Now()), append(r.got, m)
		r.mu.Unlock()
	}
}

// times returns when reports came, counted from a moment.
func (r *router) times(since time.Time) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]time.Duration, len(r.at))
	for i, t := range r.at {
		all[i] = t.Sub(since)
	}
	return all
}

// endings returns how the streams ended.
func (r *router) endings() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ended)
}

func (r *router) count() (streams, reports int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams, len(r.got)
}

// plant is a Set that runs, with routers that its dialer reaches by address.
type plant struct {
	*Set
	t       *testing.T
	mu      sync.Mutex
	lines   map[string]*bufconn.Listener
	wants   map[string]time.Duration
	built   uint64
	padding string
	// slow is how long it takes to build a report.
	slow time.Duration
	// shape changes reports; nil leaves them.
	shape func(*pb.LoadReport)
	stop  func() error
}

func newPlant(t *testing.T, opts Options, left ...Registration) *plant {
	t.Helper()
	p := &plant{t: t, lines: map[string]*bufconn.Listener{}, wants: map[string]time.Duration{}}
	opts.Report, opts.Want, opts.Logger = p.report, p.want, slog.New(slog.DiscardHandler)
	if opts.Dial == nil {
		opts.Dial = p.dial
	}
	set, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	p.Set = set
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx, left) }()
	synctest.Wait()
	p.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *plant) report(now time.Time) *pb.LoadReport {
	p.mu.Lock()
	slow := p.slow
	p.mu.Unlock()
	<-time.After(slow)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.built++
	r := &pb.LoadReport{SourceInstanceId: "s", SequenceId: p.built, ReportTimeUnixMs: now.UnixMilli(), LastError: &p.padding, Worker: &pb.Worker{WorkerAddr: "a"}}
	if p.shape != nil {
		p.shape(r)
	}
	return r
}

// reshape has later reports changed.
func (p *plant) reshape(shape func(*pb.LoadReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shape = shape
}

func (p *plant) slowDown(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = d
}

func (p *plant) wanted(target string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wants[target]
}

func (p *plant) want(target string, interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wants[target] = interval
}

func (p *plant) dial(ctx context.Context, address string) (net.Conn, error) {
	p.mu.Lock()
	line := p.lines[address]
	p.mu.Unlock()
	if line == nil {
		return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
	}
	return line.DialContext(ctx)
}

// serve has a router answer at an address, until the returned function is called.
func (p *plant) serve(addr netip.AddrPort, r *router) (stop func()) {
	line := bufconn.Listen(64 << 10)
	srv := grpc.NewServer()
	pb.RegisterLoadMonitorServiceServer(srv, r)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(counting{line, r}) }()
	p.mu.Lock()
	p.lines[addr.String()] = line
	p.mu.Unlock()
	stop = sync.OnceFunc(func() {
		p.mu.Lock()
		delete(p.lines, addr.String())
		p.mu.Unlock()
		srv.Stop()
		<-ended
	})
	p.t.Cleanup(func() { _ = p.stop(); stop() })
	return stop
}

// counting counts connections.
type counting struct {
	net.Listener
	r *router
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.r.mu.Lock()
		c.r.conns++
		c.r.mu.Unlock()
	}
	return conn, err
}

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:7401")
	addrB = netip.MustParseAddrPort("[2001:db8::1]:7402")
)

func (p *plant) register(addr netip.AddrPort, interval, lease time.Duration) {
	p.t.Helper()
	if err := p.Register(Registration{addr, interval, lease}); err != nil {
		p.t.Fatal(err)
	}
}

// pass lets time pass, in a bubble.
func pass(d time.Duration) { <-time.After(d); synctest.Wait() }

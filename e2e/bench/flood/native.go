package flood

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// again is the time between two sessions of the native engine.
const again = 10 * time.Millisecond

// registered is the engine that registers itself. It is for one goroutine.
type registered struct {
	peers *Peers
	lease string
	// sequence goes on from session to session.
	sequence uint64
}

// reportNative has the engine report, session after session, until ctx ends.
func (p *Peers) reportNative(ctx context.Context, ingest string) {
	e := &registered{peers: p}
	for ctx.Err() == nil {
		_ = e.session(ctx, ingest) // The plane ends most of them.
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// session registers on a connection of its own and reports until it ends.
func (e *registered) session(ctx context.Context, ingest string) error {
	var ears ears
	conn, err := grpc.NewClient("passthrough:///"+ingest,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(ears.dial))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	e.peers.metNative.Add(1)
	lease, err := pb.NewRegistrationServiceClient(conn).Register(ctx, &pb.RegisterRequest{
		Url: "http://" + net.JoinHostPort(nativeHost, "1"), LeaseId: e.lease, Models: []string{"bench-model"}, ReportIntervalMs: 100,
	})
	if err != nil {
		if status.Code(err) == codes.NotFound {
			e.lease = ""
		}
		return err
	}
	e.lease = lease.GetLeaseId()
	stream, err := pb.NewReportServiceClient(conn).Report(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.ReportRequest{LeaseId: e.lease}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if e.peers.kind == Deaf {
		ears.shut()
	}
	return e.send(ctx, stream)
}

// send sends reports until the stream ends. Every other one of a deaf engine is
// refused, so that the plane has answers that nobody reads.
func (e *registered) send(ctx context.Context, stream grpc.BidiStreamingClient[pb.ReportRequest, pb.ReportResponse]) error {
	rate, r := frequent, nativeReport()
	if e.peers.kind == Giant {
		rate, r.LastError = seldom, strings.Repeat("x", giant)
	}
	request := &pb.ReportRequest{Report: r}
	return pace(ctx, rate, func() error {
		e.sequence++
		r.Sequence = e.sequence
		r.Ranks[0].Load.NumRunningReqs = proto.Int64(int64(e.sequence % 100))
		r.Status = pb.Status_STATUS_HEALTHY
		if e.peers.kind == Deaf && e.sequence%2 == 0 {
			r.Status = pb.Status_STATUS_UNSPECIFIED
		}
		e.peers.sentNative.Add(1)
		return stream.Send(request)
	})
}

func nativeReport() *pb.EngineReport {
	return &pb.EngineReport{
		SourceInstanceId: "flood",
		Ranks: []*pb.RankSample{{Load: &pb.RankLoad{
			NumUsedTokens: proto.Int64(210_000), NumTotalTokens: proto.Int64(215_120), MaxTotalNumTokens: proto.Int64(500_000),
			MaxRunningRequests: proto.Int64(256), TokenUsage: proto.Float64(0.42),
		}}},
	}
}

// ears are the reading side of a connection, which can be shut. It is safe for
// concurrent use.
type ears struct {
	mu   sync.Mutex
	conn *deafConn
}

// dial dials from the address of the engine.
func (e *ears) dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(nativeHost)}}
	raw, err := d.DialContext(ctx, "tcp4", address)
	if err != nil {
		return nil, err
	}
	c := &deafConn{Conn: raw, shut: make(chan struct{}), closed: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = c
	return c, nil
}

// shut ends the reading from the newest connection.
func (e *ears) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn.deaf.Do(func() { close(e.conn.shut) })
}

// deafConn is a connection that reads nothing any more once it is shut.
type deafConn struct {
	net.Conn
	deaf, gone   sync.Once
	shut, closed chan struct{}
}

func (c *deafConn) Read(b []byte) (int, error) {
	select {
	case <-c.shut:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(b)
	}
}

func (c *deafConn) Close() error {
	c.gone.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

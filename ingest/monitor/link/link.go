package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry/egress"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// transportBytes is the size of the largest frame that is read. One whose
	// report is above ingest.MaxMessageBytes is refused, and the session goes
	// on.
	transportBytes = 1 << 20
	windowBytes    = 64 << 10
	ioBufferBytes  = 4 << 10
	maxHeaderBytes = 8 << 10
)

var errSpent = errors.New("the connection of the session is gone")

// ErrTimeout says that the stream was not open in time.
var ErrTimeout = errors.New("no stream in time")

// Options are those of Open, all of them required. It is a plain value.
type Options struct {
	// Dial connects.
	Dial egress.Dial
	// Timeout bounds the opening, and each write to the connection.
	Timeout time.Duration
}

// Link is one stream on a connection of its own. It is safe for concurrent use
// as its stream is: one goroutine sends, one receives, and any may call Close.
type Link struct {
	// Stream is the Monitor stream. It takes protobuf messages, and brings
	// frames to messages that have the method DecodeWire(b []byte) error.
	Stream grpc.ClientStream
	// Peer is the remote address; the zero AddrPort where it is not TCP.
	Peer netip.AddrPort

	conn   net.Conn
	cc     *grpc.ClientConn
	cancel context.CancelFunc
}

// Open connects to host:port and opens a stream, without TLS, proxy, retries or
// settings from elsewhere. The stream outlives ctx, which is of the opening
// only. The error is that of Dial, ErrTimeout, or one of gRPC.
func Open(ctx context.Context, o Options, addr string) (*Link, error) {
	ctx, stop := context.WithTimeout(ctx, o.Timeout)
	defer stop()
	l, err := o.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.cancel = cancel
	unhurry := context.AfterFunc(ctx, cancel)
	l.Stream, err = l.cc.NewStream(streaming, &pb.LoadMonitorService_ServiceDesc.Streams[0], pb.LoadMonitorService_Monitor_FullMethodName)
	deadline, _ := ctx.Deadline()
	// A write that waited for as long is the same failure.
	if !unhurry() || err != nil && !time.Now().Before(deadline) {
		err = fmt.Errorf("%w: %s within %s", ErrTimeout, addr, o.Timeout)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// dial connects. gRPC is given the connection that stands and no other one, so
// that each attempt, its error and its end are the session's own.
func (o *Options) dial(ctx context.Context, addr string) (*Link, error) {
	conn, err := o.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		// What it is for is found by other means as well.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3})
	}
	l := &Link{conn: &bounded{conn, o.Timeout}, Peer: peerOf(conn)}
	var spent atomic.Bool
	l.cc, err = grpc.NewClient("passthrough:///"+addr, append(o.settings(), grpc.WithContextDialer(
		func(context.Context, string) (net.Conn, error) {
			if spent.Swap(true) {
				return nil, errSpent
			}
			return l.conn, nil
		}))...)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("client: %w", err)
	}
	return l, nil
}

// settings are those of a client that goes nowhere but where it is sent. There
// are no pings of HTTP/2: engines end connections that send more of them than
// one each five minutes. That reports stay away is noticed sooner.
func (o *Options) settings() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithUserAgent("loadplane"),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: o.Timeout}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithReadBufferSize(ioBufferBytes),
		grpc.WithWriteBufferSize(ioBufferBytes),
		// Static windows turn off bandwidth probing, which sends pings.
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(windowBytes),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(transportBytes)),
	}
}

// Close ends the stream and the connection at once. gRPC would wait for an
// engine that does not read.
func (l *Link) Close() {
	l.cancel()
	l.conn.Close()
	_ = l.cc.Close()
}

// TooLarge says whether an error of Stream.RecvMsg is that of a frame that was
// too large to be read. A peer may end the stream with the same status code;
// only gRPC's own text, which names the bound, tells them apart.
func TooLarge(err error) bool {
	s := status.Convert(err)
	return s.Code() == codes.ResourceExhausted && strings.HasPrefix(s.Message(), "grpc: ") &&
		strings.Contains(s.Message(), "larger than max") && strings.Contains(s.Message(), strconv.Itoa(transportBytes))
}

// peerOf returns the remote address; the zero AddrPort where it is not TCP.
func peerOf(c net.Conn) netip.AddrPort {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	a := tcp.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// bounded is a connection each write of which has a deadline. One that fails
// ends the connection: gRPC leaves that to whoever reads, who would go on.
type bounded struct {
	net.Conn
	timeout time.Duration
}

func (b *bounded) Write(p []byte) (int, error) {
	if err := b.SetWriteDeadline(time.Now().Add(b.timeout)); err != nil {
		return 0, err
	}
	n, err := b.Conn.Write(p)
	if err != nil {
		b.Close()
	}
	return n, err
}

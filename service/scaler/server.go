package scaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/ingest/graceful"
	pb "github.com/loadplane/loadplane/proto/externalscaler"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	pingAfter         = 10 * time.Second
	pingTimeout       = 5 * time.Second
	minPingInterval   = 5 * time.Second
	connectionTimeout = 5 * time.Second
	maxHeaderBytes    = 8 << 10
	// maxRequestBytes is far above what the metadata of a trigger needs.
	maxRequestBytes = 64 << 10
	// streamsPerConnection is above MaxStreams: KEDA has one connection for
	// all that it scales, and one stream too many is refused with a reason.
	streamsPerConnection = 4_000
	defaultMaxStreams    = 2_000
)

// Options are what a Server needs.
type Options struct {
	// Snapshots are the views that answers are read from. Required.
	Snapshots *snapshot.Builder
	// Credentials are those of the server; nil for plaintext.
	Credentials credentials.TransportCredentials
	// Authorize is asked before a request is read; nil allows all. Its error is
	// the answer.
	Authorize func(ctx context.Context) error
	// MaxStreams bounds the streams of all peers, below 4,000; 0 for 2,000. A
	// trigger of type external-push has two.
	MaxStreams int
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	if o.Snapshots == nil {
		return errors.New("scaler: option Snapshots is required")
	}
	if o.MaxStreams < 0 || o.MaxStreams >= streamsPerConnection {
		return fmt.Errorf("scaler: MaxStreams %d is not in 0 to %d", o.MaxStreams, streamsPerConnection-1)
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = defaultMaxStreams
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Server is the gRPC server that KEDA asks. It is safe for concurrent use; Run
// may be called once.
type Server struct {
	opts    Options
	grpc    *grpc.Server
	metrics *metrics
	// open counts the streams.
	open atomic.Int64
	// draining closes when streams are to end.
	draining chan struct{}
	// logs bounds the lines about refusals and panics.
	logs *rate.Limiter
}

// New checks the options. It starts nothing.
func New(opts Options) (*Server, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("scaler: %w", err)
	}
	s := &Server{opts: opts, metrics: m, draining: make(chan struct{}), logs: rate.NewLimiter(1, 10)}
	s.grpc = grpc.NewServer(
		grpc.Creds(opts.Credentials),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	)
	pb.RegisterExternalScalerServer(s.grpc, scaler{Server: s})
	return s, nil
}

// Run serves until ctx ends. Streams then get an error that has KEDA come
// again. It blocks until every handler returned, and closes l. It returns nil
// after an end by ctx.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	if err := graceful.Serve(ctx, s.grpc, l, func() { close(s.draining) }); err != nil {
		return fmt.Errorf("scaler: serve: %w", err)
	}
	return nil
}

// unary guards a call: a panic ends that call only.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	defer s.recovered(info.FullMethod, &err)
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// stream guards a stream as unary does a call.
func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	if err := s.authorize(stream.Context()); err != nil {
		return err
	}
	return handler(srv, stream)
}

func (s *Server) authorize(ctx context.Context) error {
	if s.opts.Authorize == nil {
		return nil
	}
	return s.opts.Authorize(ctx)
}

// recovered turns a panic of a handler into an error.
func (s *Server) recovered(method string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	s.metrics.panics.Inc()
	if s.logs.Allow() {
		s.opts.Logger.Error("handler panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	}
	*err = status.Error(codes.Internal, "internal error")
}

// refuse counts a refusal and returns what the wire says.
func (s *Server) refuse(method string, r *refusal) error {
	s.metrics.refuse(r.reason)
	if s.logs.Allow() {
		s.opts.Logger.Warn("request of an autoscaler refused", "method", method, "reason", string(r.reason))
	}
	return r.status()
}

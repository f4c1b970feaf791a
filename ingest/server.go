package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/loadplane/loadplane/ingest/graceful"
	"github.com/loadplane/loadplane/registry"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	pingAfter         = 10 * time.Second
	pingTimeout       = 5 * time.Second
	minPingInterval   = 5 * time.Second
	connectionTimeout = 5 * time.Second
	maxHeaderBytes    = 8 << 10
	maxTransportBytes = 1 << 20
	ioBufferBytes     = 4 << 10
	windowBytes       = 64 << 10
	// http2Streams is above our own limit, so that one stream too many is
	// refused with a reason and not left waiting in the peer.
	http2Streams = 1000
)

// ServerOptions configure a Server. The zero value is usable.
type ServerOptions struct {
	// Credentials are those of the server; nil for plaintext.
	Credentials credentials.TransportCredentials
	// Authorize is asked at every stream, before a message of it is read, and at
	// every call but those of gRPC health; nil allows all. Its error text goes to
	// the log, not to the peer.
	Authorize func(ctx context.Context) error
	// MaxStreamsPerConnection bounds the streams of a connection; 0 for 256,
	// below 1,000.
	MaxStreamsPerConnection int
	// StreamsPerSecond and StreamBurst bound the new streams of all peers
	// that are not exempt; 0 for 200 and 400.
	StreamsPerSecond float64
	StreamBurst      int
	// CallsPerSecond and CallBurst bound the calls of each address that is not
	// exempt, but those of gRPC health; 0 for 100 and 200. An IPv6 address counts
	// as its /64.
	CallsPerSecond float64
	CallBurst      int
	// Exempt says which peers the bounds of new streams and of calls do not hold
	// for; nil for those on loopback.
	Exempt func(netip.Addr) bool
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *ServerOptions) complete() error {
	if o.MaxStreamsPerConnection < 0 || o.StreamsPerSecond < 0 || o.StreamBurst < 0 || o.CallsPerSecond < 0 || o.CallBurst < 0 {
		return errors.New("ingest: a limit is negative")
	}
	if o.MaxStreamsPerConnection >= http2Streams {
		return fmt.Errorf("ingest: MaxStreamsPerConnection %d is not below %d", o.MaxStreamsPerConnection, http2Streams)
	}
	setDefault(&o.MaxStreamsPerConnection, 256)
	setDefault(&o.StreamsPerSecond, 200)
	setDefault(&o.StreamBurst, 400)
	setDefault(&o.CallsPerSecond, 100)
	setDefault(&o.CallBurst, 200)
	if o.Exempt == nil {
		o.Exempt = netip.Addr.IsLoopback
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

func setDefault[T int | float64](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Server is the gRPC server that engines connect to. Its methods are safe for
// concurrent use; Run may be called once.
type Server struct {
	opts      ServerOptions
	grpc      *grpc.Server
	health    *health.Server
	metrics   *metrics
	newStream *rate.Limiter
	callers   *callers
	strangers rate.Sometimes
	// crashes bounds the lines about panics of handlers.
	crashes rate.Sometimes
}

// NewServer checks the options. It starts nothing.
func NewServer(opts ServerOptions) (*Server, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	s := &Server{
		opts:      opts,
		health:    health.NewServer(),
		metrics:   m,
		newStream: rate.NewLimiter(rate.Limit(opts.StreamsPerSecond), opts.StreamBurst),
		callers:   newCallers(rate.Limit(opts.CallsPerSecond), opts.CallBurst),
		strangers: rate.Sometimes{First: 10, Interval: time.Second},
		crashes:   rate.Sometimes{First: 10, Interval: time.Second},
	}
	s.grpc = grpc.NewServer(s.settings()...)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	return s, nil
}

func (s *Server) settings() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(handshake{s.opts.Credentials}),
		grpc.ForceServerCodecV2(codec{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(connectionTimeout),
		// Above MaxMessageBytes a message is dropped by its decoder; above this
		// the transport ends the stream.
		grpc.MaxRecvMsgSize(maxTransportBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(http2Streams),
		grpc.ReadBufferSize(ioBufferBytes),
		grpc.WriteBufferSize(ioBufferBytes),
		// Static windows turn off bandwidth probing, which costs more than
		// the reports do.
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(s.stream),
		grpc.UnaryInterceptor(s.unary),
	}
}

// Registrar takes the services of the dialects. It must not be used once Run
// was called.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// Run serves until ctx ends. Streams then have two seconds to end by
// themselves before their connections are closed. It blocks until every
// handler returned, and closes l. It returns nil after an end by ctx.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	if err := graceful.Serve(ctx, s.grpc, l, s.health.Shutdown); err != nil {
		return fmt.Errorf("ingest: serve: %w", err)
	}
	return nil
}

// stream guards every stream: a panic ends that stream only, and the limits
// and the authorisation come before a message is read.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer s.recovered(info.FullMethod, &err)
	ctx, shared := connection(ss.Context())
	defer shared.streams.Add(-1)
	open := shared.streams.Add(1)
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	if refusal := s.admit(ctx, open); refusal != nil {
		s.metrics.refuse(refusal.Reason)
		return Status(refusal)
	}
	return handler(srv, &serverStream{ServerStream: ss, ctx: ctx})
}

func (s *Server) admit(ctx context.Context, open int64) *registry.Refusal {
	if most := s.opts.MaxStreamsPerConnection; open > int64(most) {
		return refusef(ReasonTooManyStreams, "the connection has %d streams", most)
	}
	if refusal := s.authorize(ctx); refusal != nil {
		return refusal
	}
	// Strangers do not use up what the engines have.
	if p := Peer(ctx); p.IsValid() && !s.opts.Exempt(p.Addr()) && !s.newStream.Allow() {
		return Refuse(ReasonStreamRate, "too many new streams at once")
	}
	return nil
}

func (s *Server) authorize(ctx context.Context) *registry.Refusal {
	if s.opts.Authorize == nil {
		return nil
	}
	err := s.opts.Authorize(ctx)
	if err == nil {
		return nil
	}
	s.strangers.Do(func() {
		s.opts.Logger.Warn("engine not authorized", slog.Any("peer", Peer(ctx)), slog.Any("error", err))
	})
	return Refuse(ReasonUnauthorized, "no accepted credential")
}

// unary guards every call as stream does streams. Load balancers ask for
// health, and have no credential. A method whose description decodes first has
// read its message by now; one of ours decodes in the handler.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	defer s.recovered(info.FullMethod, &err)
	if strings.HasPrefix(info.FullMethod, "/"+grpc_health_v1.Health_ServiceDesc.ServiceName+"/") {
		return handler(ctx, req)
	}
	ctx, _ = connection(ctx)
	if refusal := s.admitCall(ctx); refusal != nil {
		s.metrics.refuse(refusal.Reason)
		return nil, Status(refusal)
	}
	return handler(ctx, req)
}

func (s *Server) admitCall(ctx context.Context) *registry.Refusal {
	if refusal := s.authorize(ctx); refusal != nil {
		return refusal
	}
	if p := Peer(ctx); p.IsValid() && !s.opts.Exempt(p.Addr()) && !s.callers.allow(p.Addr()) {
		return Refuse(ReasonCallRate, "too many calls at once")
	}
	return nil
}

// recovered turns a panic of a handler into an error.
func (s *Server) recovered(method string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	s.metrics.panics.Inc()
	stack := string(debug.Stack())
	s.crashes.Do(func() {
		s.opts.Logger.Error("handler panicked", slog.String("method", method), slog.String("panic", fmt.Sprint(p)), slog.String("stack", stack))
	})
	*err = status.Error(codes.Internal, "internal error")
}

// serverStream is a stream with the context of connection.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

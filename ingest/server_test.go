package ingest

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/graceful"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// pipes is a listener in memory whose connections have chosen addresses.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial connects from an address.
func (p *pipes) dial(from string) (net.Conn, error) {
	addr, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case p.conns <- &fromAddr{far, addr}:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

type fromAddr struct {
	net.Conn
	addr net.Addr
}

func (c *fromAddr) RemoteAddr() net.Addr { return c.addr }

// rawCodec sends bytes as they are.
type rawCodec struct{ codec }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.codec.Marshal(v)
}

// server is a Server that runs in a bubble, with one service whose streams
// hand their messages to a function.
type server struct {
	*Server
	t       *testing.T
	pipes   *pipes
	metrics *prometheus.Registry
	stop    context.CancelFunc
	stopped chan error
	// calls counts those that were handled.
	calls atomic.Int64
}

func serve(t *testing.T, opts ServerOptions, handle grpc.StreamHandler) *server {
	t.Helper()
	s := &server{t: t, pipes: newPipes(), metrics: prometheus.NewPedanticRegistry(), stopped: make(chan error, 1)}
	opts.Registerer = s.metrics
	opts.Logger = slog.New(slog.DiscardHandler)
	var err error
	if s.Server, err = NewServer(opts); err != nil {
		t.Fatal(err)
	}
	s.Registrar().RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Test", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Send", Handler: handle, ClientStreams: true}},
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, decode func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
			return guard(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/test.Test/Call"}, func(ctx context.Context, _ any) (any, error) {
				s.calls.Add(1)
				p, _ := peer.FromContext(ctx)
				if _, wrapped := p.AuthInfo.(*shared); wrapped {
					return nil, status.Error(codes.Internal, "the handler sees our own wrapper")
				}
				return &emptypb.Empty{}, decode(&recorder{})
			})
		}}},
	}, s)
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.stopped <- s.Run(ctx, s.pipes) }()
	t.Cleanup(func() {
		stop()
		if err := <-s.stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func (s *server) connect(from string, opts ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return s.pipes.dial(from) }),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///pipes", opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cc.Close() })
	return cc
}

func (s *server) open(cc *grpc.ClientConn) grpc.ClientStream {
	s.t.Helper()
	// A stream that does not end fails in fake time and does not hang.
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	st, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/test.Test/Send", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// end returns the status that the server ends the stream with.
func end(st grpc.ClientStream) *status.Status {
	var r recorder
	err := st.RecvMsg(&r)
	if err == nil || errors.Is(err, io.EOF) {
		return status.New(codes.OK, "")
	}
	return status.Convert(err)
}

// drainStream receives until an error, which is the stream's end.
func drainStream(_ any, ss grpc.ServerStream) error {
	for {
		if err := ss.RecvMsg(&recorder{}); err != nil {
			if reason := ReceiveReason(err); reason != "" {
				return Status(Refuse(reason, "not read"))
			}
			return err
		}
	}
}

func (s *server) refused(reason store.Reason) float64 {
	return testutil.ToFloat64(s.Server.metrics.refused.WithLabelValues(string(reason)))
}

const away = "192.0.2.1:1000"

func TestServerLimitsStreamsOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{}, drainStream)
		cc := s.connect("127.0.0.1:1")
		first := s.open(cc)
		for range 255 {
			s.open(cc)
		}
		synctest.Wait()
		if got := testutil.ToFloat64(s.Server.metrics.streams); got != 256 {
			t.Fatalf("%v streams are open", got)
		}
		st := end(s.open(cc))
		if st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), string(ReasonTooManyStreams)) || retryHint(st) == 0 {
			t.Fatalf("stream 257 ended as %v %v", st, st.Details())
		}
		if s.refused(ReasonTooManyStreams) != 1 {
			t.Error("it was not counted")
		}
		other := s.open(s.connect("127.0.0.1:2"))
		synctest.Wait()
		if got := testutil.ToFloat64(s.Server.metrics.streams); got != 257 {
			t.Errorf("%v streams are open with a second connection", got)
		}
		_, _ = first.CloseSend(), other.CloseSend()
		end(first)
		s.open(cc)
		synctest.Wait()
		if got := s.refused(ReasonTooManyStreams); got != 1 {
			t.Errorf("a place that was given back is not used: %v refused", got)
		}
	})
}

func retryHint(st *status.Status) time.Duration {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

func TestServerLimitsNewStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{StreamsPerSecond: 10, StreamBurst: 3}, drainStream)
		cc, near := s.connect(away), s.connect("127.0.0.1:1")
		for range 3 {
			s.open(cc)
		}
		synctest.Wait()
		if st := end(s.open(cc)); st.Code() != codes.ResourceExhausted || retryHint(st) == 0 {
			t.Fatalf("stream 4 ended as %v", st)
		}
		for range 20 {
			s.open(near)
		}
		<-time.After(100 * time.Millisecond)
		s.open(cc)
		synctest.Wait()
		if got := s.refused(ReasonStreamRate); got != 1 {
			t.Errorf("%v refused, want 1", got)
		}
	})
}

func TestServerAuthorizesBeforeReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := 0
		s := serve(t, ServerOptions{Authorize: func(ctx context.Context) error {
			if Peer(ctx).Addr().String() != "192.0.2.1" {
				return nil
			}
			return errors.New("secret detail")
		}}, func(any, grpc.ServerStream) error { handled++; return status.Error(codes.Aborted, "handled") })
		st := end(s.open(s.connect(away)))
		if st.Code() != codes.Unauthenticated || strings.Contains(st.Message(), "secret") {
			t.Errorf("ended as %v", st)
		}
		if handled != 0 || s.refused(ReasonUnauthorized) != 1 {
			t.Errorf("handled %d times, counted %v", handled, s.refused(ReasonUnauthorized))
		}
		if st := end(s.open(s.connect("192.0.2.2:1"))); st.Message() != "handled" {
			t.Errorf("an authorized stream ended as %v", st)
		}
	})
}

// call makes a call and returns its status.
func (s *server) call(cc *grpc.ClientConn) *status.Status {
	return status.Convert(cc.Invoke(s.t.Context(), "/test.Test/Call", &emptypb.Empty{}, &emptypb.Empty{}))
}

// Calls are guarded as streams are, before their message is decoded; health is
// not, since those that ask for it have no credential.
func TestServerAuthorizesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{Authorize: func(ctx context.Context) error {
			if Peer(ctx).Addr().String() == "192.0.2.2" {
				return nil
			}
			return errors.New("secret detail")
		}}, drainStream)
		cc := s.connect(away)
		if st := s.call(cc); st.Code() != codes.Unauthenticated || strings.Contains(st.Message(), "secret") {
			t.Errorf("a stranger gets %v", st)
		}
		if s.calls.Load() != 0 || s.refused(ReasonUnauthorized) != 1 {
			t.Errorf("handled %d times, counted %v", s.calls.Load(), s.refused(ReasonUnauthorized))
		}
		if _, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("health is %v", err)
		}
		if st := s.call(s.connect("192.0.2.2:1")); st.Code() != codes.OK || s.calls.Load() != 1 {
			t.Errorf("an authorized caller gets %v", st)
		}
	})
}

// An address that calls too often costs the others nothing.
func TestServerLimitsCallsOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{CallsPerSecond: 10, CallBurst: 3}, drainStream)
		cc := s.connect(away)
		for range 3 {
			if st := s.call(cc); st.Code() != codes.OK {
				t.Fatalf("within the burst: %v", st)
			}
		}
		if st := s.call(s.connect("192.0.2.1:2")); st.Code() != codes.ResourceExhausted || retryHint(st) == 0 {
			t.Errorf("call 4 of the address: %v", st)
		}
		if got := s.refused(ReasonCallRate); got != 1 {
			t.Errorf("%v refused, want 1", got)
		}
		for _, other := range []string{"192.0.2.2:1", "127.0.0.1:1"} {
			if st := s.call(s.connect(other)); st.Code() != codes.OK {
				t.Errorf("%s: %v", other, st)
			}
		}
		near := s.connect("127.0.0.1:2")
		for range 20 {
			if st := s.call(near); st.Code() != codes.OK {
				t.Fatalf("an exempt address: %v", st)
			}
		}
		if _, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("health is %v", err)
		}
		<-time.After(100 * time.Millisecond)
		if st := s.call(cc); st.Code() != codes.OK {
			t.Errorf("later: %v", st)
		}
	})
}

func TestCallersAreBounded(t *testing.T) {
	c := newCallers(1, 1)
	addr := netip.MustParseAddr
	if !c.allow(addr("2001:db8::1")) || c.allow(addr("2001:db8::2")) {
		t.Error("two addresses of a /64 are not one")
	}
	if !c.allow(addr("2001:db8:0:1::1")) || !c.allow(addr("192.0.2.1")) || !c.allow(addr("192.0.2.2")) {
		t.Error("others are refused")
	}
	for i := range 2 * maxCallers {
		c.allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if len(c.seen) > maxCallers {
		t.Errorf("%d addresses are remembered", len(c.seen))
	}
}

func TestServerKeepsAuthInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		infos := make(chan credentials.AuthInfo, 1)
		s := serve(t, ServerOptions{}, func(_ any, ss grpc.ServerStream) error {
			p, _ := peer.FromContext(ss.Context())
			infos <- p.AuthInfo
			return status.Error(codes.Aborted, "seen")
		})
		end(s.open(s.connect(away)))
		if info := <-infos; info.AuthType() != "insecure" {
			t.Errorf("the handler sees %T", info)
		} else if _, wrapped := info.(*shared); wrapped {
			t.Error("the handler sees our own wrapper")
		}
	})
}

func TestServerSurvivesPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{}, func(any, grpc.ServerStream) error { panic("boom") })
		cc := s.connect(away)
		for range 2 {
			if st := end(s.open(cc)); st.Code() != codes.Internal || strings.Contains(st.Message(), "boom") {
				t.Errorf("ended as %v", st)
			}
		}
		if got := testutil.ToFloat64(s.Server.metrics.panics); got != 2 {
			t.Errorf("%v panics were counted", got)
		}
	})
}

func TestServerBoundsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{}, drainStream)
		cc := s.connect(away)
		st := s.open(cc)
		_ = st.SendMsg(make([]byte, maxTransportBytes+1))
		if got := end(st); got.Code() != codes.ResourceExhausted {
			t.Errorf("above 1 MiB ended as %v", got)
		}
		st = s.open(cc)
		_ = st.SendMsg(make([]byte, maxTransportBytes))
		_ = st.CloseSend()
		if got := end(st); got.Code() == codes.ResourceExhausted {
			t.Errorf("1 MiB ended as %v", got)
		}
	})
}

func TestServerRefusesCompression(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{}, drainStream)
		//nolint:staticcheck // The option that registers no compressor for the server.
		st := s.open(s.connect(away, grpc.WithCompressor(grpc.NewGZIPCompressor())))
		_ = st.SendMsg(make([]byte, 1000))
		if got := end(st); got.Code() != codes.Unimplemented {
			t.Errorf("ended as %v", got)
		}
	})
}

func TestServerHealthAndReflection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, ServerOptions{}, drainStream)
		cc := s.connect(away)
		r, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health is %v, %v", r, err)
		}
		refl, err := grpc_reflection_v1.NewServerReflectionClient(cc).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := refl.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("reflection answers %v", err)
		}
	})
}

func TestServerStopsWithinGrace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		handle grpc.StreamHandler
		least  time.Duration
		most   time.Duration
	}{
		{"handlers that end", func(_ any, ss grpc.ServerStream) error {
			<-time.After(time.Second)
			return status.Error(codes.Unavailable, "draining")
		}, time.Second, 1900 * time.Millisecond},
		{"handlers that stay", drainStream, graceful.Grace, graceful.Grace + 100*time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, ServerOptions{}, tt.handle)
				st := s.open(s.connect(away))
				synctest.Wait()
				begin := time.Now()
				s.stop()
				err := <-s.stopped
				s.stopped <- err
				if took := time.Since(begin); took < tt.least || took > tt.most || err != nil {
					t.Errorf("stopped after %s with %v", took, err)
				}
				if got := end(st); got.Code() != codes.Unavailable {
					t.Errorf("the stream ended as %v", got)
				}
			})
		})
	}
}

func TestServerReportsFailedListener(t *testing.T) {
	s, err := NewServer(ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := newPipes()
	l.Close()
	if err := s.Run(t.Context(), l); err == nil {
		t.Error("Run returned no error")
	}
}

func TestNewServerRefusesOptions(t *testing.T) {
	for name, opts := range map[string]ServerOptions{
		"streams":    {MaxStreamsPerConnection: -1},
		"too many":   {MaxStreamsPerConnection: 1000},
		"rate":       {StreamsPerSecond: -1},
		"burst":      {StreamBurst: -1},
		"calls":      {CallsPerSecond: -1},
		"call burst": {CallBurst: -1},
	} {
		if _, err := NewServer(opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	reg := prometheus.NewRegistry()
	for i, wantErr := range []bool{false, true} {
		if _, err := NewServer(ServerOptions{Registerer: reg}); (err != nil) != wantErr {
			t.Errorf("registration %d: %v", i, err)
		}
	}
}

func TestPeer(t *testing.T) {
	for _, tt := range []struct {
		name string
		addr net.Addr
		want string
	}{
		{"none", nil, "invalid AddrPort"},
		{"tcp", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5}, "192.0.2.1:5"},
		{"mapped", &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 5}, "192.0.2.1:5"},
		{"loopback", &net.TCPAddr{IP: net.IPv6loopback, Port: 5}, "[::1]:5"},
		{"text", &net.UDPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 6}, "192.0.2.1:6"},
		{"socket", &net.UnixAddr{Name: "x", Net: "unix"}, "invalid AddrPort"},
	} {
		p := Peer(peer.NewContext(t.Context(), &peer.Peer{Addr: tt.addr}))
		if p.String() != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, p, tt.want)
		}
	}
	if Peer(t.Context()).IsValid() {
		t.Error("a context without a peer has an address")
	}
}

func TestStreak(t *testing.T) {
	var s Streak
	drop := Refuse(ReasonBadTime, "x")
	for round := range 2 {
		for i := range MaxRefusedInRow - 1 {
			if r := s.Refuse(drop); r != nil {
				t.Fatalf("round %d, refusal %d ends the stream: %v", round, i, r)
			}
		}
		s.Accept()
	}
	for range MaxRefusedInRow - 1 {
		s.Refuse(drop)
	}
	if r := s.Refuse(drop); r == nil || r.Reason != ReasonTooManyRefused || r.Drop {
		t.Errorf("the last one is %v", r)
	}
	fatal := Refuse(ReasonMissingSource, "x")
	if r := new(Streak).Refuse(fatal); r != fatal {
		t.Errorf("a fault of identity is %v", r)
	}
}

func TestReceiveReason(t *testing.T) {
	for err, want := range map[error]store.Reason{
		nil:                              "",
		io.EOF:                           "",
		status.Error(codes.Canceled, ""): "",
		status.Error(codes.ResourceExhausted, ""): ReasonMessageTooLarge,
		status.Error(codes.Unimplemented, ""):     "",
	} {
		if got := ReceiveReason(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

// reasons returns the constants of a reason.go whose value is a word.
func reasons(t *testing.T, path string) map[string]store.Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	words := make(map[string]store.Reason)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		words[spec.Names[0].Name] = store.Reason(word)
		return true
	})
	if len(words) < 10 {
		t.Fatalf("%s declares %d reasons", path, len(words))
	}
	return words
}

// registration are the reasons of the registry for which no stream is refused.
var registration = map[store.Reason]bool{
	registry.ReasonConnectFailed: true, registry.ReasonCredential: true, registry.ReasonAuth: true,
	registry.ReasonUnsupported: true, registry.ReasonConflict: true, registry.ReasonRedirected: true,
	registry.ReasonRejected: true, registry.ReasonLoopbackAddress: true, registry.ReasonEngineError: true, registry.ReasonBadAnswer: true,
	registry.ReasonInstanceChanged: true, registry.ReasonEgressDenied: true,
}

func TestEveryReasonHasACode(t *testing.T) {
	for _, path := range []string{"reason.go", "../registry/reason.go"} {
		for name, word := range reasons(t, path) {
			if _, ok := Code(word); !ok && !registration[word] {
				t.Errorf("%s (%s) has no status code", name, word)
			}
		}
	}
	if code, ok := Code("anything"); ok || code != codes.InvalidArgument {
		t.Errorf("an unknown reason is %v, %v", code, ok)
	}
}

func TestCodes(t *testing.T) {
	for reason, want := range map[store.Reason]codes.Code{
		registry.ReasonShuttingDown:    codes.Unavailable,
		registry.ReasonNotSynced:       codes.Unavailable,
		ReasonTooManyStreams:           codes.ResourceExhausted,
		ReasonCallRate:                 codes.ResourceExhausted,
		ReasonReportRate:               codes.ResourceExhausted,
		ReasonAnswersUnread:            codes.ResourceExhausted,
		ReasonMissingLease:             codes.InvalidArgument,
		registry.ReasonTooManyWorkers:  codes.ResourceExhausted,
		registry.ReasonLeaseHeld:       codes.AlreadyExists,
		registry.ReasonUnknownLease:    codes.NotFound,
		registry.ReasonLeaseExpired:    codes.NotFound,
		registry.ReasonRegistrationOff: codes.PermissionDenied,
		registry.ReasonBadRegistration: codes.InvalidArgument,
		registry.ReasonWorkerRemoved:   codes.NotFound,
		registry.ReasonIdentityChanged: codes.NotFound,
		registry.ReasonSuperseded:      codes.Aborted,
		registry.ReasonRetired:         codes.FailedPrecondition,
		registry.ReasonPeerMismatch:    codes.PermissionDenied,
		registry.ReasonUnknownWorker:   codes.InvalidArgument,
		registry.ReasonRoleMismatch:    codes.InvalidArgument,
		registry.ReasonClaimChanged:    codes.InvalidArgument,
		store.ReasonDuplicateOrigin:    codes.InvalidArgument,
		ReasonMissingSource:            codes.InvalidArgument,
		ReasonTooManyRefused:           codes.InvalidArgument,
	} {
		st := status.Convert(Status(&registry.Refusal{Reason: reason, Message: "fact"}))
		if st.Code() != want || st.Message() != string(reason)+": fact" {
			t.Errorf("%s is %v, want %v", reason, st, want)
		}
		if (retryHint(st) > 0) != (want == codes.ResourceExhausted) {
			t.Errorf("%s: hint %s", reason, retryHint(st))
		}
	}
}

// TestEveryReasonIsProvoked fails for a declared reason that no test of this
// package provokes.
func TestEveryReasonIsProvoked(t *testing.T) {
	provoked := map[store.Reason]bool{
		// By the tests of the server and the stream above.
		ReasonTooManyStreams: true, ReasonStreamRate: true,
		ReasonUnauthorized: true, ReasonTooManyRefused: true, ReasonMessageTooLarge: true,
		// By the decoders of the dialects: see the tests of push.
		ReasonMalformed: true,
		// By the calls of the server above, and by the tests of native.
		ReasonCallRate: true, ReasonMissingLease: true, ReasonReportRate: true, ReasonAnswersUnread: true,
	}
	for _, tt := range refusals {
		r := good(0, 1)
		tt.change(r)
		_, refusal := Validate(r, claim)
		provoked[reasonOf(refusal)] = true
	}
	for name, word := range reasons(t, "reason.go") {
		if !provoked[word] {
			t.Errorf("%s (%s) is not provoked", name, word)
		}
	}
}

// A server that is told to stop before it began ends without an error.
func TestStoppedBeforeItServes(t *testing.T) {
	for range 50 {
		s, err := NewServer(ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := s.Run(ctx, l); err != nil {
			t.Fatalf("Run: %v", err)
		}
	}
}

package hostile

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	routerpb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// peer is a connection from one address.
type peer struct {
	a  *arena
	cc *grpc.ClientConn
}

// connect returns a connection from an address; it lasts as long as the arena.
func (a *arena) connect(ip string) *peer {
	a.Helper()
	from := netip.AddrPortFrom(netip.MustParseAddr(ip), 40000)
	cc, err := grpc.NewClient("passthrough:///plane",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return a.pipes.dial(from) }),
		grpc.WithDisableRetry(), grpc.WithIdleTimeout(0))
	a.must(err)
	a.Cleanup(func() { cc.Close() })
	return &peer{a, cc}
}

// stream is a report stream that sends bytes as they are. It is for one
// goroutine.
type stream struct {
	grpc.ClientStream
	a      *arena
	cancel context.CancelFunc
}

func (p *peer) open() *stream {
	p.a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	desc := &grpc.StreamDesc{ClientStreams: true}
	s, err := p.cc.NewStream(ctx, desc, routerpb.LoadMonitorService_Report_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		cancel()
		p.a.Fatal(err)
	}
	return &stream{s, p.a, cancel}
}

// send sends messages, or bytes as they are. A stream that ended is no error.
func (s *stream) send(messages ...any) {
	s.a.Helper()
	for _, m := range messages {
		if err := s.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
			s.a.Error(err)
		}
	}
}

// end waits until the plane ends the stream. After a minute it gives up, so
// that a plane that does not is found out.
func (s *stream) end() codes.Code {
	defer s.cancel()
	defer time.AfterFunc(time.Minute, s.cancel).Stop()
	var reply []byte
	err := s.RecvMsg(&reply)
	if errors.Is(err, io.EOF) {
		return codes.OK
	}
	return status.Code(err)
}

// ends waits for the end and compares its code.
func (s *stream) ends(want codes.Code) {
	s.a.Helper()
	if got := s.end(); got != want {
		s.a.Errorf("the stream ended with %v, want %v", got, want)
	}
}

// close ends the stream in the good way.
func (s *stream) close() {
	s.a.Helper()
	if err := s.CloseSend(); err != nil {
		s.a.Error(err)
	}
	s.ends(codes.OK)
}

// rawCodec sends bytes as they are, and takes any reply.
type rawCodec struct{}

func (rawCodec) Name() string                             { return "proto" }
func (rawCodec) Unmarshal(_ mem.BufferSlice, _ any) error { return nil }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		m, isMessage := v.(proto.Message)
		if !isMessage {
			return nil, errors.New("neither bytes nor a message")
		}
		var err error
		if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil {
			return nil, err
		}
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

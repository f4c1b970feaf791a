package link

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/monitor/frame"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Frames of HTTP/2 (RFC 9113, sections 4.1 and 6).
const (
	prefaceBytes  = 24
	headBytes     = 9
	kindSettings  = 4
	kindWindow    = 8
	settingWindow = 4
	defaultWindow = 65535
)

// dialling returns the options of Open for one end of a pipe.
func dialling(c net.Conn) Options {
	return Options{Timeout: time.Second, Dial: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
}

// TestPeerThatReadsNoMore: a peer that was read from and reads nothing any more
// breaks the link in the time of a write, though it could still be heard.
func TestPeerThatReadsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		_ = far.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, far)
		}()
		go func() { _, _ = far.Write([]byte{0, 0, 0, kindSettings, 0, 0, 0, 0, 0}) }()
		l, err := Open(t.Context(), dialling(near), "10.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		<-read
		began := time.Now()
		if err := l.Stream.SendMsg(frame.KeepAlive()); err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- l.Stream.RecvMsg(new(taken)) }()
		select {
		case err := <-over:
			if status.Code(err) != codes.Unavailable || time.Since(began) != time.Second {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		case <-time.After(time.Hour):
			t.Error("the link stands")
		}
	})
}

// taken takes a frame and forgets it.
type taken struct{}

func (*taken) DecodeWire([]byte) error { return nil }

// TestWindowsAreSmall: what is granted to a peer for the stream and for the
// connection.
func TestWindowsAreSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		windows := make(chan [2]uint32, 1)
		go func() { windows <- granted(far) }()
		_, _ = Open(t.Context(), dialling(near), "10.0.0.1:1")
		far.Close()
		if got := <-windows; got[0] > windowBytes || got[1] > windowBytes || windowBytes > 64<<10 {
			t.Errorf("the windows of the stream and the connection are %v bytes", got)
		}
	})
}

// granted reads until the connection ends and returns the windows that it was
// given, of a stream and of the connection.
func granted(c net.Conn) [2]uint32 {
	got := [2]uint32{defaultWindow, defaultWindow}
	_, _ = io.CopyN(io.Discard, c, prefaceBytes)
	for head := make([]byte, headBytes); ; {
		if _, err := io.ReadFull(c, head); err != nil {
			return got
		}
		body := make([]byte, binary.BigEndian.Uint32(head)>>8)
		if _, err := io.ReadFull(c, body); err != nil {
			return got
		}
		switch head[3] {
		case kindSettings:
			for ; len(body) >= 6; body = body[6:] {
				if binary.BigEndian.Uint16(body) == settingWindow {
					got[0] = binary.BigEndian.Uint32(body[2:])
				}
			}
		case kindWindow:
			got[1] += binary.BigEndian.Uint32(body)
		}
	}
}

// endless sends frames as fast as they are taken.
type endless struct {
	pb.UnimplementedLoadMonitorServiceServer
}

func (endless) Monitor(s pb.LoadMonitorService_MonitorServer) error {
	f := &pb.WorkerFrame{Payload: &pb.WorkerFrame_Error{Error: &pb.StreamError{Message: string(make([]byte, 10<<10))}}}
	for {
		if err := s.Send(f); err != nil {
			return err
		}
	}
}

// counted counts what is read from a connection.
type counted struct {
	net.Conn
	bytes atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// TestPeerIsHeldBack: a link whose frames nobody takes holds a window of them and
// no more.
func TestPeerIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		server := grpc.NewServer(grpc.WaitForHandlers(true))
		pb.RegisterLoadMonitorServiceServer(server, endless{})
		served := make(chan error, 1)
		go func() { served <- server.Serve(&single{conn: far, over: make(chan struct{})}) }()
		in := &counted{Conn: near}
		l, err := Open(t.Context(), dialling(in), "10.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		const overhead = 4 << 10
		if n := in.bytes.Load(); n < windowBytes/2 || n > windowBytes+overhead {
			t.Errorf("%d bytes were read of a peer whose frames nobody takes", n)
		}
		l.Close()
		server.Stop()
		<-served
	})
}

// single is a listener with one connection.
type single struct {
	conn net.Conn
	over chan struct{}
}

func (s *single) Accept() (net.Conn, error) {
	if c := s.conn; c != nil {
		s.conn = nil
		return c, nil
	}
	<-s.over
	return nil, net.ErrClosed
}

func (s *single) Close() error {
	close(s.over)
	return nil
}

func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

// TestTooLarge tells the bound of the link from what a peer says.
func TestTooLarge(t *testing.T) {
	for name, err := range map[string]error{
		"another error":           errors.New("grpc: received message larger than max (2000000 vs. 1048576)"),
		"another code":            status.Error(codes.Internal, "grpc: received message larger than max (2000000 vs. 1048576)"),
		"too many sessions":       status.Error(codes.ResourceExhausted, "too many routers"),
		"the bound of the peer":   status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5000000 vs. 4194304)"),
		"another kind of message": status.Error(codes.ResourceExhausted, "1048576 sessions"),
	} {
		if TooLarge(err) {
			t.Errorf("%s is taken for a frame that is too large", name)
		}
	}
	if !TooLarge(status.Error(codes.ResourceExhausted, "grpc: received message larger than max (2000000 vs. 1048576)")) {
		t.Error("a frame that is too large is not found")
	}
}

package engine

import (
	"errors"
	"io"
	"net"
	"testing"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// A patched frame is a report that an engine could have sent: everything is
// known, the sequence rises, and the stamp is in it.
func TestReport(t *testing.T) {
	r, err := newReport(Identity{Addr: "http://127.1.0.1:80", Source: "life", Ranks: 8})
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	running := int64(-1)
	for _, stamp := range []int64{0, 1, 1 << 40} {
		b := r.append(nil, stamp)
		if n := int(b[0])<<16 | int(b[1])<<8 | int(b[2]); n != len(b)-frameHead || n != r.payload() {
			t.Fatalf("the frame says %d bytes, has %d", n, len(b)-frameHead)
		}
		var m pb.LoadReport
		if err := proto.Unmarshal(b[frameHead+messageHead:], &m); err != nil {
			t.Fatal(err)
		}
		if m.GetSequenceId() <= last || m.GetSourceInstanceId() != "life" || len(m.GetRanks()) != 8 {
			t.Fatalf("after sequence %d: %v", last, &m)
		}
		rank := m.GetRanks()[0]
		if rank.GetNumTotalTokens()-StampBase != stamp || rank.GetNumRunningReqs() == running {
			t.Fatalf("stamp %d: %v", stamp, rank)
		}
		last, running = m.GetSequenceId(), rank.GetNumRunningReqs()
		checkFields(t, m.GetRanks()[7])
	}
	if _, err := newReport(Identity{Addr: "a", Source: "b", Ranks: 1000}); err == nil {
		t.Error("a report above a frame was built")
	}
}

func checkFields(t *testing.T, rank *pb.RankLoad) {
	t.Helper()
	m := rank.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		if f := m.Descriptor().Fields().Get(i); !m.Has(f) {
			t.Errorf("rank %d has no %s", rank.GetDpRank(), f.Name())
		}
	}
}

func TestHost(t *testing.T) {
	seen := map[string]bool{}
	for i := range 70_000 {
		o := Origin(i, 80)
		if seen[o] || !Host(i).IsLoopback() {
			t.Fatalf("engine %d is at %s", i, o)
		}
		seen[o] = true
	}
}

// An engine greets as a gRPC client does, waits for the windows, and writes
// whole frames.
func TestConn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := dial(t.Context(), call{address: ln.Addr().String(), path: "/a/b", content: "application/grpc", buffer: 512})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(peer, preface); err != nil || string(preface) != http2.ClientPreface {
		t.Fatalf("%v: %q", err, preface)
	}
	f := http2.NewFramer(peer, peer)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for _, want := range []http2.FrameType{http2.FrameSettings, http2.FrameWindowUpdate, http2.FrameHeaders} {
		if got, err := f.ReadFrame(); err != nil || got.Header().Type != want {
			t.Fatalf("%v, %v, want %v", got, err, want)
		}
	}
	// The default windows admit six of 10,000 bytes.
	if n, err := c.reserve(10_000, 64); n != 6 || err != nil {
		t.Fatalf("%d messages, %v, want 6", n, err)
	}
	granted := make(chan int)
	go func() {
		n, _ := c.reserve(10_000, 64)
		granted <- n
	}()
	if err := errors.Join(f.WriteWindowUpdate(0, 20_000), f.WriteWindowUpdate(streamID, 10_000)); err != nil {
		t.Fatal(err)
	}
	if n := <-granted; n != 1 {
		t.Fatalf("%d messages, want 1", n)
	}
	if err := f.WritePing(false, [8]byte{7}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.ReadFrame(); err != nil || !got.Header().Flags.Has(http2.FlagPingAck) {
		t.Fatalf("%v, %v, want the ping's echo", got, err)
	}
	c.halt(true)
	if n, err := c.reserve(10_000, 64); n != 0 || err != nil {
		t.Fatalf("%d messages, %v after a halt", n, err)
	}
	c.halt(false)
	if err := f.WriteRSTStream(streamID, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	if _, err := c.reserve(65_000, 64); err == nil || c.failure() == nil {
		t.Error("the end of the stream is no failure")
	}
	c.close()
}

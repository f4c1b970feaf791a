package loadstat

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
	"github.com/loadplane/loadplane/sim/reporter"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// bench is a publisher of two ranks in a bubble.
type bench struct {
	t         *testing.T
	process   *reporter.Process
	faults    *reporter.Faults
	publisher *Publisher
	listeners []*bufconn.Listener
	stop      func()
}

func (b *bench) start() {
	b.listeners = nil
	var listeners []net.Listener
	for range b.publisher.ranks {
		l := bufconn.Listen(64 << 10)
		b.listeners, listeners = append(b.listeners, l), append(listeners, l)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.publisher.Run(ctx, listeners); err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.stop = func() { cancel(); running.Wait() }
}

func inBubble(t *testing.T, role pb.WorkerType, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, faults: &reporter.Faults{}}
		b.process = reporter.New(reporter.Config{Role: role, Model: "m", Ranks: 2, Seed: 1, Warm: true, Faults: b.faults})
		b.publisher = New(2, Config{Process: b.process, Role: role, Faults: b.faults})
		b.start()
		defer func() { b.stop(); b.process.Close() }()
		f(b)
	})
}

func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// subscription is a router's end of the socket of a rank.
type subscription struct {
	conn *zmq4.Conn

	mu       sync.Mutex
	messages []arrival
	ended    bool
}

type arrival struct {
	at       time.Time
	sequence int64
	values   []any
}

// dial connects to a rank and handshakes.
func (b *bench) dial(rank int) *zmq4.Conn {
	b.t.Helper()
	raw, err := b.listeners[rank].DialContext(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := zmq4.Open(raw, null.Security(), zmq4.Sub, nil, false, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// subscribe dials a rank, asks for a topic and keeps what arrives.
func (b *bench) subscribe(rank int, topic string) *subscription {
	b.t.Helper()
	s := &subscription{conn: b.dial(rank)}
	if err := s.conn.SendMsg(zmq4.NewMsg([]byte("\x01" + topic))); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		for {
			m, err := s.conn.RecvMsg()
			s.mu.Lock()
			if err != nil {
				s.ended = true
				s.mu.Unlock()
				return
			}
			s.messages = append(s.messages, b.read(m.Frames))
			s.mu.Unlock()
		}
	}()
	synctest.Wait()
	return s
}

func (b *bench) read(frames [][]byte) arrival { return parse(b.t, frames) }

// parse reads a message as the routers do.
func parse(t *testing.T, frames [][]byte) arrival {
	t.Helper()
	if len(frames) != 3 || string(frames[0]) != "load" || len(frames[1]) != 8 {
		t.Fatalf("frames %q", frames)
	}
	a := arrival{at: time.Now(), sequence: int64(binary.BigEndian.Uint64(frames[1]))}
	if err := msgpack.Unmarshal(frames[2], &a.values); err != nil {
		t.Fatal(err)
	}
	return a
}

func (s *subscription) got() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

func (s *subscription) last(t *testing.T) arrival {
	t.Helper()
	got := s.got()
	if len(got) == 0 {
		t.Fatal("there is no message")
	}
	return got[len(got)-1]
}

func TestMessagesHaveTheLoadOfTheRank(t *testing.T) {
	for role, runs := range map[pb.WorkerType]bool{pb.WorkerType_WORKER_TYPE_REGULAR: true, pb.WorkerType_WORKER_TYPE_PREFILL: false} {
		inBubble(t, role, func(b *bench) {
			for rank := range 2 {
				s := b.subscribe(rank, "load")
				b.pass(1100 * ms)
				sample, err := b.process.Sample()
				if err != nil {
					t.Fatal(err)
				}
				r, c := sample.Ranks[rank], sample.Counters[rank]
				running := r.NumRunningReqs
				if !runs {
					running = 0
				}
				want := fmt.Sprint([]any{
					"LoadStat", running, r.NumWaitingReqs, r.NumUsedTokens, r.MaxTotalNumTokens, rank, r.NumWaitingUncachedTokens,
					r.NumTotalTokens, r.MaxRunningRequests, c.PromptTokens - c.CachedTokens, c.PrefillBusy.Microseconds(),
				})
				if got := fmt.Sprint(s.last(b.t).values); got != want {
					t.Errorf("%v: rank %d publishes %v, want %v", role, rank, got, want)
				}
			}
		})
	}
}

func TestSequencesBeginAtZeroAndGoOn(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		s := b.subscribe(1, "load")
		b.pass(1000 * ms)
		first := s.got()
		for i, m := range first {
			if m.sequence != int64(i) {
				t.Errorf("message %d has the sequence %d", i, m.sequence)
			}
			if gap := m.at.Sub(first[max(i, 1)-1].at); i > 0 && gap < 50*ms {
				t.Errorf("message %d came %v after the one before", i, gap)
			}
		}
		b.stop()
		synctest.Wait()
		if !s.ended {
			t.Error("the subscription did not end with the publisher")
		}
		b.start()
		s = b.subscribe(1, "")
		b.pass(1000 * ms)
		if got := s.got(); len(first) < 10 || len(got) == 0 || got[0].sequence != int64(len(first)) {
			t.Errorf("after %d messages the sequence goes on with %v", len(first), got)
		}
	})
}

func TestUnchangedValuesComeEachSecond(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		b.faults.Freeze.Store(true)
		s := b.subscribe(0, "load")
		b.pass(5500 * ms)
		got := s.got()
		if len(got) != 6 {
			t.Fatalf("%d messages", len(got))
		}
		for i, m := range got[1:] {
			if m.at.Sub(got[i].at) != time.Second || fmt.Sprint(m.values) != fmt.Sprint(got[i].values) {
				t.Errorf("%v came after %v", m, got[i])
			}
		}
	})
}

func TestFaultsOfMessages(t *testing.T) {
	tests := map[string]struct {
		set  func(f *reporter.Faults)
		none bool
	}{
		"silent":        {func(f *reporter.Faults) { f.Silent.Store(true) }, true},
		"fail":          {func(f *reporter.Faults) { f.Fail.Store(true) }, true},
		"idle":          {func(f *reporter.Faults) { f.Idle.Store(true) }, false},
		"zero capacity": {func(f *reporter.Faults) { f.ZeroCapacity.Store(true) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
				s := b.subscribe(0, "load")
				b.pass(200 * ms)
				tt.set(b.faults)
				b.pass(100 * ms)
				before := len(s.got())
				b.pass(3000 * ms)
				if after := len(s.got()); (after == before) != tt.none || s.ended {
					t.Errorf("%d messages and then %d, ended: %v", before, after, s.ended)
				}
				capacity := fmt.Sprint(s.last(b.t).values[4])
				if zero := capacity == "0"; zero != (name == "zero capacity") {
					t.Errorf("the capacity is %s", capacity)
				}
			})
		})
	}
}

func TestTopics(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		all, part, longer, other := b.subscribe(0, ""), b.subscribe(0, "lo"), b.subscribe(0, "loads"), b.subscribe(0, "kv-events")
		twice := b.subscribe(0, "load")
		send := func(body string) {
			if err := twice.conn.SendMsg(zmq4.NewMsg([]byte(body))); err != nil {
				t.Fatal(err)
			}
		}
		send("\x01load")
		send("\x00load")
		b.pass(500 * ms)
		if len(all.got()) == 0 || len(part.got()) == 0 || len(longer.got()) != 0 || len(other.got()) != 0 || len(twice.got()) == 0 {
			t.Errorf("%d, %d, %d, %d and %d messages", len(all.got()), len(part.got()), len(longer.got()), len(other.got()), len(twice.got()))
		}
		send("\x00load")
		b.pass(0)
		before := len(twice.got())
		b.pass(2000 * ms)
		if after := len(twice.got()); after != before {
			t.Errorf("%d messages without a subscription", after-before)
		}
	})
}

func TestASubscriberThatReadsNothingLosesMessages(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		conn := b.dial(0)
		if err := conn.SendMsg(zmq4.NewMsg([]byte("\x01load"))); err != nil {
			t.Fatal(err)
		}
		good := b.subscribe(0, "load")
		const more = 200 * time.Second // fills the connection of 64 KiB
		b.pass(more)
		if n := len(good.got()); n < 2000 {
			t.Errorf("a good subscriber has %d messages", n)
		}
		var last, lost int64 = -1, 0
		for lost == 0 {
			m, err := conn.RecvMsg()
			if err != nil {
				t.Fatal(err)
			}
			a := b.read(m.Frames)
			lost, last = a.sequence-last-1, a.sequence
		}
		if lost < 100 {
			t.Errorf("%d messages were dropped before %d", lost, last)
		}
	})
}

// TestBadSubscribers leaves the good one alone.
func TestBadSubscribers(t *testing.T) {
	greeting := func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte{0xff}, 64)) }
	tests := map[string]struct {
		do   func(c net.Conn)
		gone time.Duration // when the connection is closed
	}{
		"silent":           {func(net.Conn) {}, handshakeTimeout},
		"wrong greeting":   {greeting, 0},
		"leaves at once":   {func(c net.Conn) { _ = c.Close() }, 0},
		"a byte at a time": {func(c net.Conn) { _, _ = c.Write([]byte{0xff}) }, handshakeTimeout},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
				good := b.subscribe(0, "load")
				conn, err := b.listeners[0].DialContext(b.t.Context())
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				tt.do(conn)
				_, _ = io.Copy(io.Discard, conn)
				if took := time.Since(begun); took != tt.gone {
					t.Errorf("it was closed after %v, want %v", took, tt.gone)
				}
				b.pass(100 * ms)
				if len(good.got()) == 0 {
					t.Error("the good one has nothing")
				}
			})
		})
	}
	t.Run("giant frame", func(t *testing.T) {
		inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
			conn := b.dial(0)
			if _, err := conn.Write([]byte{flagLong, 0x7f, 0, 0, 0, 0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
			if m, err := conn.RecvMsg(); err == nil {
				t.Errorf("it gets %v", m)
			}
		})
	})
}

func TestPing(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		conn := b.dial(0)
		for _, body := range []string{"", "\x04PING", "\x05ERROR"} { // have no answer
			if _, err := conn.Write(appendFrame(nil, flagCommand, []byte(body))); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.SendCmd("PING", []byte("\x00\x0acontext")); err != nil {
			t.Fatal(err)
		}
		pong, err := conn.RecvCmd()
		if err != nil || pong.Name != "PONG" || string(pong.Body) != "context" {
			t.Errorf("%+v, %v", pong, err)
		}
	})
}

func TestRunReturnsTheErrorOfAListener(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		s := b.subscribe(1, "load")
		b.stop()
		one, other := bufconn.Listen(1<<10), bufconn.Listen(1<<10)
		_ = one.Close()
		if err := b.publisher.Run(b.t.Context(), []net.Listener{one, other}); err == nil {
			t.Error("no error")
		}
		if _, err := other.Dial(); err == nil {
			t.Error("the other listener is open")
		}
		synctest.Wait()
		if !s.ended {
			t.Error("a subscription is open")
		}
	})
}

func TestPayloadIsAnArrayOfEleven(t *testing.T) {
	r := &pb.RankLoad{
		DpRank: 3, NumRunningReqs: 9, NumWaitingReqs: 2, NumUsedTokens: 300, MaxTotalNumTokens: 131072,
		NumWaitingUncachedTokens: 5, NumTotalTokens: 400, MaxRunningRequests: 48,
	}
	c := queue.Counters{PromptTokens: 70_000, CachedTokens: 1, PrefillBusy: 3 * time.Second}
	want := "9ba84c6f61645374617401" + "02" + "cd012c" + "ce00020000" + "03" + "05" + "cd0190" + "30" + "ce0001116f" + "ce002dc6c0"
	if got := hex.EncodeToString(payload(r, 1, c)); got != want {
		t.Errorf("payload %s, want %s", got, want)
	}
}

// FuzzReadFrame reads any bytes: what is read is written as it was, or with a
// shorter head.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x00\x05\x01load"))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0, 0x10, 0})
	f.Add(appendFrame(nil, flagMore|flagCommand, make([]byte, 300)))
	f.Fuzz(func(t *testing.T, b []byte) {
		flags, body, err := readFrame(bytes.NewReader(b))
		if err != nil {
			if len(body) > maxFrame || !errors.Is(err, errTooLong) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%v with %d bytes", err, len(body))
			}
			return
		}
		again, same, err := readFrame(bytes.NewReader(appendFrame(nil, flags&^flagLong, body)))
		if err != nil || !bytes.Equal(body, same) || again&^flagLong != flags&^flagLong {
			t.Errorf("%x is read as %x and %x, and then %x and %x, %v", b, flags, body, again, same, err)
		}
	})
}

// realPython returns a Python that has the bindings of libzmq, or skips.
func realPython(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import zmq").Run() == nil {
			return python
		}
	}
	if os.Getenv("LIBZMQ") == "required" {
		t.Fatal("there is no python3 with zmq")
	}
	t.Skip("there is no python3 with zmq (Debian's python3-zmq): nothing is held against the real libzmq")
	return ""
}

// TestRealSubscribers has subscribers on the real libzmq, which send heartbeats,
// on two ranks.
func TestRealSubscribers(t *testing.T) {
	python := realPython(t)
	faults := &reporter.Faults{}
	process := reporter.New(reporter.Config{Model: "m", Ranks: 2, Seed: 1, Warm: true, Faults: faults})
	defer process.Close()
	var listeners []net.Listener
	args := []string{"testdata/subscriber.py", "20"}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners, args = append(listeners, l), append(args, "tcp://"+l.Addr().String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = New(2, Config{Process: process, Faults: faults}).Run(ctx, listeners) })
	out, err := exec.CommandContext(ctx, python, args...).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	last, seen := []int64{-1, -1}, 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		rank, _ := strconv.Atoi(words[0])
		var frames [][]byte
		for _, w := range words[1:] {
			frame, err := hex.DecodeString(w)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, frame)
		}
		a := parse(t, frames)
		if a.sequence <= last[rank] || len(a.values) != 11 || fmt.Sprint(a.values[5]) != words[0] {
			t.Errorf("%d after %d: %v", a.sequence, last[rank], a.values)
		}
		last[rank], seen = a.sequence, seen+1
	}
	if seen < 20 || last[0] < 0 || last[1] < 0 {
		t.Errorf("%d messages, last ones %v", seen, last)
	}
}

package loadstat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// greeted speaks as a publisher up to the end of the handshake, and hands over
// to then. A property stands for the kind of socket.
func greeted(then func(net.Conn)) func(net.Conn) { return ready("Socket-Type", "PUB", then) }

func ready(name, value string, then func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		e, done := newEager(c)
		defer done()
		_, _ = e.Write(greeting("NULL"))
		if _, err := io.ReadFull(c, make([]byte, greetingBytes)); err != nil {
			return
		}
		body := append([]byte{5}, "READY"...)
		body = append(append(body, byte(len(name))), name...)
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(value))), value...)
		_, _ = e.Write(append([]byte{4, byte(len(body))}, body...))
		then(e)
	}
}

func greeting(mechanism string) []byte {
	b := make([]byte, greetingBytes)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], mechanism)
	return b
}

// writes writes and reads on.
func writes(p []byte) func(net.Conn) {
	return func(c net.Conn) {
		e, done := newEager(c)
		defer done()
		_, _ = e.Write(p)
		readAll(e)
	}
}

// endlessly writes the same for ever.
func endlessly(p []byte) func(net.Conn) {
	return func(c net.Conn) {
		go readAll(c)
		for {
			if _, err := c.Write(p); err != nil {
				return
			}
			<-time.After(time.Millisecond)
		}
	}
}

// readAll reads until a connection ends.
func readAll(c net.Conn) {
	b := make([]byte, 1024)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// held reads nothing until the other side ends the connection.
func held(c net.Conn) {
	c.SetWriteDeadline(time.Now())
	for {
		<-time.After(time.Second)
		if _, err := c.Write(nil); errors.Is(err, io.ErrClosedPipe) {
			return
		}
	}
}

// scenes provoke each reason for which sockets are not heard, in an engine of
// two ranks.
var scenes = map[string]struct {
	reason store.Reason
	do     func(p *plane, a *engine)
}{
	"refused":                {registry.ReasonConnectFailed, func(_ *plane, a *engine) { a.down() }},
	"never shakes hands":     {registry.ReasonConnectFailed, raw(readAll)},
	"never reads":            {registry.ReasonConnectFailed, raw(held)},
	"closes at once":         {registry.ReasonConnectFailed, raw(func(net.Conn) {})},
	"closes when subscribed": {registry.ReasonConnectFailed, raw(greeted(func(net.Conn) {}))},
	"another protocol":       {ReasonNoPublisher, raw(writes([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n")))},
	"another mechanism":      {ReasonNoPublisher, raw(writes(greeting("CURVE")))},
	"an old version":         {ReasonNoPublisher, raw(writes(func() []byte { g := greeting("NULL"); g[10] = 2; return g }()))},
	"no command":             {ReasonNoPublisher, raw(writes(append(greeting("NULL"), short(0, 3)...)))},
	"another kind":           {ReasonNoPublisher, raw(ready("Socket-Type", "REP", readAll))},
	"an unknown kind":        {ReasonNoPublisher, raw(ready("Socket-Type", "BOGUS", readAll))},
	"cut properties":         {ReasonNoPublisher, raw(writes(append(greeting("NULL"), 4, 7, 5, 'R', 'E', 'A', 'D', 'Y', 200)))},
	"a giant property":       {ingest.ReasonMessageTooLarge, raw(writes(append(greeting("NULL"), long(4, 1<<40)...)))},
	"a giant frame":          {ingest.ReasonMessageTooLarge, raw(greeted(writes(long(0, 1<<40))))},
	"endless frames":         {ingest.ReasonMessageTooLarge, raw(greeted(endlessly(short(flagMore, 1))))},
	"a broken command":       {ReasonNoPublisher, raw(greeted(writes([]byte{4, 2, 200, 1})))},
	"silent":                 {ReasonRankSilent, raw(greeted(readAll))},
	"pings only":             {ReasonRankSilent, raw(greeted(endlessly([]byte{4, 7, 4, 'P', 'I', 'N', 'G', 0, 9})))},
	"half a frame":           {ReasonRankSilent, raw(greeted(writes([]byte{0, 200, 1, 2, 3})))},
	"no load":                {ingest.ReasonMalformed, saying(100*time.Millisecond, []byte("load"), sequence(1), []byte{0xc1})},
	"no load, seldom":        {ingest.ReasonMalformed, saying(time.Second, []byte("load"), sequence(1), []byte{0xc1})},
	"another topic":          {ingest.ReasonMalformed, saying(100*time.Millisecond, []byte("load2"), sequence(1), array(int64(0), int64(0), int64(0), int64(0)))},
	"bug 70: null load":      {ingest.ReasonMalformed, saying(100*time.Millisecond, []byte("load"), sequence(1), []byte{0xc0})},
	"what reads panics":      {ReasonSocketPanic, crashing},
	"one rank is missing":    {ReasonRanksMissing, func(_ *plane, a *engine) { a.listen(1, nil) }},
	"another host": {ReasonForeignEndpoint, func(p *plane, _ *engine) {
		p.facts.set(workerA, registry.LoadStat{Host: "192.0.2.1", Port: basePort, Ranks: 2})
	}},
	"impossible ports": {ReasonBadEndpoint, func(p *plane, _ *engine) {
		p.facts.set(workerA, registry.LoadStat{Port: 65535, Ranks: 2})
	}},
}

const (
	greetingBytes = 64
	flagMore      = 1
)

// crashing has what reads from the connections of an engine panic, once they are
// subscribed.
func crashing(_ *plane, a *engine) {
	for _, r := range a.publishers() {
		r.set(func(r *publisher) { r.wrap = func(c net.Conn) net.Conn { return &mined{Conn: c} } })
	}
}

// mined is a connection that panics when it is read after the subscription was
// written.
type mined struct {
	net.Conn
	armed bool
}

func (m *mined) Write(p []byte) (int, error) {
	m.armed = m.armed || bytes.Contains(p, []byte("\x01load"))
	return m.Conn.Write(p)
}

func (m *mined) Read(p []byte) (int, error) {
	if m.armed {
		panic("boom")
	}
	return m.Conn.Read(p)
}

// short and long are frames with a body of zeros, of which long has none.
func short(flags byte, size int) []byte {
	return append([]byte{flags, byte(size)}, make([]byte, size)...)
}

func long(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, size)
}

// raw has all ranks of an engine speak as told.
func raw(speak func(net.Conn)) func(*plane, *engine) {
	return func(_ *plane, a *engine) {
		for _, r := range a.publishers() {
			r.set(func(r *publisher) { r.raw = speak })
		}
	}
}

// saying publishes frames at an interval in place of a load.
func saying(each time.Duration, frames ...[]byte) func(*plane, *engine) {
	return raw(func(c net.Conn) {
		e, done := newEager(c)
		defer done()
		conn, err := zmq4.Open(e, null.Security(), zmq4.Pub, nil, true, nil)
		go readAll(c)
		for err == nil {
			err = conn.SendMsg(zmq4.NewMsgFrom(frames...))
			<-time.After(each)
		}
	})
}

// flooding publishes good messages much too fast.
func flooding(p *plane, a *engine) {
	frames := zmq4.NewMsgFrom([]byte("load"), sequence(1), array(int64(0), int64(0), int64(0), int64(100)))
	raw(func(c net.Conn) {
		e, done := newEager(c)
		defer done()
		conn, err := zmq4.Open(e, null.Security(), zmq4.Pub, nil, true, nil)
		go readAll(c)
		for n := 0; err == nil; n++ {
			if err = conn.SendMsg(frames); n%50 == 0 {
				<-time.After(time.Millisecond)
			}
		}
	})(p, a)
}

// provokeFlood: a flood ends its connection, and the next one comes later and
// later.
func provokeFlood(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		flooding(p, a)
		after(12 * time.Second)
		n := p.metric(p.sub.metrics.ended.WithLabelValues(string(ReasonMessageFlood)))
		if n < 2 || n > 20 {
			t.Errorf("%d connections ended as a flood", n)
		}
		if taken := p.metric(p.sub.metrics.messages) + p.metric(p.sub.metrics.old); taken > (n+1)*(floodBurst+floodPerSecond) {
			t.Errorf("%d messages were read on %d connections", taken, n)
		}
		p.wantFresh(workerB, 1)
	})
}

// TestHostile has one engine that is not as it should be. It is shown why, and
// the other engine keeps its pace.
func TestHostile(t *testing.T) {
	for name, s := range scenes {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(p *plane, a, _ *engine) {
				s.do(p, a)
				after(3 * time.Second)
				last := p.wantFresh(workerB, 2).live.Sequence
				for range 9 {
					after(time.Second)
					w := p.wantFresh(workerB, 2)
					if w.live.Sequence == last {
						t.Error("the other engine was not reported for a second")
					}
					last = w.live.Sequence
				}
				p.wantNothing(workerA, s.reason)
				if n := len(p.net.dials()); n > 2*40 {
					t.Errorf("dialled %d times in twelve seconds", n)
				}
			})
		})
	}
}

// TestTenRefusedEndAConnection has an engine that publishes nonsense often.
func TestTenRefusedEndAConnection(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		scenes["no load"].do(p, a)
		after(2500 * time.Millisecond)
		w := p.wantNothing(workerA, ingest.ReasonMalformed)
		if !strings.Contains(w.diag.RegistrationError, "10 messages in a row were refused") || w.diag.Refused < 10 {
			t.Errorf("shown is %q after %d refusals", w.diag.RegistrationError, w.diag.Refused)
		}
	})
}

// TestPanicEndsItsConnectionOnly: the rest of the plane goes on, the end is
// counted, and the rank is subscribed to again.
func TestPanicEndsItsConnectionOnly(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		crashing(p, a)
		after(8 * time.Second)
		if n := p.metric(p.sub.metrics.ended.WithLabelValues(string(ReasonSocketPanic))); n < 2 {
			t.Errorf("%d connections ended by a panic", n)
		}
		if w := p.wantNothing(workerA, ReasonSocketPanic); !strings.Contains(w.diag.RegistrationError, "boom") {
			t.Errorf("shown is %q", w.diag.RegistrationError)
		}
		p.wantFresh(workerB, 2)
		for _, r := range a.publishers() {
			r.set(func(r *publisher) { r.wrap = nil })
		}
		after(8 * time.Second)
		p.wantFresh(workerA, 2)
	})
}

// TestBadMessagesAmongGoodOnes: only those in a row end a connection.
func TestBadMessagesAmongGoodOnes(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		raw(func(c net.Conn) {
			e, done := newEager(c)
			defer done()
			conn, err := zmq4.Open(e, null.Security(), zmq4.Pub, nil, true, nil)
			go readAll(c)
			for n := int64(1); err == nil; n++ {
				load := array(int64(1), int64(0), int64(0), int64(100))
				if n%ingest.MaxRefusedInRow != 0 {
					load = []byte{0xc1}
				}
				err = conn.SendMsg(zmq4.NewMsgFrom([]byte("load"), sequence(n), load))
				<-time.After(100 * time.Millisecond)
			}
		})(p, a)
		after(20 * time.Second)
		p.wantFresh(workerA, 1)
		dialled := p.net.dials()
		if n := len(slices.DeleteFunc(dialled, func(addr string) bool { return !strings.HasPrefix(addr, hostA) })); n != 1 {
			t.Errorf("dialled %d times", n)
		}
	})
}

// TestReasons holds that every reason of this package is provoked.
func TestReasons(t *testing.T) {
	provoked := map[string]bool{}
	for _, s := range scenes {
		provoked[string(s.reason)] = true
	}
	provoked[string(ReasonMessageFlood)] = t.Run("flood", provokeFlood)
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			word, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared[word] = true
		}
		return true
	})
	for _, word := range slices.Sorted(maps.Keys(declared)) {
		if !provoked[word] {
			t.Errorf("no scene provokes %s", word)
		}
	}
	if len(declared) == 0 {
		t.Error("no reasons are declared")
	}
}

// TestPingIsAnswered has a publisher that wants a sign of life.
func TestPingIsAnswered(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		pong := make(chan []byte, 1)
		a.rank(0).set(func(r *publisher) {
			r.raw = greeted(func(c net.Conn) {
				_, _ = c.Write([]byte{4, 7, 4, 'P', 'I', 'N', 'G', 0, 9})
				got := make([]byte, 64)
				for len(got) > 0 {
					n, err := c.Read(got)
					if err != nil {
						return
					}
					if i := slices.Index(got[:n], 'P'); i >= 0 {
						select {
						case pong <- slices.Clone(got[i:n]):
						default:
						}
					}
				}
			})
		})
		after(3 * time.Second)
		select {
		case got := <-pong:
			if string(got) != "PONG" {
				t.Errorf("the answer is %q", got)
			}
		default:
			t.Error("a ping was not answered")
		}
	})
}

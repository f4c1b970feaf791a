package loadstat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadstat/message"
	"github.com/loadplane/loadplane/ingest/loadstat/zmtp"
	"github.com/loadplane/loadplane/registry"
	"golang.org/x/time/rate"
)

const (
	// connectTimeout bounds dialling and the handshake together.
	connectTimeout = 2 * time.Second
	// heartbeat is how often an engine publishes a load that does not change,
	// and silence how long a connection may bring none.
	heartbeat = time.Second
	silence   = 3 * heartbeat
	// Waits before a socket is dialled again are drawn from a span that doubles
	// from minBackoff to maxBackoff, and begins anew after a connection that
	// lasted for lasting.
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
	lasting    = time.Second
	// A rank publishes with each step of its scheduler. It may do so this often
	// for good, and floodBurst times beyond that.
	floodPerSecond = 2000
	floodBurst     = 4000
)

// backoff is the span that the last wait was drawn from.
type backoff time.Duration

func (b *backoff) next() time.Duration {
	*b = min(max(2**b, backoff(minBackoff)), backoff(maxBackoff))
	return rand.N(time.Duration(*b))
}

// socket is subscribed to the load of one rank. It is for one goroutine.
type socket struct {
	sub         *Subscriber
	engine      *registry.Engine
	board       *board
	rank        *rank
	addr, topic string
	number      int32
	decoder     *message.Decoder
}

// run keeps the subscription until ctx ends.
func (k *socket) run(ctx context.Context) {
	var again backoff
	for ctx.Err() == nil {
		began := time.Now()
		flooded := k.once(ctx)
		if time.Since(began) >= lasting && !flooded {
			again = 0
		}
		wait(ctx, again.next())
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// once makes one connection and listens until it ends. It says whether the peer
// sent more than it may.
func (k *socket) once(ctx context.Context) (flooded bool) {
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	deadline := time.Now().Add(connectTimeout)
	raw, err := k.dial(ctx, deadline)
	if err != nil {
		k.fail(ctx, trouble{registry.ConnectReason(err), err})
		return false
	}
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	defer raw.Close()
	conn, err := zmtp.Subscribe(raw, zmtp.Options{
		Topic: k.topic, Deadline: deadline, MaxBytes: ingest.MaxMessageBytes, Received: k.sub.metrics.received,
	})
	if err != nil {
		k.fail(ctx, blame(err))
		return false
	}
	k.sub.metrics.connected("")
	k.sub.metrics.sockets.Inc()
	defer k.sub.metrics.sockets.Dec()
	session := k.board.begin(k.rank, peerOf(raw), cut)
	why := k.safely(conn, session)
	if why.err == nil || ctx.Err() != nil {
		k.sub.metrics.end(registry.ReasonInstanceChanged)
		k.board.end(k.rank, session, trouble{})
		return false
	}
	k.sub.metrics.end(why.reason)
	k.board.end(k.rank, session, why)
	return why.reason == ReasonMessageFlood
}

// fail notes an attempt that failed by itself.
func (k *socket) fail(ctx context.Context, why trouble) {
	if ctx.Err() != nil {
		return
	}
	k.sub.metrics.connected(why.reason)
	k.board.end(k.rank, 0, why)
}

func (k *socket) dial(ctx context.Context, deadline time.Time) (net.Conn, error) {
	ctx, stop := context.WithDeadline(ctx, deadline)
	defer stop()
	return k.sub.opts.Dial(ctx, "tcp", k.addr)
}

// safely listens. A panic of what reads messages ends the connection.
func (k *socket) safely(conn *zmtp.Conn, session uint64) (why trouble) {
	defer func() {
		if p := recover(); p != nil {
			why = trouble{ReasonSocketPanic, fmt.Errorf("the reader of messages panicked: %v", p)}
			k.sub.crashes.Do(func() {
				k.sub.opts.Logger.Error("message reader panicked", "worker", k.engine.Target().ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			})
		}
	}()
	return k.listen(conn, session)
}

// listen takes messages until the connection ends, and returns why it did;
// none where it does not count any more. Only a message that is taken gives the
// peer more time.
func (k *socket) listen(conn *zmtp.Conn, session uint64) trouble {
	var last *registry.Refusal
	flood := rate.NewLimiter(floodPerSecond, floodBurst)
	err := patient(conn)
	for refused := 0; ; {
		var frames [][]byte
		if err == nil {
			frames, err = conn.Receive()
		}
		if err != nil {
			return silent(err, last)
		}
		if !flood.Allow() {
			return trouble{ReasonMessageFlood, fmt.Errorf("more than %d messages came above the rate", floodBurst)}
		}
		at := k.sub.opts.Clock.Now()
		m, why := k.decoder.Decode(frames)
		if why != nil {
			k.engine.Refuse(why)
			last = why
			if refused++; refused >= ingest.MaxRefusedInRow {
				return trouble{why.Reason, fmt.Errorf("%d messages in a row were refused, the last: %w", refused, why)}
			}
			continue
		}
		switch v := k.board.hear(k.rank, session, m, at); v {
		case over:
			return trouble{}
		case repeated:
			k.sub.metrics.old.Inc()
			continue
		case replaced:
			k.sub.metrics.coalesced.Inc()
		}
		k.count(m)
		refused, last = 0, nil
		err = patient(conn)
	}
}

// patient gives the peer the time for another message.
func patient(conn *zmtp.Conn) error { return conn.SetDeadline(time.Now().Add(silence)) }

// silent says why nothing is heard on a connection that ended, where all that
// came last was refused.
func silent(err error, last *registry.Refusal) trouble {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return blame(err)
	case last != nil:
		return trouble{last.Reason, last}
	}
	return trouble{ReasonRankSilent, fmt.Errorf("nothing was published for %s", silence)}
}

// blame says what an error of a connection came of.
func blame(err error) trouble {
	switch {
	case errors.Is(err, zmtp.ErrTooLarge):
		return trouble{ingest.ReasonMessageTooLarge, err}
	case errors.Is(err, zmtp.ErrBroken):
		return trouble{registry.ReasonConnectFailed, err}
	}
	return trouble{ReasonNoPublisher, err}
}

func (k *socket) count(m *message.Stat) {
	k.sub.metrics.messages.Inc()
	k.sub.metrics.negative.Add(float64(m.Negative))
	if m.Claims.Known && m.Claims.Value != int64(k.number) {
		k.sub.metrics.mismatches.Inc()
	}
}

func peerOf(c net.Conn) netip.AddrPort {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	a := tcp.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

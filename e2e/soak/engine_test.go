package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/e2e/history"
	routerpb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// renewEvery is the time between two registrations of an engine.
	renewEvery = 5 * time.Second
	lease      = 15 * time.Second
	// phases is how many points of a second engines report at.
	phases = 4
)

// target is what engines know the plane by.
var target = reporter.Target{IP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: 7401}

// engine is a simulated engine that is registered again and again, as the
// plane would do over HTTP.
type engine struct {
	t      *testing.T
	index  int
	id     string
	addr   netip.AddrPort
	ranks  int
	net    *network
	record *history.Recorder
	faults reporter.Faults

	mu    sync.Mutex
	lives uint64
	life  *reporter.Process
}

func newEngine(s *setting, i int) *engine {
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i / 200), byte(1 + i%200)}), 1)
	e := &engine{
		t: s.t, index: i, addr: addr, ranks: s.ranks, net: s.net, record: s.record,
		id: "http://" + addr.String(),
	}
	e.restart()
	return e
}

// flag is the engine as a value of --worker.
func (e *engine) flag() string {
	return fmt.Sprintf("%s,model=m%d,zone=z%d", e.id, e.index%3, e.index%2)
}

func (e *engine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life != nil {
		e.life.Close()
	}
	e.lives++
	e.life = reporter.New(reporter.Config{
		Role: routerpb.WorkerType_WORKER_TYPE_REGULAR, Model: "m", Ranks: e.ranks,
		Seed: 1, Stream: uint64(e.index)<<32 | e.lives, Faults: &e.faults, Dial: e.dial,
	})
}

func (e *engine) dial(context.Context, string) (net.Conn, error) {
	tap := &tap{sent: func(source string, sequence uint64) {
		e.record.Report(history.Report{Worker: e.id, Source: source, Sequence: sequence})
	}}
	c, err := e.net.dial(e.id, e.addr, "ingest", tap.write)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// run registers the engine until ctx ends, and then ends its life.
func (e *engine) run(ctx context.Context) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.life.Close()
	}()
	wait := time.NewTimer(time.Duration(e.index%phases) * time.Second / phases)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		e.register()
		wait.Reset(renewEvery)
	}
}

func (e *engine) register() {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.life.Register(reporter.Registration{Target: target, Origin: e.id, Interval: interval, Lease: lease})
	if err != nil && !errors.Is(err, reporter.ErrClosed) {
		e.t.Errorf("register %s: %v", e.id, err)
	}
}

// heal ends the faults of the engine's own.
func (e *engine) heal() {
	e.faults.Freeze.Store(false)
	e.faults.Silent.Store(false)
	e.faults.Fail.Store(false)
	e.faults.ZeroCapacity.Store(false)
	e.faults.NaN.Store(false)
}

// tap reads the reports out of what an engine writes on an HTTP/2 connection
// with one stream. It is for one goroutine.
type tap struct {
	sent    func(source string, sequence uint64)
	begun   bool
	frames  []byte
	message []byte
}

func (t *tap) write(p []byte) {
	const preface, head = 24, 9
	t.frames = append(t.frames, p...)
	if !t.begun && len(t.frames) >= preface {
		t.begun, t.frames = true, t.frames[preface:]
	}
	for t.begun && len(t.frames) >= head {
		size := int(t.frames[0])<<16 | int(t.frames[1])<<8 | int(t.frames[2])
		if len(t.frames) < head+size {
			return
		}
		if data := t.frames[3] == 0; data {
			t.message = append(t.message, t.frames[head:head+size]...)
			t.messages()
		}
		t.frames = t.frames[head+size:]
	}
}

func (t *tap) messages() {
	const head = 5
	for len(t.message) >= head {
		size := int(binary.BigEndian.Uint32(t.message[1:]))
		if len(t.message) < head+size {
			return
		}
		t.report(t.message[head : head+size])
		t.message = t.message[head+size:]
	}
}

// report reads the source and the sequence, which come first.
func (t *tap) report(b []byte) {
	var source string
	var sequence uint64
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 || num > 2 {
			break
		}
		b = b[n:]
		switch {
		case num == 1 && kind == protowire.BytesType:
			var v string
			v, n = protowire.ConsumeString(b)
			source = v
		case num == 2 && kind == protowire.VarintType:
			sequence, n = protowire.ConsumeVarint(b)
		default:
			n = -1
		}
		if n < 0 {
			break
		}
		b = b[n:]
	}
	t.sent(source, sequence)
}

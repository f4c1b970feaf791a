package monitor

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/monitor/frame"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// blocked is a stream whose engine takes no frame and sends none.
type blocked struct {
	grpc.ClientStream
	ctx context.Context
}

func (b blocked) SendMsg(any) error { <-b.ctx.Done(); return b.ctx.Err() }
func (b blocked) RecvMsg(any) error { <-b.ctx.Done(); return b.ctx.Err() }
func (b blocked) CloseSend() error  { return nil }

// TestStuckSenderEndsTheSession: where flow control holds a frame back, the
// session ends within the time of a call.
func TestStuckSenderEndsTheSession(t *testing.T) {
	if why := stuck(t); why == nil || why.reason != ReasonReporterStuck || why.final {
		t.Errorf("ended by %+v", why)
	}
}

// stuck returns what ends a session that cannot send.
func stuck(t *testing.T) (why *fault) {
	captured(t, func(p *plane, e *registry.Engine) {
		began := time.Now()
		// Acknowledged meanwhile, and heard: nothing else ends it.
		s := p.begin(e, func(b blocked) grpc.ClientStream { return b })
		why = s.run(p.t.Context())
		s.end(false)
		if took := time.Since(began); took != DefaultCallTimeout {
			t.Errorf("ended after %s", took)
		}
	})
	return why
}

// begin begins a session on a stream of the test and answers its registration.
func (p *plane) begin(e *registry.Engine, stream func(b blocked) grpc.ClientStream) *session {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	s := &session{
		monitor: p.monitor, engine: e, target: p.monitor.target(e), stream: stream(blocked{ctx: ctx}), hangUp: cancel,
		peer: netip.MustParseAddrPort(testPort),
	}
	s.start()
	s.in.frame(p.bytes(registered(15_000, 5_000)))
	return s
}

// bytes are those of a frame.
func (p *plane) bytes(f *pb.WorkerFrame) []byte {
	p.t.Helper()
	b, err := proto.Marshal(f)
	p.must(err)
	return b
}

// captured runs body with an engine of the registry whose dialer does nothing.
func captured(t *testing.T, body func(p *plane, e *registry.Engine)) {
	t.Helper()
	engines := make(capture)
	inBubbleWith(t, func(r *registry.Options, _ *Options) {
		r.Dialers = map[store.Dialect]registry.Dialer{store.DialectMonitor: engines}
	}, func(p *plane) {
		p.run()
		body(p, <-engines)
	})
}

type capture chan *registry.Engine

func (c capture) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	select {
	case c <- e:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ""
}

// TestSenderSendsTheNewestChange: what waits behind a frame is replaced.
func TestSenderSendsTheNewestChange(t *testing.T) {
	s := newSender()
	s.post(frame.KeepAlive())
	s.post(frame.Update(time.Second, time.Minute))
	s.post(frame.Update(2*time.Second, time.Minute))
	if f := <-s.queue; f.GetKeepAlive() == nil {
		t.Errorf("sent %v", f)
	}
	s.done()
	if f := <-s.queue; f.GetUpdateConfig().GetReportIntervalMs() != 2000 {
		t.Errorf("sent %v", f)
	}
	s.done()
	if len(s.queue) != 0 || !s.since.IsZero() {
		t.Errorf("%d frames are left", len(s.queue))
	}
}

// crashing is a stream that panics.
type crashing struct{ grpc.ClientStream }

func (crashing) RecvMsg(any) error { panic("boom") }

// TestPanicEndsTheSessionOnly: with a reason of its own.
func TestPanicEndsTheSessionOnly(t *testing.T) {
	if why := crashed(t); why == nil || why.reason != ReasonSessionPanic || why.final || !strings.Contains(why.err.Error(), "boom") {
		t.Errorf("ended by %+v", why)
	}
}

// crashed returns what ends a session whose receiver panics.
func crashed(t *testing.T) (why *fault) {
	captured(t, func(p *plane, e *registry.Engine) {
		why = p.monitor.newIntake(e, netip.AddrPort{}).receive(crashing{})
	})
	return why
}

// TestDrainEndsSessions: a plane that drains says so by the reason.
func TestDrainEndsSessions(t *testing.T) {
	inBubble(t, honest(true), func(p *plane, e *engine) {
		after(time.Second)
		p.registry.Drain()
		after(time.Second)
		if n := len(e.arrivals(isStop)); n != 1 || p.failed(registry.ReasonShuttingDown) == 0 {
			t.Errorf("%d stop frames, returned %q", n, p.ended())
		}
		if ends := p.ended(); len(ends) == 0 || ends[0] != registry.ReasonShuttingDown {
			t.Errorf("returned %q", ends)
		}
	})
}

func TestEndpoint(t *testing.T) {
	for url, want := range map[string]string{
		"http://10.0.0.1:30000":      "10.0.0.1:31000",
		"https://e.example":          "e.example:31000",
		"http://[2001:db8::1]:30000": "[2001:db8::1]:31000",
		"http://e:1/engines/a":       "e:31000",
	} {
		if got, err := endpoint(&registry.Target{URL: url, ReporterPort: 31000}); got != want || err != nil {
			t.Errorf("%s: %s, %v", url, got, err)
		}
	}
	if _, err := endpoint(&registry.Target{URL: "http://%zz"}); err == nil {
		t.Error("a bad URL has an endpoint")
	}
}

func TestNewRefusesOptions(t *testing.T) {
	c := store.NewClock()
	for name, opts := range map[string]Options{
		"clock":        {StaleAfter: 1},
		"stale after":  {Clock: c},
		"call timeout": {Clock: c, StaleAfter: 1, CallTimeout: -1},
		"ranks":        {Clock: c, StaleAfter: 1, MaxRanks: ingest.HardMaxRanks + 1},
		"blank id":     {Clock: c, StaleAfter: 1, RouterID: " \t"},
		"long id":      {Clock: c, StaleAfter: 1, RouterID: strings.Repeat("x", 129)},
	} {
		if _, err := New(opts); err == nil || !strings.HasPrefix(err.Error(), "monitor: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	reg := prometheus.NewRegistry()
	first, err := New(Options{Clock: c, StaleAfter: 1, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Clock: c, StaleAfter: 1, Registerer: reg}); err == nil {
		t.Error("metrics were registered twice")
	}
	second, err := New(Options{Clock: c, StaleAfter: 1})
	if err != nil {
		t.Fatal(err)
	}
	if id := first.opts.RouterID; !strings.HasPrefix(id, "loadplane-") || id == second.opts.RouterID {
		t.Errorf("names %q and %q", id, second.opts.RouterID)
	}
}

// TestDiscoveryChangesTheInterval runs in real time over TCP, as a watched file
// needs: the engine is told of another interval in the same session.
func TestDiscoveryChangesTheInterval(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan *pb.RouterFrame, 10)
	e := &engine{source: "process-1", behave: func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		if err := s.Send(report(e.next(1))); err != nil {
			return err
		}
		for {
			f, err := s.Recv()
			if err != nil || f.GetStop() != nil {
				return err
			}
			if f.GetUpdateConfig() != nil {
				changes <- f
			}
		}
	}}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterLoadMonitorServiceServer(server, e)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	path := filepath.Join(t.TempDir(), "workers.yaml")
	write := func(interval string) {
		text := "workers: [{url: 'http://127.0.0.1:9', dialect: monitor, reporter_port: " + port + ", interval: " + interval + "}]\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1s")
	p := newPlane(t, func(r *registry.Options, o *Options) {
		r.Workers, r.WorkersFile, o.Dial = nil, path, nil
	})
	p.run()
	if !eventually(t, func() bool { return testutil.ToFloat64(p.monitor.metrics.accepted) == 1 }) {
		t.Fatal("nothing was reported")
	}
	write("500ms")
	select {
	case f := <-changes:
		if u := f.GetUpdateConfig(); u.GetReportIntervalMs() != 500 || u.GetLeaseTtlMs() != testLease.Milliseconds() {
			t.Errorf("changed to %v", u)
		}
	case <-t.Context().Done():
	}
	p.stop()
	p.runs.Wait()
	server.Stop()
	<-served
	if e.opened() != 1 {
		t.Errorf("%d sessions", e.opened())
	}
}

// eventually waits for a condition, long enough for a loaded machine.
func eventually(t *testing.T, holds func() bool) bool {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-late:
			return false
		case <-tick.C:
		}
	}
	return true
}

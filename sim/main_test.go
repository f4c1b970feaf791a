package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/push"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memNet is a network in memory; ports that nobody asked for begin at 40000.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	next      uint16
}

type memListener struct {
	*bufconn.Listener
	net  *memNet
	addr netip.AddrPort
}

func newMemNet() *memNet {
	return &memNet{listeners: map[string]*memListener{}, next: 40_000}
}

func (n *memNet) listen(address string) (net.Listener, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for free := addr.Port() == 0; free; free = n.listeners[addr.String()] != nil {
		addr = netip.AddrPortFrom(addr.Addr(), n.next)
		n.next++
	}
	if n.listeners[addr.String()] != nil {
		return nil, fmt.Errorf("%v is in use", addr)
	}
	l := &memListener{bufconn.Listen(256 << 10), n, addr}
	n.listeners[addr.String()] = l
	return l, nil
}

func (n *memNet) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

func (n *memNet) network() network { return network{listen: n.listen, dial: n.dial} }

func (l *memListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

func (l *memListener) Close() error {
	l.net.mu.Lock()
	if l.net.listeners[l.addr.String()] == l {
		delete(l.net.listeners, l.addr.String())
	}
	l.net.mu.Unlock()
	return l.Listener.Close()
}

// arrival is a report, or the end of a stream when report is nil.
type arrival struct {
	at     time.Time
	stream int
	report *pb.LoadReport
	err    error
}

// plane is a server of the generated service that keeps what arrives.
type plane struct {
	pb.UnimplementedLoadMonitorServiceServer
	server *grpc.Server
	answer func(stream int, r *pb.LoadReport) error // nil: go on

	mu       sync.Mutex
	streams  int
	arrivals []arrival
	notify   chan struct{} // gets a token per arrival when not nil
}

func startPlane(t *testing.T, l net.Listener, answer func(int, *pb.LoadReport) error) *plane {
	t.Helper()
	p := &plane{server: grpc.NewServer(), answer: answer, notify: make(chan struct{}, 10_000)}
	pb.RegisterLoadMonitorServiceServer(p.server, p)
	var done sync.WaitGroup
	done.Go(func() { _ = p.server.Serve(l) })
	t.Cleanup(func() { p.server.Stop(); done.Wait() })
	return p
}

func (p *plane) Report(s grpc.ClientStreamingServer[pb.LoadReport, emptypb.Empty]) error {
	p.mu.Lock()
	p.streams++
	id := p.streams
	p.mu.Unlock()
	for {
		r, err := s.Recv()
		p.note(arrival{time.Now(), id, r, err})
		if err != nil {
			return err
		}
		if p.answer == nil {
			continue
		}
		switch err := p.answer(id, r); {
		case errors.Is(err, io.EOF):
			return s.SendAndClose(&emptypb.Empty{})
		case err != nil:
			return err
		}
	}
}

func (p *plane) note(a arrival) {
	if a.err != nil {
		a.report = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals = append(p.arrivals, a)
	p.notify <- struct{}{}
}

func (p *plane) reports() []arrival {
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []arrival
	for _, a := range p.arrivals {
		if a.report != nil {
			got = append(got, a)
		}
	}
	return got
}

// ends returns the codes with which streams ended on the plane's side.
func (p *plane) ends() []codes.Code {
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []codes.Code
	for _, a := range p.arrivals {
		if a.err != nil {
			got = append(got, status.Code(a.err))
		}
	}
	return got
}

func (p *plane) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// bench is a fleet in memory inside a bubble.
type bench struct {
	t     *testing.T
	net   *memNet
	fleet *Fleet
	start time.Time
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// inBubble runs a fleet in a bubble and ends it after f.
func inBubble(t *testing.T, opts Options, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		opts.Logger = quiet()
		opts.Engines = orDefault(opts.Engines, 1)
		fleet, err := newFleet(opts, n.network())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = fleet.Run(ctx) })
		t.Cleanup(func() { cancel(); running.Wait() })
		f(&bench{t, n, fleet, time.Now()})
	})
}

func (b *bench) engine() *Engine { return b.fleet.engines[0] }

func (b *bench) plane(port int, answer func(int, *pb.LoadReport) error) *plane {
	b.t.Helper()
	l, err := b.net.listen(fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		b.t.Fatal(err)
	}
	return startPlane(b.t, l, answer)
}

// pass lets time go by, and everything due in it happen.
func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// register asks the first engine to report to a port, in milliseconds.
func (b *bench) register(port, interval, lease int) int {
	b.t.Helper()
	body := fmt.Sprintf(`{"ip":"127.0.0.1","port":%d,"report_interval_ms":%d,"lease_ttl_ms":%d}`, port, interval, lease)
	return post(b.engine(), "engine:1", body).Code
}

// get asks an engine for a page.
func (b *bench) get(engine int, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.fleet.engines[engine].handler(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// json reads a page of JSON.
func (b *bench) json(engine int, path string, into any) {
	b.t.Helper()
	w := b.get(engine, path)
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
		b.t.Fatalf("%s of engine %d: %d, %v: %s", path, engine, w.Code, err, w.Body)
	}
}

func post(e *Engine, host, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, push.Path, strings.NewReader(body))
	r.Host = host
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	e.handler(nil).ServeHTTP(w, r)
	return w
}

// offsets returns when the reports arrived, counted from the start.
func (b *bench) offsets(p *plane) []time.Duration {
	var got []time.Duration
	for _, a := range p.reports() {
		got = append(got, a.at.Sub(b.start))
	}
	return got
}

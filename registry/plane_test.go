package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testInterval = time.Second
	testStale    = 3 * time.Second
	testLease    = 15 * time.Second
	testSettle   = 10 * time.Millisecond
	testWorker   = "http://10.0.0.1:30000"
)

var (
	testPeer  = netip.MustParseAddrPort("10.0.0.1:5555")
	otherPeer = netip.MustParseAddrPort("10.9.9.9:5555")
)

// plane is a running store and registry in a bubble of fake time, with
// engines that are reached over connections in memory.
type plane struct {
	*Registry
	t     *testing.T
	st    *store.Store
	net   *network
	close func()
	// start begins loops in a plane of runAll.
	start starter
}

func newStore(t *testing.T) *store.Store {
	t.Helper()
	st, err := store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: store.NewClock(), StaleAfter: testStale, Settle: testSettle,
		ReportInterval: testInterval, Discovery: true, SleptFor: func() time.Duration { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func testOptions(st *store.Store, workers ...string) Options {
	return Options{
		Store: st, Workers: workers, ReportInterval: testInterval, StaleAfter: testStale, Lease: testLease,
		ReportPort: func() uint16 { return 7401 }, Registerer: prometheus.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler),
	}
}

func newRegistry(t *testing.T, opts Options) *Registry {
	t.Helper()
	r, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inBubble runs body with a plane of the named workers.
func inBubble(t *testing.T, workers []string, body func(p *plane)) {
	t.Helper()
	inBubbleWith(t, func(o *Options) { o.Workers = workers }, body)
}

func inBubbleWith(t *testing.T, change func(*Options), body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := testOptions(newStore(t))
		change(&opts)
		p := &plane{Registry: newRegistry(t, opts), t: t, st: opts.Store, net: newNetwork()}
		p.dial, p.net.report = p.net.dial, p.speak
		p.lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no resolver") }
		body(p)
		if p.close != nil {
			p.close()
		}
		if err := p.st.Check(); err != nil {
			t.Error(err)
		}
	})
}

// run starts the store and the registry.
func (p *plane) run() {
	ctx, stop := context.WithCancel(p.t.Context())
	var both sync.WaitGroup
	for _, run := range []func(context.Context) error{p.st.Run, p.Run} {
		both.Go(func() {
			if err := run(ctx); err != nil {
				p.t.Error("Run:", err)
			}
		})
	}
	p.close = func() { stop(); both.Wait() }
	p.settle()
}

// speak counts a report as accepted of the worker with an origin.
func (p *plane) speak(origin string) {
	p.mu.RLock()
	w := p.keepers[origin]
	p.mu.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accepted = p.clock.Now()
}

// after lets d pass.
func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// settle lets what is queued be committed.
func (p *plane) settle() { p.after(testSettle) }

// discover replaces the flags by other workers.
func (p *plane) discover(values ...string) {
	p.t.Helper()
	p.sources.flags = nil
	p.opts.Workers = values
	if err := p.readSources(); err != nil {
		p.t.Fatal(err)
	}
	p.reconcile(func(*worker, time.Duration) {})
	p.settle()
}

func (p *plane) load(source string, sequence uint64) *store.Load {
	return &store.Load{
		Source: source, Sequence: sequence, Status: store.StatusUnreachable, LastError: "no sample", ReportUnixMs: -1,
		Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
}

func claim(source string) Claim {
	return Claim{Addr: testWorker, Role: store.RoleRegular, Source: source, Peer: testPeer}
}

// bindAs binds or fails the test.
func (p *plane) bindAs(source string, sequence uint64) *Binding {
	p.t.Helper()
	b, err := p.Bind(claim(source), p.load(source, sequence))
	if err != nil {
		p.t.Fatalf("Bind(%s, %d): %v", source, sequence, err)
	}
	return b
}

// entry returns the committed row of a worker, nil for none.
func (p *plane) entry(id string) (*store.Entry, *store.Live) {
	st, _ := p.st.Current()
	for i, e := range st.Entries {
		if e.Worker.ID == id {
			return e, st.Live[i]
		}
	}
	return nil, nil
}

func (p *plane) diagnostics(id string) store.Diagnostics {
	p.t.Helper()
	p.settle()
	e, _ := p.entry(id)
	if e == nil {
		p.t.Fatalf("no worker %s", id)
	}
	_, d, _ := p.st.Inspect(e.Row)
	return d
}

func (p *plane) refusals(reason store.Reason) float64 {
	return testutil.ToFloat64(p.metrics.refused.WithLabelValues(string(reason)))
}

// wantRefusal checks a reason and that it was counted once more.
func wantRefusal(t *testing.T, err error, reason store.Reason, drop bool) {
	t.Helper()
	var why *Refusal
	if !errors.As(err, &why) {
		t.Fatalf("got %v, want a refusal %s", err, reason)
	}
	if why.Reason != reason || why.Drop != drop || why.Message == "" {
		t.Fatalf("got %+v, want %s with drop %v", why, reason, drop)
	}
}

// network connects to engines in memory.
type network struct {
	mu      sync.Mutex
	engines map[string]*engine
	// report is what an engine that accepted does at once.
	report func(origin string)
}

func newNetwork() *network { return &network{engines: make(map[string]*engine)} }

// engine answers registration calls. Without an answer it accepts nothing and
// holds every dial until it is given up.
type engine struct {
	answer func(n int) string
	// mute accepts registrations and does not report.
	mute  atomic.Bool
	mu    sync.Mutex
	calls []call
}

type call struct {
	at     time.Time
	header http.Header
	body   string
}

func (n *network) add(origin string, answer func(n int) string) *engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines[origin] = &engine{answer: answer}
	return n.engines[origin]
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	e := n.engines[addr]
	n.mu.Unlock()
	if e == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	if e.answer == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	go func() {
		if e.serve(far) && !e.mute.Load() && n.report != nil {
			n.report(addr)
		}
	}()
	remote := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:30000"))
	return tcpConn{near, &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.7"), Port: 4000}, remote}, nil
}

// serve answers a call and says whether it was accepted.
func (e *engine) serve(conn net.Conn) bool {
	defer conn.Close()
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return false
	}
	body, _ := io.ReadAll(req.Body)
	e.mu.Lock()
	n := len(e.calls)
	e.calls = append(e.calls, call{time.Now(), req.Header, req.Method + " " + req.URL.Path + " " + string(body)})
	e.mu.Unlock()
	answer := e.answer(n)
	_, _ = io.WriteString(conn, answer)
	return strings.HasPrefix(answer, "HTTP/1.1 200")
}

// gaps returns the times between the calls so far.
func (e *engine) gaps() (d []time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := 1; i < len(e.calls); i++ {
		d = append(d, e.calls[i].at.Sub(e.calls[i-1].at))
	}
	return d
}

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

// tcpConn gives a connection in memory the addresses of one of TCP.
type tcpConn struct {
	net.Conn
	local, remote *net.TCPAddr
}

func (c tcpConn) LocalAddr() net.Addr  { return c.local }
func (c tcpConn) RemoteAddr() net.Addr { return c.remote }

// always answers every call alike.
func always(status int, body string) func(int) string {
	return func(int) string { return reply(status, body) }
}

func reply(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), len(body), body)
}

const goodAnswer = `{"status":"reporting","lease_ttl_ms":15000,"renew_after_ms":5000}`

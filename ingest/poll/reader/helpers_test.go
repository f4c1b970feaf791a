package reader

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testURL   = "http://10.0.0.1:30000"
	testStale = 3 * time.Second
	testLimit = 2 * time.Second
)

// bench is a reader of an engine in memory.
type bench struct {
	t *testing.T
	*Reader
	e *engine
	// target is what the reader is told of the engine.
	target registry.Target
}

// inBubble has an engine that answers as told, in a bubble of fake time.
func inBubble(t *testing.T, handle http.HandlerFunc, body func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &engine{handle: handle}
		b := &bench{t: t, e: e, target: registry.Target{ID: "w", URL: testURL}}
		b.Reader = New(Options{
			Clock: store.NewClock(), Timeout: testLimit, StaleAfter: testStale, Prefix: "test-",
			Dial: e.dial, Logger: slog.New(slog.DiscardHandler),
		})
		body(b)
		b.Close()
		e.cut()
		after(3 * time.Second)
	})
}

// read makes a round after a second.
func (b *bench) read() *Result {
	b.t.Helper()
	after(time.Second)
	res := b.Read(b.t.Context(), b.target)
	if res == nil || res.Page == nil {
		b.t.Fatal("a round without a result")
	}
	return res
}

// good makes a round that has to be good.
func (b *bench) good() *Result {
	b.t.Helper()
	res := b.read()
	if res.Report == nil || res.Page.Reason != "" {
		b.t.Fatalf("got %q, %v", res.Page.Reason, res.Page.Err)
	}
	return res
}

// running is what the first rank runs.
func running(res *Result) int64 {
	n, ok := res.Report.Ranks[0].Rank.Count(store.NumRunningReqs)
	if !ok {
		return -1
	}
	return n
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// engine is a process that listens. It refuses connections while it is down.
type engine struct {
	mu         sync.Mutex
	handle     http.HandlerFunc
	down       bool
	peer       netip.AddrPort
	dials      int
	asked      []string
	busy, most int
	far        []net.Conn
}

func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

// forget returns the paths since it was last called.
func (e *engine) forget() (asked []string) {
	e.set(func(e *engine) { asked, e.asked = e.asked, nil })
	return asked
}

func (e *engine) cut() {
	e.set(func(e *engine) {
		for _, c := range e.far {
			c.Close()
		}
		e.far = nil
	})
}

func (e *engine) dial(context.Context, string, string) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dials++
	if e.down {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	e.far = append(e.far, far)
	go e.serve(far)
	peer := e.peer
	if !peer.IsValid() {
		peer = netip.MustParseAddrPort("10.0.0.1:30000")
	}
	return tcpConn{near, net.TCPAddrFromAddrPort(peer)}, nil
}

type tcpConn struct {
	net.Conn
	remote *net.TCPAddr
}

func (c tcpConn) RemoteAddr() net.Addr { return c.remote }

func (e *engine) serve(c net.Conn) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		var handle http.HandlerFunc
		e.set(func(e *engine) {
			e.asked = append(e.asked, req.URL.Path)
			e.busy++
			e.most, handle = max(e.most, e.busy), e.handle
		})
		w := httptest.NewRecorder()
		handle(w, req)
		e.set(func(e *engine) { e.busy-- })
		res := w.Result()
		res.ContentLength = int64(w.Body.Len())
		if res.Write(c) != nil {
			return
		}
	}
}

// process answers as a page tells that can be changed. A body such as "status
// 503" is a status, and "late" an answer after the time-out.
type process struct {
	mu     sync.Mutex
	bodies map[string]string
}

func (p *process) put(path, body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bodies[path] = body
}

func (p *process) handle(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	body, ok := p.bodies[r.URL.Path]
	p.mu.Unlock()
	status := http.StatusNotFound
	switch _, err := fmt.Sscanf(body, "status %d", &status); {
	case body == "late":
		<-time.After(testLimit + time.Second)
	case ok && err != nil:
		_, _ = w.Write([]byte(body))
		return
	}
	w.WriteHeader(status)
}

func serving(path, body string) *process { return &process{bodies: map[string]string{path: body}} }

// vllm is a page of vLLM: a process that began at start, with so many requests
// running.
func vllm(start, n int) string {
	return fmt.Sprintf("process_start_time_seconds %d\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} %d\n"+
		"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1\n", start, n)
}

// loads is SGLang's /v1/loads of ranks with so many requests running.
func loads(running ...int) string {
	var ranks []string
	for i, n := range running {
		ranks = append(ranks, fmt.Sprintf(`{"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":0}`, i, n))
	}
	return `{"timestamp":"2026-08-01T00:00:00Z","loads":[` + strings.Join(ranks, ",") + `]}`
}

func count(list []string, s string) int {
	return len(slices.DeleteFunc(slices.Clone(list), func(x string) bool { return x != s }))
}

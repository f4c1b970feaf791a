package source

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
	testURL  = "http://10.0.0.1:30000"
	interval = 100 * time.Millisecond
)

// bench is a source of an engine in memory.
type bench struct {
	t *testing.T
	*Source
	e    *engine
	stop context.CancelFunc
	done chan struct{}
}

// inBubble samples an engine in a bubble of fake time.
func inBubble(t *testing.T, e *engine, body func(b *bench)) {
	t.Helper()
	inBubbleWith(t, e, func(*Options) {}, body)
}

func inBubbleWith(t *testing.T, e *engine, change func(*Options), body func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Target: registry.Target{URL: testURL}, Dial: e.dial, Logger: slog.New(slog.DiscardHandler)}
		change(&opts)
		s, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		b := &bench{t: t, Source: s, e: e, stop: stop, done: make(chan struct{})}
		go func() {
			defer close(b.done)
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		body(b)
		b.end()
	})
}

// end ends the source, which may not take any time.
func (b *bench) end() {
	began := time.Now()
	b.stop()
	<-b.done
	if took := time.Since(began); took != 0 {
		b.t.Errorf("the end took %s", took)
	}
	b.e.cut()
	// Engines that answer late notice late that nobody listens.
	after(time.Minute)
}

func (b *bench) now() Snapshot {
	s, _ := b.Latest()
	return s
}

// wantGood checks the last sample and what the first rank runs.
func (b *bench) wantGood(running int64) Snapshot {
	b.t.Helper()
	s := b.now()
	if s.Reason != "" || s.Err != "" || s.Refused || len(s.Ranks) == 0 {
		b.t.Fatalf("got %+v", s)
	}
	if n, _ := s.Ranks[0].Rank.Count(store.NumRunningReqs); n != running {
		b.t.Errorf("runs %d, want %d", n, running)
	}
	return s
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// engine is a process that listens. It refuses connections while it is down.
type engine struct {
	mu     sync.Mutex
	bodies map[string]string
	// takes is how long an answer takes.
	takes      time.Duration
	down       bool
	reset      bool
	asked      []request
	busy, most int
	far        []net.Conn
}

type request struct {
	at   time.Time
	path string
}

func serving(path, body string) *engine { return &engine{bodies: map[string]string{path: body}} }

func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) put(path, body string) { e.set(func(e *engine) { e.bodies[path] = body }) }

// forget returns the requests since it was last called.
func (e *engine) forget() (asked []request) {
	e.set(func(e *engine) { asked, e.asked = e.asked, nil })
	return asked
}

// of are the requests for a path.
func of(asked []request, path string) []request {
	return slices.DeleteFunc(asked, func(r request) bool { return r.path != path })
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
	if e.down {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	near, far := net.Pipe()
	e.far = append(e.far, far)
	go e.serve(far)
	return &tcpConn{near, e}, nil
}

// tcpConn looks like TCP. While the engine resets, reading says so.
type tcpConn struct {
	net.Conn
	e *engine
}

func (*tcpConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:30000"))
}

func (c *tcpConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.e.reset {
		return 0, &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	}
	return n, err
}

func (e *engine) serve(c net.Conn) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		e.answer(w, req.URL.Path)
		res := w.Result()
		res.ContentLength = int64(w.Body.Len())
		if res.Write(c) != nil {
			return
		}
	}
}

// answer answers the pages that there are. A body such as "status 503" is a
// status.
func (e *engine) answer(w http.ResponseWriter, path string) {
	e.mu.Lock()
	e.asked = append(e.asked, request{time.Now(), path})
	e.busy++
	e.most = max(e.most, e.busy)
	body, ok := e.bodies[path]
	takes := e.takes
	e.mu.Unlock()
	if takes > 0 {
		<-time.After(takes)
	}
	e.set(func(e *engine) { e.busy-- })
	status := http.StatusNotFound
	if _, err := fmt.Sscanf(body, "status %d", &status); ok && err != nil {
		_, _ = w.Write([]byte(body))
		return
	}
	w.WriteHeader(status)
}

// vllm is a page of vLLM: a process that began at start, with so many requests
// running.
func vllm(start, n int) string {
	return fmt.Sprintf("process_start_time_seconds %d\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} %d\n"+
		"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1\n", start, n)
}

const loadsPath = "/v1/loads"

// rank is a rank of SGLang's page, sampled at a time in seconds.
type rank struct {
	at      float64
	running int
}

// loads is SGLang's /v1/loads.
func loads(ranks ...rank) string {
	var list []string
	for i, r := range ranks {
		list = append(list, fmt.Sprintf(`{"dp_rank":%d,"timestamp":%f,"num_running_reqs":%d,"num_waiting_reqs":0}`, i, r.at, r.running))
	}
	return `{"timestamp":"2026-08-01T00:00:00Z","loads":[` + strings.Join(list, ",") + `]}`
}

// discard takes an answer that nobody reads.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

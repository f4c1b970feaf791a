package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// busyEngine takes its time for each answer, and notes when it was busy.
type busyEngine struct {
	mu     sync.Mutex
	bodies map[string]string
	slow   map[string]time.Duration
	spans  []span
}

type span struct {
	path       string
	begin, end time.Time
}

func (e *busyEngine) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	go e.serve(far)
	return tcpConn{near}, nil
}

func (e *busyEngine) serve(c net.Conn) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		body, took := e.answer(req.URL.Path)
		begin := time.Now()
		<-time.After(took)
		e.mu.Lock()
		e.spans = append(e.spans, span{req.Method + " " + req.URL.Path, begin, time.Now()})
		e.mu.Unlock()
		status := http.StatusOK
		if body == "" {
			status = http.StatusNotFound
		}
		_, _ = fmt.Sscanf(body, "status %d", &status)
		if _, err := fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body); err != nil {
			return
		}
	}
}

func (e *busyEngine) answer(path string) (string, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bodies[path], max(e.slow[path], 60*time.Millisecond)
}

func (e *busyEngine) set(path, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bodies[path] = body
}

// forget returns how often each path was asked for since it was last called,
// and fails the test where two answers were due at once.
func (e *busyEngine) forget(t *testing.T) map[string]int {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := map[string]int{}
	slices.SortFunc(e.spans, func(a, b span) int { return a.begin.Compare(b.begin) })
	for i, s := range e.spans {
		asked[s.path]++
		if i > 0 && s.begin.Before(e.spans[i-1].end) {
			t.Errorf("%s was asked for while the answer to %s was due", s.path, e.spans[i-1].path)
		}
	}
	e.spans = nil
	return asked
}

// TestOneRequestAtATime follows an engine that is polled, while it restarts,
// is asked again for push, and says late which role it has.
func TestOneRequestAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := func(start int) string {
			return fmt.Sprintf("process_start_time_seconds %d\nsglang:num_running_reqs 4\nsglang:num_queue_reqs 1\n", start)
		}
		e := &busyEngine{
			bodies: map[string]string{"/server_info": "status 503", pushPath: "status 503", "/metrics": page(100)},
			slow:   map[string]time.Duration{"/server_info": 900 * time.Millisecond},
		}
		st, stop := polledPlane(t, testURL, e.dial)
		<-time.After(30 * time.Second)
		if asked := e.forget(t); asked["GET /server_info"] < 4 || asked["GET /metrics"] < 20 {
			t.Errorf("at first it was asked for %v", asked)
		}
		for i := range 3 { // another process, and rechecks of push
			e.set("/metrics", page(200+i))
			<-time.After(70 * time.Second)
		}
		if asked := e.forget(t); asked["GET "+pushPath] < 5 || asked["GET /v1/loads"] < 3 || asked["GET /v1/loads"] > 12 {
			t.Errorf("with restarts it was asked for %v", asked)
		}
		e.set("/server_info", strings.Replace(serverInfo, `"null"`, `"decode"`, 1))
		<-time.After(40 * time.Second)
		s, _ := st.Current()
		if w := s.Entries[0]; w.Worker.Role != store.RoleDecode || w.Freshness != store.Fresh {
			t.Errorf("role %s, %s", w.Worker.Role, w.Freshness)
		}
		e.forget(t)
		// Facts for each process, once to know it and once for what it offers, and
		// once as is done each minute; nothing of the rest but push.
		e.set("/metrics", page(300))
		<-time.After(50 * time.Second)
		if asked := e.forget(t); asked["GET /server_info"] > 3 || asked["GET "+pushPath] > 2 {
			t.Errorf("after a restart it was asked for %v", asked)
		}
		stop()
		<-time.After(3 * time.Second)
	})
}

// polledPlane runs a store and a registry that asks and polls one engine.
func polledPlane(t *testing.T, worker string, dial func(context.Context, string, string) (net.Conn, error)) (*store.Store, func()) {
	t.Helper()
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	st, err := store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: 3 * time.Second, Settle: 10 * time.Millisecond,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	poller, err := poll.New(poll.Options{Clock: clock, StaleAfter: 3 * time.Second, Dial: dial, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := registry.New(registry.Options{
		Store: st, Workers: []string{worker}, ReportInterval: time.Second, StaleAfter: 3 * time.Second,
		Lease: 15 * time.Second, ReportPort: func() uint16 { return 7401 }, Logger: quiet, CallTimeout: time.Millisecond,
		Dialers: map[store.Dialect]registry.Dialer{store.DialectPoll: poller}, Prober: newProber(t, dial),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	for _, run := range []func(context.Context) error{st.Run, reg.Run} {
		runs.Go(func() { _ = run(ctx) })
	}
	return st, func() { stop(); runs.Wait() }
}

// TestTwoPagesThatHang has an engine that is found out about whose only good
// page comes behind two that never answer.
func TestTwoPagesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &busyEngine{
			bodies: map[string]string{"/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`},
			slow:   map[string]time.Duration{"/v1/loads": 2500 * time.Millisecond, "/prometheus/metrics": 2500 * time.Millisecond},
		}
		st, stop := polledPlane(t, testURL, e.dial)
		<-time.After(20 * time.Second)
		for range 60 {
			<-time.After(time.Second)
			s, _ := st.Current()
			if w := s.Entries[0]; w.Freshness != store.Fresh || w.Worker.Dialect != store.DialectPoll {
				t.Fatalf("%s, %s by %s", w.Freshness, w.Reason, w.Worker.Dialect)
			}
		}
		stop()
		<-time.After(3 * time.Second)
	})
}

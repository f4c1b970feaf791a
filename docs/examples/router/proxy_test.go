package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/balance"
	"github.com/loadplane/loadplane/client/pick"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const body = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

// caller has a connection for every request, so that none stays.
var caller = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// engine is a worker that answers as a test wants.
type engine struct {
	*httptest.Server
	asked atomic.Int32
}

func newEngine(t *testing.T, answer http.HandlerFunc) *engine {
	t.Helper()
	e := &engine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		got, err := io.ReadAll(r.Body)
		if err != nil || r.Method == http.MethodPost && string(got) != body || r.Header.Get(balance.RankHeader) != "" {
			t.Errorf("%s %s: %q, %v, %v", r.Method, r.URL, got, err, r.Header)
		}
		answer(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

func says(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

// cut ends the connection without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// router is the proxy before workers that it knows by itself.
func router(t *testing.T, workers ...string) (*httptest.Server, *balance.Balancer) {
	t.Helper()
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	o := balance.Options{Watcher: watcher, Pick: pick.Options{Policy: pick.LeastLoad}}
	for _, url := range workers {
		o.Static = append(o.Static, balance.Worker{URL: url})
	}
	balancer, err := balance.New(o)
	if err != nil {
		t.Fatal(err)
	}
	transport := &transport{balancer: balancer, picked: func(*balance.Route) {}, engines: engines(), log: slog.New(slog.DiscardHandler)}
	server := httptest.NewServer(handler(watcher, reverseProxy(transport)))
	t.Cleanup(func() {
		server.Close()
		if pool, ok := transport.engines.(*http.Transport); ok {
			pool.CloseIdleConnections()
		}
	})
	return server, balancer
}

// ask sends a request through a router.
func ask(t *testing.T, method, url, text string) (code int, answer string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(balance.RankHeader, "99") // the router's business
	resp, err := caller.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestRetriesBeforeTheFirstByte(t *testing.T) {
	down := httptest.NewServer(nil)
	down.Close()
	for name, bad := range map[string]string{
		"connection refused": down.URL,
		"connection cut":     newEngine(t, cut).URL,
		"502":                newEngine(t, says(http.StatusBadGateway, "bad")).URL,
		"503":                newEngine(t, says(http.StatusServiceUnavailable, "full")).URL,
		"504":                newEngine(t, says(http.StatusGatewayTimeout, "late")).URL,
		"cut after the header": newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}).URL,
	} {
		t.Run(name, func(t *testing.T) {
			good := newEngine(t, says(http.StatusOK, "fine"))
			server, balancer := router(t, bad, good.URL)
			for range 20 { // either is the first choice at times
				if code, answer, err := ask(t, http.MethodPost, server.URL+"/v1/completions", body); err != nil || code != http.StatusOK || answer != "fine" {
					t.Fatalf("%d %q, %v", code, answer, err)
				}
			}
			server.Close() // waits for the handlers
			if good.asked.Load() != 20 || balancer.Local(bad).InFlight+balancer.Local(good.URL).InFlight != 0 {
				t.Errorf("asked %d times, open %+v", good.asked.Load(), balancer.Local(good.URL))
			}
		})
	}
}

func TestOtherAnswersGoThrough(t *testing.T) {
	e := newEngine(t, says(http.StatusTooManyRequests, "slow down"))
	server, _ := router(t, e.URL)
	if code, answer, err := ask(t, http.MethodPost, server.URL+"/v1/completions", body); err != nil || code != http.StatusTooManyRequests || answer != "slow down" || e.asked.Load() != 1 {
		t.Errorf("%d %q, %v, asked %d times", code, answer, err, e.asked.Load())
	}
	if code, _, err := ask(t, http.MethodGet, server.URL+"/v1/models", ""); err != nil || code != http.StatusTooManyRequests {
		t.Errorf("a request without a body: %d, %v", code, err)
	}
}

func TestNoWorkerAnswers(t *testing.T) {
	var workers []string
	var all []*engine
	for range 5 {
		e := newEngine(t, says(http.StatusServiceUnavailable, "full"))
		all, workers = append(all, e), append(workers, e.URL)
	}
	server, _ := router(t, workers...)
	code, answer, err := ask(t, http.MethodPost, server.URL+"/v1/completions", body)
	if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(answer, "Service Unavailable") {
		t.Errorf("%d %q, %v", code, answer, err)
	}
	asked := int32(0)
	for _, e := range all {
		asked += e.asked.Load()
	}
	if asked != 1+maxRetries {
		t.Errorf("%d attempts", asked)
	}
	mixed, _ := router(t, newEngine(t, cut).URL, all[0].URL)
	for range 20 { // either is the first choice at times
		if code, answer, err := ask(t, http.MethodPost, mixed.URL+"/v1/completions", body); err != nil || code != http.StatusBadGateway {
			t.Fatalf("one is full and one is broken: %d %q, %v", code, answer, err)
		}
	}
	none, _ := router(t)
	if code, answer, err := ask(t, http.MethodPost, none.URL+"/v1/completions", body); err != nil || code != http.StatusServiceUnavailable || !strings.Contains(answer, `"code":"no_view"`) {
		t.Errorf("without a view: %d %q, %v", code, answer, err)
	}
	if code, _, err := ask(t, http.MethodGet, none.URL+"/healthz", ""); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("health without a view: %d, %v", code, err)
	}
}

func TestBadBodiesGoNowhere(t *testing.T) {
	e := newEngine(t, says(http.StatusOK, "fine"))
	server, _ := router(t, e.URL)
	for _, c := range []struct {
		name, text string
		code       int
		says       string
	}{
		{"no JSON", "hello", http.StatusBadRequest, "no JSON"},
		{"too large", `"` + strings.Repeat("x", maxBody) + `"`, http.StatusRequestEntityTooLarge, "above 16777216 bytes"},
	} {
		if code, answer, err := ask(t, http.MethodPost, server.URL+"/v1/completions", c.text); err != nil || code != c.code || !strings.Contains(answer, c.says) {
			t.Errorf("%s: %d %q, %v", c.name, code, answer, err)
		}
	}
	if e.asked.Load() != 0 {
		t.Error("the worker was asked")
	}
}

// The first event is there before the second is sent, and an answer that is
// cut then is cut for the caller.
func TestAnswersAreStreamed(t *testing.T) {
	read := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-read
		panic(http.ErrAbortHandler)
	})
	server, balancer := router(t, e.URL)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := caller.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: 1\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if l := balancer.Local(e.URL); l.InFlight != 1 {
		t.Errorf("%+v while it streams", l)
	}
	close(read)
	if _, err := io.ReadAll(lines); err == nil {
		t.Error("the caller sees a whole answer")
	}
	if e.asked.Load() != 1 {
		t.Errorf("%d attempts", e.asked.Load())
	}
}

// A caller that leaves ends the request at the worker, who is not to blame.
func TestCallersMayLeave(t *testing.T) {
	asked, left := make(chan struct{}), make(chan struct{})
	e := newEngine(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(left)
	})
	server, balancer := router(t, e.URL)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		resp, err := caller.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	<-asked
	if l := balancer.Local(e.URL); l.InFlight != 1 {
		t.Errorf("%+v while it waits", l)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-left
	server.Close() // waits for the handler
	if l := balancer.Local(e.URL); l.InFlight != 0 || l.Credit != 0 {
		t.Errorf("%+v after the caller left", l)
	}
}

// Two routers on one host have names of their own, which planes take.
func TestDefaultID(t *testing.T) {
	id := defaultID()
	if !strings.HasSuffix(id, fmt.Sprint("-", os.Getpid())) || len(id) > 128 {
		t.Errorf("name %q", id)
	}
	o := watchOptions(flags{planes: "http://a,http://b", clientID: "me"}, slog.New(slog.DiscardHandler))
	if o.ClientID != "me" || len(o.Addresses) != 2 {
		t.Errorf("watches %v as %q", o.Addresses, o.ClientID)
	}
}

func TestTurnsGoAround(t *testing.T) {
	turns := newTurns()
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newProxy(flags{policy: "unknown"}, watcher, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a policy that is unknown")
	}
	if _, err := newProxy(flags{policy: "round-robin"}, watcher, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	all := []pick.PolicyCandidate{
		{WorkerID: "a", Rank: pick.NoRank, Freshness: pick.Usable, ValidUntil: time.Now().Add(time.Hour)},
		{WorkerID: "b", Rank: pick.NoRank, Freshness: pick.Usable, ValidUntil: time.Now().Add(time.Hour)},
		{WorkerID: "c", Rank: pick.NoRank, Freshness: pick.Usable, ValidUntil: time.Now().Add(time.Hour)},
	}
	picker, err := pick.NewPicker(pick.Options{Policy: pick.Custom, Score: turns.score})
	if err != nil {
		t.Fatal(err)
	}
	table := pick.NewTable(all, pick.TableOptions{})
	seen := map[string]int{}
	for range 9 {
		c, err := picker.Pick(table, pick.Request{})
		if err != nil {
			t.Fatal(err)
		}
		turns.took(&balance.Route{Choice: c})
		seen[c.WorkerID]++
	}
	if seen["a"] != 3 || seen["b"] != 3 || seen["c"] != 3 {
		t.Errorf("turns %v", seen)
	}
}

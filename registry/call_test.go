package registry

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// callOnce makes one registration call to a real server.
func callOnce(t *testing.T, url string, change func(*Options)) (outcome, *worker) {
	t.Helper()
	opts := testOptions(newStore(t), url)
	change(&opts)
	r := newRegistry(t, opts)
	r.reconcile(func(*worker, time.Duration) {})
	for _, w := range r.workers {
		o := w.call(t.Context())
		return o, w
	}
	t.Fatal("no worker")
	return outcome{}, nil
}

func asIs(*Options) {}

func withToken(t *testing.T) func(*Options) {
	path := filepath.Join(t.TempDir(), "token")
	writeFile(t, path, "secret")
	return func(o *Options) { o.TokenFile = path }
}

// server serves h on a listener of 127.0.0.1 until the test ends.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func TestCallTellsItsLocalAddress(t *testing.T) {
	var host, remote, body atomic.Value
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		host.Store(r.Host)
		remote.Store(r.RemoteAddr)
		body.Store(string(data))
		fmt.Fprint(w, goodAnswer)
	})
	o, w := callOnce(t, s.URL, asIs)
	if o.state != StateRegistered || o.err != nil || o.granted.renewAfter != 5*time.Second || o.granted.lease != 15*time.Second {
		t.Errorf("outcome %+v", o)
	}
	if host.Load() != w.origin {
		t.Errorf("host %v, want the origin %s", host.Load(), w.origin)
	}
	var told reportTo
	if err := json.Unmarshal([]byte(body.Load().(string)), &told); err != nil {
		t.Fatal(err)
	}
	if peer := netip.MustParseAddrPort(remote.Load().(string)); told.IP != peer.Addr().String() || told.Port != 7401 {
		t.Errorf("told %+v over a connection from %s", told, peer)
	}
}

// TestRedirectIsNotFollowed: nothing reaches another port, the credential
// least of all.
func TestRedirectIsNotFollowed(t *testing.T) {
	var canary atomic.Int32
	other := server(t, func(http.ResponseWriter, *http.Request) { canary.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		var auth atomic.Value
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			auth.Store(r.Header.Get("Authorization"))
			http.Redirect(w, r, other.URL, status)
		})
		o, _ := callOnce(t, s.URL, withToken(t))
		if o.state != StateParked || o.reason != ReasonRedirected || o.status != status || o.err == nil {
			t.Errorf("%d: outcome %+v", status, o)
		}
		if auth.Load() != "Bearer secret" {
			t.Errorf("the worker got the credential %q", auth.Load())
		}
	}
	if canary.Load() != 0 {
		t.Errorf("%d calls reached another host", canary.Load())
	}
}

func TestProxyIsNotAsked(t *testing.T) {
	var canary atomic.Int32
	proxy := server(t, func(http.ResponseWriter, *http.Request) { canary.Add(1) })
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	s := server(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, goodAnswer) })
	if o, _ := callOnce(t, s.URL, asIs); o.state != StateRegistered || canary.Load() != 0 {
		t.Errorf("outcome %+v, %d calls through the proxy", o, canary.Load())
	}
}

func TestStatuses(t *testing.T) {
	for status, want := range map[int]outcome{
		200: {state: StateRegistered}, 201: {state: StateRegistered},
		400: {state: StateParked, reason: ReasonRejected}, 422: {state: StateParked, reason: ReasonRejected},
		401: {state: StateParked, reason: ReasonAuth}, 403: {state: StateParked, reason: ReasonAuth},
		404: {state: StateParked, reason: ReasonUnsupported}, 405: {state: StateParked, reason: ReasonUnsupported},
		409: {state: StateConflict, reason: ReasonConflict}, 429: {state: StateRetrying, reason: ReasonEngineError},
		500: {state: StateRetrying, reason: ReasonEngineError}, 501: {state: StateRetrying, reason: ReasonEngineError},
		503: {state: StateRetrying, reason: ReasonEngineError}, 304: {state: StateParked, reason: ReasonRedirected},
		999: {state: StateRetrying, reason: ReasonEngineError},
	} {
		if state, reason := judgeStatus(status); state != want.state || reason != want.reason {
			t.Errorf("%d: %s, %s", status, state, reason)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"endless":  endless,
		"empty":    func(http.ResponseWriter, *http.Request) {},
		"HTML":     func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"no grant": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"reporting"}`) },
		"gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "\x1f\x8b")
		},
		"cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "500")
			fmt.Fprint(w, "{")
		},
	} {
		o, _ := callOnce(t, server(t, h).URL, asIs)
		if o.state != StateRegistered || o.reason != ReasonBadAnswer || o.err == nil {
			t.Errorf("%s: outcome %+v", name, o)
		}
	}
}

func TestSlowAnswerIsBoundedInTime(t *testing.T) {
	s := server(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees the end only then
		<-r.Context().Done()               // until the caller gives up
	})
	o, _ := callOnce(t, s.URL, func(o *Options) { o.CallTimeout = 50 * time.Millisecond })
	if o.state != StateRetrying || o.reason != ReasonConnectFailed || !strings.Contains(fmt.Sprint(o.err), "deadline") {
		t.Errorf("outcome %+v", o)
	}
}

func TestLongHeadersAreRefused(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		fmt.Fprint(w, goodAnswer)
	})
	if o, _ := callOnce(t, s.URL, asIs); o.reason != ReasonConnectFailed {
		t.Errorf("outcome %+v", o)
	}
}

func TestCAFile(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, goodAnswer) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(ca, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if o, _ := callOnce(t, s.URL, func(o *Options) { o.CAFile = ca }); o.state != StateRegistered {
		t.Errorf("with the CA: %+v", o)
	}
	if o, _ := callOnce(t, s.URL+",ca_file="+ca, asIs); o.state != StateRegistered {
		t.Errorf("with the worker's own CA: %+v", o)
	}
	if o, _ := callOnce(t, s.URL, asIs); o.state != StateRetrying || o.reason != ReasonConnectFailed {
		t.Errorf("without: %+v", o)
	}
	writeFile(t, ca, "nonsense")
	if o, _ := callOnce(t, s.URL, func(o *Options) { o.CAFile = ca }); o.reason != ReasonCredential {
		t.Errorf("with a broken file: %+v", o)
	}
}

func TestCallWithoutAnAddressToTell(t *testing.T) {
	s := server(t, func(http.ResponseWriter, *http.Request) { t.Error("called") })
	o, _ := callOnce(t, s.URL, func(o *Options) { o.ReportPort = func() uint16 { return 0 } })
	if o.state != StateRetrying || o.reason != ReasonCredential {
		t.Errorf("outcome %+v", o)
	}
}

func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if o, _ := callOnce(t, url, asIs); o.state != StateRetrying || o.reason != ReasonConnectFailed {
		t.Errorf("outcome %+v", o)
	}
}

// TestRegisterAndReport runs the line over loopback: the engine is called,
// and a stream from its address binds.
func TestRegisterAndReport(t *testing.T) {
	called := make(chan struct{}, 1)
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, goodAnswer)
		poke(called)
	})
	st := newStore(t)
	r := newRegistry(t, testOptions(st, strings.Replace(s.URL, "127.0.0.1", "localhost", 1)))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- st.Run(ctx) }()
	go func() { done <- r.Run(ctx) }()
	<-called
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	c := Claim{Addr: "http://LOCALHOST:" + port, Role: store.RoleRegular, Source: "s1", Peer: netip.MustParseAddrPort("127.0.0.1:9")}
	l := &store.Load{Source: "s1", Sequence: 1, Status: store.StatusUnreachable, Received: r.clock.Now()}
	b, err := r.Bind(c, l)
	if err != nil {
		t.Fatal(err)
	}
	for state, stale := st.Current(); len(state.Entries) == 0 || state.Entries[0].Load == nil; state, stale = st.Current() {
		<-stale
	}
	b.Close()
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

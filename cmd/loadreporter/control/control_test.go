package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk notes what it is asked and answers what it was told.
type desk struct {
	err   error
	got   []push.Registration
	hints []Hint
}

func (d *desk) Register(_ context.Context, r push.Registration) error {
	d.got = append(d.got, r)
	return d.err
}
func (d *desk) Refresh(h Hint) error { d.hints = append(d.hints, h); return d.err }
func (d *desk) Ready() error         { return d.err }
func (d *desk) Status() any          { return map[string]string{"role": "owner"} }

func newFace(t *testing.T, opts Options) *Face {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	f, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const valid = `{"ip":"192.0.2.1","port":7401,"report_interval_ms":100,"lease_ttl_ms":15000}`

// call makes a request from 192.0.2.1.
func call(f *Face, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body)) // from 192.0.2.1:1234
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

func TestStartReporting(t *testing.T) {
	d := &desk{}
	f := newFace(t, Options{Desk: d, Guard: &Guard{}})
	w := call(f, "POST", StartReporting, valid)
	if w.Code != 200 || w.Body.String() != `{"status":"reporting","lease_ttl_ms":15000,"renew_after_ms":5000}`+"\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	want := push.Registration{Target: netip.MustParseAddrPort("192.0.2.1:7401"), Interval: 100 * time.Millisecond, Lease: 15 * time.Second}
	if len(d.got) != 1 || d.got[0] != want {
		t.Errorf("registered %+v", d.got)
	}
	for lease, renew := range map[string]string{"1": "1", "2": "1", "3": "1", "100": "33", "3600000": "1200000"} {
		w := call(f, "POST", StartReporting, strings.Replace(valid, "15000", lease, 1))
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"lease_ttl_ms":`+lease+`,"renew_after_ms":`+renew+"}") {
			t.Errorf("lease %s: %d %s", lease, w.Code, w.Body)
		}
		if l := d.got[len(d.got)-1].Lease; l <= 0 || l > push.MaxLease {
			t.Errorf("lease %s is taken for %v", lease, l)
		}
	}
	for _, lease := range []string{"3600001", "9223372036854775807"} {
		w := call(f, "POST", StartReporting, strings.Replace(valid, "15000", lease, 1))
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"lease_ttl_ms":3600000,"renew_after_ms":1200000}`) {
			t.Errorf("lease %s: %d %s, want an hour", lease, w.Code, w.Body)
		}
		if l := d.got[len(d.got)-1].Lease; l != time.Hour {
			t.Errorf("lease %s is taken for %v", lease, l)
		}
	}
}

func TestStartReportingRefusesBodies(t *testing.T) {
	with := func(from, to string) string { return strings.Replace(valid, from, to, 1) }
	for name, body := range map[string]string{
		"empty": "", "null": "null", "array": "[]", "text": `"x"`, "cut": valid[:20], "two": valid + valid,
		"no ip": with(`"ip":"192.0.2.1",`, ""), "no port": with(`"port":7401,`, ""),
		"no interval": with(`"report_interval_ms":100,`, ""), "no lease": with(`,"lease_ttl_ms":15000`, ""),
		"another key": with("{", `{"x":1,`), "case of a key": with(`"ip"`, `"IP"`),
		"host name": with("192.0.2.1", "localhost"), "ip with a port": with("192.0.2.1", "192.0.2.1:1"),
		"ip is a number": with(`"192.0.2.1"`, "3221225985"), "ip is null": with(`"192.0.2.1"`, "null"),
		"port as text": with("7401", `"7401"`), "port with a fraction": with("7401", "7401.0"),
		"port with an exponent": with("7401", "1e3"), "port is true": with("7401", "true"), "port is null": with("7401", "null"),
		"port 0": with("7401", "0"), "port too large": with("7401", "65536"), "port below 0": with("7401", "-1"),
		"interval 0": with(":100", ":0"), "interval below 0": with(":100", ":-5"), "interval as text": with(":100", `:"100"`),
		"interval too large": with(":100", ":9223372036854775808"),
		"lease 0":            with("15000", "0"), "lease true": with("15000", "true"), "lease with a fraction": with("15000", "1.5"),
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			w := call(newFace(t, Options{Desk: d}), "POST", StartReporting, body)
			checkFault(t, w, 400, "Bad Request")
			if len(d.got) != 0 {
				t.Errorf("registered %+v", d.got)
			}
		})
	}
}

func checkFault(t *testing.T, w *httptest.ResponseRecorder, code int, kind string) {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	text, _ := body["message"].(string)
	param, isThere := body["param"]
	if w.Code != code || body["object"] != "error" || body["type"] != kind || body["code"] != float64(code) ||
		text == "" || !isThere || param != nil || len(body) != 5 {
		t.Errorf("%d %s, want %d of type %s", w.Code, w.Body, code, kind)
	}
}

func TestFaultsOfTheDesk(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
	}{
		{push.ErrClosed, 503}, {push.ErrFull, 429}, {&Fault{501, "use native"}, 501}, {&Fault{503, "silent"}, 503}, {errors.New("else"), 500},
	} {
		reg := prometheus.NewRegistry()
		f := newFace(t, Options{Desk: &desk{err: test.err}, Registerer: reg})
		w := call(f, "POST", StartReporting, valid)
		checkFault(t, w, test.code, itoa(test.code))
		if !strings.Contains(w.Body.String(), test.err.Error()) {
			t.Errorf("%s does not say %v", w.Body, test.err)
		}
		if got := testutil.ToFloat64(f.metrics.requests.WithLabelValues("start_reporting", itoa(test.code))); got != 1 {
			t.Errorf("%d is counted %v times", test.code, got)
		}
		checkFault(t, call(f, "POST", Refresh, ""), test.code, itoa(test.code))
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestMethodsAndContentTypes(t *testing.T) {
	d := &desk{}
	f := newFace(t, Options{Desk: d})
	for _, path := range []string{StartReporting, Refresh} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			w := call(f, method, path, "")
			checkFault(t, w, 405, "405")
			if w.Header().Get("Allow") != "POST" {
				t.Errorf("Allow is %q", w.Header().Get("Allow"))
			}
		}
	}
	const form = "application/x-www-form-urlencoded"
	checkFault(t, call(f, "POST", StartReporting, valid, "Content-Type", form), 400, "Bad Request")
	if w := call(f, "POST", Refresh, "{}", "Content-Type", form); w.Code != 202 {
		t.Errorf("a hint as curl sends it: %d %s", w.Code, w.Body)
	}
	for _, kind := range []string{"application/json", "application/json; charset=utf-8", "application/x+json"} {
		if w := call(f, "POST", StartReporting, valid, "Content-Type", kind); w.Code != 200 {
			t.Errorf("%s: %d %s", kind, w.Code, w.Body)
		}
	}
	checkFault(t, call(f, "POST", StartReporting, `{"ip":"`+strings.Repeat("1", maxRegistrationBytes)), 400, "Bad Request")
	if w := call(f, "POST", StartReporting, valid, "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a page of another origin: %d", w.Code)
	}
}

func TestRefresh(t *testing.T) {
	d := &desk{}
	f := newFace(t, Options{Desk: d})
	for body, want := range map[string]Hint{
		"": {Count: 1}, "{}": {Count: 1},
		`{"reason":"completion","count":3}`: {Reason: "completion", Count: 3},
		`{"count":2147483647}`:              {Count: math.MaxInt32},
	} {
		if w := call(f, "POST", Refresh, body); w.Code != 202 || d.hints[len(d.hints)-1] != want {
			t.Errorf("%q: %d %s, %+v", body, w.Code, w.Body, d.hints)
		}
	}
	if w := call(f, "POST", Refresh, " \n"); w.Code != 202 {
		t.Errorf("white space: %d %s", w.Code, w.Body)
	}
	taken := len(d.hints)
	for _, body := range []string{
		"null", "[]", "x", "{", "{}{}", `{"count":0}`, `{"count":-1}`, `{"count":2147483648}`, `{"count":"3"}`, `{"count":1.5}`,
		`{"reason":3}`, `{"reason":"` + strings.Repeat("r", 65) + `"}`, `{"more":1}`, strings.Repeat(" ", maxHintBytes+1),
	} {
		checkFault(t, call(f, "POST", Refresh, body), 400, "Bad Request")
	}
	if len(d.hints) != taken {
		t.Errorf("hints %+v", d.hints[taken:])
	}
}

func TestHealthAndStatus(t *testing.T) {
	reg := prometheus.NewRegistry()
	d := &desk{}
	f := newFace(t, Options{Desk: d, Gatherer: reg, Registerer: reg})
	for _, test := range []struct {
		err        error
		path, body string
		code       int
	}{
		{nil, Livez, "ok\n", 200}, {nil, Readyz, "ok\n", 200}, {nil, Status, `{"role":"owner"}` + "\n", 200}, {nil, Metrics, "", 200},
		{errors.New("not yet"), Livez, "ok\n", 200}, {errors.New("not yet"), Readyz, "not yet\n", 503},
		{nil, "/", "404 page not found\n", 404},
	} {
		d.err = test.err
		w := call(f, "GET", test.path, "")
		if w.Code != test.code || test.body != "" && w.Body.String() != test.body {
			t.Errorf("%s: %d %q", test.path, w.Code, w.Body)
		}
	}
	if w := call(newFace(t, Options{Desk: d}), "GET", Metrics, ""); w.Code != 404 {
		t.Errorf("metrics of nobody: %d", w.Code)
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a face without a desk is made")
	}
}

func TestGuard(t *testing.T) {
	open := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/64")}
	for _, test := range []struct {
		caller, target string
		targets        []netip.Prefix
		want           bool
	}{
		{"192.0.2.1", "192.0.2.1", nil, true},
		{"::ffff:192.0.2.1", "192.0.2.1", nil, true},
		{"192.0.2.1", "192.0.2.2", nil, false},
		{"192.0.2.1", "127.0.0.1", nil, false},
		{"192.0.2.1", "169.254.169.254", nil, false},
		{"127.0.0.1", "127.0.0.2", nil, true},
		{"127.0.0.1", "::1", nil, true},
		{"127.0.0.1", "192.0.2.1", nil, false},
		{"fe80::1%eth0", "fe80::1", nil, true},
		{"192.0.2.1", "10.1.2.3", open, true},
		{"192.0.2.1", "::ffff:10.1.2.3", open, true},
		{"192.0.2.1", "10.2.0.1", open, false},
		{"192.0.2.1", "2001:db8::7", open, true},
		{"192.0.2.1", "0.0.0.0", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, false},
		{"192.0.2.1", "224.0.0.1", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, false},
	} {
		g := &Guard{Targets: test.targets}
		if got := g.Allows(netip.MustParseAddr(test.caller), netip.MustParseAddr(test.target)); got != test.want {
			t.Errorf("%s names %s: %t", test.caller, test.target, got)
		}
	}
	if (&Guard{}).Allows(netip.Addr{}, netip.MustParseAddr("192.0.2.1")) {
		t.Error("a caller without an address may name a target")
	}
}

func TestGuardedFace(t *testing.T) {
	d := &desk{}
	f := newFace(t, Options{Desk: d, Guard: &Guard{}})
	checkFault(t, call(f, "POST", StartReporting, strings.Replace(valid, "192.0.2.1", "192.0.2.9", 1)), 403, "403")
	if len(d.got) != 0 {
		t.Errorf("registered %+v", d.got)
	}
	call(newFace(t, Options{Desk: d}), "POST", StartReporting, strings.Replace(valid, "192.0.2.1", "192.0.2.9", 1))
	if len(d.got) != 1 {
		t.Error("a trusted caller is refused")
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(valid))
	f.Add([]byte(`{"ip":"::1","port":1,"report_interval_ms":9223372036854775807,"lease_ttl_ms":1}`))
	f.Add([]byte(`{"ip":"fe80::1%e","port":1,"report_interval_ms":-0,"lease_ttl_ms":1}`))
	f.Add([]byte(`{"ip":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseRequest(body)
		if err != nil {
			return
		}
		if !r.Target.IsValid() || r.Target.Port() == 0 || r.Interval <= 0 || r.Interval > push.MaxDuration ||
			r.Lease <= 0 || r.Lease > push.MaxLease {
			t.Fatalf("%q is %+v", body, r)
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var fields map[string]any
		if dec.Decode(&fields) != nil || len(fields) != 4 {
			t.Fatalf("%q is taken", body)
		}
		for _, key := range []string{"port", "report_interval_ms", "lease_ttl_ms"} {
			if n, ok := fields[key].(json.Number); !ok || strings.ContainsAny(n.String(), ".eE") {
				t.Fatalf("%s of %q is taken for an integer", key, body)
			}
		}
	})
}

func FuzzParseHint(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte(`{"reason":"abort","count":3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if h, err := parseHint(body); err == nil && (h.Count < 1 || len(h.Reason) > maxReasonBytes) {
			t.Fatalf("%q is %+v", body, h)
		}
	})
}

// pipes is a listener of in-memory connections.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), over: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

func TestServeEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		entered := make(chan struct{})
		h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done()
		})
		go func() { ended <- Serve(ctx, ln, h) }()
		c := ln.dial()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-entered
		silent := ln.dial() // sends nothing
		began := time.Now()
		cancel()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if err := <-ended; err != nil || time.Since(began) > shutdownTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		_ = c.Close()
		_ = silent.Close()
	})
}

func TestServeReturnsTheErrorOfTheListener(t *testing.T) {
	ln := newPipes()
	_ = ln.Close()
	if err := Serve(t.Context(), ln, http.NotFoundHandler()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, ln, http.NotFoundHandler()) }()
		conns := make([]net.Conn, maxConnections)
		for i := range conns {
			conns[i] = ln.dial()
		}
		synctest.Wait()
		over := ln.dial()
		began := time.Now()
		go func() { _, _ = io.WriteString(over, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n") }()
		if answer, err := io.ReadAll(over); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 404") || time.Since(began) > 0 {
			t.Errorf("beside connections that say nothing: %q, %v after %v", answer, err, time.Since(began))
		}
		if _, err := conns[0].Read(make([]byte, 1)); err == nil || time.Since(began) > 0 {
			t.Errorf("the oldest one is open, or was until %v later", time.Since(began))
		}
		for _, c := range conns {
			_ = c.Close()
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

package service

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"

	"github.com/loadplane/loadplane/service/internal/testcert"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	loadmonitor "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/service/access"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/sim"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccreds "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// testConfig listens on free ports of loopback.
func testConfig() config.Config {
	c := config.Default()
	c.APIListen, c.IngestListen, c.OpsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	return c
}

// plane is a running service.
type plane struct {
	*Service
	t    *testing.T
	log  *logBuffer
	stop context.CancelFunc
	done chan error
}

func startPlane(t *testing.T, cfg config.Config) *plane {
	t.Helper()
	p := &plane{t: t, log: &logBuffer{}, done: make(chan error, 1)}
	s, err := New(cfg, Options{Logger: testLogger(p.log), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	p.Service = s
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go func() { p.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-p.done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run did not return")
		}
	})
	return p
}

// waitDone returns what Run returned and leaves it for the cleanup.
func (p *plane) waitDone(limit time.Duration) error {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.done <- nil
		return err
	case <-time.After(limit):
		p.t.Fatalf("Run did not return within %v", limit)
		return nil
	}
}

func (p *plane) url(l config.Listener) string {
	api, ingest, ops := p.Addrs()
	addr := map[config.Listener]net.Addr{config.API: api, config.Ingest: ingest, config.Ops: ops, config.Scaler: p.ScalerAddr()}[l]
	if p.TLS(l) {
		return "https://" + addr.String()
	}
	return "http://" + addr.String()
}

// httpClient returns a client with connections of its own. http2 makes it
// speak nothing else.
func httpClient(t *testing.T, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: config, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (p *plane) get(c *http.Client, l config.Listener, path string, header ...string) (int, string, http.Header) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url(l)+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func startFleet(t *testing.T, engines int) *sim.Fleet {
	t.Helper()
	fleet, err := sim.New(sim.Options{Engines: engines, Ranks: 2, Seed: 1, Logger: testLogger(io.Discard)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return fleet
}

// watchUntilFresh opens a watch and reads it until n workers are fresh.
func watchUntilFresh(ctx context.Context, t *testing.T, c loadplanev1connect.SnapshotServiceClient, n int) *connect.ServerStreamForClient[pb.WatchSnapshotsResponse] {
	t.Helper()
	stream, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var held client.Replica
	for stream.Receive() {
		view, err := held.Apply(stream.Msg(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if view.CountValid(time.Now()) == n {
			return stream
		}
	}
	t.Fatalf("the watch ended before %d workers were fresh: %v", n, stream.Err())
	return nil
}

func TestServiceServesAndDrains(t *testing.T) {
	const engines = 4
	cfg := testConfig()
	for _, w := range startFleet(t, engines).Workers() {
		cfg.Worker = append(cfg.Worker, w.Flag())
	}
	p := startPlane(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	hc := httpClient(t, nil, true)
	stream := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(hc, p.url(config.API)), engines)
	defer func() { _ = stream.Close() }()
	over := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(hc, p.url(config.API), connect.WithGRPC()), engines)
	defer func() { _ = over.Close() }()

	plain := httpClient(t, nil, false)
	code, body, _ := p.get(plain, config.API, "/v1/load_monitor/snapshot")
	var doc struct {
		Workers []struct{ Freshness string }
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil || code != 200 || len(doc.Workers) != engines {
		t.Fatalf("status %d, error %v: %s", code, err, body)
	}
	for _, w := range doc.Workers {
		if w.Freshness != "fresh" {
			t.Errorf("a worker is %s", w.Freshness)
		}
	}
	if code, body, _ := p.get(plain, config.Ops, "/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
	if _, body, _ := p.get(plain, config.Ops, "/metrics"); !strings.Contains(body, "loadplane_service_draining 0") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %s", body)
	}

	begin := time.Now()
	p.stop()
	for _, s := range []*connect.ServerStreamForClient[pb.WatchSnapshotsResponse]{stream, over} {
		for s.Receive() {
		}
		if connect.CodeOf(s.Err()) != connect.CodeUnavailable || !strings.Contains(s.Err().Error(), "shutting down") {
			t.Errorf("the watch ended with %v", s.Err())
		}
	}
	if err := p.waitDone(10 * time.Second); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the drain took %v", took)
	}
	if testutil.ToFloat64(p.metrics.draining) != 1 {
		t.Error("the metric does not say that it drains")
	}
	if !strings.Contains(p.log.String(), `"shutting_down"`) {
		t.Error("the report streams were not told why they end")
	}
	for _, line := range []string{`"msg":"worker found"`, `"msg":"worker heard"`} {
		if n := strings.Count(p.log.String(), line); n != engines {
			t.Errorf("%d lines %s of %d workers", n, line, engines)
		}
	}
	requireOrder(t, p.log.String(), `"draining"`, `"component":"api"`, `"component":"ingest"`, `"component":"registry"`, `"component":"ops"`, `"component":"committer"`, `"msg":"stopped"`)
}

func requireOrder(t *testing.T, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Fatalf("%s is missing or too early in\n%s", part, text)
		}
		rest = after
	}
}

func TestServiceDrainIsBoundedWithAStuckReader(t *testing.T) {
	cfg := testConfig()
	cfg.DrainTimeout = 2 * time.Second
	p := startPlane(t, cfg)
	api, _, _ := p.Addrs()
	// A request whose body never comes keeps its handler busy.
	conn, err := net.Dial("tcp", api.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST /loadplane.v1.SnapshotService/GetSnapshot HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// The server asks for the body once the handler reads it.
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p.stop()
	if err := p.waitDone(10 * time.Second); err != nil {
		t.Errorf("Run: %v", err)
	}
	// The handler itself would wait for the body for 10 s.
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v, far above the drain timeout", took)
	}
}

func TestServiceStopsWhenAListenerFails(t *testing.T) {
	s, err := New(testConfig(), Options{Logger: testLogger(io.Discard)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.apiLn.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), "api: serve") || ctx.Err() != nil {
		t.Errorf("error %v, context %v", err, ctx.Err())
	}
}

func TestNewNamesTheFlagOfATakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, l := range config.Listeners() {
		cfg := testConfig()
		*map[config.Listener]*string{config.API: &cfg.APIListen, config.Ingest: &cfg.IngestListen, config.Ops: &cfg.OpsListen, config.Scaler: &cfg.ScalerListen}[l] = taken.Addr().String()
		_, err := New(cfg, Options{Logger: testLogger(io.Discard)})
		var config *config.Error
		if !errors.As(err, &config) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "--"+string(l)+"-listen") {
			t.Errorf("%s: error %v", l, err)
		}
	}
}

func TestNewRefusesAnAddressThatCannotBeBound(t *testing.T) {
	cfg := testConfig()
	cfg.APIListen, cfg.InsecureAllowPlaintext = "192.0.2.1:0", []string{"api"}
	if _, err := New(cfg, Options{Logger: testLogger(io.Discard)}); err == nil || !strings.Contains(err.Error(), "--api-listen") {
		t.Errorf("error %v", err)
	}
}

func TestNewRefusesBadInput(t *testing.T) {
	tests := []struct {
		name   string
		change func(*config.Config)
		want   string
	}{
		{"a value out of range", func(c *config.Config) { c.Settle = 0 }, "settle"},
		{"a worker that does not parse", func(c *config.Config) { c.Worker = []string{"http://a:1,role=king"} }, "king"},
		{"no workers file", func(c *config.Config) { c.WorkersFile = "/does/not/exist.yaml" }, "/does/not/exist.yaml"},
		{"a name of the DNS that is an address", func(c *config.Config) { c.DNS = []string{"10.0.0.1:1"} }, "dns: 10.0.0.1 is an address"},
		{"bug 49: a selector that does not parse", func(c *config.Config) {
			c.Kubernetes, c.KubernetesSelector = true, "a=b c=d"
		}, "kubernetes_selector: "},
		{"no kubeconfig", func(c *config.Config) {
			c.Kubernetes, c.KubernetesServices, c.Kubeconfig = true, []string{"a"}, "/does/not/exist"
		}, "kubeconfig: "},
		{"no token file", func(c *config.Config) { c.APITokenFile = "/does/not/exist" }, "api_token_file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := testConfig()
			test.change(&cfg)
			for _, err := range []error{Check(cfg), func() error {
				_, err := New(cfg, Options{Logger: testLogger(io.Discard)})
				return err
			}()} {
				var config *config.Error
				if !errors.As(err, &config) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
			}
		})
	}
}

func TestCheckBindsNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := testConfig()
	cfg.APIListen = taken.Addr().String()
	if err := Check(cfg); err != nil {
		t.Error(err)
	}
}

func TestAdvice(t *testing.T) {
	cfg := testConfig()
	cfg.InsecureAllowPlaintext, cfg.Identity = []string{"ingest"}, config.IdentityOrigin
	cfg.Worker = []string{"http://192.0.2.7:30000,dialect=push"}
	p := startPlane(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !p.awaitWorkers(ctx) {
		t.Fatal("the worker was not listed")
	}
	p.stop()
	if err := p.waitDone(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	p.adviseUnreachable()
	for _, want := range []string{
		`listener is plaintext by --insecure-allow-plaintext`, `"listener":"ingest"`,
		`"setting":"--identity=origin"`, `set --ingest-listen`, `http://192.0.2.7:30000`,
	} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, p.log.String())
		}
	}
	if testutil.ToFloat64(p.metrics.insecure.WithLabelValues("ingest")) != 1 {
		t.Error("the metric does not name the listener")
	}
}

// provoked says whether a refusal was counted.
func provoked(p *plane, l config.Listener, reason string) bool {
	p.t.Helper()
	families, err := p.gatherer.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			// Labels are sorted by name: listener, reason.
			labels := m.GetLabel()
			if family.GetName() == "loadplane_access_refused_total" && labels[0].GetValue() == string(l) && labels[1].GetValue() == reason {
				return m.GetCounter().GetValue() > 0
			}
		}
	}
	return false
}

func TestTokenOnEveryProtocol(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	cfg := testConfig()
	cfg.APITokenFile = f.Token
	p := startPlane(t, cfg)
	h1, h2 := httpClient(t, nil, false), httpClient(t, nil, true)
	bearers := []struct {
		name, value string
		allowed     bool
	}{
		{"none", "", false}, {"wrong", "Bearer x", false}, {"other scheme", "Basic " + testcert.Token, false},
		{"prefix", "Bearer canary", false}, {"right", "Bearer " + testcert.Token, true}, {"small letters", "bearer " + testcert.Token, true},
	}
	for _, b := range bearers {
		t.Run(b.name, func(t *testing.T) {
			header := []string{}
			if b.value != "" {
				header = []string{"Authorization", b.value}
			}
			for _, c := range []struct {
				l    config.Listener
				path string
			}{{config.API, "/v1/load_monitor/snapshot"}, {config.API, "/"}, {config.API, "/no/such/path"}, {config.Ops, "/metrics"}, {config.Ops, "/livez/x"}} {
				code, body, h := p.get(h1, c.l, c.path, header...)
				if (code == http.StatusUnauthorized) == b.allowed {
					t.Errorf("%s: %d %s", c.path, code, body)
				}
				if code == http.StatusUnauthorized && !strings.HasPrefix(h.Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("%s: WWW-Authenticate %q", c.path, h.Get("WWW-Authenticate"))
				}
			}
			for _, path := range []string{"/livez", "/readyz"} {
				if code, body, _ := p.get(h1, config.Ops, path, header...); code == http.StatusUnauthorized || code == http.StatusForbidden {
					t.Errorf("%s needs a credential: %d %s", path, code, body)
				}
			}
			for name, opts := range map[string][]connect.ClientOption{
				"connect": nil, "connect GET": {connect.WithHTTPGet()}, "connect JSON": {connect.WithProtoJSON()},
				"grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
			} {
				checkCall(t, p, h2, name, b.value, b.allowed, opts)
			}
		})
	}
	if !provoked(p, config.API, string(access.ReasonNoCredential)) || !provoked(p, config.API, string(access.ReasonWrongCredential)) || !provoked(p, config.Ops, string(access.ReasonNoCredential)) {
		t.Error("a reason was not counted")
	}
	if strings.Contains(p.log.String(), "canary") {
		t.Error("the token is in the log")
	}
	if _, metrics, _ := p.get(h1, config.Ops, "/metrics", "Authorization", "Bearer "+testcert.Token); strings.Contains(metrics, "canary") {
		t.Error("the token is in the metrics")
	}
}

// checkCall tries a unary call and a watch.
func checkCall(t *testing.T, p *plane, hc *http.Client, name, bearer string, allowed bool, opts []connect.ClientOption) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	with := connect.WithInterceptors(authorization(bearer))
	c := loadplanev1connect.NewSnapshotServiceClient(hc, p.url(config.API), append(opts, with)...)
	_, err := c.GetSnapshot(ctx, &pb.GetSnapshotRequest{})
	if allowed != (err == nil) || err != nil && connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("%s: GetSnapshot: %v", name, err)
	}
	stream, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if stream.Receive() != allowed || !allowed && connect.CodeOf(stream.Err()) != connect.CodeUnauthenticated {
		t.Errorf("%s: WatchSnapshots: %v", name, stream.Err())
	}
}

// authorization adds the header to calls.
type authorization string

func (a authorization) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if a != "" {
			r.Header().Set("Authorization", string(a))
		}
		return next(ctx, r)
	}
}

func (a authorization) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if a != "" {
			conn.RequestHeader().Set("Authorization", string(a))
		}
		return conn
	}
}

func (a authorization) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func TestTokenChangesWithItsFile(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	cfg := testConfig()
	cfg.APITokenFile = f.Token
	p := startPlane(t, cfg)
	hc := httpClient(t, nil, false)
	expect := func(token string, want int) {
		t.Helper()
		if code, _, _ := p.get(hc, config.API, "/v1/load_monitor/snapshot", "Authorization", "Bearer "+token); code != want {
			t.Errorf("status %d, want %d", code, want)
		}
	}
	expect(testcert.Token, 200)
	testcert.Replace(t, f.Token, []byte("another"))
	expect(testcert.Token, 401)
	expect("another", 200)
	testcert.Replace(t, f.Token, []byte("\n"))
	expect("another", 200)
	expect("", 401)
}

func TestUnauthorizedBodyIsNotRead(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	cfg := testConfig()
	cfg.APITokenFile = f.Token
	p := startPlane(t, cfg)
	api, _, _ := p.Addrs()
	conn, err := net.Dial("tcp", api.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /loadplane.v1.SnapshotService/GetSnapshot HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn) // Until the server closes the connection.
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") || !strings.Contains(string(answer), "\r\nConnection: close\r\n") {
		t.Errorf("error %v, answer %s", err, answer)
	}
}

func TestCrossOriginPost(t *testing.T) {
	p := startPlane(t, testConfig())
	hc := httpClient(t, nil, false)
	post := func(site string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url(config.API)+"/loadplane.v1.SnapshotService/GetSnapshot", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if site != "" {
			req.Header.Set("Sec-Fetch-Site", site)
		}
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode
	}
	for site, want := range map[string]int{"": 200, "same-origin": 200, "none": 200, "cross-site": 403, "same-site": 403} {
		if got := post(site); got != want {
			t.Errorf("Sec-Fetch-Site %q: %d, want %d", site, got, want)
		}
	}
	if !provoked(p, config.API, string(access.ReasonCrossOrigin)) {
		t.Error("the reason was not counted")
	}
}

func TestTLSReloadAndVersions(t *testing.T) {
	one, two := testcert.NewAuthority(t, "one"), testcert.NewAuthority(t, "two")
	f := testcert.NewFiles(t, one, one)
	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey = f.Cert, f.Key
	cfg.ScalerListen = "127.0.0.1:0"
	p := startPlane(t, cfg)
	try := func(l config.Listener, a *testcert.Authority, newest uint16) error {
		u := strings.TrimPrefix(p.url(l), "https://")
		conn, err := tls.Dial("tcp", u, &tls.Config{RootCAs: a.Pool(), MaxVersion: newest, NextProtos: []string{"h2"}})
		if err != nil {
			return err
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != "h2" {
			t.Errorf("%s: protocol %q", l, got)
		}
		return conn.Close()
	}
	for _, l := range config.Listeners() {
		if err := try(l, one, tls.VersionTLS13); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		if err := try(l, one, tls.VersionTLS12); err == nil {
			t.Errorf("%s takes TLS 1.2", l)
		}
	}
	cert, key := two.Issue("server", time.Now().Add(time.Hour))
	testcert.Replace(t, f.Cert, cert)
	if err := try(config.API, one, 0); err != nil {
		t.Errorf("half a rotation: the old certificate is gone: %v", err)
	}
	testcert.Replace(t, f.Key, key)
	for _, l := range config.Listeners() {
		if err := try(l, two, 0); err != nil {
			t.Errorf("%s after rotation: %v", l, err)
		}
		if err := try(l, one, 0); err == nil {
			t.Errorf("%s shows the old certificate after rotation", l)
		}
	}
	for _, canary := range strings.Split(string(key), "\n")[1:3] {
		if strings.Contains(p.log.String(), canary) {
			t.Error("the key is in the log")
		}
	}
}

func TestClientCertificates(t *testing.T) {
	server, good, bad := testcert.NewAuthority(t, "server"), testcert.NewAuthority(t, "good"), testcert.NewAuthority(t, "bad")
	for _, withToken := range []bool{false, true} {
		t.Run(fmt.Sprintf("token %v", withToken), func(t *testing.T) {
			f := testcert.NewFiles(t, server, good)
			cfg := testConfig()
			cfg.Registration = config.RegistrationOff // without discovery it is ready at once
			cfg.TLSCert, cfg.TLSKey, cfg.ClientCA = f.Cert, f.Key, f.CA
			if withToken {
				cfg.APITokenFile = f.Token
			}
			p := startPlane(t, cfg)
			clients := map[string]*http.Client{
				"none": httpClient(t, &tls.Config{RootCAs: server.Pool()}, true),
				"good": httpClient(t, &tls.Config{RootCAs: server.Pool(), Certificates: []tls.Certificate{good.Pair("router")}}, true),
				"bad":  httpClient(t, &tls.Config{RootCAs: server.Pool(), Certificates: []tls.Certificate{bad.Pair("router")}}, true),
			}
			status := func(client string, l config.Listener, path, token string) int {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url(l)+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				resp, err := clients[client].Do(req)
				if err != nil {
					return 0 // The handshake failed.
				}
				defer func() { _ = resp.Body.Close() }()
				return resp.StatusCode
			}
			const path = "/v1/load_monitor/snapshot"
			refusedWithout, refusedToken := 0, 0
			if withToken {
				refusedWithout, refusedToken = 401, 200
			}
			for _, c := range []struct {
				client      string
				l           config.Listener
				path, token string
				want        int
			}{
				{"good", config.API, path, "", 200},
				{"none", config.API, path, "", refusedWithout},
				{"none", config.API, path, testcert.Token, refusedToken},
				{"good", config.Ops, "/metrics", "", 200},
				{"none", config.Ops, "/metrics", "", 401},
				{"none", config.Ops, "/livez", "", 200},
				{"none", config.Ops, "/readyz", "", 200},
			} {
				if got := status(c.client, c.l, c.path, c.token); got != c.want {
					t.Errorf("%s client, %s%s, token %v: %d, want %d", c.client, c.l, c.path, c.token != "", got, c.want)
				}
			}
			// A Go client does not send a certificate that the server's CAs
			// did not sign, so force it.
			clients["bad"].Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				pair := bad.Pair("router")
				return &pair, nil
			}
			if got := status("bad", config.API, path, ""); got != 0 {
				t.Errorf("a certificate of another CA: %d", got)
			}
			testcert.Replace(t, f.CA, bad.PEM)
			clients["bad"].CloseIdleConnections()
			if got := status("bad", config.API, path, ""); got != 200 {
				t.Errorf("after the CA changed: %d", got)
			}
		})
	}
}

func TestWatchEndsWithTheClientCertificate(t *testing.T) {
	ca := testcert.NewAuthority(t, "ca")
	f := testcert.NewFiles(t, ca, ca)
	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey, cfg.ClientCA = f.Cert, f.Key, f.CA
	p := startPlane(t, cfg)
	notAfter := time.Now().Add(2 * time.Second)
	cert, key := ca.Issue("router", notAfter)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	hc := httpClient(t, &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair}}, true)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	stream := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(hc, p.url(config.API)), 0)
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
	}
	if late := time.Since(notAfter); ctx.Err() != nil || late > time.Second {
		t.Errorf("ended %v after the certificate: %v", late, stream.Err())
	}
}

func TestIngestAuthenticatesWhereItIsTLS(t *testing.T) {
	ca := testcert.NewAuthority(t, "ca")
	f := testcert.NewFiles(t, ca, ca)
	for _, plaintext := range []bool{false, true} {
		t.Run(fmt.Sprintf("plaintext %v", plaintext), func(t *testing.T) {
			cfg := testConfig()
			cfg.TLSCert, cfg.TLSKey, cfg.APITokenFile = f.Cert, f.Key, f.Token
			creds := grpccreds.NewTLS(&tls.Config{RootCAs: ca.Pool()})
			if plaintext {
				cfg.InsecureAllowPlaintext = []string{"ingest"}
				creds = insecure.NewCredentials()
			}
			p := startPlane(t, cfg)
			_, ingest, _ := p.Addrs()
			conn, err := grpc.NewClient("passthrough:///"+ingest.String(), grpc.WithTransportCredentials(creds))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			try := func(token string) codes.Code {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if token != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
				}
				stream, err := loadmonitor.NewLoadMonitorServiceClient(conn).Report(ctx)
				if err != nil {
					t.Fatal(err)
				}
				_, err = stream.CloseAndRecv()
				return status.Code(err)
			}
			if got := try(""); (got == codes.Unauthenticated) == plaintext {
				t.Errorf("without a token: %v", got)
			}
			if got := try("wrong"); (got == codes.Unauthenticated) == plaintext {
				t.Errorf("with a wrong token: %v", got)
			}
			if got := try(testcert.Token); got == codes.Unauthenticated || got == codes.Unavailable {
				t.Errorf("with the token: %v", got)
			}
			if provoked(p, config.Ingest, string(access.ReasonWrongCredential)) == plaintext {
				t.Error("the refusal was not counted, or counted without cause")
			}
			if strings.Contains(p.log.String(), "canary") {
				t.Error("the token is in the log")
			}
		})
	}
}

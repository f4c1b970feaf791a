package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

func TestServerOverTLS(t *testing.T) {
	donor := httptest.NewTLSServer(http.NotFoundHandler())
	donor.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := newGate(Options{MaxWatchers: 9, MaxWatchesPerConnection: 1, Exempt: netip.Addr.IsLoopback})
		leave, refused := g.enter(r.Context())
		if refused != nil {
			refused.http(w)
			return
		}
		defer leave()
		if _, refused := g.enter(r.Context()); refused == nil || refused.reason != ReasonTooManyWatchesPerConnection {
			http.Error(w, "the connection is not counted", http.StatusInternalServerError)
		}
	})
	srv := NewHTTPServer(counted, &tls.Config{Certificates: donor.TLS.Certificates}, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ServeTLS(listener, "", "")
	}()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a certificate made for tests
	}
	res, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Errorf("%s, status %d", res.Proto, res.StatusCode)
	}
	transport.CloseIdleConnections()
	_ = srv.Close()
	<-done
}

func TestServerLimits(t *testing.T) {
	srv := NewHTTPServer(http.NotFoundHandler(), nil, nil)
	if srv.WriteTimeout != 0 || srv.ReadTimeout != 0 {
		t.Error("a time limit would end streams")
	}
	if srv.ReadHeaderTimeout != 5*time.Second || srv.IdleTimeout != 2*time.Minute || srv.MaxHeaderBytes != 32<<10 {
		t.Error("limits:", srv.ReadHeaderTimeout, srv.IdleTimeout, srv.MaxHeaderBytes)
	}
	if h2 := srv.HTTP2; h2.MaxConcurrentStreams != 1000 || h2.SendPingTimeout != 10*time.Second || h2.PingTimeout != 5*time.Second {
		t.Errorf("HTTP/2: %+v", h2)
	}
	if !srv.Protocols.HTTP1() || !srv.Protocols.UnencryptedHTTP2() || srv.Protocols.HTTP2() {
		t.Error("protocols:", srv.Protocols)
	}
}

func TestGateIsLeftAsOftenAsEntered(t *testing.T) {
	g := newGate(Options{MaxWatchers: 3, MaxWatchesPerConnection: 2})
	ctx := context.WithValue(t.Context(), connKey{}, srvConn(t))
	for range 3 {
		a, _ := g.enter(ctx)
		b, _ := g.enter(ctx)
		if _, refused := g.enter(ctx); refused == nil || refused.reason != ReasonTooManyWatchesPerConnection {
			t.Fatal("no limit for one connection")
		}
		c, _ := g.enter(t.Context())
		if _, refused := g.enter(t.Context()); refused == nil || refused.reason != ReasonTooManyWatchers {
			t.Fatal("no limit for all")
		}
		a()
		b()
		c()
	}
	if got := g.open.Load(); got != 0 {
		t.Errorf("%d are counted, none is open", got)
	}
}

// srvConn returns the counter that the server puts into a connection's context.
func srvConn(t *testing.T) any {
	return NewHTTPServer(nil, nil, nil).ConnContext(t.Context(), noConn{}).Value(connKey{})
}

// noConn is a connection from no address.
type noConn struct{ net.Conn }

func (noConn) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// TestRefusedWatchTakesNoneOfTheRate fills one connection: what it is refused
// is left to others.
func TestRefusedWatchTakesNoneOfTheRate(t *testing.T) {
	g := newGate(Options{
		MaxWatchers: 3, MaxWatchesPerConnection: 1, WatchesPerSecond: 1e-9, WatchBurst: 2, Exempt: netip.Addr.IsLoopback,
	})
	on := func(c *connection) context.Context { return context.WithValue(t.Context(), connKey{}, c) }
	full, other := &connection{peer: netip.MustParseAddr("192.0.2.1")}, &connection{peer: netip.MustParseAddr("192.0.2.2")}
	for i := range 10 {
		if _, refused := g.enter(on(full)); (refused == nil) != (i == 0) {
			t.Fatalf("watch %d of one connection: %v", i, refused)
		}
	}
	if _, refused := g.enter(on(other)); refused != nil {
		t.Errorf("another connection: %v", refused)
	}
	if _, refused := g.enter(on(&connection{peer: netip.MustParseAddr("192.0.2.3")})); refused == nil || refused.reason != ReasonWatchRate || g.open.Load() != 2 {
		t.Errorf("above the rate: %v, %d open", refused, g.open.Load())
	}
}

// TestClientsThatAreCounted names who is refused after too many cuts. A peer
// that is exempt may stand for many, and needs a name.
func TestClientsThatAreCounted(t *testing.T) {
	a := &API{opts: Options{Exempt: netip.Addr.IsLoopback}}
	for _, c := range []struct{ peer, id, want string }{
		{"127.0.0.1", "", ""},
		{"", "", ""},
		{"192.0.2.1", "", "192.0.2.1 "},
		{"127.0.0.1", "router-1", "127.0.0.1 router-1"},
		{"192.0.2.1", "router-1", "192.0.2.1 router-1"},
	} {
		conn := new(connection)
		if c.peer != "" {
			conn.peer = netip.MustParseAddr(c.peer)
		}
		if got := a.clientOf(context.WithValue(t.Context(), connKey{}, conn), c.id); got != c.want {
			t.Errorf("peer %q, name %q: %q, want %q", c.peer, c.id, got, c.want)
		}
	}
}

func TestGateBoundsNewWatches(t *testing.T) {
	g := newGate(Options{
		MaxWatchers: 100, MaxWatchesPerConnection: 100, WatchesPerSecond: 1e-9, WatchBurst: 2,
		Exempt: netip.Addr.IsLoopback,
	})
	from := func(addr string) context.Context {
		return context.WithValue(t.Context(), connKey{}, &connection{peer: netip.MustParseAddr(addr)})
	}
	for i, want := range []bool{true, true, false} {
		if _, refused := g.enter(from("192.0.2.1")); (refused == nil) != want {
			t.Errorf("watch %d from elsewhere: %v", i, refused)
		}
		if _, refused := g.enter(from("127.0.0.1")); refused != nil {
			t.Errorf("watch %d from loopback: %v", i, refused)
		}
	}
}

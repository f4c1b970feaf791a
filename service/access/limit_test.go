package access

import (
	"net"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// queue is a listener over connections that are already there.
type queue struct {
	net.Listener
	conns chan net.Conn
}

func (q queue) Accept() (net.Conn, error) {
	c, ok := <-q.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// from is a connection from an address.
type from struct {
	net.Conn
	addr   net.Addr
	closed *bool
}

func (f from) RemoteAddr() net.Addr { return f.addr }
func (f from) Close() error         { *f.closed = true; return nil }

func connFrom(addr string) from {
	return from{addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)), closed: new(bool)}
}

func TestConnectionLimits(t *testing.T) {
	a, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := queue{conns: make(chan net.Conn, 20)}
	ln := a.Limit(q, "api", Limits{Total: 5, PerAddress: 2, Exempt: netip.Addr.IsLoopback})
	accept := func(addr string) net.Conn {
		t.Helper()
		q.conns <- connFrom(addr)
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	refused := func(addr string) {
		t.Helper()
		c := connFrom(addr)
		q.conns <- c
		q.conns <- connFrom("192.0.2.99:1") // the next one is taken
		next, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if !*c.closed || remoteAddr(next) != netip.MustParseAddr("192.0.2.99") {
			t.Errorf("%s was not refused", addr)
		}
		_ = next.Close()
	}
	first := accept("192.0.2.1:1")
	accept("[::ffff:192.0.2.1]:2")
	refused("192.0.2.1:3")
	_ = first.Close()
	_ = first.Close() // gives one place back, not two
	accept("192.0.2.1:4")
	refused("192.0.2.1:5")
	accept("127.0.0.1:1")
	accept("127.0.0.1:2")
	last := accept("127.0.0.1:3") // five are open
	q.conns <- connFrom("192.0.2.2:1")
	close(q.conns)
	if _, err := ln.Accept(); err == nil {
		t.Error("a sixth connection was accepted")
	}
	_ = last.Close()
	for reason, want := range map[string]float64{
		string(ReasonTooManyConnections): 1, string(ReasonTooManyConnectionsPerAddress): 2,
	} {
		if got := testutil.ToFloat64(a.metrics.refused.WithLabelValues("api", reason)); got != want {
			t.Errorf("%s counted %v times, want %v", reason, got, want)
		}
	}
	if got := testutil.ToFloat64(a.metrics.connections.WithLabelValues("api")); got != 4 {
		t.Errorf("%v connections counted, want 4", got)
	}
}

package control

import (
	"net"
	"net/http"
	"net/netip"
	"testing"
)

// far is a connection from an address.
type far struct {
	net.Conn
	from string
}

func (f far) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.from), 1))
}

// queue accepts connections in order.
type queue struct {
	net.Listener
	conns []net.Conn
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.conns) == 0 {
		return nil, net.ErrClosed
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	return c, nil
}

// comers has connections come from an address, and returns those that were let
// in.
func (r *room) comers(n int, from string) (in []net.Conn) {
	for range n {
		near, _ := net.Pipe()
		r.Listener = &queue{conns: []net.Conn{far{near, from}}}
		if c, err := r.Accept(); err == nil {
			in = append(in, c)
		}
	}
	return in
}

func open(c net.Conn) bool {
	g := c.(*guest)
	g.room.mu.Lock()
	defer g.room.mu.Unlock()
	for _, o := range g.room.guests {
		if o == g {
			return true
		}
	}
	return false
}

func TestRoomMakesWay(t *testing.T) {
	r := newRoom(nil)
	set := func(state http.ConnState, conns ...net.Conn) {
		for _, c := range conns {
			r.note(c, state)
		}
	}
	a := r.comers(maxOfAddress, "10.0.0.1")
	set(http.StateActive, a[1:]...)
	set(http.StateIdle, a[1])
	// The one that said nothing goes first, then the one without a request.
	more := r.comers(3, "10.0.0.1")
	if open(a[0]) || !open(a[1]) || len(more) != 3 || open(more[0]) || open(more[1]) || !open(more[2]) {
		t.Error("another one gave way than the oldest that said nothing")
	}
	set(http.StateActive, more[2])
	if in := r.comers(1, "10.0.0.1"); len(in) != 1 || open(a[1]) {
		t.Error("one without a request did not give way")
	} else {
		set(http.StateActive, in...)
	}
	if in := r.comers(1, "10.0.0.1"); len(in) != 0 {
		t.Error("one that is at work gave way, or there are too many of an address")
	}

	// The place of others is not taken by one address.
	b := r.comers(maxConnections-maxOfAddress, "10.0.0.2")
	if len(b) != maxConnections-maxOfAddress || len(r.guests) != maxConnections {
		t.Fatalf("%d came, %d are there", len(b), len(r.guests))
	}
	if in := r.comers(1, "10.0.0.3"); len(in) != 1 || open(b[0]) || len(r.guests) != maxConnections {
		t.Error("nobody gave way to a third address")
	}
	for _, g := range append([]*guest(nil), r.guests...) {
		_ = g.Close()
	}
	if len(r.guests) != 0 {
		t.Errorf("%d are left", len(r.guests))
	}
}

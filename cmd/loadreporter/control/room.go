package control

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// room is a listener that bounds its connections. For one that is too many, the
// one gives way that is open longest of those without a request: first of those
// that never had one. Where all have one, the new connection is closed. It is
// safe for concurrent use.
type room struct {
	net.Listener
	mu sync.Mutex
	// guests are those that are open, the one of longest standing first.
	guests []*guest
}

func newRoom(ln net.Listener) *room { return &room{Listener: ln} }

// guest is an open connection. Its fields below from belong to the mutex of the
// room.
type guest struct {
	net.Conn
	room *room
	// from is the address of the peer; invalid for a unix socket.
	from  netip.Addr
	state http.ConnState
}

// Accept returns the next connection for which there is room.
func (r *room) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g := &guest{Conn: c, room: r, state: http.StateNew}
		if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			g.from = a.Addr().Unmap()
		}
		out, ok := r.enter(g)
		if out != nil {
			_ = out.Close()
		}
		if ok {
			return g, nil
		}
		_ = c.Close()
	}
}

// enter lets a connection in, and returns the one that gives way to it; nil for
// none.
func (r *room) enter(g *guest) (out *guest, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	same := 0
	for _, o := range r.guests {
		if g.from.IsValid() && o.from == g.from {
			same++
		}
	}
	if full := same >= maxOfAddress; full || len(r.guests) >= maxConnections {
		if out = r.idle(g.from, full); out == nil {
			return nil, false
		}
	}
	r.guests = append(r.guests, g)
	return out, true
}

// idle takes out the connection that gives way, of those from an address or of
// all; nil for none.
func (r *room) idle(from netip.Addr, only bool) *guest {
	for _, state := range []http.ConnState{http.StateNew, http.StateIdle} {
		for i, g := range r.guests {
			if g.state == state && (!only || g.from == from) {
				r.guests = append(r.guests[:i], r.guests[i+1:]...)
				return g
			}
		}
	}
	return nil
}

// note notes the state of a connection. It is the ConnState of a server.
func (r *room) note(c net.Conn, state http.ConnState) {
	g, ok := c.(*guest)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g.state = state
}

// Close closes the connection, and gives its place back.
func (g *guest) Close() error {
	g.room.mu.Lock()
	for i, o := range g.room.guests {
		if o == g {
			g.room.guests = append(g.room.guests[:i], g.room.guests[i+1:]...)
			break
		}
	}
	g.room.mu.Unlock()
	return g.Conn.Close()
}

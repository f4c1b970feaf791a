package access

import (
	"net"
	"net/netip"
	"sync"

	"github.com/loadplane/loadplane/store"
)

// Limits bound the connections of one listener.
type Limits struct {
	// Total bounds all connections.
	Total int
	// PerAddress bounds those from one remote address. It does not hold for
	// exempt ones.
	PerAddress int
	// Exempt says which addresses may have more than PerAddress: loopback, and
	// proxies that speak for many.
	Exempt func(netip.Addr) bool
}

// Limit returns a listener that closes connections above the limits as soon as
// they are accepted, so that a peer is refused and not left waiting. The name
// labels metrics and must be one of a few.
func (a *Access) Limit(ln net.Listener, name string, limits Limits) net.Listener {
	return &limited{Listener: ln, name: name, limits: limits, metrics: a.metrics, from: map[netip.Addr]int{}}
}

// limited is safe for concurrent use.
type limited struct {
	net.Listener
	name    string
	limits  Limits
	metrics *metrics

	mu   sync.Mutex
	open int
	from map[netip.Addr]int // open connections by address, exempt ones left out
}

// Accept returns the next connection within the limits.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := remoteAddr(c)
		if reason := l.enter(addr); reason != "" {
			l.metrics.refuse(l.name, reason)
			_ = c.Close()
			continue
		}
		return &counted{Conn: c, closed: sync.OnceFunc(func() { l.leave(addr) })}, nil
	}
}

// remoteAddr returns the unmapped address of the far end; the zero Addr where
// it has none.
func remoteAddr(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

func (l *limited) bound(addr netip.Addr) bool { return addr.IsValid() && !l.limits.Exempt(addr) }

// enter counts a connection in, or says why it may not.
func (l *limited) enter(addr netip.Addr) store.Reason {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limits.Total {
		return ReasonTooManyConnections
	}
	if l.bound(addr) {
		if l.from[addr] >= l.limits.PerAddress {
			return ReasonTooManyConnectionsPerAddress
		}
		l.from[addr]++
	}
	l.open++
	l.metrics.connected(l.name, 1)
	return ""
}

func (l *limited) leave(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.metrics.connected(l.name, -1)
	if !l.bound(addr) {
		return
	}
	if l.from[addr]--; l.from[addr] == 0 {
		delete(l.from, addr)
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	closed func()
}

// Close closes the connection.
func (c *counted) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

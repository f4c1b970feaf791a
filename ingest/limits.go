package ingest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// handshake gives every connection a count of its streams. It wraps the
// credentials, since what a handshake returns is what the streams of one
// connection share.
type handshake struct {
	credentials.TransportCredentials
}

func (h handshake) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(c)
	if err != nil {
		return nil, nil, err
	}
	return secured, &shared{AuthInfo: info}, nil
}

func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone()}
}

// shared is what the streams of one connection have in common.
type shared struct {
	credentials.AuthInfo
	streams atomic.Int64
}

// connection returns what the stream's connection shares, and a context whose
// peer has the authentication that the credentials made.
func connection(ctx context.Context) (context.Context, *shared) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, &shared{}
	}
	s, ok := p.AuthInfo.(*shared)
	if !ok {
		return ctx, &shared{}
	}
	plain := *p
	plain.AuthInfo = s.AuthInfo
	return peer.NewContext(ctx, &plain), s
}

// maxCallers bounds the addresses that are remembered.
const maxCallers = 4096

// callers bounds how often each address calls. It is safe for concurrent use.
type callers struct {
	limit rate.Limit
	burst int

	mu   sync.Mutex
	seen map[netip.Addr]*rate.Limiter
}

func newCallers(limit rate.Limit, burst int) *callers {
	return &callers{limit: limit, burst: burst, seen: make(map[netip.Addr]*rate.Limiter)}
}

// allow says whether an address may call now. Where there are too many
// addresses all are forgotten: those that call too often must not cost the
// others their calls.
func (c *callers) allow(addr netip.Addr) bool {
	addr = addr.WithZone("")
	if p, err := addr.Prefix(64); err == nil && addr.Is6() {
		addr = p.Addr()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.seen[addr]
	if l == nil {
		if len(c.seen) >= maxCallers {
			clear(c.seen)
		}
		l = rate.NewLimiter(c.limit, c.burst)
		c.seen[addr] = l
	}
	return l.Allow()
}

// Peer returns the remote address of a stream, an IPv4 address in IPv6 form
// unmapped; the zero AddrPort where it is not an IP address.
func Peer(ctx context.Context) netip.AddrPort {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.AddrPort{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		a := tcp.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	a, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

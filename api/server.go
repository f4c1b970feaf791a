package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// NewHTTPServer returns a server for an API's handler with the limits that
// streams need: HTTP/1.1 and HTTP/2, on one port, without TLS (prior
// knowledge) or with tlsConfig; pings that find dead peers; and no time limit
// for writing, since each send has its own. A nil logger is the default one.
func NewHTTPServer(h http.Handler, tlsConfig *tls.Config, logger *slog.Logger) *http.Server {
	if logger == nil {
		logger = slog.Default()
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(tlsConfig != nil)
	protocols.SetUnencryptedHTTP2(tlsConfig == nil)
	return &http.Server{
		Handler:           h,
		TLSConfig:         tlsConfig,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    32 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      10 * time.Second,
			PingTimeout:          5 * time.Second,
		},
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, &connection{peer: peerOf(c)})
		},
	}
}

// connKey finds the connection of a request.
type connKey struct{}

// connection is what the watches of one connection share.
type connection struct {
	// peer is the zero Addr where it is not an IP address.
	peer    netip.Addr
	watches atomic.Int64
}

func peerOf(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}

// gate admits watches: all at once, each on one connection. It is safe for
// concurrent use.
type gate struct {
	all, each int
	open      atomic.Int64
	// rate bounds new watches of peers that are not exempt.
	rate   *rate.Limiter
	exempt func(netip.Addr) bool
}

func newGate(o Options) gate {
	return gate{
		all: o.MaxWatchers, each: o.MaxWatchesPerConnection,
		rate: rate.NewLimiter(rate.Limit(o.WatchesPerSecond), o.WatchBurst), exempt: o.Exempt,
	}
}

// enter admits a watch and returns how it leaves, or the refusal.
func (g *gate) enter(ctx context.Context) (leave func(), refused *refusal) {
	conn, ok := ctx.Value(connKey{}).(*connection)
	if !ok {
		conn = &connection{}
	}
	if !take(&conn.watches, g.each) {
		return nil, refuseTooMany(ReasonTooManyWatchesPerConnection, g.each)
	}
	if !take(&g.open, g.all) {
		conn.watches.Add(-1)
		return nil, refuseTooMany(ReasonTooManyWatchers, g.all)
	}
	leave = func() {
		conn.watches.Add(-1)
		g.open.Add(-1)
	}
	// Last, so that what is refused for another reason takes nothing of it.
	if conn.peer.IsValid() && !g.exempt(conn.peer) && !g.rate.Allow() {
		leave()
		return nil, refuseTooMany(ReasonWatchRate, g.rate.Burst())
	}
	return leave, nil
}

func take(n *atomic.Int64, limit int) bool {
	if n.Add(1) <= int64(limit) {
		return true
	}
	n.Add(-1)
	return false
}

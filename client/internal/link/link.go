// Package link is the way of a client to a plane: an HTTP client and its
// connections.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Time-outs.
const (
	// DialTimeout bounds connecting and, apart, the TLS handshake.
	DialTimeout = 5 * time.Second
	// A connection that brings nothing for pingAfter is pinged, and given up
	// when nothing comes for pingTimeout more. Servers may refuse clients that
	// ping more often than every 10 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// writeTimeout is after how long a connection that takes nothing is given
	// up.
	writeTimeout = 5 * time.Second
)

// DialFunc connects, as that of net.Dialer does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Link is the way to a plane for one stream: an HTTP client and, unless that is
// the user's, a connection of its own. A stream that is cut because its
// connection is dead never leaves that connection to the next one. It is safe
// for concurrent use.
type Link struct {
	client    *http.Client
	transport *http.Transport
	dial      DialFunc
	// over ends when the link is closed, and what is on its way with it.
	over context.Context
	end  context.CancelFunc

	mu    sync.Mutex
	conns []net.Conn
}

// CheckAddress says what is wrong with a base URL. It does not repeat what it
// refuses: that may hold a password.
func CheckAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("want http://HOST:PORT or https://HOST:PORT")
	}
	if u.User != nil || strings.ContainsAny(address, "?#") {
		return errors.New("want no user, query or fragment in an address")
	}
	return nil
}

// Over returns the way over a client of the user's. Redirects are not followed:
// they would lead where nobody configured. A time limit would end streams.
func Over(c *http.Client) *Link {
	own := *c
	own.CheckRedirect, own.Timeout = noRedirect, 0
	return &Link{client: &own}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Client returns the HTTP client.
func (l *Link) Client() *http.Client { return l.client }

// New returns the way to a base URL over connections that dial makes. A nil
// config is the default one of crypto/tls.
func New(address string, config *tls.Config, dial DialFunc) *Link {
	protocols := new(http.Protocols)
	if strings.HasPrefix(strings.ToLower(address), "https:") {
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	l := &Link{dial: dial}
	l.over, l.end = context.WithCancel(context.Background())
	if config != nil {
		config = config.Clone() // the transport writes to it
	}
	l.transport = &http.Transport{
		DialContext: l.connect, TLSClientConfig: config, TLSHandshakeTimeout: DialTimeout,
		Protocols: protocols, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: writeTimeout},
	}
	l.client = &http.Client{Transport: l.transport, CheckRedirect: noRedirect}
	return l
}

// connect dials and keeps the connection to close it.
func (l *Link) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.over, cancel)()
	c, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over.Err() != nil {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	l.conns = append(l.conns, c)
	return c, nil
}

// Close closes the connections of the link, those that are on their way too. A
// client of the user's keeps its own.
func (l *Link) Close() {
	if l.transport == nil {
		return
	}
	l.end()
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	l.transport.CloseIdleConnections()
}

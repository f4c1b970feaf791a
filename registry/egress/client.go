package egress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
)

// Limits that hold for every request.
const (
	// MaxHeaderBytes bounds the header of an answer, interim answers included.
	MaxHeaderBytes = 64 << 10
	readChunk      = 16 << 10
)

// Dial connects to host:port. It must give up when ctx ends.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Options configure a Client. It is a plain value.
type Options struct {
	// Dial is nil for DefaultDial.
	Dial Dial
	// TokenFile and CAFile are the credentials; empty for none, and for the
	// roots of the system. They are read when they changed.
	TokenFile, CAFile string
}

// Client makes requests to one engine over one kept connection, one at a
// time, in the goroutine of the caller. Close it after use. It is safe for
// concurrent use: a request waits for the one before, which its context does
// not shorten.
type Client struct {
	dial  Dial
	token credential
	ca    credential

	mu   sync.Mutex
	tls  *tls.Config
	kept *conn
}

// Request is one request. It is a plain value.
type Request struct {
	// URL is absolute, http or https.
	URL string
	// Accept is the wanted content type; empty for any.
	Accept string
	// MaxBytes bounds the body, at least 1.
	MaxBytes int
	// Buffer is used for the body where it has room; may be nil.
	Buffer []byte
}

// Answer is an answer of any status. It is for one goroutine.
type Answer struct {
	Status int
	Body   []byte
	// Peer is the remote address of the connection; the zero AddrPort where it
	// is not TCP.
	Peer netip.AddrPort
}

// New returns a client. It starts nothing.
func New(opts Options) *Client {
	if opts.Dial == nil {
		opts.Dial = DefaultDial
	}
	return &Client{dial: opts.Dial, token: credential{path: opts.TokenFile}, ca: credential{path: opts.CAFile}}
}

// Close ends the kept connection.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
}

func (c *Client) drop() {
	if c.kept != nil {
		c.kept.Close()
		c.kept = nil
	}
}

// Get makes a request and reads the answer whole, whatever its status; a
// redirect is an answer like others. ctx bounds all of it. Errors wrap one of
// the package's. Where the error is about the body, the answer is there as
// well, without the body: its status may say more.
func (c *Client) Get(ctx context.Context, r Request) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.authorize(req); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCredential, err)
	}
	req.Header.Set("User-Agent", "loadplane")
	req.Header.Set("Accept", cmp.Or(r.Accept, "*/*"))
	return c.try(req, r)
}

// authorize reads the credentials. A connection that was trusted by another
// CA file is not used again. The caller holds c.mu.
func (c *Client) authorize(req *http.Request) error {
	data, _, err := c.token.read()
	if err != nil {
		return err
	}
	token, err := parseToken(c.token.path, data)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	data, changed, err := c.ca.read()
	if err != nil {
		return err
	}
	if c.tls != nil && !changed {
		return nil
	}
	c.drop()
	roots, err := parseRoots(c.ca.path, data)
	if err != nil {
		c.tls = nil
		return err
	}
	c.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	return nil
}

// try sends a request over the kept connection, and over a new one where that
// turns out to be closed by the engine. The caller holds c.mu.
func (c *Client) try(req *http.Request, r Request) (*Answer, error) {
	target := target(req.URL)
	if c.kept != nil && c.kept.target == target {
		a, err := c.exchange(c.kept, req, r)
		if !errors.Is(err, errIdleEnd) {
			return a, err
		}
	}
	c.drop()
	fresh, err := c.connect(req.Context(), req.URL)
	if err != nil {
		return nil, err
	}
	c.kept = fresh
	return c.exchange(fresh, req, r)
}

// target names what a connection is for.
func target(u *url.URL) string { return u.Scheme + "://" + u.Host }

// connect dials, and agrees on TLS where the scheme wants it.
func (c *Client) connect(ctx context.Context, u *url.URL) (*conn, error) {
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%w: the scheme %q is neither http nor https", ErrConnect, u.Scheme)
	case port == "" && u.Scheme == "https":
		port = "443"
	case port == "":
		port = "80"
	}
	raw, err := c.dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	peer := peerOf(raw)
	if u.Scheme == "https" {
		config := c.tls.Clone()
		config.ServerName = u.Hostname()
		secured := tls.Client(raw, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("%w: %w", ErrTLS, err)
		}
		raw = secured
	}
	return newConn(raw, target(u), peer), nil
}

// exchange sends a request over a connection and reads the answer. It keeps
// the connection only where nothing is left on it. The caller holds c.mu.
func (c *Client) exchange(on *conn, req *http.Request, r Request) (*Answer, error) {
	ctx := req.Context()
	release := context.AfterFunc(ctx, on.interrupt)
	a, err := on.exchange(req, r)
	if !release() || err != nil || on.spent {
		c.drop()
	}
	if err != nil {
		return a, classify(ctx, err)
	}
	return a, nil
}

// classify makes an error of an exchange one of the package's.
func classify(ctx context.Context, err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrEncoding):
		return err
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: %w", ErrTimeout, cmp.Or(ctx.Err(), err))
	case errors.Is(err, errIdleEnd):
		return err
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// readAll reads a body into the buffer of a request.
func readAll(body io.Reader, r Request) ([]byte, error) {
	buf := r.Buffer[:0]
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(readChunk, cap(buf)/2))
		}
		n, err := body.Read(buf[len(buf):min(cap(buf), r.MaxBytes+1)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > r.MaxBytes:
			return nil, tooLarge(r.MaxBytes)
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		}
	}
}

func tooLarge(limit int) error { return fmt.Errorf("%w: above %d bytes", ErrTooLarge, limit) }

func peerOf(c net.Conn) netip.AddrPort {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	a := tcp.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

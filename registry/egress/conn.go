package egress

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// errIdleEnd: the engine closed a kept connection before it sent a byte of the
// answer, so the request can be made again.
var errIdleEnd = fmt.Errorf("%w: the kept connection is closed", ErrBroken)

var errLongHeader = fmt.Errorf("%w: a header above %d bytes", ErrTooLarge, MaxHeaderBytes)

// conn is a connection that carries one request after the other.
//
// A transport of net/http keeps two goroutines for each connection, dials on
// when a request was given up, and writes what comes unasked to the log of the
// process. Here nothing goes on between requests.
type conn struct {
	net.Conn
	target string
	peer   netip.AddrPort
	reader *bufio.Reader
	// used says that an answer came over it, spent that none may come again.
	used, spent bool
	// header is how many bytes of it may still come; below 0 for no limit.
	header int
}

func newConn(c net.Conn, target string, peer netip.AddrPort) *conn {
	wrapped := &conn{Conn: c, target: target, peer: peer}
	wrapped.reader = bufio.NewReader(limited{wrapped})
	return wrapped
}

// limited reads from a connection within the limit of the header. A read may
// take a part of the body as well; the limit is lifted before the next.
type limited struct{ *conn }

func (l limited) Read(b []byte) (int, error) {
	switch {
	case l.header == 0:
		return 0, errLongHeader
	case l.header > 0 && len(b) > l.header:
		b = b[:l.header]
	}
	n, err := l.Conn.Read(b)
	if l.header > 0 {
		l.header -= n
	}
	return n, err
}

// interrupt makes all reads and writes of the connection fail from now on.
func (c *conn) interrupt() {
	// A connection that cannot is closed.
	if c.SetDeadline(time.Unix(1, 0)) != nil {
		c.Close()
	}
}

// exchange sends a request and reads its answer.
func (c *conn) exchange(req *http.Request, r Request) (*Answer, error) {
	c.header = MaxHeaderBytes
	reused := c.used
	c.used = true
	if err := c.send(req); err != nil {
		return nil, c.idle(reused, err)
	}
	if _, err := c.reader.Peek(1); err != nil {
		return nil, c.idle(reused, err)
	}
	resp, err := c.response(req)
	if err != nil {
		return nil, err
	}
	if reused && resp.StatusCode == http.StatusRequestTimeout {
		// It was sent before the request, as the connection was idle for long.
		return nil, errIdleEnd
	}
	c.header = -1
	return c.finish(resp, r)
}

func (c *conn) send(req *http.Request) error {
	w := bufio.NewWriterSize(c.Conn, 1<<10)
	if err := req.Write(w); err != nil {
		return err
	}
	return w.Flush()
}

// idle tells a kept connection that the engine had closed from other errors.
func (c *conn) idle(reused bool, err error) error {
	var timeout net.Error
	if !reused || errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	return errIdleEnd
}

// response reads the header of the answer. Interim answers are passed over.
func (c *conn) response(req *http.Request) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(c.reader, req)
		switch {
		case err != nil && c.header == 0:
			// The line that was cut off may have been called malformed.
			return nil, errLongHeader
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the engine switches protocols")
		case resp.StatusCode >= 200:
			return resp, nil
		}
	}
}

// finish reads the body. The connection is spent where something is left on
// it that would be taken for the next answer.
func (c *conn) finish(resp *http.Response, r Request) (*Answer, error) {
	a := &Answer{Status: resp.StatusCode, Peer: c.peer}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return a, ErrEncoding
	}
	if resp.ContentLength > int64(r.MaxBytes) {
		return a, tooLarge(r.MaxBytes)
	}
	body, err := readAll(resp.Body, r)
	// The body is read to its end, or the connection is not used again. Close
	// would read on, as far as the engine sends.
	if err == nil {
		err = resp.Body.Close()
	}
	if err != nil {
		return a, err
	}
	a.Body = body
	c.spent = resp.Close || c.reader.Buffered() > 0
	return a, nil
}

package egress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is what a client connects to in memory: each connection is served by
// serve, which gets the requests of that connection.
type engine struct {
	t     *testing.T
	dials atomic.Int64
	serve func(c net.Conn, requests *bufio.Reader)
}

func (e *engine) dial(context.Context, string, string) (net.Conn, error) {
	e.dials.Add(1)
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		e.serve(far, bufio.NewReader(far))
	}()
	return near, nil
}

// answering serves each request with the same bytes.
func answering(t *testing.T, answer string) *engine {
	return &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(requests); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}}
}

func (e *engine) client() *Client {
	c := New(Options{Dial: e.dial})
	e.t.Cleanup(c.Close)
	return c
}

// get makes one request within two seconds.
func get(t *testing.T, c *Client) (*Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return c.Get(ctx, Request{URL: "http://10.0.0.1:30000/page?x=1", MaxBytes: 1 << 20})
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// good is a complete answer that keeps the connection.
const good = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nload"

func chunked(body string) string {
	return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n" + body + "\r\n0\r\n\r\n"
}

func long(n int) string { return strings.Repeat("x", n) }

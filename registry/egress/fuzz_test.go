package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// FuzzAnswer lets an engine answer with any bytes, twice over one connection.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		good, good + good, chunked("load"), "HTTP/1.0 200 OK\r\n\r\nload", "HTTP/1.1 103 Early Hints\r\n\r\n" + good,
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 401 No\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 408 No\r\n\r\n", "\r\n", "",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
	} {
		f.Add([]byte(seed))
	}
	const most = 100
	f.Fuzz(func(t *testing.T, answer []byte) {
		e := &engine{t: t, serve: func(c net.Conn, requests *bufio.Reader) {
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			go func() { _, _ = io.Copy(io.Discard, requests) }()
			_, _ = c.Write(answer)
		}}
		c := New(Options{Dial: e.dial})
		defer c.Close()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			a, err := c.Get(ctx, Request{URL: "http://10.0.0.1:1/", MaxBytes: most})
			cancel()
			if err == nil && (a.Status < 200 || len(a.Body) > most) {
				t.Fatalf("got status %d with %d bytes", a.Status, len(a.Body))
			}
			if err != nil && (a != nil && a.Body != nil || !known(err)) {
				t.Fatalf("got %+v, %v", a, err)
			}
		}
	})
}

// known says whether an error wraps exactly one of the package's.
func known(err error) bool {
	n := 0
	for _, e := range []error{ErrCredential, ErrConnect, ErrTLS, ErrTimeout, ErrBroken, ErrTooLarge, ErrEncoding} {
		if errors.Is(err, e) {
			n++
		}
	}
	return n == 1
}

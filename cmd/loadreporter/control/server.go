package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of a server.
const (
	maxHeaderBytes  = 16 << 10
	readTimeout     = 5 * time.Second
	writeTimeout    = 10 * time.Second
	idleTimeout     = 30 * time.Second
	shutdownTimeout = time.Second
	// maxConnections is how many connections are open at once; more are closed.
	maxConnections = 128
)

// Serve answers requests until ctx ends, and then lets those under way end for
// a second. It closes ln. Contexts of requests end with ctx.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(&limited{Listener: ln, free: maxConnections}) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if srv.Shutdown(bound) != nil {
		_ = srv.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// limited closes connections above a number. It is safe for concurrent use.
type limited struct {
	net.Listener
	mu   sync.Mutex
	free int
}

// Accept returns the next connection for which there is room.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.enter() {
			return &counted{Conn: c, leave: sync.OnceFunc(l.leave)}, nil
		}
		_ = c.Close()
	}
}

func (l *limited) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free == 0 {
		return false
	}
	l.free--
	return true
}

func (l *limited) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free++
}

// counted is a connection that gives its place back.
type counted struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

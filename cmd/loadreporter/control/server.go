package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Bounds of a server.
const (
	maxHeaderBytes  = 16 << 10
	readTimeout     = 5 * time.Second
	writeTimeout    = 10 * time.Second
	idleTimeout     = 30 * time.Second
	shutdownTimeout = time.Second
	// maxConnections is how many connections are open at once, and maxOfAddress
	// how many from one address.
	maxConnections = 128
	maxOfAddress   = 64
)

// Serve answers requests until ctx ends, and then lets those under way end for
// a second. It closes ln. Contexts of requests end with ctx.
func Serve(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	r := newRoom(ln)
	srv.ConnState = r.note
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(r) }()
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

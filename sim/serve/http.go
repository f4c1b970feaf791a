package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Times of the HTTP side.
const (
	headerTimeout   = 5 * time.Second
	shutdownTimeout = time.Second
)

// ErrAbort as the cause of a context's end makes HTTP cut its connections.
var ErrAbort = errors.New("the engine went down")

// HTTP answers on l, which it closes, until ctx ends. Calls that are being
// answered then have a second, unless the cause is ErrAbort. The error is that
// of l. Connections that fail are logged for debugging.
func HTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if errors.Is(context.Cause(ctx), ErrAbort) || srv.Shutdown(patience) != nil {
		_ = srv.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

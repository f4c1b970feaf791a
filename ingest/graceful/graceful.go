// Package graceful runs gRPC servers until they are told to end.
package graceful

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
)

// Grace is how long handlers have to end by themselves before their
// connections are closed.
const Grace = 2 * time.Second

// Serve serves on l until ctx ends or serving fails, calls ending once, and
// ends the server: gracefully within Grace, then hard; at once after a failure.
// It blocks until every handler returned, where the server waits for them, and
// closes l. It returns nil after an end by ctx.
func Serve(ctx context.Context, s *grpc.Server, l net.Listener, ending func()) error {
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		ending()
		s.Stop()
		return err
	case <-ctx.Done():
	}
	ending()
	stop(s)
	if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was told to stop before it began.
}

func stop(s *grpc.Server) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.GracefulStop()
	}()
	grace := time.NewTimer(Grace)
	defer grace.Stop()
	select {
	case <-drained:
	case <-grace.C:
		s.Stop()
		<-drained
	}
}

package health

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"github.com/loadplane/loadplane/store"
)

// Checker is grpc.health.v1 over the readiness of the plane. All fields are
// required; they must not be changed. It is safe for concurrent use.
type Checker struct {
	// Services are the names that can be asked for beside the empty one.
	Services []string
	// Ready says whether the plane is ready.
	Ready func(ctx context.Context) bool
	// Admit counts a watch in, or refuses it.
	Admit func(ctx context.Context) (leave func(), err error)
	// Store tells when the readiness may have changed.
	Store *store.Store
	// Heartbeat is the longest time between two looks.
	Heartbeat time.Duration
	// Drain closes when the plane is about to stop.
	Drain <-chan struct{}
}

// Check answers for the whole plane and for each of its services.
func (c *Checker) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if err := c.known(req.Service); err != nil {
		return nil, err
	}
	status := grpchealth.StatusNotServing
	if c.Ready(ctx) {
		status = grpchealth.StatusServing
	}
	return &grpchealth.CheckResponse{Status: status}, nil
}

func (c *Checker) known(name string) error {
	if name == "" || slices.Contains(c.Services, name) {
		return nil
	}
	return connect.NewError(connect.CodeNotFound, errors.New("the service does not exist"))
}

// Watch calls onChange when the readiness may have changed, until stop. It
// counts as a watch.
func (c *Checker) Watch(ctx context.Context, req *grpchealth.CheckRequest, onChange func()) (stop func(), err error) {
	if err := c.known(req.Service); err != nil {
		return nil, err
	}
	leave, err := c.Admit(ctx)
	if err != nil {
		return nil, err
	}
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { c.follow(stopped, onChange) })
	return func() {
		close(stopped)
		running.Wait()
		leave()
	}, nil
}

// follow calls onChange at every version, at every heartbeat, and once at the
// drain.
func (c *Checker) follow(stopped <-chan struct{}, onChange func()) {
	drain := c.Drain
	timer := time.NewTicker(c.Heartbeat)
	defer timer.Stop()
	for {
		_, stale := c.Store.Current()
		select {
		case <-stopped:
			return
		case <-stale:
		case <-timer.C:
		case <-drain:
			drain = nil
		}
		onChange()
	}
}

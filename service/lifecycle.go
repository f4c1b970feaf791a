package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// component is a part of the service that runs.
type component struct {
	name string
	// run blocks until ctx ends or, where there is a stop, stop was called.
	run func(ctx context.Context) error
	// stop asks run to return and may block for that until ctx ends. nil
	// stands for ending run's context.
	stop func(ctx context.Context) error
	// kill makes run return at once; nil where its context does.
	kill func() error
}

// running is a component with its own context.
type running struct {
	component
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// lifecycle starts components in order and stops them last in, first out. It
// is for one goroutine.
type lifecycle struct {
	logger *slog.Logger
	// timeout bounds the shutdown. Each component may drain for half of what
	// is left of it; grace is for those that end late.
	timeout, grace time.Duration
}

// errStopped is the fault of a component that ends before it was told to.
var errStopped = errors.New("stopped on its own")

// run blocks until ctx ends or a component fails, then takes all down. before
// is called first of all when that begins.
func (l lifecycle) run(ctx context.Context, components []component, before func()) error {
	group, failed := errgroup.WithContext(ctx)
	var live []*running
	for _, c := range components {
		live = append(live, l.start(ctx, group, c))
	}
	<-failed.Done()
	l.logger.Info("draining", "timeout", l.timeout.String(), "signalled", ctx.Err() != nil)
	before()
	stuck := l.teardown(ctx, live)
	var errs []error
	for _, r := range live {
		select {
		case <-r.done:
			errs = append(errs, r.err)
		default:
		}
	}
	l.logger.Info("stopped")
	return errors.Join(append(errs, stuck)...)
}

func (l lifecycle) start(ctx context.Context, group *errgroup.Group, c component) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{component: c, cancel: cancel, done: make(chan struct{})}
	stopping := make(chan struct{})
	if stop := c.stop; stop != nil {
		r.stop = func(ctx context.Context) error { close(stopping); return stop(ctx) }
	}
	group.Go(func() error {
		defer close(r.done)
		err := c.run(own)
		asked := own.Err() != nil
		select {
		case <-stopping:
			asked = true
		default:
		}
		switch {
		case err == nil && !asked:
			err = errStopped
		case asked && errors.Is(err, context.Canceled):
			err = nil
		}
		if err != nil {
			r.err = fmt.Errorf("%s: %w", c.name, err)
			l.logger.Error("component failed", "component", c.name, "error", err)
		}
		return r.err
	})
	return r
}

// teardown stops all in reverse order and returns an error that names those
// that did not stop.
func (l lifecycle) teardown(ctx context.Context, live []*running) error {
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	for _, r := range slices.Backward(live) {
		l.stop(hard, r)
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.grace)
	defer cancel()
	var errs []error
	for _, r := range live {
		if !r.ended(late) {
			errs = append(errs, fmt.Errorf("%s: did not stop", r.name))
		}
	}
	return errors.Join(errs...)
}

// stop returns when the component ended or hard did.
func (l lifecycle) stop(hard context.Context, r *running) {
	begin := time.Now()
	deadline, _ := hard.Deadline()
	soft, cancel := context.WithTimeout(hard, time.Until(deadline)/2)
	defer cancel()
	defer r.cancel()
	if err := r.ask(soft); err != nil {
		l.logger.Warn("component did not drain; it is cut", "component", r.name, "error", err)
		r.cut(l.logger)
	}
	if r.ended(hard) {
		l.logger.Info("component stopped", "component", r.name, "took", time.Since(begin).String())
	}
}

// ended waits for the end of the component; false when ctx ended first.
func (r *running) ended(ctx context.Context) bool {
	select {
	case <-r.done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// ask has the component stop by itself and waits for that until ctx ends.
func (r *running) ask(ctx context.Context) error {
	if r.stop == nil {
		r.cancel()
	} else if err := r.stop(ctx); err != nil {
		return err
	}
	if !r.ended(ctx) {
		return ctx.Err()
	}
	return nil
}

// cut ends a component that did not drain in time.
func (r *running) cut(logger *slog.Logger) {
	r.cancel()
	if r.kill == nil {
		return
	}
	if err := r.kill(); err != nil {
		logger.Warn("component not cut", "component", r.name, "error", err)
	}
}

package monitor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// DefaultCallTimeout bounds each step of a session.
	DefaultCallTimeout = 2 * time.Second
	// defaultLease is asked for where the registry names none.
	defaultLease = 15 * time.Second
	// maxRouterID is the length of the longest RouterID.
	maxRouterID = 128
)

// Options configure a Monitor.
type Options struct {
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// StaleAfter is the age at which a report stops being fresh. A session
	// without a report for longer, and for three intervals, is ended. Required.
	StaleAfter time.Duration
	// MaxRanks bounds the ranks of a report; 0 for ingest.DefaultMaxRanks, at
	// most ingest.HardMaxRanks.
	MaxRanks int
	// Dial connects to engines; nil for egress.DefaultDial.
	Dial egress.Dial
	// CallTimeout bounds the opening of a session, the answer to its
	// registration and the sending of each frame; 0 for DefaultCallTimeout.
	CallTimeout time.Duration
	// RouterID names the plane to engines: a session takes the place of an
	// older one of the same name. Empty for a random one; at most 128 bytes,
	// not only white space.
	RouterID string
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	switch {
	case o.Clock == nil:
		return errors.New("monitor: Clock is missing")
	case o.StaleAfter <= 0:
		return fmt.Errorf("monitor: StaleAfter %s is not positive", o.StaleAfter)
	case o.CallTimeout < 0:
		return fmt.Errorf("monitor: CallTimeout %s is negative", o.CallTimeout)
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("monitor: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	case len(o.RouterID) > maxRouterID || (o.RouterID != "" && strings.TrimSpace(o.RouterID) == ""):
		return fmt.Errorf("monitor: RouterID %.150q is blank or above %d bytes", o.RouterID, maxRouterID)
	}
	o.fill()
	return nil
}

func (o *Options) fill() {
	if o.MaxRanks == 0 {
		o.MaxRanks = ingest.DefaultMaxRanks
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.RouterID == "" {
		o.RouterID = "loadplane-" + rand.Text()
	}
	if o.Dial == nil {
		o.Dial = egress.DefaultDial
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Monitor keeps sessions with the load reporters of engines. It implements
// registry.Dialer and is safe for concurrent use.
//
// The registry calls Serve for the workers of the dialect:
//
//	m, err := monitor.New(monitor.Options{Clock: clock, StaleAfter: 3 * time.Second})
//	...
//	r, err := registry.New(registry.Options{
//		Dialers: map[store.Dialect]registry.Dialer{store.DialectMonitor: m},
//		...
//	})
type Monitor struct {
	opts    Options
	metrics *metrics
	sources loadreport.Sources
	// crashes bounds the lines about panics.
	crashes rate.Sometimes
}

// New checks the options. It starts nothing.
func New(opts Options) (*Monitor, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("monitor: %w", err)
	}
	return &Monitor{opts: opts, metrics: m, crashes: rate.Sometimes{Interval: time.Minute}}, nil
}

// Serve keeps a session with the load reporter of an engine until ctx ends; it
// then tells the engine to stop and returns within 200 ms. Sessions that end are
// opened again, from 200 ms doubling to 5 s, spread over the whole time.
//
// It returns registry.ReasonUnsupported where the engine answers UNIMPLEMENTED,
// registry.ReasonAuth where it answers UNAUTHENTICATED or PERMISSION_DENIED, the
// reason of the refusal where another stream speaks for the worker, and the last
// reason where an engine that reported was not heard for a lease, at least ten
// seconds, so that it may be asked anew what it offers.
func (m *Monitor) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	l := &loop{monitor: m, engine: e}
	for ctx.Err() == nil {
		why := l.session(ctx)
		switch {
		case why == nil:
			return ""
		case l.over(why):
			return why.reason
		case !why.moved:
			l.wait(ctx)
		}
	}
	return ""
}

// target returns what is known of the worker, with what is not set filled in.
func (m *Monitor) target(e *registry.Engine) registry.Target {
	t := e.Target()
	if t.Lease <= 0 {
		t.Lease = defaultLease
	}
	t.Interval = max(t.Interval, time.Millisecond)
	return t
}

package loadstat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Options configure a Subscriber.
type Options struct {
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// StaleAfter is the age at which what a rank published counts no more.
	// Required.
	StaleAfter time.Duration
	// MaxRanks bounds the ranks of an engine; 0 for ingest.DefaultMaxRanks, at
	// most ingest.HardMaxRanks.
	MaxRanks int
	// Dial connects to engines; nil for egress.DefaultDial.
	Dial egress.Dial
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	switch {
	case o.Clock == nil:
		return errors.New("loadstat: Clock is missing")
	case o.StaleAfter <= 0:
		return fmt.Errorf("loadstat: StaleAfter %s is not positive", o.StaleAfter)
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("loadstat: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	}
	if o.MaxRanks == 0 {
		o.MaxRanks = ingest.DefaultMaxRanks
	}
	if o.Dial == nil {
		o.Dial = egress.DefaultDial
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Subscriber subscribes to the sockets of engines. It implements
// registry.Dialer and is safe for concurrent use.
type Subscriber struct {
	opts    Options
	metrics *metrics
	kept    ingest.Shelf[memory]
	// crashes bounds the lines about panics.
	crashes rate.Sometimes
}

// New checks the options. It starts nothing.
func New(opts Options) (*Subscriber, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("loadstat: %w", err)
	}
	return &Subscriber{opts: opts, metrics: m, crashes: rate.Sometimes{Interval: time.Minute}}, nil
}

// Serve subscribes to the sockets of an engine until ctx ends, with a goroutine
// for each rank, all of which have stopped when it returns. It returns
// registry.ReasonUnsupported where the engine names no sockets, or none that
// can be dialled, and registry.ReasonInstanceChanged where another life of the
// engine was found, at most once in ten seconds. Where there was nothing to
// report for 15 s it returns what is wrong, so that the engine is asked anew
// what it offers. It returns the reason of a refusal where another stream
// speaks for the worker. What is known of the engine is kept for the next call,
// for three minutes.
func (s *Subscriber) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	s.metrics.engines.Inc()
	defer s.metrics.engines.Dec()
	v := s.begin(e)
	defer v.end()
	return v.run(ctx)
}

// memory is what is known of an engine across calls of Serve. It is for one
// goroutine; the board is safe for concurrent use.
type memory struct {
	board *board
	// source is the instance of the last report, and sequence that report's.
	source   string
	sequence uint64
	// told is when a caller was last told of another instance, and wondered
	// when the engine was last asked where its sockets are.
	told, wondered time.Time
}

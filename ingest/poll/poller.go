package poll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/pace"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// DefaultTimeout bounds a request.
const DefaultTimeout = 2 * time.Second

// Options configure a Poller.
type Options struct {
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// Timeout bounds each request; 0 for DefaultTimeout.
	Timeout time.Duration
	// StaleAfter is the age at which a report stops being fresh. The interval
	// of a slow engine that answers is stretched to half of it at most.
	// Required.
	StaleAfter time.Duration
	// MaxRanks bounds the ranks of a report; 0 for ingest.DefaultMaxRanks, at
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
		return errors.New("poll: Clock is missing")
	case o.Timeout < 0:
		return fmt.Errorf("poll: Timeout %s is negative", o.Timeout)
	case o.StaleAfter <= 0:
		return fmt.Errorf("poll: StaleAfter %s is not positive", o.StaleAfter)
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("poll: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Poller polls engines. It implements registry.Dialer and is safe for
// concurrent use.
type Poller struct {
	opts    Options
	metrics *metrics
	kept    ingest.Shelf[memory]
	// buffers are those of pages, between two polls of anybody.
	buffers reader.Buffers
	// panics bounds the lines about panics.
	panics rate.Sometimes
}

// New checks the options. It starts nothing.
func New(opts Options) (*Poller, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	return &Poller{opts: opts, metrics: m, panics: rate.Sometimes{Interval: time.Minute}}, nil
}

// Serve polls an engine until ctx ends, in the calling goroutine only. It
// returns registry.ReasonUnsupported where no page of the engine can be read,
// for certain, registry.ReasonAuth where it refuses, twice in a row if it was
// read before, and registry.ReasonInstanceChanged once the first report of
// another process was delivered. What is known of the engine is kept for the
// next call, for three minutes. It returns the reason of a refusal where another stream speaks for the worker.
func (p *Poller) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	l := p.begin(e)
	p.metrics.engines.Inc()
	defer l.end()
	for l.wait(ctx) {
		if reason := l.step(ctx); reason != "" {
			return reason
		}
	}
	return l.lost()
}

// reader returns a reader for an engine, whose first search begins behind a
// page.
func (p *Poller) reader(behind string) *reader.Reader {
	return reader.New(reader.Options{
		Clock: p.opts.Clock, Timeout: p.opts.Timeout, StaleAfter: p.opts.StaleAfter, Prefix: instancePrefix,
		Behind: behind, Dial: p.opts.Dial, Buffers: &p.buffers, Logger: p.opts.Logger,
	})
}

// count counts what happened while an engine was asked.
func (p *Poller) count(t *registry.Target, tally *reader.Tally) {
	p.metrics.count(tally)
	for _, what := range tally.Panics {
		p.panicked(t, what)
	}
}

// panicked counts a panic and tells of it.
func (p *Poller) panicked(t *registry.Target, what reader.Panic) {
	p.metrics.panics.Inc()
	p.panics.Do(func() {
		p.opts.Logger.Error("page reader panicked", slog.String("worker", t.ID),
			slog.String("path", what.Path), slog.String("panic", what.Why.Value), slog.String("stack", what.Why.Stack))
	})
}

// memory is what a poller knows of an engine across calls of Serve. It is for
// one goroutine.
type memory struct {
	// reader knows the pages and the process of the engine.
	reader *reader.Reader
	// source is the instance of the engine process, sequence that of its last
	// report.
	source   string
	sequence uint64
	// told is when a caller was last told of another instance.
	told time.Time
	// due is when the next poll is, zero for not begun, at the wanted interval.
	due    time.Time
	wanted time.Duration
	pace   pace.Pace
}

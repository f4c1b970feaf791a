package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/loadplane/loadplane/client/report"
	"github.com/loadplane/loadplane/cmd/loadreporter/build"
	"github.com/loadplane/loadplane/cmd/loadreporter/control"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// idleInterval is that of samples where nobody wants any, so that the first
// report of a router has one, and readiness means something.
const idleInterval = time.Second

// Options configure a Node.
type Options struct {
	// Source samples the engine. Required.
	Source *source.Source
	// Advertise is the base URL of the engine as routers know it, Origin its
	// scheme://host:port. Required.
	Advertise, Origin string
	// Identity and Labels are what is configured of the engine.
	Identity build.Identity
	Labels   map[string]string
	// Planes are base URLs at which to register; Token and TLS are for them,
	// nil for none and for the roots of the system.
	Planes []string
	Token  func(context.Context) (string, error)
	TLS    *tls.Config
	// Interval is the wanted one at planes. Required.
	Interval time.Duration
	// StaleAfter is the age at which a sample stops being healthy. Required.
	StaleAfter time.Duration
	// UnknownAsZero lets unknown numbers go to routers as 0.
	UnknownAsZero bool
	// MaxTargets bounds the routers; 0 for push.DefaultMaxTargets.
	MaxTargets int
	// Dial connects to routers; nil for a plain dialer.
	Dial push.DialFunc
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Node samples one engine and reports on it. It implements control.Desk and is
// safe for concurrent use.
type Node struct {
	opts    Options
	metrics *metrics
	builder *build.Builder
	targets *push.Set
	planes  []*plane

	// inherited is that of Start.
	inherited func() bool

	mu sync.Mutex
	// hinted is when the first hint came that no sample has answered; zero for
	// none. last is when the last one came.
	hinted, last time.Time
	hints        uint64
	// lossy are the fields that were last sent as 0, for a line about it.
	lossy string
}

// plane is a plane and the reporter for it.
type plane struct {
	address  string
	reporter *report.Reporter
}

// New checks the options. It starts nothing.
func New(opts Options) (*Node, error) {
	if opts.Source == nil || opts.Advertise == "" || opts.Interval <= 0 {
		return nil, errors.New("node: Source, Advertise or Interval is missing")
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	n := &Node{opts: opts}
	var err error
	if n.metrics, err = newMetrics(opts.Registerer); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	n.builder, err = build.New(build.Options{
		Sample: n.sample, Origin: opts.Origin, Identity: opts.Identity,
		StaleAfter: opts.StaleAfter, UnknownAsZero: opts.UnknownAsZero,
	})
	if err != nil {
		return nil, err
	}
	n.targets, err = push.New(push.Options{
		Report: n.pushed, Want: n.wantPush, Align: n.alignPush, Dial: opts.Dial, MaxTargets: opts.MaxTargets,
		Registerer: opts.Registerer, Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	if err := n.addPlanes(); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) addPlanes() error {
	for _, address := range n.opts.Planes {
		snap := n.sample()
		r, err := report.New(report.Options{
			Address: address, Registration: n.registration(&snap), Report: n.native,
			Token: n.opts.Token, TLS: n.opts.TLS, Logger: n.opts.Logger.With("plane", address),
			Planned: func(next time.Time, interval time.Duration) { n.planned("native/"+address, next, interval) },
			Late:    n.metrics.lateBy, Inherited: func() bool { return n.inherited != nil && n.inherited() },
		})
		if err != nil {
			return fmt.Errorf("plane %s: %w", address, err)
		}
		n.planes = append(n.planes, &plane{address: address, reporter: r})
	}
	return nil
}

// planned takes up by which times a consumer reports.
func (n *Node) planned(consumer string, next time.Time, interval time.Duration) {
	n.opts.Source.Want(consumer, interval)
	n.opts.Source.Align(consumer, next)
}

// Start is what a Node begins with. It is a plain value.
type Start struct {
	// Left are routers that the owner before left.
	Left []push.Registration
	// Inherited says at the end that another process goes on, so that leases at
	// planes are not given back; nil for none.
	Inherited func() bool
	// LifeFile has the life of the engine, for the process that goes on; empty
	// for none.
	LifeFile string
}

// Run samples and reports until ctx ends. It returns when all has stopped. It
// is called once.
func (n *Node) Run(ctx context.Context, start Start) error {
	n.inherited = start.Inherited
	if start.LifeFile != "" {
		n.adopt(start.LifeFile)
	}
	g, ctx := errgroup.WithContext(ctx)
	n.opts.Source.Want("idle", idleInterval)
	for _, p := range n.planes {
		n.opts.Source.Want("native/"+p.address, n.opts.Interval)
		g.Go(func() error { return ended(ctx, "native reporter", p.reporter.Run(ctx)) })
	}
	g.Go(func() error { return ended(ctx, "sampling", n.opts.Source.Run(ctx)) })
	g.Go(func() error { return n.targets.Run(ctx, start.Left) })
	g.Go(func() error { n.follow(ctx); return nil })
	if start.LifeFile != "" {
		g.Go(func() error { n.remember(ctx, start.LifeFile); return nil })
	}
	return g.Wait()
}

// errStopped: a part ended by itself.
var errStopped = errors.New("it stopped")

// ended returns what is wrong with the end of a part: nothing once ctx ended.
func ended(ctx context.Context, part string, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return fmt.Errorf("%s: %w", part, cmp.Or(err, errStopped))
	}
}

// Register begins or renews the reports to a router. It is refused where the
// engine leaves fields out that routers cannot be without.
func (n *Node) Register(_ context.Context, r push.Registration) error {
	snap := n.sample()
	if missing := build.Missing(&snap); len(missing) > 0 {
		if !n.opts.UnknownAsZero {
			return &control.Fault{Status: http.StatusNotImplemented, Message: build.CannotSay(missing)}
		}
		n.warnLossy(build.Names(missing), build.Kept(missing))
	}
	return n.targets.Register(r)
}

// warnLossy says once what is not known.
func (n *Node) warnLossy(fields, kept string) {
	n.mu.Lock()
	seen := n.lossy == fields
	n.lossy = fields
	n.mu.Unlock()
	if !seen {
		n.opts.Logger.Warn("unknown fields go to routers as 0", "fields", fields, "also", kept)
	}
}

// Refresh has the engine sampled soon. Hints that come while a sample is under
// way cause one more together.
func (n *Node) Refresh(h control.Hint) error {
	n.mu.Lock()
	n.last = time.Now()
	if n.hinted.IsZero() {
		n.hinted = n.last
	}
	n.hints++
	n.mu.Unlock()
	n.metrics.hints.Inc()
	n.metrics.hinted.Add(float64(h.Count))
	n.opts.Source.Refresh()
	return nil
}

// Ready says why the reporter does no good; nil where it does.
func (n *Node) Ready() error {
	snap := n.sample()
	if v := build.Judge(&snap, time.Now(), n.opts.StaleAfter); v.Err != "" {
		return errors.New(v.Err)
	}
	return nil
}

// Targets returns the routers that are reported to, and a channel that closes
// when they changed.
func (n *Node) Targets() ([]push.Target, <-chan struct{}) { return n.targets.Targets() }

package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/registry/lease"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// maxCredentialBytes bounds a token or CA file.
const maxCredentialBytes = 1 << 20

// Lines about workers that registered themselves: so many a second, and so many
// at once.
const arrivalLines, arrivalBurst = 5, 50

// Options configure a Registry.
type Options struct {
	// Store takes the workers and their loads. Required.
	Store *store.Store
	// Workers are the values of --worker. They must parse.
	Workers []string
	// WorkersFile is the path of the YAML worker list; empty for none.
	WorkersFile string
	// Sources are further sources, each after those that win over it. Flags,
	// the workers file and the admin list win over all of them.
	Sources []Source
	// EgressAllow are addresses to which guarded workers may lead although they
	// are on the deny list.
	EgressAllow []netip.Prefix
	// ReportInterval is the interval asked of engines.
	ReportInterval time.Duration
	// StaleAfter is the age at which a report stops being fresh; at least
	// three report intervals.
	StaleAfter time.Duration
	// Lease is the registration's time to live; at least four report
	// intervals.
	Lease time.Duration
	// CallTimeout bounds one registration call; 0 means 2 s.
	CallTimeout time.Duration
	// ReportAddress is the IP literal told to engines; the zero Addr tells
	// each the local address of the connection that carries the call.
	ReportAddress netip.Addr
	// ReportPort returns the ingest port; it is called once Run has begun.
	// Required.
	ReportPort func() uint16
	// OriginOnly skips the check of peer addresses (--identity=origin).
	OriginOnly bool
	// ReporterPort is the port of load reporters where neither discovery nor
	// the engine names one; 0 for none.
	ReporterPort int
	// Registration says who may register itself; the zero value is open.
	Registration RegistrationRule
	// MaxReportsPerSecond bounds the reports of all registered reporters by the
	// intervals that are granted; 0 means 20,000.
	MaxReportsPerSecond float64
	// MaxLeasesPerAddress bounds the workers that one address registers and no
	// discovery lists; it may have half of MaxWorkers at most, but eight. An
	// IPv6 address counts as its /64. 0 means DefaultMaxLeasesPerAddress.
	MaxLeasesPerAddress int
	// Exempt says which addresses that bound does not hold for; nil for those on
	// loopback.
	Exempt func(netip.Addr) bool
	// TokenFile and CAFile are the credentials for engines; empty for none.
	// They are read at every call.
	TokenFile, CAFile string
	// MaxWorkers bounds the workers; further ones are dropped with an error.
	// 0 means 10,000.
	MaxWorkers int
	// Dialers speak the dialects in which the plane dials. A dialect without
	// one is not available.
	Dialers map[store.Dialect]Dialer
	// Prober asks engines what they are and what they offer. Nil asks for no
	// facts, and a worker without a dialect is one that pushes.
	Prober Prober
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Registry holds the discovered workers and who is bound to them. All methods
// are safe for concurrent use.
type Registry struct {
	opts      Options
	log       *slog.Logger
	clock     *store.Clock
	metrics   *metrics
	refusals  refusalLog
	dial      func(ctx context.Context, network, addr string) (net.Conn, error)
	lookup    func(ctx context.Context, host string) ([]netip.Addr, error)
	curious   curiosity
	learned   chan struct{} // facts may have changed what discovery says
	leased    chan struct{} // another lease may be the first to end
	delivered chan struct{} // a source delivered
	ordered   chan struct{} // the admin list changed
	recounted chan struct{} // the number of workers that registered may have changed

	discovering sync.Mutex // held by each reconciliation
	sources     sources    // guarded by discovering

	// mu is held for reading by a binding and for writing by a change of
	// discovery; it is taken before the lock of a worker.
	mu       sync.RWMutex
	synced   bool            // discovery is complete
	told     bool            // and the store knows, so that warming may end
	drained  map[string]bool // by id, those that an operator drains
	draining bool
	workers  map[string]*worker // by id
	keepers  map[string]*worker // by origin
	shared   map[string]bool    // origins of duplicates
	leases   *lease.Book
	tenants  map[string]*tenant // by origin, one for each lease
	crowd    crowd
	formers  formers

	streams leaseStreams
	// arrivals bounds the lines about workers that register themselves, and roll
	// those about discovery.
	arrivals *rate.Limiter
	roll     roll
}

// New checks the options, the worker flags and the first reading of the
// workers file. It starts nothing. Errors name the option or the worker.
func New(opts Options) (*Registry, error) {
	if err := opts.complete(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	m, err := newMetrics(&opts)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	resolver := &net.Resolver{PreferGo: true}
	r := &Registry{
		opts:      opts,
		log:       opts.Logger,
		clock:     opts.Store.Options().Clock,
		metrics:   m,
		curious:   curiosity{wake: make(chan struct{}, 1)},
		learned:   make(chan struct{}, 1),
		leased:    make(chan struct{}, 1),
		delivered: make(chan struct{}, 1),
		ordered:   make(chan struct{}, 1),
		recounted: make(chan struct{}, 1),
		drained:   make(map[string]bool),
		leases:    opts.newBook(),
		tenants:   make(map[string]*tenant),
		dial:      egress.DefaultDial,
		crowd:     make(crowd),
		arrivals:  rate.NewLimiter(arrivalLines, arrivalBurst),
		roll:      newRoll(),
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", host)
		},
	}
	for _, s := range opts.Sources {
		r.sources.feeds = append(r.sources.feeds, &feed{source: s, name: s.Name()})
	}
	if err := r.readSources(); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return r, nil
}

// fill fills in defaults.
func (o *Options) fill() {
	if o.CallTimeout == 0 {
		o.CallTimeout = 2 * time.Second
	}
	if o.MaxWorkers == 0 {
		o.MaxWorkers = 10_000
	}
	if o.MaxReportsPerSecond == 0 {
		o.MaxReportsPerSecond = 20_000
	}
	if o.MaxLeasesPerAddress == 0 {
		o.MaxLeasesPerAddress = DefaultMaxLeasesPerAddress
	}
	if o.Exempt == nil {
		o.Exempt = netip.Addr.IsLoopback
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// complete fills in defaults and names what is wrong.
func (o *Options) complete() error {
	o.fill()
	switch {
	case o.Store == nil || o.ReportPort == nil:
		return errors.New("options Store and ReportPort are required")
	case o.CallTimeout < 0 || o.MaxWorkers < 0 || o.MaxLeasesPerAddress < 0:
		return errors.New("options CallTimeout, MaxWorkers and MaxLeasesPerAddress must be positive")
	case o.ReporterPort < 0 || o.ReporterPort > maxPort:
		return fmt.Errorf("ReporterPort %d is not a port", o.ReporterPort)
	case o.Registration > RegistrationOff:
		return fmt.Errorf("there is no registration rule %d", o.Registration)
	case !(o.MaxReportsPerSecond >= 1):
		return errors.New("option MaxReportsPerSecond must be 1 or more")
	case o.ReportInterval < minInterval:
		return fmt.Errorf("ReportInterval %s is below %s", o.ReportInterval, minInterval)
	case o.ReportAddress.Zone() != "" || o.ReportAddress.IsUnspecified():
		return fmt.Errorf("ReportAddress %s is not an address that an engine can dial", o.ReportAddress)
	}
	o.ReportAddress = o.ReportAddress.Unmap()
	if err := errors.Join(o.checkInterval(o.ReportInterval), checkSources(o.Sources)); err != nil {
		return err
	}
	for _, path := range []string{o.TokenFile, o.CAFile} {
		if path == "" {
			continue
		}
		if _, err := egress.ReadBounded(path, maxCredentialBytes); err != nil {
			return err
		}
	}
	return nil
}

// checkInterval holds an interval against the lease and the age limit.
func (o *Options) checkInterval(d time.Duration) error {
	if o.Lease < 4*d {
		return fmt.Errorf("lease %s is below four report intervals of %s", o.Lease, d)
	}
	if o.StaleAfter < 3*d {
		return fmt.Errorf("stale-after %s is below three report intervals of %s", o.StaleAfter, d)
	}
	return nil
}

// Run discovers workers, asks what their engines are, and keeps the way to
// each of them. It blocks until ctx ends and every
// goroutine of its own has stopped. It is to be called once.
func (r *Registry) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	r.tend(ctx, &loops)
	r.discover(ctx, r.starter(ctx, &loops))
	return nil
}

// tend begins what serves all workers.
func (r *Registry) tend(ctx context.Context, loops *sync.WaitGroup) {
	loops.Go(func() { r.satisfy(ctx) })
	loops.Go(func() { r.watchLeases(ctx) })
	for _, f := range r.sources.feeds {
		loops.Go(func() { r.attend(ctx, f) })
	}
}

// starter returns what begins the loop of a worker among loops. They end with
// ctx, or with their worker.
func (r *Registry) starter(ctx context.Context, loops *sync.WaitGroup) starter {
	return func(w *worker, delay time.Duration) {
		wctx, stop := context.WithCancel(egress.RestrictWhile(ctx, w.guarded, r.opts.EgressAllow))
		w.stop = stop
		w.ask = func() { loops.Go(func() { w.inquire(wctx) }) }
		loops.Go(func() { w.run(wctx, delay) })
	}
}

// Rediscover takes up the flags, the workers file and the admin list as they are
// now, without Run: workers that are added are not asked to report, and further
// sources do not run. It is for planes whose engines report unasked, and must
// not be called while Run runs.
func (r *Registry) Rediscover() {
	if r.opts.WorkersFile != "" {
		r.reload()
	}
	r.reconcile(func(*worker, time.Duration) {})
}

// Drain refuses new bindings and ends the bound ones as ReasonShuttingDown.
func (r *Registry) Drain() {
	r.mu.Lock()
	r.draining = true
	var ended []*worker
	for _, w := range r.workers {
		if w.end(shuttingDown()) {
			ended = append(ended, w)
		}
	}
	r.mu.Unlock()
	for _, w := range ended {
		r.refuse(w, shuttingDown())
	}
}

func shuttingDown() *Refusal {
	return &Refusal{Reason: ReasonShuttingDown, Message: "the plane is shutting down"}
}

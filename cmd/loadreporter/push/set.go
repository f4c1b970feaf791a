package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/prometheus/client_golang/prometheus"
)

// Limits.
const (
	// DefaultMaxTargets is how many routers are reported to at once.
	DefaultMaxTargets = 64
	// MinInterval is the shortest interval: a shorter one is taken for it.
	MinInterval = 10 * time.Millisecond
	// MaxDuration bounds intervals, and MaxLease leases: a longer one is taken for
	// it.
	MaxDuration = 10 * 365 * 24 * time.Hour
	MaxLease    = time.Hour
	// shutdownTimeout bounds the end of all streams.
	shutdownTimeout = 5 * time.Second
)

// DialFunc connects to host:port. It must give up when ctx ends.
type DialFunc func(ctx context.Context, address string) (net.Conn, error)

// Options configure a Set.
type Options struct {
	// Report builds the next report. It is called by the goroutines of all
	// streams. Required.
	Report func(now time.Time) *pb.LoadReport
	// Want is told the interval at which a target is reported to, and 0 when it
	// is gone; nil tells nobody. It must not call the Set.
	Want func(target string, interval time.Duration)
	// Align is told one of the times at which a target is reported to, whenever
	// those are others; nil tells nobody. It must not call the Set.
	Align func(target string, due time.Time)
	// Dial is nil for a plain dialer, which notices dead peers.
	Dial DialFunc
	// MaxTargets is 0 for DefaultMaxTargets.
	MaxTargets int
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	switch {
	case o.Report == nil:
		return errors.New("push: Report is missing")
	case o.MaxTargets < 0:
		return fmt.Errorf("push: MaxTargets %d is negative", o.MaxTargets)
	}
	o.MaxTargets = cmp.Or(o.MaxTargets, DefaultMaxTargets)
	if o.Want == nil {
		o.Want = func(string, time.Duration) {}
	}
	if o.Align == nil {
		o.Align = func(string, time.Time) {}
	}
	if o.Dial == nil {
		o.Dial = dial
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Registration asks for reports. It is a plain value.
type Registration struct {
	// Target is the address of the router.
	Target netip.AddrPort
	// Interval is the time between reports and Lease how long to report, both
	// above 0.
	Interval, Lease time.Duration
}

// Target is the state of the reports to one router. It is a plain value.
type Target struct {
	// Addr is the address of the router.
	Addr netip.AddrPort
	// Interval is the one in force.
	Interval time.Duration
	// Expires is when the lease ends.
	Expires time.Time
	// Connected says that a stream is open.
	Connected bool
	// Reports counts those that were sent.
	Reports uint64
	// Err says how the last stream ended; empty for none.
	Err string
}

// Set are the routers that are reported to. It is safe for concurrent use.
type Set struct {
	opts    Options
	metrics *metrics
	tasks   sync.WaitGroup

	mu sync.Mutex
	// ctx is that of Run; nil while it does not run.
	ctx     context.Context
	streams map[netip.AddrPort]*stream
	// changed is closed when the table of targets changed.
	changed chan struct{}
}

// New checks the options. It starts nothing.
func New(opts Options) (*Set, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	return &Set{opts: opts, metrics: m, streams: map[netip.AddrPort]*stream{}, changed: make(chan struct{})}, nil
}

// Run lets targets be registered, first those of left, and reports until ctx
// ends. It then ends all streams, in 5 s at most: an error says that one did not
// end. It is called once.
func (s *Set) Run(ctx context.Context, left []Registration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	for _, r := range left {
		if err := s.Register(r); err != nil {
			s.opts.Logger.Warn("report target not taken over", "target", r.Target, "err", err)
		}
	}
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	return s.join()
}

// join waits for the goroutines of all streams.
func (s *Set) join() error {
	ended := make(chan struct{})
	go func() {
		s.tasks.Wait()
		close(ended)
	}()
	timer := time.NewTimer(shutdownTimeout)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errors.New("push: a report stream did not end in time")
	}
}

// Register begins to report to a target, or renews its lease. A lease is
// counted from now. Where there is no room, a target that was never connected
// gives way, the one of longest standing first. The errors are ErrClosed and
// ErrFull.
func (s *Set) Register(r Registration) error {
	r.Interval = min(max(r.Interval, MinInterval), MaxDuration)
	r.Lease = min(r.Lease, MaxLease)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch old := s.streams[r.Target]; {
	case s.ctx == nil || s.ctx.Err() != nil:
		return ErrClosed
	case old != nil && old.renew(r):
	case old == nil && len(s.streams) >= s.opts.MaxTargets && !s.evict():
		return ErrFull
	default:
		s.open(r)
	}
	s.opts.Want(r.Target.String(), r.Interval)
	s.tell()
	return nil
}

// open begins a stream. The caller holds s.mu.
func (s *Set) open(r Registration) {
	st := newStream(s, r)
	s.streams[r.Target] = st
	s.metrics.targets.Set(float64(len(s.streams)))
	s.tasks.Go(st.run)
}

// evict ends the stream of the target that was registered longest ago of those
// that were never connected, and says whether there is one. The caller holds
// s.mu.
func (s *Set) evict() bool {
	var oldest *stream
	for _, st := range s.streams {
		if !st.met && (oldest == nil || st.began.Before(oldest.began)) {
			oldest = st
		}
	}
	if oldest == nil {
		return false
	}
	s.opts.Logger.Info("report target gives way", "target", oldest.target)
	s.metrics.evicted.Inc()
	oldest.cancel()
	s.remove(oldest)
	return true
}

// forget takes an ended stream out.
func (s *Set) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(st)
}

// remove takes a stream out, unless another has its place. The caller holds
// s.mu.
func (s *Set) remove(st *stream) {
	if s.streams[st.target] != st {
		return
	}
	delete(s.streams, st.target)
	s.metrics.targets.Set(float64(len(s.streams)))
	s.opts.Want(st.target.String(), 0)
	s.tell()
}

// tell wakes those who wait for another table. The caller holds s.mu.
func (s *Set) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Hurry makes a report due now on every stream: once in an interval, 10 ms
// apart from others, and without a shift of those that are due later.
func (s *Set) Hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		poke(st.hurry)
	}
}

// Targets returns all targets by their address, and a channel that closes when
// one came or went, or was renewed.
func (s *Set) Targets() ([]Target, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets := make([]Target, 0, len(s.streams))
	for _, st := range s.streams {
		targets = append(targets, st.state)
	}
	slices.SortFunc(targets, func(a, b Target) int { return a.Addr.Compare(b.Addr) })
	return targets, s.changed
}

// poke leaves a token in a channel of one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Defaults of Options.
const (
	DefaultTimeout    = time.Second
	DefaultStaleAfter = 3 * time.Second
)

const (
	// instancePrefix begins the names of lives of the engine.
	instancePrefix = "reporter-"
	// leastSearch is the time that a search for a better page has at least, once
	// in a while, whatever the interval is.
	leastSearch = 50 * time.Millisecond
	// logEach and logBurst bound the lines about what becomes of samples.
	logEach  = 10 * time.Second
	logBurst = 4
)

// Options configure a Source. It is a plain value.
type Options struct {
	// Target is the engine: its URL, required and without a trailing slash, and
	// its credentials, models and limits where they are known. ID is the name in
	// logs; empty for the URL. A nil Line stands for one of the source's own,
	// and no Patience for half of Timeout.
	Target registry.Target
	// Timeout bounds each request; 0 for DefaultTimeout.
	Timeout time.Duration
	// StaleAfter is the age at which load stops being fresh: an engine that
	// could not be reached for as long may be another one. 0 for
	// DefaultStaleAfter.
	StaleAfter time.Duration
	// MaxRanks bounds the ranks; 0 for ingest.DefaultMaxRanks, at most
	// ingest.HardMaxRanks.
	MaxRanks int
	// Prober asks the engine what it is, at first and when another process
	// answers; nil leaves what Target.Facts say.
	Prober registry.Prober
	// Dial connects to the engine; nil for a plain dialer.
	Dial egress.Dial
	// Clock is nil for a new one.
	Clock *store.Clock
	// Logger is nil for the default one.
	Logger *slog.Logger
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
}

func (o *Options) complete() error {
	switch {
	case o.Target.URL == "":
		return errors.New("source: Target.URL is missing")
	case o.Timeout < 0:
		return fmt.Errorf("source: Timeout %s is negative", o.Timeout)
	case o.StaleAfter < 0:
		return fmt.Errorf("source: StaleAfter %s is negative", o.StaleAfter)
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("source: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	}
	o.Timeout = orElse(o.Timeout, DefaultTimeout)
	o.StaleAfter = orElse(o.StaleAfter, DefaultStaleAfter)
	o.Target.ID = orElse(o.Target.ID, o.Target.URL)
	o.Target.Patience = orElse(o.Target.Patience, o.Timeout/2)
	if o.Target.Line == nil {
		o.Target.Line = egress.NewLine()
	}
	if o.Clock == nil {
		o.Clock = store.NewClock()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Source samples one engine. It is safe for concurrent use.
type Source struct {
	opts    Options
	metrics *metrics
	// lines bounds the lines about samples, panics those about panics.
	lines  *rate.Limiter
	panics rate.Sometimes
	// reader is of the goroutine of Run.
	reader *reader.Reader
	// poked says that the plan changed, and curious that the engine is to be
	// asked what it is.
	poked, curious chan struct{}

	mu     sync.Mutex
	plan   plan
	stats  Stats
	latest Snapshot
	life   reader.Life
	// known says that every question about the facts is answered.
	known bool
	// stale closes when latest is replaced.
	stale chan struct{}
}

// Stats say what a Source did so far. It is a plain value.
type Stats struct {
	// Samples are those that ended, and Failures those of them that told no
	// load.
	Samples, Failures uint64
	// Skipped are the times for a sample that passed while the one before was
	// under way, or the engine was left alone as it has no page to read.
	Skipped uint64
	// Last is how long the last sample took.
	Last time.Duration
}

// New checks the options. It starts nothing.
func New(opts Options) (*Source, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	return &Source{
		opts: opts, metrics: m,
		lines: rate.NewLimiter(rate.Every(logEach), logBurst), panics: rate.Sometimes{Interval: time.Minute},
		reader: reader.New(reader.Options{
			Clock: opts.Clock, Timeout: opts.Timeout, StaleAfter: opts.StaleAfter,
			Prefix: instancePrefix, Derived: true, Dial: opts.Dial, Logger: opts.Logger,
		}),
		poked: make(chan struct{}, 1), curious: make(chan struct{}, 1),
		latest: Snapshot{Facts: opts.Target.Facts}, stale: make(chan struct{}),
	}, nil
}

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Run samples the engine until ctx ends, and returns nil once its goroutines
// stopped. It is called once.
func (s *Source) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	if s.opts.Prober != nil {
		asking.Go(func() { s.inquire(ctx) })
	}
	defer s.reader.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for s.wait(ctx, timer) {
		s.sample(ctx)
	}
	return nil
}

// Want says that a consumer wants samples at an interval, from now on, which is
// at least MinInterval; 0 ends it. The consumer that wants most sets the rate;
// without any there are no samples. A new consumer causes one at once.
func (s *Source) Want(id string, interval time.Duration) {
	s.mu.Lock()
	s.plan.want(id, interval, time.Now())
	s.mu.Unlock()
	poke(s.poked)
}

// Align tells one of the times at which a consumer reports, of which there is
// one in each interval. Samples then begin so that they are likely to end just
// before, where consumers agree. It ends with another interval; who does not
// want samples is ignored.
func (s *Source) Align(id string, due time.Time) {
	s.mu.Lock()
	s.plan.align(id, due, time.Now())
	s.mu.Unlock()
	poke(s.poked)
}

// Adopt goes on with the life of the engine that another process sampled last.
// It is called before Run.
func (s *Source) Adopt(l Life) {
	s.reader.Adopt(reader.Life{Source: l.Source, Process: l.Process}, time.Since(l.Taken))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publish(s.latest.of(l.Source))
}

// Life returns the life of the engine that is sampled; ok is false before its
// first good sample, and while the engine serves nobody, so that it may be
// another one next.
func (s *Source) Life() (l Life, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok = s.life.Source != "" && s.life.Source == s.latest.Source && !s.latest.Taken.IsZero() && !s.latest.Refused
	if !ok {
		return Life{}, false
	}
	return Life{Source: s.life.Source, Process: s.life.Process, Taken: s.latest.Taken}, true
}

// Refresh asks for a sample at once, even without a consumer. Calls while one
// is under way cause exactly one that follows it. MinInterval holds, and so
// does the back-off from an engine that has no page that can be read.
func (s *Source) Refresh() {
	s.mu.Lock()
	s.plan.ask(time.Now())
	s.mu.Unlock()
	poke(s.poked)
}

// Latest returns what is known now, and a channel that closes when that is
// replaced: after each sample, good or bad, and when the facts are.
func (s *Source) Latest() (Snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest, s.stale
}

// Stats returns what was done so far.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Skipped = s.plan.skipped
	return stats
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wait waits until a sample is due; false says that ctx ended.
func (s *Source) wait(ctx context.Context, timer *time.Timer) bool {
	for {
		s.mu.Lock()
		at, ok := s.plan.due()
		s.mu.Unlock()
		var due <-chan time.Time
		if ok {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.poked:
		case <-due:
			return ctx.Err() == nil
		}
	}
}

// sample makes one sample.
func (s *Source) sample(ctx context.Context) {
	s.mu.Lock()
	s.plan.begin(time.Now())
	s.mu.Unlock()
	sample := s.reader.Read(ctx, s.target())
	if sample == nil {
		return
	}
	took := time.Since(sample.Began)
	s.count(&sample.Tally)
	before, now := s.take(sample, took)
	s.metrics.sampled(now.Reason, took)
	s.tell(before, now)
	s.count(s.reader.Improve(ctx, sample, s.spare()))
	s.mu.Lock()
	defer s.mu.Unlock()
	skipped := s.plan.skipped
	s.plan.end(time.Now(), sample.Useless || sample.Over != "")
	s.metrics.skipped.Add(float64(s.plan.skipped - skipped))
}

// take publishes what came of a sample.
func (s *Source) take(sample *reader.Result, took time.Duration) (before, now Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.latest
	now = s.after(before, sample)
	s.stats.Samples++
	s.stats.Last = took
	switch {
	case now.Reason != "":
		s.stats.Failures++
	case sample.Tally.Surveys == 0: // which take longer, and are rare
		s.plan.took(time.Now())
	}
	s.life = s.reader.Life()
	if sample.Changed || !s.known && before.Reason != "" && now.Reason == "" {
		poke(s.curious)
	}
	s.publish(now)
	return before, now
}

// publish replaces what is known. The caller holds s.mu.
func (s *Source) publish(now Snapshot) {
	s.latest = now
	close(s.stale)
	s.stale = make(chan struct{})
}

// spare is how long a search for a better page may take.
func (s *Source) spare() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(time.Until(s.plan.next)/2, leastSearch)
}

// count counts what happened while the engine was asked.
func (s *Source) count(tally *reader.Tally) {
	s.metrics.count(tally)
	for _, p := range tally.Panics {
		s.panics.Do(func() {
			s.opts.Logger.Error("page reader panicked", slog.String("path", p.Path),
				slog.String("panic", p.Why.Value), slog.String("stack", p.Why.Stack))
		})
	}
}

// tell logs what changed for operators.
func (s *Source) tell(before, now Snapshot) {
	if now.Source != before.Source && s.lines.Allow() {
		s.opts.Logger.Info("engine process found", slog.String("engine", s.opts.Target.ID), slog.String("source", now.Source))
	}
	if now.Reason == before.Reason || !s.lines.Allow() {
		return
	}
	if now.Reason == "" {
		s.opts.Logger.Info("engine sampled again", slog.String("engine", s.opts.Target.ID))
		return
	}
	s.opts.Logger.Warn("engine not sampled", slog.String("engine", s.opts.Target.ID),
		slog.String("reason", string(now.Reason)), slog.String("error", now.Err))
}

package registry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// metrics are the package's own numbers. Labels are reason and state words.
type metrics struct {
	workers, dropped, fileFailing, bound               prometheus.Gauge
	fileErrors, takeovers, flaps, rebased, oldSequence prometheus.Counter
	refused, calls, dialects                           *prometheus.CounterVec
	registrations                                      *prometheus.GaugeVec
	callSeconds, gaps                                  prometheus.Histogram
	leases, leaseLoad                                  prometheus.Gauge
	leaseEvents, specsRefused, fieldsIgnored           *prometheus.CounterVec
	sources                                            *sourceCollector
}

func newMetrics(opts *Options) (*metrics, error) {
	m := &metrics{
		workers:     gauge("workers", "Discovered workers."),
		dropped:     gauge("workers_dropped", "Discovered workers above the limit, not served."),
		fileFailing: gauge("workers_file_failing", "1 while the workers file cannot be used and the last list is kept."),
		bound:       gauge("streams_bound", "Streams that speak for a worker."),
		fileErrors:  counter("workers_file_errors_total", "Readings of the workers file that failed."),
		takeovers:   counter("takeovers_total", "Source instances that took over from another."),
		flaps:       counter("flaps_total", "Retired source instances that returned."),
		rebased:     counter("sequence_rebased_total", "Sequence jumps taken as a new base after silence."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_refused_total", Help: "Reports and streams refused or ended, by reason.",
		}, []string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_registration_calls_total", Help: "Registration calls, by result: ok or a reason.",
		}, []string{"result"}),
		dialects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_dialect_changes_total", Help: "Dialects that came in force for a worker without a configured one.",
		}, []string{"dialect"}),
		registrations: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "loadplane_registry_registrations", Help: "Workers by state of the registration, or of another way to them.",
		}, []string{"state"}),
		leases:    gauge("leases", "Leases that registered reporters hold."),
		leaseLoad: gauge("lease_interval_factor", "By how much the report intervals of leases are raised; 1 for not at all."),
		leaseEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_lease_events_total", Help: "Leases that began, were renewed or ended, by event.",
		}, []string{"event"}),
		specsRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_source_workers_refused_total", Help: "Workers of lists that could not be had, by source.",
		}, []string{"source"}),
		fieldsIgnored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_registry_source_fields_ignored_total", Help: "Fields of workers of lists that could not be had and were left out, by source.",
		}, []string{"source"}),
		sources: newSourceCollector(opts.Store),
		callSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadplane_registry_registration_call_seconds", Help: "Duration of registration calls.",
			Buckets: []float64{.001, .005, .02, .1, .5, 1, 2, 5},
		}),
		gaps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "loadplane_registry_sequence_gap_reports", Help: "Reports that did not come, or were merged, between two accepted ones of a source instance, where there are any.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8),
		}),
	}
	old, err := m.refused.GetMetricWithLabelValues(string(ReasonOldSequence))
	m.oldSequence = old
	return m, errors.Join(err, m.register(opts.Registerer))
}

func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.workers, m.dropped, m.fileFailing, m.bound, m.fileErrors, m.takeovers, m.flaps,
		m.rebased, m.refused, m.calls, m.dialects, m.registrations, m.callSeconds,
		m.leases, m.leaseLoad, m.leaseEvents, m.specsRefused, m.fieldsIgnored, m.sources, m.gaps,
	} {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadplane_registry_" + name, Help: help})
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "loadplane_registry_" + name, Help: help})
}

// called counts a registration call.
func (m *metrics) called(result store.Reason, took time.Duration) {
	m.callSeconds.Observe(took.Seconds())
	if c, err := m.calls.GetMetricWithLabelValues(string(result)); err == nil {
		c.Inc()
	}
}

// followed observes the gap between two sequences of one source instance.
func (m *metrics) followed(last position, sequence uint64) {
	if last.known && sequence-last.sequence > 1 {
		m.gaps.Observe(float64(sequence - last.sequence - 1))
	}
}

// chose counts a dialect that came in force.
func (m *metrics) chose(d store.Dialect) {
	if c, err := m.dialects.GetMetricWithLabelValues(d.String()); err == nil {
		c.Inc()
	}
}

// leaseEvent is what became of a lease, as counted.
type leaseEvent string

// The events.
const (
	leaseGranted  leaseEvent = "granted"
	leaseRenewed  leaseEvent = "renewed"
	leaseReplaced leaseEvent = "replaced"
	leaseExpired  leaseEvent = "expired"
	leaseReturned leaseEvent = "returned"
	// leaseWithdrawn: the worker is not discovered any more, or its dialect is
	// another.
	leaseWithdrawn leaseEvent = "withdrawn"
)

// tenancy counts what became of a lease.
func (m *metrics) tenancy(e leaseEvent) {
	if c, err := m.leaseEvents.GetMetricWithLabelValues(string(e)); err == nil {
		c.Inc()
	}
}

// count adds to the counter of a source. The names of sources are those of the
// options.
func count(of *prometheus.CounterVec, source string, n int) {
	if c, err := of.GetMetricWithLabelValues(source); err == nil {
		c.Add(float64(n))
	}
}

// moved counts a way that changes its state; an empty state is none.
func (m *metrics) moved(from, to RegistrationState) {
	for state, by := range map[RegistrationState]float64{from: -1, to: 1} {
		if state == "" || from == to {
			continue
		}
		if g, err := m.registrations.GetMetricWithLabelValues(string(state)); err == nil {
			g.Add(by)
		}
	}
}

// maxReasons bounds the reason words that refusals are counted by.
const maxReasons = 128

// refusalLog counts refusals and logs one a second of each reason. It is safe
// for concurrent use.
type refusalLog struct {
	mu      sync.Mutex
	samples map[store.Reason]*rate.Sometimes
	// early counts those of engines that came before discovery was complete.
	early int
}

// premature counts an engine that came before discovery was complete, and says
// whether it is the first.
func (l *refusalLog) premature() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.early++
	return l.early == 1
}

// welcome returns how many came too early, and begins anew, once discovery is
// complete.
func (l *refusalLog) welcome(complete bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if complete {
		n, l.early = l.early, 0
	}
	return n
}

// known returns the sampler of a reason, and ReasonOther's for words above
// the bound.
func (l *refusalLog) known(reason store.Reason) (store.Reason, *rate.Sometimes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.samples == nil {
		l.samples = make(map[store.Reason]*rate.Sometimes)
	}
	if l.samples[reason] == nil {
		if len(l.samples) >= maxReasons {
			reason = "other"
		}
		if l.samples[reason] == nil {
			l.samples[reason] = &rate.Sometimes{Interval: time.Second}
		}
	}
	return reason, l.samples[reason]
}

// lines bounds what is logged of one worker, across its identities. It is safe
// for concurrent use.
type lines struct {
	// way is for changes of the way, turn for those of the dialect.
	way, turn rate.Sometimes

	mu sync.Mutex
	// refused is when a refusal was last logged, by reason.
	refused map[store.Reason]time.Time
}

func newLines() *lines {
	often := func() rate.Sometimes { return rate.Sometimes{First: 8, Interval: time.Minute} }
	return &lines{way: often(), turn: often()}
}

// silent logs that the engine sends no more by a dialect.
func (w *worker) silent(d store.Dialect) {
	w.lines.turn.Do(func() {
		if attrs, ok := w.reg.roll.ways.room(slog.String("worker", w.id), slog.String("dialect", d.String())); ok {
			w.reg.log.LogAttrs(context.Background(), slog.LevelWarn, "engine is silent", attrs...)
		}
	})
}

// refuse says whether a refusal is to be logged: one a minute of each reason.
// The reasons are of a bounded list.
func (l *lines) refuse(reason store.Reason) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.refused[reason]; ok && time.Since(last) < time.Minute {
		return false
	}
	if l.refused == nil {
		l.refused = make(map[store.Reason]time.Time)
	}
	l.refused[reason] = time.Now()
	return true
}

// refuse counts one refusal once: in the metric, for the worker where there
// is one, and in the log.
func (r *Registry) refuse(w *worker, why *Refusal, attrs ...slog.Attr) {
	word, sample := r.refusals.known(why.Reason)
	if c, err := r.metrics.refused.GetMetricWithLabelValues(string(word)); err == nil {
		c.Inc()
	}
	if w != nil {
		attrs = append(attrs, slog.String("worker", w.id))
	}
	level := slog.LevelWarn
	if why.ordinary() {
		level = slog.LevelInfo
	} else if w != nil {
		w.slot.Diagnose(func(d *store.Diagnostics) {
			d.Refused++
			d.LastRefusal, d.LastRefusalDetail = why.Reason, why.detail()
		})
		w.slot.Happen(store.EventRefused, why.Reason, why.detail())
	}
	if w == nil && why.Reason == ReasonNotSynced {
		if !r.refusals.premature() {
			return // They are told of together once discovery is complete.
		}
		level = slog.LevelInfo
	}
	sample.Do(func() {
		if w != nil && !w.lines.refuse(word) {
			return
		}
		attrs = append(attrs, slog.String("reason", string(why.Reason)), slog.String("detail", why.detail()))
		r.log.LogAttrs(context.Background(), level, "report or stream refused", attrs...)
	})
}

// ordinary says that a stream ended in the course of things: nothing of it is
// held against the worker.
func (e *Refusal) ordinary() bool {
	switch e.Reason {
	case ReasonSuperseded, ReasonShuttingDown, ReasonWorkerRemoved, ReasonIdentityChanged:
		return true
	}
	return false
}

func (e *Refusal) detail() string { return cut(cmp.Or(e.Detail, e.Message)) }

// sourceCollector shows how the sources of discovery are at the moment of a
// scrape. The names of sources are those of the options and of the package. It
// is immutable and safe for concurrent use.
type sourceCollector struct {
	st                            *store.Store
	synced, failing, workers, age *prometheus.Desc
}

func newSourceCollector(st *store.Store) *sourceCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_registry_source_"+name, help, []string{"source"}, nil)
	}
	return &sourceCollector{
		st:      st,
		synced:  desc("synced", "1 once a source of discovery delivered a list."),
		failing: desc("failing", "1 while a source of discovery cannot deliver a new list and the last one is kept."),
		workers: desc("workers", "Workers of the list of a source of discovery."),
		age:     desc("list_age_seconds", "Time since a source of discovery delivered its list; absent without one."),
	}
}

// Describe implements prometheus.Collector.
func (c *sourceCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.synced, c.failing, c.workers, c.age} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *sourceCollector) Collect(out chan<- prometheus.Metric) {
	now := c.st.Options().Clock.Now()
	for _, s := range c.st.Sources() {
		show := func(d *prometheus.Desc, v float64) {
			if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, s.Name); err == nil {
				out <- m
			}
		}
		show(c.synced, oneIf(s.Synced))
		show(c.failing, oneIf(s.Error != ""))
		show(c.workers, float64(s.Workers))
		if s.Listed != 0 {
			show(c.age, max(0, now.Sub(s.Listed)).Seconds())
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

package api

import (
	"errors"
	"slices"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

// class is the kind of an answer to a snapshot request.
type class string

const (
	class2xx class = "2xx"
	class3xx class = "3xx"
	class4xx class = "4xx"
	class5xx class = "5xx"
)

// counters are the counters of one label, of which all values are known.
type counters[T ~string] struct {
	*prometheus.CounterVec
	byValue map[T]prometheus.Counter
}

func newCounters[T ~string](opts prometheus.CounterOpts, label string, values ...T) counters[T] {
	c := counters[T]{prometheus.NewCounterVec(opts, []string{label}), make(map[T]prometheus.Counter)}
	for _, v := range values {
		// It fails only for another number of labels or invalid UTF-8.
		c.byValue[v] = c.With(prometheus.Labels{label: string(v)})
	}
	return c
}

// of returns the counter of a value that the counters were made with.
func (c counters[T]) of(v T) prometheus.Counter { return c.byValue[v] }

// metrics are what the package counts. They are safe for concurrent use.
type metrics struct {
	sent     counters[kind]
	failed   counters[store.Reason]
	refused  counters[store.Reason]
	requests counters[class]
	bytes    prometheus.Counter
	delay    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, a *API) (*metrics, error) {
	m := &metrics{
		sent: newCounters(prometheus.CounterOpts{
			Name: "loadplane_api_messages_sent_total", Help: "Messages of watches sent, by type.",
		}, "type", kindFull, kindDelta, kindHeartbeat, kindGoAway),
		failed: newCounters(prometheus.CounterOpts{
			Name: "loadplane_api_sends_failed_total", Help: "Messages of watches not sent, by reason; the watch ended.",
		}, "reason", ReasonDeadline, ReasonClient),
		refused: newCounters(prometheus.CounterOpts{
			Name: "loadplane_api_refused_total", Help: "Requests refused, by reason.",
		}, "reason", ReasonTooManyWatchers, ReasonWatchRate, ReasonTooManyWatchesPerConnection, ReasonSlowClient, ReasonTooManyHeld, ReasonTooManyAnswers,
			ReasonDraining, ReasonUnknownParameter, ReasonBadParameter, ReasonBadFilter),
		requests: newCounters(prometheus.CounterOpts{
			Name: "loadplane_api_snapshot_requests_total", Help: "Requests for one snapshot, by class of the answer.",
		}, "code", class2xx, class3xx, class4xx, class5xx),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_api_sent_bytes_total", Help: "Bytes of watches sent, before TLS and HTTP framing.",
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_api_publish_to_send_seconds",
			Help:    "Time from the commit of a version until it was sent to a watcher that waited for it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
	fulls, deltas := newEncoded(a)
	return m, register(reg, fulls, deltas, m.sent, m.failed, m.refused, m.requests, m.bytes, m.delay, newGauges(a), newCoverage(a.opts.Snapshots))
}

// newEncoded counts what was encoded for all watchers together.
func newEncoded(a *API) (fulls, deltas prometheus.Collector) {
	fulls = prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "loadplane_api_fulls_encoded_total", Help: "Full events encoded; watchers of a version, filter and detail share one.",
	}, func() float64 { n, _ := a.feeds.Encoded(); return float64(n) })
	deltas = prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "loadplane_api_deltas_encoded_total", Help: "Delta events encoded; watchers of a version, filter, detail and base share one.",
	}, func() float64 { _, n := a.feeds.Encoded(); return float64(n) })
	return fulls, deltas
}

func register(reg prometheus.Registerer, all ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

// gauges reads the view when it is asked. It is safe for concurrent use.
type gauges struct {
	api                                                             *API
	watchers, filters, held, whole, kept, workers, version, warming *prometheus.Desc
	lag, ready, notReady, torn                                      *prometheus.Desc
}

func newGauges(a *API) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_api_"+name, help, labels, nil)
	}
	return &gauges{
		api:      a,
		watchers: desc("watchers", "Watches that are open."),
		filters:  desc("filters", "Filters of watches and requests that are open."),
		held:     desc("held_requests", "Requests for a snapshot whose answer is held back."),
		whole:    desc("whole_answers", "Answers with a whole view or list that are being written."),
		kept:     desc("kept_bytes", "Bytes of events and receipts that are kept for the watchers that share a filter."),
		workers:  desc("workers", "Workers in the view, by freshness.", "freshness"),
		version:  desc("snapshot_version", "Version of the view."),
		warming:  desc("warming", "1 while expected workers were not yet heard."),
		lag:      desc("watch_lag_seconds", "Longest time for which an open watch has been taking the message that is being sent to it; 0 while none is."),
		ready:    desc("ready", "1 while the plane is ready to be asked, as /readyz says, else 0."),
		notReady: desc("not_ready", "1 for each check that fails, else 0, by reason.", "reason"),
		torn:     desc("digest_mismatch", "1 while the digest of the view is not that of its workers, which must not be, else 0."),
	}
}

// Describe sends the descriptions.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.watchers, g.filters, g.held, g.whole, g.kept, g.workers, g.version, g.warming, g.lag, g.ready, g.notReady, g.torn} {
		out <- d
	}
}

// Collect sends the values of the newest view.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	state, _ := g.api.store.Current()
	counts := make(map[store.Freshness]int)
	for _, e := range state.Entries {
		counts[e.Freshness]++
	}
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, f := range []store.Freshness{store.Fresh, store.Stale, store.Missing, store.Unreachable} {
		send(g.workers, float64(counts[f]), f.String())
	}
	send(g.warming, oneIf(state.Warming))
	send(g.version, float64(state.Version))
	send(g.watchers, float64(g.api.gate.open.Load()))
	send(g.filters, float64(g.api.feeds.Len()))
	send(g.held, float64(g.api.held.Load()))
	send(g.whole, float64(len(g.api.whole)))
	send(g.kept, float64(g.api.feeds.Kept()))
	send(g.lag, g.api.lags.longest(time.Since(g.api.began)).Seconds())
	view, _ := g.api.opts.Snapshots.Current()
	send(g.torn, oneIf(torn(view)))
	failed := g.api.failing(state)
	send(g.ready, oneIf(len(failed) == 0))
	for _, reason := range []store.Reason{ReasonDraining, ReasonStoreStalled, ReasonWarming} {
		send(g.notReady, oneIf(slices.Contains(failed, reason)), string(reason))
	}
}

// torn says that the digest of a view is not that of its workers.
func torn(view *snapshot.View) bool {
	var sum uint64
	for _, w := range view.Workers {
		sum += w.Hash
	}
	return sum != view.Digest
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts commits. It is safe for concurrent use.
type metrics struct {
	commits   *prometheus.CounterVec
	seconds   prometheus.Histogram
	reports   prometheus.Counter
	conflated prometheus.Counter
	ignored   prometheus.Counter
	expired   prometheus.Counter
	stalls    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "loadplane", Subsystem: "store", Name: name, Help: help})
	}
	m := &metrics{
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "loadplane", Subsystem: "store", Name: "commits_total",
			Help: "Commits, by whether they changed content or receipts only.",
		}, []string{"kind"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "loadplane", Subsystem: "store", Name: "commit_seconds",
			Help:    "Time from the beginning of a commit to its publication.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 2, 14),
		}),
		reports:   counter("reports_total", "Reports committed."),
		conflated: counter("reports_conflated_total", "Reports that a newer one of the same worker replaced before a commit."),
		ignored:   counter("reports_ignored_total", "Reports of a binding that had ended or of a worker that was gone."),
		expired:   counter("expirations_total", "Workers whose freshness changed by time alone."),
		stalls:    counter("stalls_total", "Times the machine slept or the process was stopped."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.commits, m.seconds, m.reports, m.conflated, m.ignored, m.expired, m.stalls} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(d *decision, offers int, took time.Duration) {
	kind := "receipts"
	if d.content {
		kind = "content"
	}
	if c, err := m.commits.GetMetricWithLabelValues(kind); err == nil {
		c.Inc()
	}
	m.seconds.Observe(took.Seconds())
	m.reports.Add(float64(offers - d.ignored))
	m.ignored.Add(float64(d.ignored))
	m.expired.Add(float64(d.expired))
}

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
	clockOff  prometheus.Counter
	// reportAge and sampleAge compare two clocks, waited is by the plane's own.
	reportAge, sampleAge, waited prometheus.Histogram
}

// Ages are bounded, since the clocks of engines may be off: what is older, or
// further in the future than clocks that are kept together differ, says nothing.
const (
	maxAge   = time.Minute
	maxAhead = 10 * time.Millisecond
)

// ages are the buckets of ages, seconds.
func ages() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
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
		clockOff:  counter("clock_off_total", "Reports whose time by the engine's clock is in the future or over a minute old, so that their age is not known."),
	}
	m.histograms()
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.commits, m.seconds, m.reports, m.conflated, m.ignored, m.expired, m.stalls, m.clockOff, m.reportAge, m.sampleAge, m.waited} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// histograms makes those of single reports.
func (m *metrics) histograms() {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "loadplane", Subsystem: "store", Name: name, Help: help, Buckets: ages(),
		})
	}
	m.reportAge = histogram("report_age_seconds", "Age of a report at its receipt, by the clocks of engine and plane.")
	m.sampleAge = histogram("sample_age_seconds", "Age of the oldest sample of a report at its receipt, by the clocks of engine and plane.")
	m.waited = histogram("receipt_to_publish_seconds", "Time from the receipt of a report to the publication of what it changed.")
}

// published observes the reports of a commit that was published at now.
func (m *metrics) published(offers []offer, now Instant) {
	for _, o := range offers {
		l := o.load
		m.waited.Observe(max(0, now.Sub(l.Received)).Seconds())
		if l.ReportUnixMs >= 0 && !observeAge(m.reportAge, l.ReceivedUnixMs, l.ReportUnixMs) {
			m.clockOff.Inc()
		}
		if at := oldest(l.Samples); at >= 0 {
			observeAge(m.sampleAge, l.ReceivedUnixMs, at)
		}
	}
}

// observeAge observes the time between two wall clocks, Unix milliseconds, not
// below 0, and says whether it can be.
func observeAge(h prometheus.Histogram, now, then int64) bool {
	// Compared as numbers: times from outside may be too far apart for a
	// Duration.
	if ms := now - then; ms < -maxAhead.Milliseconds() || ms > maxAge.Milliseconds() {
		return false
	}
	h.Observe(max(0, time.Duration(now-then)*time.Millisecond).Seconds())
	return true
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

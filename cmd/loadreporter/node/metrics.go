package node

import (
	"errors"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a Node.
type metrics struct {
	reports                *prometheus.CounterVec
	hints, hinted, hurried prometheus.Counter
	late                   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadreporter_reports_built_total",
			Help: "Reports built, by dialect and status.",
		}, []string{"dialect", "status"}),
		hints: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_hints_total",
			Help: "Hints of frontends that the load changed.",
		}),
		hinted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_hinted_requests_total",
			Help: "Requests that hints were about.",
		}),
		hurried: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_hurried_total",
			Help: "Samples that made reports go out before they were due.",
		}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadreporter_native_interval_error_seconds",
			Help:    "How late reports to planes were made that were due.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .05, .25, 1},
		}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.reports, m.hints, m.hinted, m.hurried, m.late} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// lateBy counts a report to a plane that was due.
func (m *metrics) lateBy(by time.Duration) { m.late.Observe(by.Seconds()) }

// built counts a report.
func (m *metrics) built(dialect string, status store.Status) {
	if c, err := m.reports.GetMetricWithLabelValues(dialect, status.String()); err == nil {
		c.Inc()
	}
}

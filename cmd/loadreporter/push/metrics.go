package push

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a Set.
type metrics struct {
	targets prometheus.Gauge
	reports prometheus.Counter
	skipped prometheus.Counter
	late    prometheus.Histogram
	evicted prometheus.Counter
	ended   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		targets: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadreporter_push_targets",
			Help: "Routers that are reported to.",
		}),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_push_reports_total",
			Help: "Reports sent to routers.",
		}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_push_skipped_total",
			Help: "Times for a report that passed while the one before was written.",
		}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadreporter_push_interval_error_seconds",
			Help:    "How late reports to routers went out that were due.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .05, .25, 1},
		}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_push_evicted_total",
			Help: "Routers that were never connected and gave way to others.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadreporter_push_streams_ended_total",
			Help: "Streams that routers or the network ended, by what becomes of the target.",
		}, []string{"then"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.targets, m.reports, m.skipped, m.late, m.evicted, m.ended} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

package dns

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of the package. They are safe for concurrent use.
type metrics struct {
	lookups *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_dns_lookups_total",
			Help: "Lookups of names behind which workers are, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_dns_lookup_seconds",
			Help:    "Time of a lookup with all its questions.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 5},
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.lookups, m.seconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// lookup counts one lookup.
func (m *metrics) lookup(err error, took time.Duration) {
	result := "ok"
	if err != nil {
		result = string(reasonOf(err))
	}
	if c, err := m.lookups.GetMetricWithLabelValues(result); err == nil {
		c.Inc()
	}
	m.seconds.Observe(took.Seconds())
}

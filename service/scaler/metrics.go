package scaler

import (
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of this package. They are safe for concurrent use.
type metrics struct {
	requests *prometheus.CounterVec
	refused  *prometheus.CounterVec
	streams  prometheus.Gauge
	panics   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_scaler_requests_total",
			Help: "Requests of autoscalers, streams among them, by method.",
		}, []string{"method"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_scaler_refused_total",
			Help: "Requests of autoscalers that got an error, by reason word.",
		}, []string{"reason"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_scaler_streams", Help: "Open streams of autoscalers.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_scaler_panics_total", Help: "Handlers that ended by a panic.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.refused, m.streams, m.panics} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// asked counts a request; method is one of this package's constants.
func (m *metrics) asked(method string) {
	if c, err := m.requests.GetMetricWithLabelValues(method); err == nil {
		c.Inc()
	}
}

func (m *metrics) refuse(reason store.Reason) {
	if c, err := m.refused.GetMetricWithLabelValues(string(reason)); err == nil {
		c.Inc()
	}
}

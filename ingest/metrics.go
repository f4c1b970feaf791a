package ingest

import (
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	streams prometheus.Gauge
	panics  prometheus.Counter
	refused *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_ingest_streams", Help: "Open streams of engines, of every service.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_ingest_panics_total", Help: "Handlers that ended by a panic.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_ingest_refused_total", Help: "Streams and calls that were refused before a message was read, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.streams, m.panics, m.refused} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) refuse(reason store.Reason) {
	if c, err := m.refused.GetMetricWithLabelValues(string(reason)); err == nil {
		c.Inc()
	}
}

package service

import (
	"github.com/loadplane/loadplane/service/config"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of this package. They are safe for concurrent use.
type metrics struct {
	insecure *prometheus.GaugeVec
	draining prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		insecure: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "loadplane_service_insecure_listener",
			Help: "1 for each listener that --insecure-allow-plaintext names, else 0.",
		}, []string{"listener"}),
		draining: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_service_draining",
			Help: "1 while the plane shuts down, else 0.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.insecure, m.draining)
	}
	return m
}

// listener records how a listener is configured.
func (m *metrics) listener(l config.Listener, insecure bool) {
	v := 0.0
	if insecure {
		v = 1
	}
	if g, err := m.insecure.GetMetricWithLabelValues(string(l)); err == nil {
		g.Set(v)
	}
}

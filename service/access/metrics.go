package access

import (
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of this package. They are safe for concurrent use.
type metrics struct {
	certNotAfter prometheus.Gauge
	refused      *prometheus.CounterVec
	reloads      *prometheus.CounterVec
	connections  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		certNotAfter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_access_cert_not_after_seconds",
			Help: "Unix time at which the certificate of the listeners expires; 0 without TLS.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_access_refused_total",
			Help: "Connections and requests refused before their handler, by listener and reason word.",
		}, []string{"listener", "reason"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_access_reloads_total",
			Help: "Changed credential files that were read again, by credential and result.",
		}, []string{"credential", "result"}),
	}
	m.connections = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "loadplane_access_connections",
		Help: "Open connections, by listener.",
	}, []string{"listener"})
	if reg != nil {
		reg.MustRegister(m.certNotAfter, m.refused, m.reloads, m.connections)
	}
	return m
}

// refuse counts a refusal; listener is one of a few names.
func (m *metrics) refuse(listener string, reason store.Reason) {
	if c, err := m.refused.GetMetricWithLabelValues(listener, string(reason)); err == nil {
		c.Inc()
	}
}

// connected counts connections in and out; listener is one of a few names.
func (m *metrics) connected(listener string, n float64) {
	if g, err := m.connections.GetMetricWithLabelValues(listener); err == nil {
		g.Add(n)
	}
}

// reloaded counts a reload; name is one of this package's constants.
func (m *metrics) reloaded(name string, ok bool) {
	result := "error"
	if ok {
		result = "ok"
	}
	if c, err := m.reloads.GetMetricWithLabelValues(name, result); err == nil {
		c.Inc()
	}
}

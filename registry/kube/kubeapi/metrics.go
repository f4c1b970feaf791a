package kubeapi

import (
	"cmp"
	"errors"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/watch"
)

// Metrics are the numbers of the mirrors that share them. They are safe for
// concurrent use.
type Metrics struct {
	requests, events *prometheus.CounterVec
	objects          prometheus.Gauge
}

// NewMetrics returns metrics that are registered with reg, or not where that is
// nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_kubeapi_requests_total", Help: "Lists and watches that ended, by verb and result: ok, or the reason of the failure.",
		}, []string{"verb", "result"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_kubeapi_events_total", Help: "Events of watches, by type.",
		}, []string{"type"}),
		objects: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_kubeapi_objects", Help: "Pods or EndpointSlices that the API server listed.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.events), reg.Register(m.objects))
}

// asked counts a list or watch that ended; the reason is empty for success.
func (m *Metrics) asked(verb string, reason store.Reason) {
	if c, err := m.requests.GetMetricWithLabelValues(verb, string(cmp.Or(reason, "ok"))); err == nil {
		c.Inc()
	}
}

// came counts an event whose type is one of a fixed list.
func (m *Metrics) came(t watch.EventType) {
	if c, err := m.events.GetMetricWithLabelValues(string(t)); err == nil {
		c.Inc()
	}
}

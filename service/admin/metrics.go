package admin

import "github.com/prometheus/client_golang/prometheus"

// operation is what is asked for, as counted and logged.
type operation string

const (
	opAdd     operation = "add"
	opRemove  operation = "remove"
	opDrain   operation = "drain"
	opUndrain operation = "undrain"
)

// metrics are the numbers of this package. They are safe for concurrent use.
type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "loadplane_admin_requests_total",
		Help: "Requests of operators by the admin socket, by operation and result: ok or refused.",
	}, []string{"operation", "result"})}
	if reg == nil {
		return m, nil
	}
	return m, reg.Register(m.requests)
}

// asked counts a request.
func (m *metrics) asked(op operation, ok bool) {
	result := "refused"
	if ok {
		result = "ok"
	}
	if c, err := m.requests.GetMetricWithLabelValues(string(op), result); err == nil {
		c.Inc()
	}
}

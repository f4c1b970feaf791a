package control

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a Face.
type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "loadreporter_control_requests_total",
		Help: "Requests of routers and frontends, by call and status.",
	}, []string{"call", "status"})}
	if reg == nil {
		return m, nil
	}
	return m, reg.Register(m.requests)
}

// count counts a request. Both labels are words of this package and statuses
// that it gives.
func (m *metrics) count(path string, status int) {
	call := path[strings.LastIndexByte(path, '/')+1:]
	if c, err := m.requests.GetMetricWithLabelValues(call, strconv.Itoa(status)); err == nil {
		c.Inc()
	}
}

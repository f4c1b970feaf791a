package owner

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a Seat.
type metrics struct {
	owner                        prometheus.Gauge
	takeovers, forwarded, failed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		owner: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadreporter_owner",
			Help: "1 in the process that owns the engine, else 0.",
		}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_takeovers_total",
			Help: "Times that this process went on for an owner that was gone.",
		}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_forwarded_total",
			Help: "Calls that the owner answered.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadreporter_forward_failures_total",
			Help: "Calls that the owner did not answer in time.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.owner, m.takeovers, m.forwarded, m.failed} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

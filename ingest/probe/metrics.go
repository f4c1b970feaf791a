package probe

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ panics prometheus.Counter }

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{panics: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "loadplane_probe_panics_total", Help: "Panics of the code that asks engines what they are and reads their answers.",
	})}
	if reg == nil {
		return m, nil
	}
	return m, reg.Register(m.panics)
}

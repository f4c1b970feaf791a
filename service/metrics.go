package service

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/loadplane/loadplane/service/config"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the numbers of this package. They are safe for concurrent use.
type metrics struct {
	insecure *prometheus.GaugeVec
	draining prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, version string) *metrics {
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
		reg.MustRegister(m.insecure, m.draining, buildInfo(version))
	}
	return m
}

// buildInfo says which program this is. What is not known is "unknown".
func buildInfo(version string) prometheus.Collector {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "loadplane_build_info",
		Help: "1, with the version and revision of the program and the Go version that built it.",
		ConstLabels: prometheus.Labels{
			"version": cmp.Or(version, "unknown"), "revision": cmp.Or(revision, "unknown"), "goversion": runtime.Version(),
		},
	})
	g.Set(1)
	return g
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

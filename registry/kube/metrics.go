package kube

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the package's own numbers.
type metrics struct {
	ignored    *prometheus.CounterVec
	passed     *prometheus.GaugeVec
	workers    prometheus.Gauge
	deliveries prometheus.Counter
	failing    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, s *Source) (*metrics, error) {
	m := &metrics{
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_kube_ignored_values_total", Help: "Values of labels and annotations that cannot be used, by key.",
		}, []string{"key"}),
		passed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "loadplane_kube_passed_over", Help: "Pods or endpoints that are not listed as workers, by cause.",
		}, []string{"cause"}),
		workers:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadplane_kube_workers", Help: "Workers of the last list."}),
		deliveries: prometheus.NewCounter(prometheus.CounterOpts{Name: "loadplane_kube_lists_delivered_total", Help: "Lists of workers that were delivered."}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_kube_failing", Help: "1 while the API server cannot be followed and the last list is kept.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.ignored), reg.Register(m.passed), reg.Register(m.workers),
		reg.Register(m.deliveries), reg.Register(m.failing), reg.Register(silence{s, prometheus.NewDesc(
			"loadplane_kube_silence_seconds", "Seconds since the API server was last heard, the longest of all namespaces.", nil, nil)}))
}

// ignore counts a value that cannot be used; its key is a word of this package.
func (m *metrics) ignore(key string) {
	if c, err := m.ignored.GetMetricWithLabelValues(key); err == nil {
		c.Inc()
	}
}

// pass notes how many are not listed, by cause.
func (m *metrics) pass(counts map[cause]int) {
	for _, c := range causes {
		if g, err := m.passed.GetMetricWithLabelValues(string(c)); err == nil {
			g.Set(float64(counts[c]))
		}
	}
}

// silence tells how long nothing was heard; nothing before Run.
type silence struct {
	source *Source
	desc   *prometheus.Desc
}

// Describe sends the description.
func (s silence) Describe(c chan<- *prometheus.Desc) { c <- s.desc }

// Collect sends the number.
func (s silence) Collect(c chan<- prometheus.Metric) {
	var longest time.Duration
	for _, m := range s.source.mirrors {
		heard := m.State().Heard
		if heard.IsZero() {
			return
		}
		longest = max(longest, time.Since(heard))
	}
	if n, err := prometheus.NewConstMetric(s.desc, prometheus.GaugeValue, longest.Seconds()); err == nil {
		c <- n
	}
}

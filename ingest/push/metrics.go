package push

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	accepted  prometheus.Counter
	bytes     prometheus.Counter
	overRate  prometheus.Counter
	streams   prometheus.Gauge
	sampleAge prometheus.Histogram
	refused   *prometheus.CounterVec
	ended     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_push_reports_accepted_total", Help: "Reports that were valid and came from the bound stream, old sequences included.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_push_received_bytes_total", Help: "Bytes of the messages that were received.",
		}),
		overRate: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_push_over_rate_total", Help: "Reports above twice the granted rate.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_push_streams", Help: "Open report streams.",
		}),
		sampleAge: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_push_sample_age_seconds",
			Help:    "Age of the oldest sample of a report when the engine built it, by the engine's clock.",
			Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_push_reports_refused_total", Help: "Reports that were refused, by reason.",
		}, []string{"reason"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_push_streams_ended_total", Help: "Report streams that ended, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.accepted, m.bytes, m.overRate, m.streams, m.sampleAge, m.refused, m.ended} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func count(vec *prometheus.CounterVec, reason string) {
	if c, err := vec.GetMetricWithLabelValues(reason); err == nil {
		c.Inc()
	}
}

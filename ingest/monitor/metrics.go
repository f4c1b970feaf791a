package monitor

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	accepted   prometheus.Counter
	bytes      prometheus.Counter
	overRate   prometheus.Counter
	oddGrants  prometheus.Counter
	keepAlives prometheus.Counter
	sessions   prometheus.Gauge
	sampleAge  prometheus.Histogram
	refused    *prometheus.CounterVec
	ended      *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_monitor_reports_accepted_total", Help: "Reports that were valid and came in the session that speaks, old sequences included.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_monitor_received_bytes_total", Help: "Bytes of the frames that were received.",
		}),
		overRate: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_monitor_over_rate_total", Help: "Reports above twice the wanted rate, of which the newest is taken when it is due.",
		}),
		oddGrants: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_monitor_odd_grants_total", Help: "Sessions whose granted lease and renewal make no sense.",
		}),
		keepAlives: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_monitor_keepalives_total", Help: "Keep-alive frames that were sent.",
		}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_monitor_sessions", Help: "Sessions with an engine that were acknowledged.",
		}),
		sampleAge: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_monitor_sample_age_seconds",
			Help:    "Age of the oldest sample of a report when the engine built it, by the engine's clock.",
			Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_monitor_reports_refused_total", Help: "Reports that were refused, by reason.",
		}, []string{"reason"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_monitor_sessions_ended_total", Help: "Sessions that ended or could not be opened, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.accepted, m.bytes, m.overRate, m.oddGrants, m.keepAlives, m.sessions, m.sampleAge, m.refused, m.ended,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// count counts a reason. It is one of a fixed list, whatever an engine sends.
func count(vec *prometheus.CounterVec, reason string) {
	if c, err := vec.GetMetricWithLabelValues(reason); err == nil {
		c.Inc()
	}
}

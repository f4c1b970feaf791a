package native

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	registrations *prometheus.CounterVec
	denied        *prometheus.CounterVec
	accepted      prometheus.Counter
	merged        prometheus.Counter
	bytes         prometheus.Counter
	grants        prometheus.Counter
	streams       prometheus.Gauge
	sampleAge     prometheus.Histogram
	refused       *prometheus.CounterVec
	ended         *prometheus.CounterVec
}

// Outcomes of calls that were not refused.
const (
	outcomeBegun   = "begun"
	outcomeRenewed = "renewed"
	outcomeEnded   = "ended"
)

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_native_registrations_total", Help: "Calls by which a lease was begun, renewed or ended, by outcome.",
		}, []string{"outcome"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_native_registrations_refused_total", Help: "Calls to begin, renew or end a lease that were refused, by reason.",
		}, []string{"reason"}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_native_reports_accepted_total", Help: "Reports that were valid and came from the bound stream, old sequences included.",
		}),
		merged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_native_reports_merged_total", Help: "Reports above twice the granted rate; the newest of them counts.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_native_received_bytes_total", Help: "Bytes of the messages that were received.",
		}),
		grants: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_native_grants_total", Help: "Grants that were sent on report streams.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_native_streams", Help: "Open report streams.",
		}),
		sampleAge: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_native_sample_age_seconds",
			Help:    "Age of the oldest sample of a report when the reporter built it, by the reporter's clock.",
			Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_native_reports_refused_total", Help: "Reports that were refused, by reason.",
		}, []string{"reason"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_native_streams_ended_total", Help: "Report streams that ended, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.registrations, m.denied, m.accepted, m.merged, m.bytes, m.grants, m.streams, m.sampleAge, m.refused, m.ended,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// count adds one where the value of the label is one of ours.
func count(vec *prometheus.CounterVec, value string) {
	if c, err := vec.GetMetricWithLabelValues(value); err == nil {
		c.Inc()
	}
}

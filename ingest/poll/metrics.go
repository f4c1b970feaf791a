package poll

import (
	"cmp"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	polls     *prometheus.CounterVec
	unusable  *prometheus.CounterVec
	seconds   prometheus.Histogram
	bytes     prometheus.Counter
	surveys   prometheus.Counter
	panics    prometheus.Counter
	vanished  *prometheus.CounterVec
	engines   prometheus.Gauge
	stretched prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_poll_polls_total", Help: "Polls that ended, by result: ok, or the reason of the failure.",
		}, []string{"result"}),
		unusable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_poll_unusable_values_total", Help: "Values of pages that were there and are not usable, by reason.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_poll_seconds",
			Help:    "Time that a poll took, from its first request to the admission of the report.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_poll_received_bytes_total", Help: "Bytes of the bodies of complete answers.",
		}),
		surveys: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_poll_surveys_total", Help: "Times that the pages of an engine were asked for to choose one.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_poll_panics_total", Help: "Panics of the code that reads the answers of engines.",
		}),
		vanished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_poll_fields_vanished_total", Help: "Fields that an engine process had on its page and has no more, by field.",
		}, []string{"field"}),
		engines: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_poll_engines", Help: "Engines that are polled.",
		}),
		stretched: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "loadplane_poll_stretched_engines", Help: "Engines that are polled at a longer interval than wanted, as they are slow.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.polls, m.unusable, m.seconds, m.bytes, m.surveys, m.panics, m.vanished, m.engines, m.stretched} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// polled counts a poll. The reason is one of a fixed list, empty for success.
func (m *metrics) polled(reason store.Reason, took time.Duration) {
	if c, err := m.polls.GetMetricWithLabelValues(string(cmp.Or(reason, "ok"))); err == nil {
		c.Inc()
	}
	m.seconds.Observe(took.Seconds())
}

// count counts what happened while an engine was asked, but for panics.
func (m *metrics) count(t *reader.Tally) {
	m.bytes.Add(float64(t.Bytes))
	m.surveys.Add(float64(t.Surveys))
	for reason, n := range t.Unusable {
		if c, err := m.unusable.GetMetricWithLabelValues(string(reason)); err == nil {
			c.Add(float64(n))
		}
	}
	for _, f := range t.Vanished {
		if c, err := m.vanished.GetMetricWithLabelValues(store.Fields[f].Name); err == nil {
			c.Inc()
		}
	}
}

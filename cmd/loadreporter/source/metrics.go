package source

import (
	"cmp"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	samples  *prometheus.CounterVec
	unusable *prometheus.CounterVec
	vanished *prometheus.CounterVec
	seconds  prometheus.Histogram
	bytes    prometheus.Counter
	surveys  prometheus.Counter
	panics   prometheus.Counter
	skipped  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		samples: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_source_samples_total", Help: "Samples of the engine that ended, by result: ok, or why it told no load.",
		}, []string{"result"}),
		unusable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_source_unusable_values_total", Help: "Values of pages that were there and are not usable, by reason.",
		}, []string{"reason"}),
		vanished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_source_fields_vanished_total", Help: "Fields that the engine process had on its page and has no more, by field.",
		}, []string{"field"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "loadplane_source_seconds",
			Help:    "Time that a sample took.",
			Buckets: []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5},
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_source_received_bytes_total", Help: "Bytes of the bodies of complete answers.",
		}),
		surveys: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_source_surveys_total", Help: "Times that the pages of the engine were asked for to choose one.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_source_panics_total", Help: "Panics of the code that reads the answers of the engine.",
		}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_source_skipped_total", Help: "Times for a sample that passed while another was under way or the engine was left alone.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.samples, m.unusable, m.vanished, m.seconds, m.bytes, m.surveys, m.panics, m.skipped} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// sampled counts a sample. The reason is one of a fixed list, empty for success.
func (m *metrics) sampled(reason store.Reason, took time.Duration) {
	if c, err := m.samples.GetMetricWithLabelValues(string(cmp.Or(reason, "ok"))); err == nil {
		c.Inc()
	}
	m.seconds.Observe(took.Seconds())
}

// count counts what happened while the engine was asked.
func (m *metrics) count(t *reader.Tally) {
	m.bytes.Add(float64(t.Bytes))
	m.surveys.Add(float64(t.Surveys))
	m.panics.Add(float64(len(t.Panics)))
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

package loadstat

import (
	"cmp"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	connections, ended                             *prometheus.CounterVec
	messages, coalesced, old, negative, mismatches prometheus.Counter
	restarts, reports, received                    prometheus.Counter
	engines, sockets                               prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_loadstat_connections_total", Help: "Attempts to subscribe to the socket of a rank, by result: ok, or the reason of the failure.",
		}, []string{"result"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "loadplane_loadstat_ended_total", Help: "Subscribed connections that ended, by reason: instance_changed where another life of the engine ended it.",
		}, []string{"reason"}),
		messages:   counter("loadplane_loadstat_messages_total", "Messages that were taken."),
		coalesced:  counter("loadplane_loadstat_coalesced_total", "Messages that were replaced by a newer one of their rank before a report was made."),
		old:        counter("loadplane_loadstat_old_sequence_total", "Messages that repeat the sequence before."),
		negative:   counter("loadplane_loadstat_negative_values_total", "Numbers below 0, which are unknown."),
		mismatches: counter("loadplane_loadstat_rank_mismatches_total", "Messages that name another rank than that of their socket, which decides."),
		restarts:   counter("loadplane_loadstat_restarts_total", "Times that another life of an engine was found."),
		reports:    counter("loadplane_loadstat_reports_total", "Reports that were offered."),
		received:   counter("loadplane_loadstat_received_bytes_total", "Bytes that were read from sockets."),
		engines:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadplane_loadstat_engines", Help: "Engines that are subscribed to."}),
		sockets:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "loadplane_loadstat_sockets", Help: "Connections that are subscribed."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.connections, m.ended, m.messages, m.coalesced, m.old, m.negative, m.mismatches, m.restarts, m.reports,
		m.received, m.engines, m.sockets,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// connected counts an attempt. The reason is one of a fixed list, empty for
// success.
func (m *metrics) connected(reason store.Reason) {
	if c, err := m.connections.GetMetricWithLabelValues(string(cmp.Or(reason, "ok"))); err == nil {
		c.Inc()
	}
}

// end counts the end of a connection. The reason is one of a fixed list.
func (m *metrics) end(reason store.Reason) {
	if c, err := m.ended.GetMetricWithLabelValues(string(reason)); err == nil {
		c.Inc()
	}
}

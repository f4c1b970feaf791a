// Package metrics shows what a watcher of package client does to Prometheus.
// It is apart so that client itself needs no Prometheus.
package metrics

import (
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector reads a watcher when it is asked. It is immutable and safe for
// concurrent use. Two watchers of one process need a label each, by
// prometheus.WrapRegistererWith.
type Collector struct {
	watcher *client.Watcher

	connected, age, workers, messages, reconnects, adoptions, cuts, torn *prometheus.Desc
}

// New returns a collector of a watcher. The caller registers it.
func New(w *client.Watcher) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_client_"+name, help, labels, nil)
	}
	return &Collector{
		watcher:    w,
		connected:  desc("connected", "1 while a stream brings messages."),
		age:        desc("view_age_seconds", "Time since the message that made the view arrived; absent before the first view."),
		workers:    desc("valid_workers", "Workers of the view that are fresh and within their validity; absent before the first view."),
		messages:   desc("messages_total", "Messages applied, by type.", "type"),
		reconnects: desc("reconnects_total", "Streams and attempts that ended, by cause.", "cause"),
		adoptions:  desc("lineage_adoptions_total", "Times that the view went over to another lineage."),
		cuts:       desc("watchdog_cuts_total", "Streams and attempts that were cut because no message came in time."),
		torn:       desc("digest_mismatches_total", "Streams that were cut because a view did not sum to the digest of the plane, which must not be."),
	}
}

// Describe sends the descriptions.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connected, c.age, c.workers, c.messages, c.reconnects, c.adoptions, c.cuts, c.torn} {
		out <- d
	}
}

// Collect sends the values of this moment. Every label value is there from the
// first time on.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := c.watcher.Status()
	out <- prometheus.MustNewConstMetric(c.connected, prometheus.GaugeValue, number(s.Connected()))
	if v, _ := c.watcher.View(); v != nil {
		now := time.Now()
		out <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, v.Age(now).Seconds())
		out <- prometheus.MustNewConstMetric(c.workers, prometheus.GaugeValue, float64(v.CountValid(now)))
	}
	for _, name := range client.EventNames() {
		out <- prometheus.MustNewConstMetric(c.messages, prometheus.CounterValue, float64(s.Messages[name]), name)
	}
	for _, cause := range client.Causes() {
		out <- prometheus.MustNewConstMetric(c.reconnects, prometheus.CounterValue, float64(s.Ended[cause]), string(cause))
	}
	out <- prometheus.MustNewConstMetric(c.adoptions, prometheus.CounterValue, float64(s.Adoptions))
	out <- prometheus.MustNewConstMetric(c.cuts, prometheus.CounterValue, float64(s.Ended[client.CauseSilent]))
	out <- prometheus.MustNewConstMetric(c.torn, prometheus.CounterValue, float64(s.Torn))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

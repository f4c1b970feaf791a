package api

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPoolSeries bounds the pools with series of their own; the others are
	// counted together, by role.
	maxPoolSeries = 100
	// restModel is the model of those others.
	restModel = "other"
	// maxLabelBytes bounds the model in a label.
	maxLabelBytes = 128
)

// Coverage counts workers by how well they are known. A worker with several
// models counts in the pool of each. It is a plain value.
type Coverage struct {
	// Expected counts all but those that cannot be heard or have no engine.
	Expected int `json:"expected"`
	// Heard counts those with a report, whatever its age.
	Heard int `json:"heard"`
	// Fresh counts those whose report is fresh.
	Fresh int `json:"fresh"`
}

func (c *Coverage) add(p *snapshot.Pool) {
	c.Expected += p.Expected
	c.Heard += p.Heard
	c.Fresh += p.Fresh
}

// coverageOf returns the coverage of all pools of a view together.
func coverageOf(view *snapshot.View) (all Coverage) {
	for _, p := range view.Pools {
		all.add(p)
	}
	return all
}

// coverage shows how well pools are known, as they are in the newest view. It is
// a collector, safe for concurrent use: a pool that is gone has no series.
type coverage struct {
	views                  *snapshot.Builder
	expected, heard, fresh *prometheus.Desc
}

func newCoverage(views *snapshot.Builder) *coverage {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_api_"+name, help+", by pool; the pools behind the largest 100 count as model other.", []string{"model", "role"}, nil)
	}
	return &coverage{
		views:    views,
		expected: desc("pool_expected", "Workers that are to be heard"),
		heard:    desc("pool_heard", "Workers with a report, whatever its age"),
		fresh:    desc("pool_fresh", "Workers whose report is fresh"),
	}
}

// Describe sends the descriptions.
func (c *coverage) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.expected, c.heard, c.fresh} {
		out <- d
	}
}

// Collect sends the values of the newest view.
func (c *coverage) Collect(out chan<- prometheus.Metric) {
	view, _ := c.views.Current()
	for pool, n := range byLabels(view.Pools) {
		send := func(d *prometheus.Desc, v int) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), pool.model, pool.role)
		}
		send(c.expected, n.Expected)
		send(c.heard, n.Heard)
		send(c.fresh, n.Fresh)
	}
}

// poolLabels are the labels of a pool. It is a plain value and comparable.
type poolLabels struct{ model, role string }

// byLabels sums pools by their labels. The largest have their own; those of
// one size go by name, so that the choice stays.
func byLabels(pools []*snapshot.Pool) map[poolLabels]*Coverage {
	bySize := slices.Clone(pools)
	slices.SortStableFunc(bySize, func(a, b *snapshot.Pool) int { return cmp.Compare(b.Workers, a.Workers) })
	sums := make(map[poolLabels]*Coverage)
	for i, p := range bySize {
		l := poolLabels{labelOf(p.Key.Model), p.Key.Role.String()}
		if i >= maxPoolSeries {
			l.model = restModel
		}
		if sums[l] == nil {
			sums[l] = new(Coverage)
		}
		sums[l].add(p)
	}
	return sums
}

// labelOf makes a model fit for a label: what cannot be printed is a "_", and
// what is too long is cut.
func labelOf(model string) string {
	clean := strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || r == '"' || r == '\\' || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, model)
	if len(clean) <= maxLabelBytes {
		return clean
	}
	return strings.ToValidUTF8(clean[:maxLabelBytes], "")
}

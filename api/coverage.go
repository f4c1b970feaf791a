package api

import (
	"cmp"
	"slices"

	"github.com/loadplane/loadplane/api/series"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPoolSeries bounds the pools with series of their own; the others are
	// counted together, by role.
	maxPoolSeries = 100
	// restModel is the model of those others.
	restModel = "other"
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

// coverage shows how well pools are known and what they carry, as they are in
// the newest view. It is a collector, safe for concurrent use: a pool that is
// gone has no series.
type coverage struct {
	views                  *snapshot.Builder
	expected, heard, fresh *prometheus.Desc
	// loads are the sums over the fresh workers that are shown.
	loads map[store.Sum]*prometheus.Desc
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
		loads: map[store.Sum]*prometheus.Desc{
			store.SumRunningReqs:         desc("pool_running_requests", "Requests that run on fresh workers; absent where one does not say it"),
			store.SumWaitingReqs:         desc("pool_waiting_requests", "Requests that wait on fresh workers; absent where one does not say it"),
			store.SumUsedTokens:          desc("pool_used_tokens", "Tokens of KV cache in use on fresh workers; absent where one does not say it"),
			store.SumMaxTotalTokens:      desc("pool_capacity_tokens", "Tokens of KV cache that fresh workers have; absent where one does not say it"),
			store.SumGenThroughput:       desc("pool_generated_tokens_per_second", "Tokens generated a second by fresh workers; absent where one does not say it"),
			store.SumWeightedTokenUsage:  desc("pool_token_usage_ratio", "Part of the KV cache of fresh workers that is in use; absent where one does not say it"),
			store.SumMaxRankTokenUsage:   desc("pool_hottest_rank_usage_ratio", "Part of the KV cache of the fullest DP rank of fresh workers that is in use; absent where one does not say it"),
			store.SumTokenUsageImbalance: desc("pool_token_usage_imbalance_ratio", "Largest over mean KV cache usage of fresh workers; absent where one does not say it or the mean is 0"),
			store.SumRequestImbalance:    desc("pool_request_imbalance_ratio", "Largest over mean number of requests of fresh workers; absent where one does not say it or the mean is 0"),
		},
	}
}

// Describe sends the descriptions.
func (c *coverage) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.expected, c.heard, c.fresh} {
		out <- d
	}
	for _, d := range c.loads {
		out <- d
	}
}

// Collect sends the values of the newest view.
func (c *coverage) Collect(out chan<- prometheus.Metric) {
	view, _ := c.views.Current()
	for pool, n := range byLabels(view.Pools) {
		send := func(d *prometheus.Desc, v float64) {
			if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, pool.model, pool.role); err == nil {
				out <- m
			}
		}
		send(c.expected, float64(n.Expected))
		send(c.heard, float64(n.Heard))
		send(c.fresh, float64(n.Fresh))
		load := n.load()
		for sum, d := range c.loads {
			if v, ok := series.Sum(load, sum); ok {
				send(d, v)
			}
		}
	}
}

// poolLabels are the labels of a pool. It is a plain value and comparable.
type poolLabels struct{ model, role string }

// poolSum is what pools with the same labels are together.
type poolSum struct {
	Coverage
	// loads are those of the pools that have one.
	loads []*store.Aggregate
}

func (s *poolSum) add(p *snapshot.Pool) {
	s.Coverage.add(p)
	if p.Aggregate != nil {
		s.loads = append(s.loads, p.Aggregate)
	}
}

// load returns the load of all pools; nil for none.
func (s *poolSum) load() *store.Aggregate {
	if len(s.loads) == 1 {
		return s.loads[0]
	}
	return store.Combine(s.loads)
}

// byLabels sums pools by their labels. The largest have their own; those of
// one size go by name, so that the choice stays.
func byLabels(pools []*snapshot.Pool) map[poolLabels]*poolSum {
	bySize := slices.Clone(pools)
	slices.SortStableFunc(bySize, func(a, b *snapshot.Pool) int { return cmp.Compare(b.Workers, a.Workers) })
	sums := make(map[poolLabels]*poolSum)
	for i, p := range bySize {
		l := poolLabels{series.Label(p.Key.Model), p.Key.Role.String()}
		if i >= maxPoolSeries {
			l.model = restModel
		}
		if sums[l] == nil {
			sums[l] = new(poolSum)
		}
		sums[l].add(p)
	}
	return sums
}

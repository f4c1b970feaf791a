package series

import (
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

// MaxWorkers is the largest number of workers that may have series.
const MaxWorkers = 1_000

// maxRanks bounds the ranks with series, of all workers together.
const maxRanks = 4_000

// Collector shows the workers of a store. It is immutable and safe for
// concurrent use.
type Collector struct {
	st   *store.Store
	most int

	info, freshness, age         *prometheus.Desc
	workersDropped, ranksDropped *prometheus.Desc
	// worker and rank have the numbers of those that are fresh.
	worker []number[store.Sum]
	rank   []number[store.Field]
}

// number is a number of a worker or of a rank, and how it is shown.
type number[T any] struct {
	of   T
	desc *prometheus.Desc
}

// New returns a collector for the first workers by id, as many as most says, 0
// to MaxWorkers; more count as MaxWorkers. The caller registers it.
func New(st *store.Store, most int) *Collector {
	c := &Collector{st: st, most: min(max(0, most), MaxWorkers)}
	c.worker = workerNumbers()
	c.rank = rankNumbers()
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_"+name, help, labels, nil)
	}
	c.info = desc("worker_info", "1 for each worker, with what is known of it besides its load.", "worker_id", "role", "model", "dialect")
	c.freshness = desc("worker_freshness", "1 for the freshness that a worker has: fresh, stale, missing or unreachable.", "worker_id", "role", "freshness")
	c.age = desc("worker_report_age_seconds", "Time since the last report of a worker was received; absent before the first.", "worker_id", "role")
	c.workersDropped = desc("worker_series_dropped", "Workers without series of their own, since there are more than --metrics-workers or their label is taken.")
	c.ranksDropped = desc("rank_series_dropped", "DP ranks without series of their own, since there are more than 4000 on workers that have them.")
	return c
}

// workerNumbers are sums over the ranks of a worker.
func workerNumbers() []number[store.Sum] {
	ofWorker := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_worker_"+name, help+"; absent where unknown or not fresh.", []string{"worker_id", "role"}, nil)
	}
	return []number[store.Sum]{
		{store.SumRunningReqs, ofWorker("running_requests", "Requests that run on a worker")},
		{store.SumWaitingReqs, ofWorker("waiting_requests", "Requests that wait on a worker")},
		{store.SumUsedTokens, ofWorker("used_tokens", "Tokens of the KV cache of a worker that are in use")},
		{store.SumMaxTotalTokens, ofWorker("capacity_tokens", "Tokens that the KV cache of a worker holds")},
		{store.SumWeightedTokenUsage, ofWorker("token_usage_ratio", "Part of the KV cache of a worker that is in use")},
		{store.SumMaxRankTokenUsage, ofWorker("hottest_rank_usage_ratio", "Part of the KV cache of the fullest DP rank of a worker that is in use")},
		{store.SumTokenUsageImbalance, ofWorker("token_usage_imbalance_ratio", "Largest over mean KV cache usage of the DP ranks of a worker")},
		{store.SumGenThroughput, ofWorker("generated_tokens_per_second", "Tokens that a worker generates a second")},
	}
}

// rankNumbers are those of one rank.
func rankNumbers() []number[store.Field] {
	ofRank := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("loadplane_rank_"+name, help+"; absent where unknown or the worker is not fresh.", []string{"worker_id", "dp_rank"}, nil)
	}
	return []number[store.Field]{
		{store.NumRunningReqs, ofRank("running_requests", "Requests that run on a DP rank")},
		{store.NumWaitingReqs, ofRank("waiting_requests", "Requests that wait on a DP rank")},
		{store.NumUsedTokens, ofRank("used_tokens", "Tokens of the KV cache of a DP rank that are in use")},
		{store.MaxTotalNumTokens, ofRank("capacity_tokens", "Tokens that the KV cache of a DP rank holds")},
		{store.TokenUsage, ofRank("token_usage_ratio", "Part of the KV cache of a DP rank that is in use")},
		{store.GenThroughput, ofRank("generated_tokens_per_second", "Tokens that a DP rank generates a second")},
	}
}

// Describe sends the descriptions.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.info, c.freshness, c.age, c.workersDropped, c.ranksDropped} {
		out <- d
	}
	for _, n := range c.worker {
		out <- n.desc
	}
	for _, n := range c.rank {
		out <- n.desc
	}
}

// Collect sends the values of the newest state.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	state, _ := c.st.Current()
	s := scrape{Collector: c, out: out, now: c.st.Options().Clock.Now(), seen: make(map[string]bool), room: maxRanks}
	for i, e := range state.Entries {
		if id := Label(e.Worker.ID); len(s.seen) < c.most && !s.seen[id] {
			s.seen[id] = true
			s.show(id, e, state.Live[i])
		}
	}
	s.send(c.workersDropped, float64(len(state.Entries)-len(s.seen)))
	s.send(c.ranksDropped, float64(s.dropped))
}

// scrape is one call of Collect.
type scrape struct {
	*Collector
	out chan<- prometheus.Metric
	now store.Instant
	// seen has the labels of workers that are shown.
	seen map[string]bool
	// room is for how many ranks there is room, and dropped counts the others.
	room, dropped int
}

// send leaves out what Prometheus cannot show.
func (s *scrape) send(d *prometheus.Desc, v float64, labels ...string) {
	if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, v, labels...); err == nil {
		s.out <- m
	}
}

// show sends what is known of a worker. l is nil until the worker is heard.
func (s *scrape) show(id string, e *store.Entry, l *store.Live) {
	role := e.Worker.Role.String()
	s.send(s.info, 1, id, role, Label(strings.Join(e.Worker.Models, ",")), e.Worker.Dialect.String())
	s.send(s.freshness, 1, id, role, e.Freshness.String())
	if l != nil {
		s.send(s.age, max(0, s.now.Sub(l.Received)).Seconds(), id, role)
	}
	if e.Freshness != store.Fresh || e.Aggregate == nil {
		return
	}
	for _, n := range s.worker {
		if v, ok := Sum(e.Aggregate, n.of); ok {
			s.send(n.desc, v, id, role)
		}
	}
	for i := range e.Ranks {
		s.showRank(id, &e.Ranks[i])
	}
}

func (s *scrape) showRank(id string, r *store.Rank) {
	if s.room == 0 {
		s.dropped++
		return
	}
	s.room--
	rank := strconv.Itoa(int(r.DPRank))
	for _, n := range s.rank {
		if v, ok := fieldOf(r, n.of); ok {
			s.send(n.desc, v, id, rank)
		}
	}
}

// Sum returns a number of an aggregate, nil for none, as Prometheus takes it,
// and whether it is known.
func Sum(a *store.Aggregate, s store.Sum) (float64, bool) {
	if a == nil {
		return 0, false
	}
	if store.Sums[s].Float {
		return a.Float(s)
	}
	n, ok := a.Count(s)
	return float64(n), ok
}

func fieldOf(r *store.Rank, f store.Field) (float64, bool) {
	if store.Fields[f].Float {
		return r.Float(f)
	}
	n, ok := r.Count(f)
	return float64(n), ok
}

package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/api"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// value returns the only series of a gauge, and whether there is one.
func (p *plane) value(name string, labels ...string) (float64, bool) {
	p.Helper()
	for _, s := range p.series(name) {
		if slices.Equal(s.labels, labels) {
			return s.value, true
		}
	}
	return 0, false
}

// wantGauge checks a gauge that must be there.
func (p *plane) wantGauge(want float64, name string, labels ...string) {
	p.Helper()
	if got, ok := p.value(name, labels...); !ok || got != want {
		p.Errorf("%s%v is %v, %t, want %v", name, labels, got, ok, want)
	}
}

// A reader that takes nothing shows while it is being waited for, and not any
// more once it was cut.
func TestWatchLag(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		live := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		live.full()
		p.wantGauge(0, "loadplane_api_watch_lag_seconds")
		p.stall(4*time.Second, false)
		// The first message began when the watch was opened; buffers took others.
		if got, _ := p.value("loadplane_api_watch_lag_seconds"); got < 1 || got > 4 {
			p.Errorf("lag %v of a reader that takes nothing for 4 s", got)
		}
		p.after(6 * time.Second)
		p.wantGauge(0, "loadplane_api_watch_lag_seconds")
	})
}

// The gauges of readiness say what /readyz says.
func TestReadyGauges(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.wantGauge(0, "loadplane_api_ready")
		p.wantGauge(1, "loadplane_api_not_ready", "warming")
		p.wantGauge(0, "loadplane_api_not_ready", "draining")
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		p.wantGauge(1, "loadplane_api_ready")
		p.wantGauge(0, "loadplane_api_not_ready", "warming")
		p.stopStore()
		p.after(5 * time.Second)
		p.wantGauge(0, "loadplane_api_ready")
		p.wantGauge(1, "loadplane_api_not_ready", "store_stalled")
		p.api.Drain("test")
		p.wantGauge(1, "loadplane_api_not_ready", "draining")
	})
}

func TestDigestMismatch(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		p.wantGauge(0, "loadplane_api_digest_mismatch")
		view, _ := p.views.Current()
		bad := *view.Snapshot
		bad.Digest++
		if api.Torn(view) || !api.Torn(&snapshot.View{Snapshot: &bad}) {
			p.Error("a digest that is not the sum of the workers was not told from one that is")
		}
	})
}

// averages are the gauges of a pool that need a fresh worker.
var averages = []string{
	"running_requests", "waiting_requests", "used_tokens", "capacity_tokens", "token_usage_ratio",
	"hottest_rank_usage_ratio", "token_usage_imbalance_ratio", "request_imbalance_ratio", "generated_tokens_per_second",
}

func TestPoolLoad(t *testing.T) {
	const model, role = "qwen3", "plain"
	two := func(p *plane) {
		p.add(pooled("a:1", model, store.RoleRegular), pooled("b:1", model, store.RoleRegular))
		p.report("a:1", 1, 1, 1)
		p.report("b:1", 1, 3, 1)
		p.after(settle)
	}
	t.Run("sums over fresh workers", func(t *testing.T) {
		inBubble(t, nil, func(p *plane) {
			two(p)
			view, _ := p.views.Current()
			pool := view.Pools[0].Aggregate
			for name, sum := range map[string]store.Sum{
				"running_requests": store.SumRunningReqs, "used_tokens": store.SumUsedTokens, "capacity_tokens": store.SumMaxTotalTokens,
			} {
				want, ok := pool.Count(sum)
				if !ok || want == 0 {
					p.Fatalf("the pool does not know %s", name)
				}
				p.wantGauge(float64(want), "loadplane_api_pool_"+name, model, role)
			}
			p.wantGauge(1.5, "loadplane_api_pool_request_imbalance_ratio", model, role)
		})
	})
	t.Run("each by its own name", func(t *testing.T) {
		inBubble(t, nil, func(p *plane) {
			p.add(pooled("a:1", model, store.RoleRegular), pooled("b:1", model, store.RoleRegular))
			for i, id := range []string{"a:1", "b:1"} {
				l := p.newLoad(id, 1, 1, 1)
				r, n := &l.Ranks[0], int64(i)
				r.SetCount(store.NumRunningReqs, 1+2*n)
				r.SetCount(store.NumWaitingReqs, 3+4*n)
				r.SetCount(store.NumUsedTokens, 200+600*n)
				r.SetFloat(store.TokenUsage, 0.2+0.6*float64(n))
				r.SetFloat(store.GenThroughput, 7)
				r.SetFloat(store.PrefillThroughput, 8)
				p.slots[id].Offer(1, l)
			}
			p.after(settle)
			for name, want := range map[string]float64{
				"running_requests": 4, "waiting_requests": 10, "used_tokens": 1000, "capacity_tokens": 2000, "token_usage_ratio": 0.5,
				"hottest_rank_usage_ratio": 0.8, "token_usage_imbalance_ratio": 1.6, "generated_tokens_per_second": 14,
			} {
				p.wantGauge(want, "loadplane_api_pool_"+name, model, role)
			}
			if got, _ := p.value("loadplane_api_pool_request_imbalance_ratio", model, role); got < 1.42 || got > 1.43 {
				p.Errorf("the imbalance of requests is %v, want 10/7", got)
			}
		})
	})
	t.Run("bug 18: averages are absent without a fresh worker", func(t *testing.T) {
		inBubble(t, nil, func(p *plane) {
			two(p)
			p.after(2 * staleAfter)
			p.wantGauge(0, "loadplane_api_pool_fresh", model, role)
			for _, name := range averages {
				if got, ok := p.value("loadplane_api_pool_"+name, model, role); ok {
					p.Errorf("%s is %v where nothing is fresh", name, got)
				}
			}
			if problems, err := testutil.GatherAndLint(p.reg); err != nil || len(problems) > 0 {
				p.Errorf("problems %v, error %v", problems, err)
			}
		})
	})
	t.Run("bug 19: a mean is not rounded", func(t *testing.T) {
		inBubble(t, nil, func(p *plane) {
			p.add(pooled("a:1", model, store.RoleRegular), pooled("b:1", model, store.RoleRegular))
			p.report("a:1", 1, 1, 1)
			p.report("b:1", 1, 0, 1)
			p.after(settle)
			requests, _ := p.value("loadplane_api_pool_running_requests", model, role)
			fresh, _ := p.value("loadplane_api_pool_fresh", model, role)
			if requests/fresh != 0.5 {
				p.Errorf("%v requests on %v workers, want 1 on 2", requests, fresh)
			}
		})
	})
}

// faulty is a collector of which one metric cannot be shown.
type faulty struct{ good *prometheus.Desc }

func (f faulty) Describe(out chan<- *prometheus.Desc) { out <- f.good }

func (f faulty) Collect(out chan<- prometheus.Metric) {
	for range 2 { // twice the same
		out <- prometheus.MustNewConstMetric(f.good, prometheus.GaugeValue, 1)
	}
}

// TestBug34OneBadMetricDoesNotBreakThePage shows that the rest is served.
func TestBug34OneBadMetricDoesNotBreakThePage(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.reg.MustRegister(faulty{prometheus.NewDesc("test_twice", "Twice.", nil, nil)})
		p.ops("/metrics")
		a := p.ops("/metrics")
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, "loadplane_api_watchers 0") {
			p.Errorf("%d %s", a.StatusCode, a.body)
		}
		if !strings.Contains(a.body, `promhttp_metric_handler_errors_total{cause="gathering"} 1`) {
			p.Error("the fault is not counted")
		}
	})
}

// TestBug64ManyNames has more models than anybody serves: the page stays small.
func TestBug64ManyNames(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		workers := make([]*store.Worker, 5_000)
		for i := range workers {
			workers[i] = pooled(fmt.Sprintf("w%d:1", i), fmt.Sprintf("model-%d-%s", i, strings.Repeat("x", 200)), store.RoleRegular)
		}
		p.add(workers...)
		p.after(settle)
		a := p.ops("/metrics")
		if a.StatusCode != http.StatusOK || len(a.body) > 1<<20 {
			p.Errorf("%d, %d bytes", a.StatusCode, len(a.body))
		}
		if n := len(p.series("loadplane_api_pool_expected")); n != 101 {
			p.Errorf("%d pools have series", n)
		}
	})
}

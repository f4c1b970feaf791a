package series_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/loadplane/loadplane/api/series"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	settle     = 10 * time.Millisecond
)

// plane is a running store whose workers have series.
type plane struct {
	*testing.T
	*store.Store
	clock *store.Clock
	reg   *prometheus.Registry
}

// inBubble runs body on a plane in fake time that shows up to most workers.
func inBubble(t *testing.T, most int, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{T: t, clock: store.NewClock(), reg: prometheus.NewPedanticRegistry()}
		st, err := store.New(store.Options{
			Lineage: "l", Epoch: 1, Clock: p.clock, StaleAfter: staleAfter, Settle: settle, ReportInterval: interval,
			Discovery: true, SleptFor: func() time.Duration { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		p.Store = st
		if err := p.reg.Register(series.New(st, most)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- st.Run(ctx) }()
		synctest.Wait()
		body(p)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// add lists workers.
func (p *plane) add(ids ...string) (slots []*store.Slot) {
	for i, id := range ids {
		sl := p.NewSlot(&store.Worker{
			ID: id, URL: "http://" + id, Origin: fmt.Sprintf("h%d:1", i), Role: store.RoleRegular, Models: []string{"m1", "m2"},
			Dialect: store.DialectPush, Interval: interval,
		})
		sl.Bind(store.Stream{Source: "s", Generation: 1})
		slots = append(slots, sl)
	}
	p.Apply(store.Discovery{Added: slots, Synced: true})
	p.after(settle)
	return slots
}

// rank knows its requests and its KV cache.
func rank(number int32, running int64) store.Rank {
	r := store.Rank{DPRank: number}
	r.SetCount(store.NumRunningReqs, running)
	r.SetCount(store.NumWaitingReqs, 0)
	r.SetCount(store.MaxTotalNumTokens, 1000)
	r.SetFloat(store.TokenUsage, 0.25*float64(running))
	return r
}

func (p *plane) report(sl *store.Slot, seq uint64, ranks ...store.Rank) {
	sl.Offer(1, &store.Load{
		Source: "s", Sequence: seq, Status: store.StatusHealthy, ReportUnixMs: -1, Ranks: ranks,
		Samples: make([]store.Sample, len(ranks)), Received: p.clock.Now(),
	})
	p.after(settle)
}

// gather returns all series as name{label,label}, with their values.
func (p *plane) gather() map[string]float64 {
	p.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all[strings.TrimPrefix(f.GetName(), "loadplane_")+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue()
		}
	}
	return all
}

// of counts the series that name a worker.
func (p *plane) of(id string) (n int) {
	p.Helper()
	for s := range p.gather() {
		if strings.Contains(s, "worker_id="+id+",") || strings.Contains(s, "worker_id="+id+"}") {
			n++
		}
	}
	return n
}

func want(t *testing.T, all map[string]float64, series map[string]float64) {
	t.Helper()
	for s, v := range series {
		if got, ok := all[s]; !ok || got != v {
			t.Errorf("%s is %v, %t, want %v", s, got, ok, v)
		}
	}
}

func wantNone(t *testing.T, all map[string]float64, part string) {
	t.Helper()
	for s, v := range all {
		if strings.Contains(s, part) {
			t.Errorf("%s is %v, want none", s, v)
		}
	}
}

func TestWorkersAndRanks(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		sl := p.add("a")[0]
		all := p.gather()
		want(t, all, map[string]float64{
			"worker_info{dialect=push,model=m1,m2,role=plain,worker_id=a}": 1,
			"worker_freshness{freshness=missing,role=plain,worker_id=a}":   1,
			"worker_series_dropped{}":                                      0, "rank_series_dropped{}": 0,
		})
		if len(all) != 4 {
			t.Errorf("series of a worker that was not heard: %v", all)
		}
		p.report(sl, 1, rank(0, 1), rank(1, 3))
		p.after(time.Second)
		all = p.gather()
		want(t, all, map[string]float64{
			"worker_freshness{freshness=fresh,role=plain,worker_id=a}":   1,
			"worker_running_requests{role=plain,worker_id=a}":            4,
			"worker_waiting_requests{role=plain,worker_id=a}":            0,
			"worker_capacity_tokens{role=plain,worker_id=a}":             2000,
			"worker_token_usage_ratio{role=plain,worker_id=a}":           0.5,
			"worker_hottest_rank_usage_ratio{role=plain,worker_id=a}":    0.75,
			"worker_token_usage_imbalance_ratio{role=plain,worker_id=a}": 1.5,
			"worker_report_age_seconds{role=plain,worker_id=a}":          (time.Second + settle).Seconds(),
			"rank_running_requests{dp_rank=0,worker_id=a}":               1,
			"rank_running_requests{dp_rank=1,worker_id=a}":               3,
			"rank_token_usage_ratio{dp_rank=1,worker_id=a}":              0.75,
			"rank_capacity_tokens{dp_rank=0,worker_id=a}":                1000,
		})
		for _, unknown := range []string{"worker_used_tokens", "rank_used_tokens", "generated_tokens", "freshness=missing"} {
			wantNone(t, all, unknown)
		}
		if problems, err := testutil.GatherAndLint(p.reg); err != nil || len(problems) > 0 {
			t.Errorf("problems %v, error %v", problems, err)
		}
	})
}

// Every number is shown by its own name.
func TestNumbersHaveTheirNames(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		var ranks []store.Rank
		for i, usage := range []float64{0.25, 0.5} {
			r := store.Rank{DPRank: int32(3 + i)}
			for f, n := range map[store.Field]int64{
				store.NumRunningReqs: 1, store.NumWaitingReqs: 2, store.NumUsedTokens: int64(1000 * usage), store.MaxTotalNumTokens: 1000, store.NumTotalTokens: 5,
			} {
				r.SetCount(f, n)
			}
			r.SetFloat(store.TokenUsage, usage)
			r.SetFloat(store.GenThroughput, 7)
			r.SetFloat(store.PrefillThroughput, 8)
			ranks = append(ranks, r)
		}
		p.report(p.add("a")[0], 1, ranks...)
		all := p.gather()
		for name, v := range map[string]float64{
			"running_requests": 2, "waiting_requests": 4, "used_tokens": 750, "capacity_tokens": 2000, "token_usage_ratio": 0.375,
			"hottest_rank_usage_ratio": 0.5, "generated_tokens_per_second": 14,
		} {
			want(t, all, map[string]float64{"worker_" + name + "{role=plain,worker_id=a}": v})
		}
		if got := all["worker_token_usage_imbalance_ratio{role=plain,worker_id=a}"]; got < 1.33 || got > 1.34 {
			t.Errorf("the imbalance is %v, want 4/3", got)
		}
		for name, v := range map[string]float64{
			"running_requests": 1, "waiting_requests": 2, "used_tokens": 500, "capacity_tokens": 1000, "token_usage_ratio": 0.5, "generated_tokens_per_second": 7,
		} {
			want(t, all, map[string]float64{"rank_" + name + "{dp_rank=4,worker_id=a}": v})
		}
	})
}

// Names of models that are no label are made one.
func TestModelsAreLabels(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		p.Apply(store.Discovery{Synced: true, Added: []*store.Slot{p.NewSlot(&store.Worker{
			ID: "a", Origin: "h:1", Role: store.RoleRegular, Models: []string{"m\n\xff", `\`}, Dialect: store.DialectPush, Interval: interval,
		})}})
		p.after(settle)
		want(t, p.gather(), map[string]float64{"worker_info{dialect=push,model=m__,_,role=plain,worker_id=a}": 1})
	})
}

// What is not fresh has no load, but its age grows.
func TestStaleWorkersHaveNoLoad(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		p.report(p.add("a")[0], 1, rank(0, 1))
		p.after(time.Minute)
		all := p.gather()
		want(t, all, map[string]float64{
			"worker_freshness{freshness=stale,role=plain,worker_id=a}": 1,
			"worker_report_age_seconds{role=plain,worker_id=a}":        (time.Minute + settle).Seconds(),
		})
		for _, load := range []string{"rank_running", "worker_running", "freshness=fresh"} {
			wantNone(t, all, load)
		}
	})
}

// TestBug20SeriesGoWithTheWorker removes a worker and lets it report once more.
func TestBug20SeriesGoWithTheWorker(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		slots := p.add("a", "b")
		for _, sl := range slots {
			p.report(sl, 1, rank(0, 1), rank(1, 1))
		}
		if p.of("a") == 0 || p.of("a") != p.of("b") {
			t.Fatalf("%d and %d series", p.of("a"), p.of("b"))
		}
		p.Apply(store.Discovery{Removed: slots[:1]})
		p.after(settle)
		if n := p.of("a"); n != 0 {
			t.Errorf("%d series of a worker that is gone", n)
		}
		p.report(slots[0], 2, rank(0, 9))
		if n := p.of("a"); n != 0 || p.of("b") == 0 {
			t.Errorf("a late report brought %d series back", n)
		}
	})
}

// A rank that is gone has no series either.
func TestRanksGo(t *testing.T) {
	inBubble(t, 10, func(p *plane) {
		sl := p.add("a")[0]
		p.report(sl, 1, rank(0, 1), rank(1, 1))
		p.report(sl, 2, rank(0, 1))
		wantNone(t, p.gather(), "dp_rank=1")
	})
}

func TestCap(t *testing.T) {
	ids := make([]string, 1100)
	for i := range ids {
		ids[i] = fmt.Sprintf("w%04d", i)
	}
	for _, c := range []struct {
		name        string
		most, shown int
	}{
		{"none", 0, 0}, {"below 0", -1, 0}, {"some", 7, 7}, {"the largest", 1000, 1000}, {"above the largest", 5000, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, c.most, func(p *plane) {
				p.add(ids...)
				all := p.gather()
				want(t, all, map[string]float64{"worker_series_dropped{}": float64(len(ids) - c.shown)})
				shown := 0
				for s := range all {
					if strings.HasPrefix(s, "worker_info") {
						shown++
					}
				}
				if _, first := all["worker_info{dialect=push,model=m1,m2,role=plain,worker_id=w0000}"]; shown != c.shown || first != (c.shown > 0) {
					t.Errorf("%d workers shown, the first %t", shown, first)
				}
			})
		})
	}
}

func TestRanksAreCapped(t *testing.T) {
	inBubble(t, 1000, func(p *plane) {
		ranks := make([]store.Rank, 4096)
		for i := range ranks {
			ranks[i] = rank(int32(i), 1)
		}
		for _, sl := range p.add("a", "b", "c", "d") {
			p.report(sl, 1, ranks...)
		}
		all := p.gather()
		shown := 0
		for s := range all {
			if strings.HasPrefix(s, "rank_running_requests") {
				shown++
			}
		}
		want(t, all, map[string]float64{"rank_series_dropped{}": 12_384})
		if shown != 4_000 {
			t.Errorf("%d ranks shown", shown)
		}
	})
}

// TestBug34HostileNames has names that are no label, and two that become one.
func TestBug34HostileNames(t *testing.T) {
	inBubble(t, 100, func(p *plane) {
		long := strings.Repeat("x", 200)
		slots := p.add("a\nb", "a\x00b", "\xff", `"\`, long+"1", long+"2", "<script>", "plain", "")
		for _, sl := range slots {
			p.report(sl, 1, rank(0, 1), rank(1, 1))
		}
		all := p.gather()
		want(t, all, map[string]float64{
			"worker_running_requests{role=plain,worker_id=plain}": 2,
			"worker_running_requests{role=plain,worker_id=a_b}":   2,
			"worker_series_dropped{}":                             2,
		})
	})
}

// TestBug64ChurnLeavesNothing lists and removes many workers.
func TestBug64ChurnLeavesNothing(t *testing.T) {
	inBubble(t, 50, func(p *plane) {
		var old []*store.Slot
		for round := range 20 {
			ids := make([]string, 500)
			for i := range ids {
				ids[i] = fmt.Sprintf("r%d-%d", round, i)
			}
			p.Apply(store.Discovery{Removed: old})
			old = p.add(ids...)
			if n := len(p.gather()); n > 2+50*2 {
				t.Fatalf("%d series in round %d", n, round)
			}
		}
	})
}

func FuzzLabel(f *testing.F) {
	for _, s := range []string{"", "a", "a\nb", "\xff", strings.Repeat("é", 100), "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		l := series.Label(name)
		if !utf8.ValidString(l) || len(l) > 128 || strings.ContainsAny(l, "\"\\\n\x00") || series.Label(l) != l {
			t.Errorf("%q became %q", name, l)
		}
	})
}

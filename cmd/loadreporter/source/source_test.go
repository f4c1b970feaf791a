package source

import (
	"context"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestSamplesOnTheGrid asks at a fixed rate, from the moment a consumer wants
// it.
func TestSamplesOnTheGrid(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, interval, time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			inBubble(t, serving(loadsPath, loads(rank{1, 3}, rank{1, 4})), func(b *bench) {
				after(time.Minute)
				if n := len(b.e.forget()); n != 0 {
					t.Fatalf("%d requests without a consumer", n)
				}
				began := time.Now()
				b.Want("a", every)
				after(20*every + every/2)
				asked := b.e.forget()
				if len(asked) != 21 {
					t.Fatalf("%d requests in 20 intervals", len(asked))
				}
				for i, r := range asked {
					if at := r.at.Sub(began); r.path != loadsPath || at != time.Duration(i)*every {
						t.Errorf("request %d for %s at %s", i, r.path, at)
					}
				}
				s := b.wantGood(3)
				if len(s.Ranks) != 2 || !strings.HasPrefix(s.Source, instancePrefix) || !s.Taken.Equal(asked[20].at) || !s.TimeUnixMs.Known {
					t.Errorf("got %+v", s)
				}
				if got := b.Stats(); got != (Stats{Samples: 21}) {
					t.Errorf("stats %+v", got)
				}
				b.Want("a", 0)
				after(time.Minute)
				if n := len(b.e.forget()); n != 0 {
					t.Errorf("%d requests for a consumer that is gone", n)
				}
			})
		})
	}
}

// TestTakenIsWhenTheRequestBegan has an engine that takes its time.
func TestTakenIsWhenTheRequestBegan(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	e.takes = 40 * time.Millisecond
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		after(10*interval + 50*time.Millisecond)
		asked := e.forget()
		if s := b.wantGood(3); !s.Taken.Equal(asked[len(asked)-1].at) {
			t.Errorf("taken %s after the request", s.Taken.Sub(asked[len(asked)-1].at))
		}
	})
}

// TestFastestConsumerSetsTheRate has three come and go.
func TestFastestConsumerSetsTheRate(t *testing.T) {
	inBubble(t, serving(loadsPath, loads(rank{1, 3})), func(b *bench) {
		for _, c := range []struct {
			id       string
			interval time.Duration
			want     int
		}{
			{"slow", time.Second, 11}, {"fast", interval, 101}, {"slower", 5 * time.Second, 101},
			{"fast", 0, 10}, {"too fast", time.Millisecond, 1001}, {"too fast", 0, 10},
		} {
			b.e.forget()
			b.Want(c.id, c.interval)
			after(10*time.Second + time.Millisecond)
			if n := len(b.e.forget()); n < c.want-1 || n > c.want+1 {
				t.Errorf("%s at %s: %d requests in 10 s, want about %d", c.id, c.interval, n, c.want)
			}
		}
	})
}

// TestRefreshCoalesces: any number of hints while a sample is under way cause
// one that follows.
func TestRefreshCoalesces(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	inBubble(t, e, func(b *bench) {
		b.Refresh()
		after(time.Second)
		b.wantGood(3)
		e.set(func(e *engine) { e.takes = 200 * time.Millisecond })
		e.forget()
		b.Refresh()
		after(100 * time.Millisecond)
		if n := len(e.forget()); n != 1 {
			t.Fatalf("%d requests at a hint", n)
		}
		for range 100 {
			b.Refresh()
			after(500 * time.Microsecond)
		}
		after(10 * time.Second)
		if n := len(e.forget()); n != 1 {
			t.Errorf("%d requests after a hundred hints", n)
		}
	})
}

// TestFloodOfHintsIsBounded asks each 100 microseconds.
func TestFloodOfHintsIsBounded(t *testing.T) {
	inBubble(t, serving(loadsPath, loads(rank{1, 3})), func(b *bench) {
		for range 10_000 {
			b.Refresh()
			after(100 * time.Microsecond)
		}
		asked := b.e.forget()
		if len(asked) < 99 || len(asked) > 102 {
			t.Errorf("%d requests in a second", len(asked))
		}
		for i := 1; i < len(asked); i++ {
			if gap := asked[i].at.Sub(asked[i-1].at); gap < MinInterval {
				t.Errorf("%s between two samples", gap)
			}
		}
	})
}

// TestBug67OneRequestInFlight has a slow engine, hints and questions for facts
// at once. The samples that do not fit are skipped, and the others are on the
// grid.
func TestBug67OneRequestInFlight(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	e.takes = 130 * time.Millisecond
	asking := &asker{e: e}
	inBubbleWith(t, e, func(o *Options) { o.Prober = asking }, func(b *bench) {
		b.Want("a", interval)
		for i := range 100 {
			if i == 30 {
				e.set(func(e *engine) { e.takes = 0 })
			}
			b.Refresh()
			after(50 * time.Millisecond)
		}
		if e.most != 1 || asking.count() == 0 {
			t.Errorf("%d requests at once, facts asked %d times", e.most, asking.count())
		}
		if b.Stats().Skipped == 0 {
			t.Error("no sample was skipped")
		}
		b.wantGood(3)
	})
}

// TestBug67TroubleIsNotAbsence: a page that is absent is not asked for again,
// one that fails is.
func TestBug67TroubleIsNotAbsence(t *testing.T) {
	for body, again := range map[string]bool{"status 404": false, "status 503": true} {
		t.Run(body, func(t *testing.T) {
			e := serving("/metrics", vllm(1, 3))
			e.put(loadsPath, body)
			inBubble(t, e, func(b *bench) {
				b.Want("a", interval)
				after(time.Second)
				b.wantGood(3)
				e.forget()
				e.put(loadsPath, loads(rank{1, 7}, rank{1, 8}))
				after(2 * time.Minute)
				if got := len(of(e.forget(), loadsPath)) > 0; got != again || (len(b.now().Ranks) == 2) != again {
					t.Errorf("asked again %v, %d ranks", got, len(b.now().Ranks))
				}
			})
		})
	}
}

// TestBug70NoLoads has pages without load, one after a good one.
func TestBug70NoLoads(t *testing.T) {
	for name, body := range map[string]string{
		"no loads": `{"timestamp":"2026-08-01T00:00:00Z","loads":[]}`, "null": `{"loads":null}`, "null load": `{"load":null}`, "null rank": `{"loads":[null]}`,
	} {
		t.Run(name, func(t *testing.T) {
			e := serving(loadsPath, body)
			inBubble(t, e, func(b *bench) {
				b.Want("a", interval)
				after(2 * time.Second)
				if s := b.now(); s.Reason == "" || s.Err == "" || s.Ranks != nil || s.Refused || !s.Taken.IsZero() {
					t.Errorf("at first: %+v", s)
				}
				e.put(loadsPath, loads(rank{1, 3}))
				after(10 * time.Second)
				good := b.wantGood(3)
				e.put(loadsPath, body)
				after(time.Second)
				if s := b.now(); s.Reason == "" || len(s.Ranks) != 1 || s.Source != good.Source || s.Taken.Before(good.Taken) {
					t.Errorf("later: %+v", s)
				}
			})
		})
	}
}

// TestHungEngineWedgesNothing: the failure is seen after the time-out, the next
// tries follow on schedule, and the first answer is good.
func TestHungEngineWedgesNothing(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		began := time.Now()
		after(time.Second + time.Millisecond)
		good := b.wantGood(3)
		e.set(func(e *engine) { e.takes = time.Minute })
		e.forget()
		after(interval + DefaultTimeout)
		s := b.now()
		if s.Reason != survey.ReasonTimeout || s.Refused || len(s.Ranks) != 1 || !s.Taken.Equal(good.Taken) || s.Source != good.Source {
			t.Errorf("got %+v", s)
		}
		after(30 * time.Second)
		asked := e.forget()
		if len(asked) < 27 {
			t.Errorf("%d tries in 31 s", len(asked))
		}
		for _, r := range asked {
			if off := r.at.Sub(began) % interval; off != 0 {
				t.Errorf("a try %s off the grid", off)
			}
		}
		e.set(func(e *engine) { e.takes = 0 })
		after(DefaultTimeout + interval)
		if s := b.wantGood(3); s.Source != good.Source {
			t.Errorf("source %q, before %q", s.Source, good.Source)
		}
	})
}

// TestGoneEngineIsSeenAtOnce ends the process, and brings another one up.
func TestGoneEngineIsSeenAtOnce(t *testing.T) {
	e := serving(loadsPath, loads(rank{9, 3}, rank{9, 4}))
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		after(time.Second)
		good := b.wantGood(3)
		e.set(func(e *engine) { e.down = true })
		e.cut()
		after(interval)
		if s := b.now(); !s.Refused || s.Reason != registry.ReasonConnectFailed || len(s.Ranks) != 2 {
			t.Errorf("got %+v", s)
		}
		e.set(func(e *engine) { e.down = false })
		e.put(loadsPath, loads(rank{5, 7}))
		after(interval)
		// The clock of the other process says nothing of the one before.
		if s := b.wantGood(7); s.Source == good.Source || len(s.Ranks) != 1 {
			t.Errorf("got %+v", s)
		}
	})
}

func TestResetIsSeen(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		after(time.Second)
		e.set(func(e *engine) { e.reset = true })
		after(interval)
		if s := b.now(); !s.Refused || s.Reason == "" {
			t.Errorf("got %+v", s)
		}
	})
}

// TestAnotherProcessIsNotReady holds that nothing of the process before is
// shown of the next.
func TestAnotherProcessIsNotReady(t *testing.T) {
	e := serving("/metrics", vllm(100, 3))
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		after(time.Second)
		good := b.wantGood(3)
		e.put("/health", "status 503")
		e.put("/metrics", vllm(200, 0))
		after(interval)
		if s := b.now(); s.Reason != reader.ReasonNotReady || s.Ranks != nil || !s.Taken.IsZero() || s.Source == good.Source || s.Source == "" {
			t.Errorf("got %+v", s)
		}
		e.put("/health", "")
		after(interval)
		b.wantGood(0)
	})
}

// TestOlderRanksDoNotReplaceNewer has pages whose ranks are of several times.
func TestOlderRanksDoNotReplaceNewer(t *testing.T) {
	e := serving(loadsPath, loads(rank{10, 1}, rank{10, 2}))
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		for i, c := range []struct {
			page string
			want [2]int64
			same bool
		}{
			{loads(rank{10, 1}, rank{10, 2}), [2]int64{1, 2}, false},
			{loads(rank{11, 3}, rank{9.5, 9}), [2]int64{3, 2}, false},
			{loads(rank{10.5, 9}, rank{9.9, 9}), [2]int64{3, 2}, true},
			{loads(rank{11, 5}, rank{10, 6}), [2]int64{5, 6}, false},
			{loads(rank{2, 7}, rank{2, 8}), [2]int64{7, 8}, false}, // a clock that was set
		} {
			before := b.now()
			e.put(loadsPath, c.page)
			after(interval)
			s := b.wantGood(c.want[0])
			if n, _ := s.Ranks[1].Rank.Count(store.NumRunningReqs); n != c.want[1] || s.Taken.Equal(before.Taken) != c.same {
				t.Errorf("page %d: rank 1 runs %d, taken %s after the one before", i, n, s.Taken.Sub(before.Taken))
			}
		}
		e.put(loadsPath, loads(rank{3, 1}))
		after(interval)
		if s := b.wantGood(1); len(s.Ranks) != 1 {
			t.Errorf("%d ranks after there is one", len(s.Ranks))
		}
	})
}

// TestSetsAreNeverTorn reads while pages change, all ranks at once.
func TestSetsAreNeverTorn(t *testing.T) {
	e := serving(loadsPath, loads(rank{0, 0}, rank{0, 0}, rank{0, 0}))
	inBubble(t, e, func(b *bench) {
		b.Want("a", MinInterval)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				for range 100 {
					_, stale := b.Latest()
					<-stale
					s, _ := b.Latest()
					for i := range s.Ranks {
						if s.Ranks[i].Rank != with(s.Ranks[0].Rank, int32(i)) {
							t.Errorf("ranks %+v", s.Ranks)
						}
					}
				}
			})
		}
		for i := range 1200 {
			e.put(loadsPath, loads(rank{float64(i), i}, rank{float64(i), i}, rank{float64(i), i}))
			after(time.Millisecond)
		}
		readers.Wait()
	})
}

func with(r store.Rank, number int32) store.Rank {
	r.DPRank = number
	return r
}

// TestUselessPageIsAskedForRarely has an engine whose only page is of no use.
func TestUselessPageIsAskedForRarely(t *testing.T) {
	for name, body := range map[string]string{"HTML": "<!DOCTYPE html>", "absent": "status 404", "refused": "status 401"} {
		t.Run(name, func(t *testing.T) {
			e := serving(loadsPath, body)
			inBubble(t, e, func(b *bench) {
				b.Want("a", MinInterval)
				after(time.Minute)
				if n := len(of(e.forget(), loadsPath)); n < 14 || n > 20 {
					t.Errorf("asked %d times in a minute", n)
				}
				if s := b.now(); s.Reason == "" || s.Refused {
					t.Errorf("got %+v", s)
				}
				e.put(loadsPath, loads(rank{1, 3}))
				after(maxRest)
				b.wantGood(3)
			})
		})
	}
}

// failures provoke the reasons of this package.
var failures = map[string]struct {
	page   string
	reason store.Reason
}{
	"asleep": {vllm(1, 0) + "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"} 1\n", ReasonAsleep},
}

func TestReasonsAreProvoked(t *testing.T) {
	provoked := map[store.Reason]bool{}
	for name, f := range failures {
		inBubble(t, serving("/metrics", f.page), func(b *bench) {
			b.Want("a", interval)
			after(time.Second)
			if s := b.now(); s.Reason == f.reason && strings.Contains(s.Err, "weights_offloaded") && s.Refused && b.Stats().Failures == b.Stats().Samples {
				provoked[f.reason] = true
			} else {
				t.Errorf("%s: got %+v", name, s)
			}
		})
	}
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(source)) {
		if _, word, ok := strings.Cut(line, "store.Reason = "); ok {
			n++
			if word, err := strconv.Unquote(strings.TrimSpace(word)); err != nil || !provoked[store.Reason(word)] {
				t.Errorf("%s is not provoked", word)
			}
		}
	}
	if n == 0 {
		t.Error("no reasons found")
	}
}

func TestMaxRanks(t *testing.T) {
	inBubbleWith(t, serving(loadsPath, loads(rank{1, 1}, rank{1, 2})), func(o *Options) { o.MaxRanks = 1 }, func(b *bench) {
		b.Want("a", interval)
		after(time.Second)
		if s := b.now(); s.Reason != ingest.ReasonTooManyRanks || s.Ranks != nil {
			t.Errorf("got %+v", s)
		}
	})
}

// asker is a prober that asks the engine one thing.
type asker struct {
	e     *engine
	mu    sync.Mutex
	facts registry.Facts
	open  bool
	asked []time.Time
	known []registry.Facts
}

func (a *asker) Facts(ctx context.Context, t registry.Target) registry.Finding {
	if leave, err := t.Line.Join(ctx); err == nil {
		defer leave()
	}
	if t.Patience != DefaultTimeout/2 {
		return registry.Finding{}
	}
	a.e.answer(discard{}, "/server_info")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked, a.known = append(a.asked, time.Now()), append(a.known, t.Facts)
	return registry.Finding{Facts: a.facts, Complete: !a.open}
}

func (a *asker) Probe(ctx context.Context, t registry.Target) registry.Finding {
	return a.Facts(ctx, t)
}

func (a *asker) set(f registry.Facts, open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.facts, a.open = f, open
}

func (a *asker) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

// TestFacts asks at first, again where something is open, and of each process.
func TestFacts(t *testing.T) {
	e := serving("/metrics", vllm(100, 3))
	ask := &asker{e: e, facts: registry.Facts{Family: "vllm"}, open: true}
	inBubbleWith(t, e, func(o *Options) { o.Prober = ask }, func(b *bench) {
		after(time.Second / 2)
		if s := b.now(); ask.count() != 1 || s.Facts.Family != "vllm" || s.Source != "" {
			t.Fatalf("asked %d times, %+v", ask.count(), s)
		}
		ask.set(registry.Facts{Version: "1", MaxRunning: 50, Models: []string{"m"}}, true)
		_, stale := b.Latest()
		after(time.Second)
		select {
		case <-stale:
		default:
			t.Error("nobody is told of facts")
		}
		if f := b.now().Facts; f.Family != "vllm" || f.Version != "1" || len(f.Models) != 1 {
			t.Errorf("facts %+v", f)
		}
		after(2 * time.Minute)
		if n := ask.count(); n < 7 || n > 10 {
			t.Errorf("asked %d times in two minutes", n)
		}
		ask.set(registry.Facts{Family: "vllm", Version: "1", MaxRunning: 50}, false)
		b.Want("a", interval)
		after(time.Minute)
		if s := b.wantGood(3); s.Facts.Models != nil {
			t.Errorf("facts %+v", s.Facts)
		}
		// What the page does not say is filled by the facts.
		if n, ok := b.now().Ranks[0].Rank.Count(store.MaxRunningRequests); !ok || n != 50 {
			t.Errorf("at most %d, %v", n, ok)
		}
		n := ask.count()
		after(10 * time.Minute)
		if ask.count() != n {
			t.Errorf("asked %d times more for what is known", ask.count()-n)
		}
		ask.set(registry.Facts{Family: "vllm", Version: "2"}, false)
		e.put("/metrics", vllm(200, 4))
		after(time.Second)
		if s := b.wantGood(4); ask.count() != n+1 || s.Facts.Version != "2" {
			t.Errorf("asked %d times more, facts %+v", ask.count()-n, s.Facts)
		}
	})
}

// TestFactsAreAskedWhenTheEngineIsBack does not wait for the back-off.
func TestFactsAreAskedWhenTheEngineIsBack(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	e.down = true
	ask := &asker{e: e, open: true}
	inBubbleWith(t, e, func(o *Options) { o.Prober = ask }, func(b *bench) {
		b.Want("a", interval)
		after(65 * time.Second)
		ask.set(registry.Facts{Version: "1"}, false)
		e.set(func(e *engine) { e.down = false })
		after(time.Second)
		if v := b.now().Facts.Version; v != "1" {
			t.Errorf("version %q", v)
		}
	})
}

// TestEndsWhileTheEngineHangs ends at once, which bench.end checks.
func TestEndsWhileTheEngineHangs(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 3}))
	e.takes = time.Minute
	inBubble(t, e, func(b *bench) {
		b.Want("a", interval)
		after(50 * time.Millisecond)
	})
}

// TestManyUsersAtOnce is for the race detector.
func TestManyUsersAtOnce(t *testing.T) {
	inBubble(t, serving(loadsPath, loads(rank{1, 3})), func(b *bench) {
		var users sync.WaitGroup
		for i := range 8 {
			users.Go(func() {
				for n := range 200 {
					b.Want(strconv.Itoa(i), time.Duration(n%40)*time.Millisecond)
					b.Refresh()
					_, _ = b.Latest()
					_ = b.Stats()
					<-time.After(time.Millisecond)
				}
				b.Want(strconv.Itoa(i), 0)
			})
		}
		users.Wait()
		after(time.Second)
		b.wantGood(3)
		n := b.Stats().Samples
		after(time.Minute)
		if b.Stats().Samples != n {
			t.Error("samples without a consumer")
		}
	})
}

func TestMetrics(t *testing.T) {
	e := serving("/metrics", vllm(1, 3)+"vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} NaN\n")
	inBubbleWith(t, e, func(o *Options) { o.Registerer = prometheus.NewPedanticRegistry() }, func(b *bench) {
		b.Want("a", interval)
		after(950 * time.Millisecond)
		e.set(func(e *engine) { e.takes = time.Minute })
		after(10 * time.Second)
		m, s := b.metrics, b.Stats()
		good := testutil.ToFloat64(m.samples.WithLabelValues("ok"))
		late := testutil.ToFloat64(m.samples.WithLabelValues(string(survey.ReasonTimeout)))
		if good != 10 || late < 8 || uint64(good+late) != s.Samples || uint64(late) != s.Failures || s.Last != DefaultTimeout {
			t.Errorf("%v good, %v late, stats %+v", good, late, s)
		}
		if n := testutil.ToFloat64(m.skipped); n < 50 || uint64(n) != s.Skipped {
			t.Errorf("%v skipped, stats %+v", n, s)
		}
		if testutil.ToFloat64(m.surveys) != 1 || testutil.ToFloat64(m.bytes) == 0 || testutil.ToFloat64(m.unusable.WithLabelValues(string(sample.ReasonNotFinite))) != 10 {
			t.Error("surveys, bytes or values were not counted")
		}
	})
}

func TestOptions(t *testing.T) {
	target := registry.Target{URL: testURL}
	for name, o := range map[string]Options{
		"Target.URL": {}, "Timeout": {Target: target, Timeout: -1}, "StaleAfter": {Target: target, StaleAfter: -1},
		"MaxRanks": {Target: target, MaxRanks: math.MaxInt},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	good := Options{Target: target, Registerer: prometheus.NewRegistry()}
	s, err := New(good)
	if err != nil || s.opts.Timeout != DefaultTimeout || s.opts.StaleAfter != DefaultStaleAfter || s.opts.Target.ID != testURL {
		t.Fatalf("got %+v, %v", s, err)
	}
	if _, err := New(good); err == nil {
		t.Error("the metrics were registered twice")
	}
}

// TestSampleLeadsTheReport has a report go at a time of its own: its sample is as
// old as a sample takes, and no interval.
func TestSampleLeadsTheReport(t *testing.T) {
	e := serving(loadsPath, loads(rank{1, 1}))
	e.takes = 5 * time.Millisecond
	inBubble(t, e, func(b *bench) {
		b.Want("report", interval)
		after(33 * time.Millisecond)
		due := time.Now().Add(interval)
		b.Align("report", due)
		for i := range 50 {
			after(time.Until(due))
			if age := time.Since(b.now().Taken); i > 20 && age > 10*time.Millisecond {
				t.Fatalf("report %d has a sample of %v", i, age)
			}
			due = due.Add(interval)
		}
	})
}

// TestAdoptedLife goes on with the life of the engine that another process
// sampled, unless it may have ended meanwhile.
func TestAdoptedLife(t *testing.T) {
	const name = "reporter-before"
	for _, c := range []struct {
		test, path, page string
		process          float64
		ago              time.Duration
		down             bool
		same             bool
	}{
		{"page that does not tell", loadsPath, loads(rank{1, 1}), 0, time.Second, false, true},
		{"after too long", loadsPath, loads(rank{1, 1}), 0, 4 * time.Second, false, false},
		{"engine that was away", loadsPath, loads(rank{1, 1}), 0, time.Second, true, false},
		{"same process", "/metrics", vllm(1000, 1), 1000, time.Second, false, true},
		{"same process after long", "/metrics", vllm(1000, 1), 1000, time.Hour, false, true},
		{"another process", "/metrics", vllm(1001, 1), 1000, time.Second, false, false},
	} {
		t.Run(c.test, func(t *testing.T) {
			e := serving(c.path, c.page)
			e.down = c.down
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{Target: registry.Target{URL: testURL}, Dial: e.dial, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				s.Adopt(Life{Source: name, Process: c.process, Taken: time.Now().Add(-c.ago)})
				if now, _ := s.Latest(); now.Source != name {
					t.Errorf("at first it is %q", now.Source)
				}
				if l, ok := s.Life(); ok {
					t.Errorf("life %+v before a sample", l)
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				s.Want("a", interval)
				after(interval)
				e.set(func(e *engine) { e.down = false })
				after(time.Second)
				now, _ := s.Latest()
				if (now.Source == name) != c.same || len(now.Ranks) != 1 {
					t.Errorf("source %q, %d ranks", now.Source, len(now.Ranks))
				}
				if l, ok := s.Life(); !ok || l.Source != now.Source || l.Process != c.process && c.same || !l.Taken.Equal(now.Taken) {
					t.Errorf("life %+v, %v", l, ok)
				}
				e.set(func(e *engine) { e.down = true; e.reset = true })
				after(time.Second)
				if l, ok := s.Life(); ok {
					t.Errorf("life %+v while the engine refuses", l)
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				e.cut()
			})
		})
	}
}

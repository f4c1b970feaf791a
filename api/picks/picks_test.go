package picks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

func TestAnswer(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(4, 2, worker("a:1"))
		p.after(250 * time.Millisecond)
		version := p.views().Version
		r := p.got("model=qwen3&role=plain&policy=least-load")
		rank := fmt.Sprint(*r.DPRank)
		want := `{"worker_id":"a:1","url":"http://a:1","dp_rank":` + rank + `,"policy":"least-load","field":"total_requests","score":4,` +
			`"reason":null,"fallback":false,"lineage":"lineage-1","epoch":7,"version":` + fmt.Sprint(version) + `,"age_ms":260}` + "\n"
		if got := r.Body.String(); got != want {
			t.Errorf("got  %swant %s", got, want)
		}
		if got := r.Header(); got.Get("Cache-Control") != "no-store" || got.Get("Content-Type") != "application/json" || got.Get("Content-Length") != fmt.Sprint(len(want)) {
			t.Errorf("header %v", got)
		}
		if r := p.got("per=worker"); r.DPRank != nil || *r.Score != 9 || r.Policy != "power-of-k" {
			t.Errorf("per worker, with one dispatch before: %s", r.Body)
		}
	})
}

func TestSeveralPicksAreDistinctWherePossible(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(0, 2, worker("a:1"), worker("b:1"), worker("c:1"))
		for _, policy := range []string{"power-of-k", "least-load", "free-tokens"} {
			for _, c := range []struct {
				per           string
				n, candidates int
			}{{"rank", 6, 6}, {"rank", 14, 6}, {"worker", 2, 3}, {"worker", 64, 3}} {
				query := fmt.Sprintf("policy=%s&per=%s&n=%d&credit=0", policy, c.per, c.n)
				got := p.got(query).Picks
				if len(got) != c.n {
					t.Fatalf("%s: %d picks", query, len(got))
				}
				for round := range slices.Chunk(got, c.candidates) {
					seen := map[string]bool{}
					for _, a := range round {
						seen[target(a)] = true
					}
					if len(seen) != len(round) {
						t.Errorf("%s: a round has only %v", query, seen)
					}
				}
			}
		}
		if r := p.got("n=1"); r.Picks != nil || r.WorkerID == "" {
			t.Errorf("n=1 is no single answer: %s", r.Body)
		}
	})
}

// target names what an answer chose.
func target(a answer) string {
	if a.DPRank == nil {
		return a.WorkerID
	}
	return fmt.Sprintf("%s/%d", a.WorkerID, *a.DPRank)
}

// TestCallersDoNotHerd lets many pick with no report between them. Without
// credit, random ties spread 200 picks by more than 1, and 4,000 by two choices
// of equals by more than 20.
func TestCallersDoNotHerd(t *testing.T) {
	inBubble(t, func(p *plane) {
		workers := []*store.Worker{worker("a:1"), worker("b:1"), worker("c:1"), worker("d:1")}
		p.fleet(7, 2, workers...)
		for _, c := range []struct {
			query      string
			picks, gap int
		}{
			{"policy=least-load", 200, 1},
			{"policy=least-load&per=worker", 200, 1},
			{"policy=free-tokens&prompt_tokens=300", 200, 1},
			{"", 4000, 20}, // the gap is above 20 less than once in 10^9
		} {
			count := map[string]int{}
			for range c.picks {
				count[target(p.got(c.query).answer)]++
			}
			low, high := c.picks, 0
			for _, n := range count {
				low, high = min(low, n), max(high, n)
			}
			if want := 8; len(count) != want && len(count) != want/2 || high-low > c.gap {
				t.Errorf("%q: %d picks are spread as %v", c.query, c.picks, count)
			}
			p.after(interval + settle)
			for _, w := range workers {
				p.report(w.ID, 7, 2) // covers them all
			}
			p.commit()
		}
	})
}

func TestWithoutCreditCallersHerd(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(7, 1, worker("a:1"), worker("b:1"))
		p.report("b:1", 2, 1)
		p.commit()
		for range 20 {
			if r := p.got("policy=least-load&credit=0"); r.WorkerID != "b:1" || *r.Score != 2 {
				t.Fatalf("an answer that only asked has an effect: %s", r.Body)
			}
		}
		if r := p.ask(http.MethodHead, "policy=least-load"); r.ResponseRecorder.Code != http.StatusOK || *r.Score != 2 {
			t.Errorf("HEAD: %s", r.Body)
		}
		if got := p.score("policy=least-load"); got != 2 {
			t.Errorf("score %v: HEAD has an effect", got)
		}
	})
}

func TestCreditEndsWithTheFirstCoveringReport(t *testing.T) {
	poll := func(w *store.Worker) { w.Dialect = store.DialectPoll }
	for _, c := range []struct {
		name    string
		worker  *store.Worker
		stretch time.Duration
		cover   time.Duration
	}{
		{"push: one interval", worker("a:1"), 0, interval},
		{"poll: two intervals", worker("a:1", poll), 0, 2 * interval},
		{"slow poll: two of its own intervals", worker("a:1", poll), 1300 * time.Millisecond, 2600 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(p *plane) {
				p.fleet(5, 1, c.worker)
				p.slots["a:1"].Diagnose(func(d *store.Diagnostics) { d.PollInterval = c.stretch })
				p.after(settle)
				p.got("")
				p.got("n=2")
				expect := func(when string, want float64) {
					t.Helper()
					if got := p.score(""); got != want {
						t.Errorf("%s: score %v, want %v", when, got, want)
					}
				}
				expect("at once", 8)
				p.after(c.cover)
				p.report("a:1", 6, 1)
				p.commit()
				expect("after a report that does not cover them", 9)
				p.report("a:1", 7, 1)
				p.commit()
				expect("after the first that does", 7)
			})
		})
	}
}

// A report whose oldest sample was taken before the dispatch does not cover it,
// however late it comes.
func TestOldSamplesDoNotCover(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(5, 1, worker("a:1"))
		p.got("")
		p.after(2 * interval)
		for _, c := range []struct {
			sampled time.Duration
			want    float64
		}{{3 * interval, 6}, {interval, 5}} {
			l := p.load("a:1", 5, 1)
			l.ReportUnixMs = 1_000_000
			l.Samples[0].TimeUnixMs = l.ReportUnixMs - c.sampled.Milliseconds()
			p.slots["a:1"].Offer(1, l)
			p.commit()
			if got := p.score(""); got != c.want {
				t.Errorf("sampled %v before: score %v, want %v", c.sampled, got, c.want)
			}
		}
	})
}

func TestOnlyALoadCovers(t *testing.T) {
	for _, status := range []store.Status{store.StatusUnreachable, store.StatusStale} {
		inBubble(t, func(p *plane) {
			p.fleet(5, 1, worker("a:1"))
			p.got("")
			p.after(2 * interval)
			bad := p.load("a:1", 5, 1)
			bad.Status = status
			if status == store.StatusUnreachable {
				bad.Ranks, bad.Samples = nil, nil
			}
			p.slots["a:1"].Offer(1, bad)
			p.commit()
			p.ask(http.MethodGet, "credit=0")
			if got := p.ledger.Local(credited("a:1")).Credit; got != 1 {
				t.Errorf("status %v: credit %d, want 1", status, got)
			}
		})
	}
}

func TestCreditEndsAfterTheStaleTime(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(5, 1, worker("a:1", func(w *store.Worker) { w.Interval = time.Minute }))
		p.got("")
		for _, step := range []time.Duration{interval, interval, interval - settle - 1} {
			p.after(step)
			p.report("a:1", 5, 1)
		}
		if got := p.score(""); got != 6 {
			t.Errorf("just before: score %v, want 6", got)
		}
		p.after(settle + 1)
		if got := p.score(""); got != 5 {
			t.Errorf("then: score %v, want 5", got)
		}
	})
}

func TestCreditIsForgottenWithTheWorkerAndItsEngine(t *testing.T) {
	inBubble(t, func(p *plane) {
		a := worker("a:1")
		p.fleet(5, 1, a, worker("b:1"))
		p.got("n=2")
		if got := p.score(""); got != 6 {
			t.Fatalf("score %v, want 6", got)
		}
		p.store.Apply(store.Discovery{Removed: []*store.Slot{p.slots["a:1"]}})
		p.commit()
		if r := p.got("credit=0"); r.WorkerID != "b:1" || p.ledger.Len() != 1 {
			t.Errorf("%d workers in the books: %s", p.ledger.Len(), r.Body)
		}
		p.fleet(5, 1, a)
		if got := p.score("policy=least-load"); got != 5 {
			t.Errorf("added again: score %v, want 5", got)
		}
		p.slots["b:1"].Bind(store.Stream{Source: "another", Generation: 2})
		l := p.load("b:1", 3, 1)
		l.Source = "another"
		p.slots["b:1"].Offer(2, l)
		p.commit()
		if got := p.score("policy=least-load"); got != 3 {
			t.Errorf("after a restart: score %v, want 3", got)
		}
	})
}

func TestPromptTokensAreCounted(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(5, 1, worker("a:1"))
		for _, c := range []struct {
			query string
			want  float64
		}{{"", AssumedTokens}, {"prompt_tokens=1", AssumedTokens + 1}, {"prompt_tokens=2500", AssumedTokens + 2501}} {
			p.got(c.query)
			if got := p.score("policy=free-tokens"); got != 1_000_000-500-c.want {
				t.Errorf("%q: %v free tokens", c.query, got)
			}
		}
	})
}

// TestReasons provokes what an answer or a refusal may say.
func TestReasons(t *testing.T) {
	drain := func(w *store.Worker) { w.Draining = true }
	unreachable := func(p *plane, id string) {
		l := p.load(id, 0, 0)
		l.Status, l.LastError = store.StatusUnreachable, "gone"
		p.slots[id].Offer(1, l)
		p.commit()
	}
	for _, c := range []struct {
		name   string
		setup  func(p *plane)
		query  string
		status int
		reason string
	}{
		{"no worker", func(p *plane) {}, "", 503, "no_candidates"},
		{"unknown model", func(p *plane) { p.fleet(1, 1, worker("a:1")) }, "model=other", 503, "no_candidates"},
		{"no worker of the role", func(p *plane) { p.fleet(1, 1, worker("a:1")) }, "role=decode", 503, "no_candidates"},
		{"all drain", func(p *plane) { p.fleet(1, 1, worker("a:1", drain)) }, "", 503, "no_candidates"},
		{"all unreachable", func(p *plane) { p.add(worker("a:1")); unreachable(p, "a:1") }, "per=worker", 503, "none_reachable"},
		{"unreachable until stale", func(p *plane) { p.add(worker("a:1")); unreachable(p, "a:1"); p.after(staleAfter) }, "", 200, "few_fresh"},
		{"never heard", func(p *plane) { p.add(worker("a:1")); p.commit() }, "", 200, "few_fresh"},
		{"a minority is fresh", func(p *plane) { p.add(worker("b:1"), worker("c:1")); p.fleet(1, 1, worker("a:1")) }, "", 200, "few_fresh"},
		{"half is fresh", func(p *plane) { p.add(worker("b:1")); p.fleet(1, 1, worker("a:1")) }, "", 200, ""},
		{"no common field", func(p *plane) {
			p.add(worker("a:1"))
			l := p.load("a:1", 0, 1)
			l.Ranks[0] = store.Rank{}
			l.Ranks[0].SetCount(store.MaxRunningRequests, 9)
			p.slots["a:1"].Offer(1, l)
			p.commit()
		}, "", 200, "no_common_field"},
		{"unknown key", func(p *plane) {}, "modl=x", 400, string(unknownParameter)},
		{"bad value", func(p *plane) {}, "n=0", 400, string(badParameter)},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(p *plane) {
				c.setup(p)
				r := p.ask(http.MethodGet, c.query)
				got := r.Reason
				if r.ResponseRecorder.Code != c.status || got != c.reason {
					t.Errorf("status %d, reason %q, want %d, %q: %s", r.ResponseRecorder.Code, got, c.status, c.reason, r.Body)
				}
				result := c.reason
				if result == "" {
					result = byPolicy
				}
				if p.metric("loadplane_picks_results_total", result) != 1 {
					t.Errorf("%s is not counted", result)
				}
				if c.status == 200 && r.Fallback != (c.reason != "") {
					t.Errorf("fallback %v with %q", r.Fallback, c.reason)
				}
				if retry := r.Header().Get("Retry-After"); (retry == "1") != (c.status == 503) {
					t.Errorf("Retry-After %q", retry)
				}
			})
		})
	}
}

func TestRefusalsHaveTheFormOfTheAPI(t *testing.T) {
	inBubble(t, func(p *plane) {
		for query, want := range map[string]string{
			"":              `{"code":"unavailable","reason":"no_candidates","message":"the pool has no worker that takes requests"}`,
			"n=65":          `{"code":"invalid_argument","reason":"bad_parameter","message":"n must be 1 to 64, and is \"65\""}`,
			"%3Cb%3E=1":     `{"code":"invalid_argument","reason":"unknown_parameter","message":"the query key \"\u003cb\u003e\" does not exist"}`,
			"model=a%zz":    `{"code":"invalid_argument","reason":"bad_parameter","message":"the query cannot be parsed"}`,
			"policy=custom": `{"code":"invalid_argument","reason":"bad_parameter","message":"policy \"custom\" does not exist"}`,
		} {
			r := p.ask(http.MethodGet, query)
			if got := r.Body.String(); got != want+"\n" || r.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %s", query, got)
			}
		}
	})
}

func TestOnlyGet(t *testing.T) {
	inBubble(t, func(p *plane) {
		rec := httptest.NewRecorder()
		p.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/v1/pick", strings.NewReader("x")))
		if rec.Code != http.StatusMethodNotAllowed || rec.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("status %d, %v", rec.Code, rec.Header())
		}
	})
}

// TestFreshnessIsJudgedAtThePick stops the committer, so that the view goes on
// to call the worker fresh.
func TestFreshnessIsJudgedAtThePick(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(5, 1, worker("a:1"))
		p.stopStore()
		p.after(staleAfter - settle - 1)
		if r := p.got("credit=0"); r.Fallback {
			t.Errorf("too early: %s", r.Body)
		}
		p.after(1)
		if r := p.got("credit=0"); r.Reason != string(pick.ReasonFewFresh) || *r.AgeMs != staleAfter.Milliseconds() || r.Field != "in_flight" {
			t.Errorf("stale: %s", r.Body)
		}
	})
}

func TestFallbackSpreadsByCredit(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:1"), worker("b:1"), worker("c:1"))
		p.commit()
		count := map[string]int{}
		for range 30 {
			count[p.got("").WorkerID]++
		}
		if count["a:1"] != 10 || count["b:1"] != 10 || count["c:1"] != 10 {
			t.Errorf("spread as %v", count)
		}
	})
}

func TestRoleByDefault(t *testing.T) {
	role := func(r store.Role) func(*store.Worker) { return func(w *store.Worker) { w.Role = r } }
	llama := func(w *store.Worker) { w.Models = []string{"llama"} }
	for _, c := range []struct {
		name    string
		workers []*store.Worker
		query   string
		want    string // worker or reason
	}{
		{"plain among others", []*store.Worker{worker("p:1", role(store.RolePrefill)), worker("r:1"), worker("d:1", role(store.RoleDecode))}, "", "r:1"},
		{"the only role", []*store.Worker{worker("d:1", role(store.RoleDecode))}, "", "d:1"},
		{"the only role of the model", []*store.Worker{worker("p:1", role(store.RolePrefill), llama), worker("r:1")}, "model=llama", "p:1"},
		{"no role is known", []*store.Worker{worker("u:1", role(store.RoleUnspecified))}, "", "u:1"},
		{"two roles, no plain one", []*store.Worker{worker("p:1", role(store.RolePrefill)), worker("d:1", role(store.RoleDecode))}, "", "no_candidates"},
		{"named", []*store.Worker{worker("p:1", role(store.RolePrefill)), worker("d:1", role(store.RoleDecode))}, "role=decode", "d:1"},
		{"named, with the model", []*store.Worker{worker("p:1", role(store.RolePrefill)), worker("q:1", role(store.RolePrefill), llama)}, "role=prefill&model=llama", "q:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(p *plane) {
				p.fleet(1, 1, c.workers...)
				for range 8 {
					if r := p.ask(http.MethodGet, c.query); r.WorkerID+r.Reason != c.want {
						t.Fatalf("got %s, want %s", r.Body, c.want)
					}
				}
			})
		})
	}
}

// TestWhatIsNoEngineOfItsOwnIsNotPicked has two for one that is, so that a pool
// with them would have too few fresh.
func TestWhatIsNoEngineOfItsOwnIsNotPicked(t *testing.T) {
	duplicate := func(w *store.Worker) { w.Duplicate = true }
	for _, c := range []struct {
		name   string
		change func(*store.Worker)
		note   store.Reason
	}{{"duplicates", duplicate, ""}, {"followers", func(*store.Worker) {}, store.ReasonNoEngine}} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(p *plane) {
				p.add(worker("b:1", c.change), worker("c:1", c.change))
				p.slots["b:1"].Note(c.note)
				p.slots["c:1"].Note(c.note)
				p.fleet(9, 1, worker("a:1"))
				for _, a := range p.got("n=20&policy=least-load").Picks {
					if a.WorkerID != "a:1" || a.Fallback {
						t.Fatalf("got %+v", a)
					}
				}
			})
		})
	}
}

func TestRanksThatCannotBeToldApartAreNotNamed(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:1"))
		l := p.load("a:1", 3, 1)
		l.Flags = store.FlagRanksUnknown
		p.slots["a:1"].Offer(1, l)
		p.commit()
		if r := p.got("per=rank"); r.DPRank != nil || *r.Score != 3 || r.WorkerID != "a:1" {
			t.Errorf("got %s", r.Body)
		}
	})
}

// TestTablesAreShared counts tables: one for each view and pool that is asked.
func TestTablesAreShared(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(1, 2, worker("a:1"), worker("b:1"))
		tables := func(want float64) {
			t.Helper()
			if got := p.metric("loadplane_picks_tables_total", ""); got != want {
				t.Fatalf("%v tables, want %v", got, want)
			}
		}
		tables(0)
		for range 50 {
			p.got("")
			p.got("role=plain&policy=free-tokens")
		}
		tables(1)
		p.got("model=qwen3")
		p.got("per=worker")
		tables(3)
		for i := range 50 {
			p.ask(http.MethodGet, fmt.Sprintf("model=hostile-%d", i))
		}
		tables(3)
		p.report("a:1", 1, 2) // a receipt only
		p.commit()
		tables(3)
		p.got("")
		p.got("")
		tables(4)
	})
}

// TestTablesCostAShare makes tables that seem to take 10 ms.
func TestTablesCostAShare(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.fleet(1, 1, worker("a:1"))
		p.got("")
		s := p.last.Load()
		begun := p.clock.Now()
		p.after(10 * time.Millisecond)
		p.mu.Lock()
		p.spent(s, begun)
		p.mu.Unlock()
		p.report("a:1", 2, 1)
		p.after(90*time.Millisecond - 1)
		if r := p.got("credit=0"); p.last.Load() != s || *r.Score != 2 {
			t.Errorf("too early: %s", r.Body)
		}
		p.after(1)
		if r := p.got("credit=0"); p.last.Load() == s {
			t.Errorf("too late: %s", r.Body)
		}
		p.spent(p.last.Load(), p.clock.Now().Add(-time.Minute))
		if until := p.last.Load().until.Load(); until != int64(p.clock.Now().Add(375*time.Millisecond)) {
			t.Errorf("held until %v at %v", time.Duration(until), p.clock.Now())
		}
	})
}

func TestConcurrentPicks(t *testing.T) {
	p := start(t, staleAfter)
	p.add(worker("a:1"), worker("b:1"))
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 200 {
				query := []string{"", "per=worker", "n=3", "policy=least-load&credit=0"}[(i+j)%4]
				rec := httptest.NewRecorder()
				p.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/pick?"+query, nil))
				if rec.Code != http.StatusOK && rec.Code != http.StatusServiceUnavailable || !json.Valid(rec.Body.Bytes()) {
					t.Errorf("%s: %d %s", query, rec.Code, rec.Body)
				}
			}
		})
	}
	for i := range int64(200) {
		p.report("a:1", i, 2)
		p.report("b:1", i, 3)
	}
	group.Wait()
}

func TestNewRefuses(t *testing.T) {
	st, err := store.New(store.Options{
		Lineage: "l", Epoch: 1, Clock: store.NewClock(), StaleAfter: staleAfter, Settle: settle, ReportInterval: interval,
	})
	if err != nil {
		t.Fatal(err)
	}
	good := Options{Snapshots: snapshot.New(st), UnknownParameter: unknownParameter, BadParameter: badParameter}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"Snapshots":        func(o *Options) { o.Snapshots = nil },
		"UnknownParameter": func(o *Options) { o.UnknownParameter = "" },
		"BadParameter":     func(o *Options) { o.BadParameter = "" },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, taken := range []string{"loadplane_picks_results_total", "loadplane_picks_tables_total"} {
		o := good
		reg := prometheus.NewRegistry()
		reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: taken}))
		o.Registerer = reg
		if _, err := New(o); err == nil {
			t.Errorf("%s is there twice", taken)
		}
	}
}

// TestReasonsAreCounted demands a counter for whatever package pick may say.
func TestReasonsAreCounted(t *testing.T) {
	m, err := newMetrics(Options{UnknownParameter: unknownParameter, BadParameter: badParameter})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []error{pick.ErrNoCandidates, pick.ErrNoneReachable, pick.ErrNoneFresh, pick.ErrAllTried} {
		var refusal *pick.Error
		if !errors.As(e, &refusal) {
			t.Fatal(e)
		}
		m.count(string(refusal.Reason))
	}
	for _, c := range []pick.Choice{{}, {Fallback: true, Reason: pick.ReasonFewFresh}, {Fallback: true, Reason: pick.ReasonNoCommonField}} {
		m.count(resultOf(c))
	}
}

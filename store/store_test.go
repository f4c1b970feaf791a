package store_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestOptionsAreChecked(t *testing.T) {
	good := store.Options{
		Lineage: "l", Clock: store.NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond, ReportInterval: time.Second,
	}
	for name, c := range map[string]struct {
		change func(*store.Options)
		want   string
	}{
		"good":          {func(*store.Options) {}, ""},
		"no lineage":    {func(o *store.Options) { o.Lineage = "" }, "Lineage"},
		"no clock":      {func(o *store.Options) { o.Clock = nil }, "Clock"},
		"no interval":   {func(o *store.Options) { o.ReportInterval = 0 }, "ReportInterval"},
		"stale early":   {func(o *store.Options) { o.StaleAfter = 3*time.Second - 1 }, "StaleAfter"},
		"settle short":  {func(o *store.Options) { o.Settle = time.Millisecond - 1 }, "Settle"},
		"settle long":   {func(o *store.Options) { o.Settle = time.Second + 1 }, "Settle"},
		"settle bounds": {func(o *store.Options) { o.Settle = time.Second }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			opts := good
			c.change(&opts)
			_, err := store.New(opts)
			if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
				t.Errorf("New: %v, want an error about %q", err, c.want)
			}
		})
	}
}

func TestReportBecomesVisibleAfterSettleTime(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		p.is("a", "missing/no_report")
		st, stale := p.Current()
		sl.Offer(1, p.load(1, 4))
		p.after(settle - time.Millisecond)
		if closed(stale) {
			t.Fatal("committed before the settle time")
		}
		p.after(time.Millisecond)
		if !closed(stale) {
			t.Fatal("not committed after the settle time")
		}
		if got := p.version(); got != st.Version+1 {
			t.Errorf("version %d, want %d", got, st.Version+1)
		}
		e, l := p.entry("a")
		p.is("a", "fresh/")
		if n, _ := e.Aggregate.Count(store.SumRunningReqs); n != 4 || l.Sequence != 1 {
			t.Errorf("running %d sequence %d, want 4 and 1", n, l.Sequence)
		}
	})
}

// Many reports within the settle time are one commit, and the newest wins.
func TestCommitTakesTheNewestOfEachWorker(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		before := p.version()
		for seq := uint64(1); seq <= 5; seq++ {
			slots[0].Offer(1, p.load(seq, int64(seq)))
		}
		slots[0].Offer(1, p.load(3, 99)) // older than what waits
		slots[1].Offer(1, p.load(1, 1))
		p.settled()
		if got := p.version(); got != before+1 {
			t.Errorf("version %d, want %d", got, before+1)
		}
		if e, _ := p.entry("a"); e.Load.Sequence != 5 {
			t.Errorf("sequence %d, want 5", e.Load.Sequence)
		}
		want := strings.NewReader(`
# HELP loadplane_store_reports_conflated_total Reports that a newer one of the same worker replaced before a commit.
# TYPE loadplane_store_reports_conflated_total counter
loadplane_store_reports_conflated_total 4
# HELP loadplane_store_reports_ignored_total Reports of a binding that had ended or of a worker that was gone.
# TYPE loadplane_store_reports_ignored_total counter
loadplane_store_reports_ignored_total 1
# HELP loadplane_store_reports_total Reports committed.
# TYPE loadplane_store_reports_total counter
loadplane_store_reports_total 2
`)
		if err := testutil.GatherAndCompare(p.reg, want, "loadplane_store_reports_total",
			"loadplane_store_reports_conflated_total", "loadplane_store_reports_ignored_total"); err != nil {
			t.Error(err)
		}
	})
}

// An equal report moves the receipt, and nobody is woken.
func TestEqualReportMovesLivenessOnly(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 0))
		p.settled()
		before, stale := p.Current()
		_, first := p.entry("a")
		p.after(time.Second)
		sl.Offer(1, p.load(2, 0))
		p.settled()
		after, _ := p.Current()
		_, second := p.entry("a")
		if closed(stale) || after.Version != before.Version || after.Content != before.Content {
			t.Errorf("an equal report made version %d of %d", after.Version, before.Version)
		}
		if after.Tick == before.Tick || second.Sequence != 2 || second.Received.Sub(first.Received) < time.Second {
			t.Errorf("the receipt did not move: %+v then %+v", first, second)
		}
		if second.Tick != after.Tick {
			t.Errorf("the receipt is of tick %d, its commit is tick %d", second.Tick, after.Tick)
		}
		if second.ValidUntil.Sub(second.Received) != staleAfter {
			t.Errorf("valid for %v, want %v", second.ValidUntil.Sub(second.Received), staleAfter)
		}
	})
}

// What counts as equal: presence, integers, floats by bits after -0 became 0.
func TestWhatMakesAVersion(t *testing.T) {
	negativeZero := 0.0
	negativeZero = -negativeZero
	base := func() store.Rank { r := rank(0, 1); r.SetFloat(store.TokenUsage, 0); return r }
	changed := func(change func(*store.Rank)) store.Rank { r := base(); change(&r); return r }
	for name, c := range map[string]struct {
		rank  store.Rank
		other func(*store.Load)
		same  bool
	}{
		"nothing":          {rank: base(), same: true},
		"negative zero":    {rank: changed(func(r *store.Rank) { r.SetFloat(store.TokenUsage, negativeZero) }), same: true},
		"a count":          {rank: changed(func(r *store.Rank) { r.SetCount(store.NumRunningReqs, 2) })},
		"a float's bit":    {rank: changed(func(r *store.Rank) { r.SetFloat(store.TokenUsage, 5e-324) })},
		"presence":         {rank: changed(func(r *store.Rank) { r.SetFloat(store.PrefillThroughput, 0) })},
		"the rank number":  {rank: changed(func(r *store.Rank) { r.DPRank = 1 })},
		"error text":       {rank: base(), other: func(l *store.Load) { l.LastError = "x" }, same: true},
		"engine times":     {rank: base(), other: func(l *store.Load) { l.ReportUnixMs = 7; l.Samples[0].TimeUnixMs = 9 }, same: true},
		"status":           {rank: base(), other: func(l *store.Load) { l.Status = store.StatusStale }},
		"source":           {rank: base(), other: func(l *store.Load) { l.Source = "s2" }},
		"flag of the load": {rank: base(), other: func(l *store.Load) { l.Flags = store.FlagRatioAboveOne }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				sl.Offer(1, p.loadOf(1, base()))
				p.settled()
				before := p.version()
				l := p.loadOf(2, c.rank)
				if c.other != nil {
					c.other(l)
				}
				sl.Offer(1, l)
				p.settled()
				if got := p.version() == before; got != c.same {
					t.Errorf("same version: %v, want %v", got, c.same)
				}
			})
		})
	}
}

// W-1 ms is fresh, W is stale, and all expiries of one instant are one
// version.
func TestExpiryAtTheEdge(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		for _, sl := range slots {
			sl.Offer(1, p.load(1, 1))
		}
		p.settled() // settle of age has passed
		v := p.version()
		p.after(staleAfter - settle - time.Millisecond)
		p.is("a", "fresh/")
		if got := p.version(); got != v {
			t.Fatalf("version %d before the edge, want %d", got, v)
		}
		p.after(time.Millisecond)
		p.is("a", "stale/age")
		p.is("b", "stale/age")
		if got := p.version(); got != v+1 {
			t.Errorf("version %d after the edge, want %d", got, v+1)
		}
		p.after(time.Millisecond)
		p.is("a", "stale/age")
		p.after(time.Hour)
		if got := p.version(); got != v+1 {
			t.Errorf("version %d an hour later, want %d", got, v+1)
		}
	})
}

// A report that waits in the slot when the worker falls due wins.
func TestReportBeforeTheEdgeWins(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.after(staleAfter - time.Millisecond)
		sl.Offer(1, p.load(2, 1)) // its settle time ends after the edge
		v := p.version()
		p.after(2 * time.Millisecond)
		p.is("a", "fresh/")
		if got := p.version(); got != v {
			t.Errorf("version %d, want %d: equal report in time", got, v)
		}
	})
}

func TestFreshnessAndReasons(t *testing.T) {
	zero := rank(0, 0)
	zero.SetCount(store.MaxTotalNumTokens, 0)
	provoked := map[store.Reason]bool{}
	for name, c := range map[string]struct {
		worker func(*store.Worker)
		note   store.Reason
		load   func(*store.Load)
		age    time.Duration
		sleep  bool
		want   string
	}{
		"nothing heard":           {want: "missing/no_report"},
		"trouble":                 {note: "register_failed", want: "missing/register_failed"},
		"no engine by discovery":  {worker: func(w *store.Worker) { w.NoEngine = true }, want: "missing/no_engine"},
		"no engine":               {note: store.ReasonNoEngine, want: "missing/no_engine"},
		"duplicate":               {worker: func(w *store.Worker) { w.Duplicate = true }, want: "missing/duplicate_origin"},
		"trouble and duplicate":   {worker: func(w *store.Worker) { w.Duplicate = true }, note: "register_failed", want: "missing/duplicate_origin"},
		"no engine and duplicate": {worker: func(w *store.Worker) { w.Duplicate = true }, note: store.ReasonNoEngine, want: "missing/no_engine"},
		"healthy":                 {load: func(*store.Load) {}, want: "fresh/"},
		"healthy and old":         {load: func(*store.Load) {}, age: staleAfter, want: "stale/age"},
		"trouble and a report":    {load: func(*store.Load) {}, note: "register_failed", want: "fresh/"},
		"unreachable":             {load: unreachable, want: "unreachable/engine_unreachable"},
		"unreachable and old":     {load: unreachable, age: staleAfter, want: "stale/engine_unreachable"},
		"engine stale":            {load: func(l *store.Load) { l.Status = store.StatusStale }, want: "stale/engine_stale"},
		"engine stale and old":    {load: func(l *store.Load) { l.Status = store.StatusStale }, age: staleAfter, want: "stale/age"},
		"zero capacity":           {load: func(l *store.Load) { l.Ranks[0] = zero }, want: "stale/zero_capacity"},
		"zero capacity and stale": {load: func(l *store.Load) { l.Ranks[0] = zero; l.Status = store.StatusStale }, want: "stale/engine_stale"},
		"suspended":               {load: func(*store.Load) {}, sleep: true, want: "stale/suspended"},
		"suspended, unreachable":  {load: unreachable, sleep: true, want: "unreachable/engine_unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				w := worker("a")
				if c.worker != nil {
					c.worker(w)
				}
				sl := p.NewSlot(w)
				p.Apply(store.Discovery{Added: []*store.Slot{sl}, Synced: true})
				sl.Bind(store.Stream{Generation: 1})
				sl.Note(c.note)
				if c.load != nil {
					l := p.load(1, 1)
					c.load(l)
					sl.Offer(1, l)
				}
				p.settled()
				if c.sleep {
					p.slept.Add(int64(time.Second))
				}
				p.after(max(c.age, 300*time.Millisecond))
				p.is("a", c.want)
				e, _ := p.entry("a")
				provoked[e.Reason] = true
			})
		})
	}
	for _, r := range []store.Reason{
		store.ReasonNoEngine, store.ReasonDuplicateOrigin, store.ReasonEngineUnreachable, store.ReasonSuspended,
		store.ReasonAge, store.ReasonZeroCapacity, store.ReasonEngineStale, store.ReasonNoReport,
	} {
		if !provoked[r] {
			t.Errorf("no case gives %q", r)
		}
	}
}

func unreachable(l *store.Load) {
	l.Status, l.Ranks, l.Samples, l.LastError = store.StatusUnreachable, nil, nil, "no successful load sample"
}

// Trouble with a worker that was heard is no content.
func TestNoteAfterAReportMakesNoVersion(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		v := p.version()
		sl.Note("register_failed")
		p.settled()
		if p.version() != v {
			t.Errorf("version %d, want %d", p.version(), v)
		}
	})
}

// An idle engine's zeros are known zeros.
func TestZerosAreKnown(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		r := rank(0, 0)
		for f, info := range store.Fields {
			if f := store.Field(f); info.Core && !info.Float && f != store.MaxTotalNumTokens && f != store.MaxRunningRequests {
				r.SetCount(f, 0)
			}
		}
		sl.Offer(1, p.loadOf(1, r))
		p.settled()
		p.is("a", "fresh/")
		e, _ := p.entry("a")
		if n, ok := e.Aggregate.Count(store.SumTotalRequests); n != 0 || !ok || e.Partial {
			t.Errorf("total requests %d known %v partial %v, want a known 0 and not partial", n, ok, e.Partial)
		}
		if e.Aggregate.Has(store.SumPrefillThroughput) {
			t.Error("a throughput that was never sent is known")
		}
	})
}

// Removal is one version for all that one discovery change names; late
// reports change nothing; a row number is not used again.
func TestRemovalAndReplacement(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b", "c")
		for _, sl := range slots {
			sl.Offer(1, p.load(1, 1))
		}
		p.settled()
		v := p.version()
		again := p.NewSlot(worker("a"))
		p.Apply(store.Discovery{Removed: slots[:2], Added: []*store.Slot{again}})
		slots[1].Offer(1, p.load(2, 7))
		p.settled()
		st, _ := p.Current()
		if st.Version != v+1 || len(st.Entries) != 2 {
			t.Fatalf("version %d with %d workers, want %d with 2", st.Version, len(st.Entries), v+1)
		}
		e, l := p.entry("a")
		if e.Row != again.Row() || e.Row <= slots[2].Row() || l != nil || e.Load != nil {
			t.Errorf("the new identity has row %d and load %v", e.Row, e.Load)
		}
		if _, _, ok := p.Inspect(slots[1].Row()); ok {
			t.Error("a removed worker still has rows")
		}
		slots[1].Offer(1, p.load(3, 8))
		p.settled()
		if got := p.version(); got != v+1 {
			t.Errorf("a late report made version %d", got)
		}
	})
}

// A worker that comes and goes within one settle time leaves no row.
func TestAddedAndRemovedInOneCommit(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.NewSlot(worker("a"))
		p.Apply(store.Discovery{Added: []*store.Slot{sl}})
		p.Apply(store.Discovery{Removed: []*store.Slot{sl}, Synced: true})
		p.settled()
		st, _ := p.Current()
		if _, _, ok := p.Inspect(sl.Row()); ok || len(st.Entries) != 0 {
			t.Errorf("%d workers, rows kept: %v", len(st.Entries), ok)
		}
	})
}

// Models, zone, labels and draining change in place: the load stays.
func TestUpdateKeepsTheLoad(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 6))
		p.settled()
		v := p.version()
		w := *worker("a")
		w.Models, w.Draining, w.Labels = []string{"n"}, true, map[string]string{"k": "v"}
		p.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: &w}}})
		p.settled()
		e, _ := p.entry("a")
		if p.version() != v+1 || !e.Worker.Draining || e.Load == nil || e.Freshness != store.Fresh {
			t.Errorf("version %d entry %+v, want a draining fresh worker at %d", p.version(), e, v+1)
		}
		p.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: &w}}})
		p.settled()
		if p.version() != v+1 {
			t.Error("an update that changes nothing made a version")
		}
	})
}

// Loads of a binding that ended are ignored, the one that waits included.
func TestOnlyTheBoundGenerationSpeaks(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		sl.Bind(store.Stream{Source: "s2", Generation: 2, Peer: "127.0.0.1:1"})
		sl.Offer(1, p.load(2, 2))
		p.settled()
		p.is("a", "missing/no_report")
		sl.Offer(2, p.load(1, 3))
		p.settled()
		p.is("a", "fresh/")
		st, _, ok := p.Inspect(sl.Row())
		if !ok || st.Source != "s2" || st.Generation != 2 || st.Peer != "127.0.0.1:1" {
			t.Errorf("stream row %+v, %v", st, ok)
		}
	})
}

// A source that reconnects within the settle time does not lose what was
// already accepted.
func TestReconnectKeepsTheWaitingReport(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(7, 1))
		sl.Bind(store.Stream{Source: "s1", Generation: 2})
		p.settled()
		p.is("a", "fresh/")
		if _, l := p.entry("a"); l.Sequence != 7 {
			t.Errorf("sequence %d, want 7", l.Sequence)
		}
	})
}

func TestDiagnosticsHaveNoVersion(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		p.settled()
		v := p.version()
		sl.Diagnose(func(d *store.Diagnostics) { d.Registration, d.Refused = "registered", 3 })
		p.settled()
		_, d, ok := p.Inspect(sl.Row())
		if !ok || d.Registration != "registered" || d.Refused != 3 || d.Row != sl.Row() || p.version() != v {
			t.Errorf("diagnostics %+v at version %d, want %d", d, p.version(), v)
		}
	})
}

func TestWarming(t *testing.T) {
	warming := func(p *plane) bool { st, _ := p.Current(); return st.Warming }
	t.Run("ends when all were heard", func(t *testing.T) {
		run(t, func(p *plane) {
			slots := p.discover("a", "b")
			slots[0].Offer(1, p.load(1, 1))
			p.settled()
			if !warming(p) {
				t.Fatal("ended with one worker unheard")
			}
			v := p.version()
			slots[1].Offer(1, p.load(1, 1))
			p.settled()
			if warming(p) || p.version() != v+1 {
				t.Errorf("warming %v at version %d, want the end at %d", warming(p), p.version(), v+1)
			}
		})
	})
	t.Run("ends by time after the sync", func(t *testing.T) {
		run(t, func(p *plane) {
			p.after(time.Hour)
			if !warming(p) {
				t.Fatal("ended before discovery synced")
			}
			p.discover("a")
			p.after(10*time.Second - time.Millisecond)
			if !warming(p) {
				t.Fatal("ended before its time")
			}
			p.after(time.Millisecond)
			if warming(p) {
				t.Fatal("did not end in time")
			}
		})
	})
	t.Run("goes on before the sync whatever is committed", func(t *testing.T) {
		run(t, func(p *plane) {
			p.after(time.Minute)
			sl := p.NewSlot(worker("a"))
			p.Apply(store.Discovery{Added: []*store.Slot{sl}})
			sl.Bind(store.Stream{Source: "s1", Generation: 1})
			sl.Offer(1, p.load(1, 1))
			p.settled()
			if !warming(p) {
				t.Error("ended before discovery synced")
			}
		})
	})
	t.Run("is timed from the first sync", func(t *testing.T) {
		run(t, func(p *plane) {
			p.discover("a")
			p.after(9 * time.Second)
			p.Apply(store.Discovery{Synced: true})
			p.after(time.Second - time.Millisecond)
			if !warming(p) {
				t.Fatal("ended before its time")
			}
			p.after(time.Millisecond)
			if warming(p) {
				t.Error("a later sync began the time anew")
			}
		})
	})
	t.Run("does not wait for what cannot be heard", func(t *testing.T) {
		run(t, func(p *plane) {
			mute, twin, gone := worker("a"), worker("b"), worker("c")
			mute.Dialect, twin.Duplicate = store.DialectNone, true
			d := store.Discovery{Synced: true}
			for _, w := range []*store.Worker{mute, twin, gone} {
				d.Added = append(d.Added, p.NewSlot(w))
			}
			d.Added[2].Note(store.ReasonNoEngine)
			p.Apply(d)
			p.settled()
			if warming(p) {
				t.Error("waits for workers that cannot be heard")
			}
		})
	})
	t.Run("with an empty list ends at the sync", func(t *testing.T) {
		run(t, func(p *plane) {
			p.discover()
			if warming(p) {
				t.Error("still warming")
			}
		})
	})
	t.Run("without discovery never begins", func(t *testing.T) {
		runWith(t, func(o *store.Options) { o.Discovery = false }, func(p *plane) {
			if warming(p) {
				t.Error("warming")
			}
		})
	})
}

// A machine that slept: every worker is stale in one version, reports that
// may have waited bring values but no freshness, later ones do.
func TestSuspension(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		slots[0].Offer(1, p.load(1, 1))
		slots[1].Offer(1, p.load(1, 1))
		p.settled()
		p.after(250 * time.Millisecond)
		v := p.version()
		_, before := p.entry("a")
		p.slept.Add(int64(time.Minute))
		p.after(250 * time.Millisecond) // the next watchdog tick
		p.is("a", "stale/suspended")
		p.is("b", "stale/suspended")
		if p.version() != v+1 {
			t.Errorf("version %d, want %d", p.version(), v+1)
		}
		p.after(interval / 2)
		slots[0].Offer(1, p.load(2, 9))
		p.settled()
		p.is("a", "stale/suspended")
		e, l := p.entry("a")
		if n, _ := e.Aggregate.Count(store.SumRunningReqs); n != 9 || l.Sequence != 2 || l.Received != before.Received {
			t.Errorf("running %d sequence %d receipt moved %v", n, l.Sequence, l.Received != before.Received)
		}
		p.after(interval)
		slots[0].Offer(1, p.load(3, 9))
		p.settled()
		p.is("a", "fresh/")
		p.is("b", "stale/suspended")
	})
}

// A small difference of the two clocks is no sleep.
func TestClockNoiseIsNoSuspension(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		p.slept.Add(int64(100 * time.Millisecond))
		p.after(500 * time.Millisecond)
		p.is("a", "fresh/")
	})
}

// A reader that finds an expiry overdue does not serve it, even when the
// committer did not get to it by itself.
func TestFreshCommitsWhatIsOverdue(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		<-time.After(staleAfter - settle) // the committer may not have run yet
		st, _ := p.Fresh(p.t.Context())
		if got := st.Entries[0].Freshness; got != store.Stale {
			t.Errorf("served as %v at the edge", got)
		}
	})
}

// Without a committer the wait ends.
func TestFreshIsBounded(t *testing.T) {
	runWith(t, func(*store.Options) {}, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		ctx, cancel := context.WithCancel(p.t.Context())
		cancel()
		began := p.clock.Now()
		p.Fresh(ctx)
		if took := p.clock.Now().Sub(began); took > 100*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestSuspectWorker(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("frozen", "moving")
		for i := range 33 {
			seq := uint64(i + 1)
			slots[0].Offer(1, p.load(seq, 5))
			slots[1].Offer(1, p.load(seq, int64(i%7)))
			p.after(time.Second)
			e, _ := p.entry("frozen")
			if want := i >= 30; (e.Flags&store.FlagSuspect != 0) != want {
				t.Fatalf("after %d s: flags %v, want suspect %v", i, e.Flags.Words(), want)
			}
		}
		if e, _ := p.entry("moving"); e.Flags != 0 {
			t.Errorf("moving has flags %v", e.Flags.Words())
		}
	})
}

// A worker that leaves in the same commit does not make others suspect.
func TestWhoLeavesMakesNobodySuspect(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("frozen", "moving")
		slots[0].Offer(1, p.load(1, 5))
		p.after(time.Minute)
		slots[1].Offer(1, p.load(1, 6))
		p.settled()
		slots[0].Offer(1, p.load(2, 5))
		p.Apply(store.Discovery{Removed: slots[1:]})
		p.settled()
		if e, l := p.entry("frozen"); e.Flags != 0 || l.Sequence != 2 {
			t.Errorf("sequence %d flags %v, want 2 and none", l.Sequence, e.Flags.Words())
		}
	})
}

// Nobody is suspect while the whole pool stands still.
func TestIdlePoolIsNotSuspect(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		for i := range 60 {
			for _, sl := range slots {
				sl.Offer(1, p.load(uint64(i+1), 5))
			}
			p.after(time.Second)
		}
		p.is("a", "fresh/")
		if e, _ := p.entry("a"); e.Flags != 0 {
			t.Errorf("flags %v", e.Flags.Words())
		}
	})
}

// Ten minutes of one report a second, 300 ms late or early, with the default
// settings: nothing ever turns stale.
func TestNoFlipsUnderJitter(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for i := range 600 {
			sl.Offer(1, p.load(uint64(i+1), int64(i)))
			jitter := time.Duration(i*7919%601-300) * time.Millisecond
			p.after(time.Second + jitter)
			p.is("a", "fresh/")
		}
	})
}

// All changes within one settle time are one version.
func TestChangesOfOneCommitAreOneVersion(t *testing.T) {
	run(t, func(p *plane) {
		v := p.version()
		for _, id := range []string{"b", "a", "c"} {
			p.Apply(store.Discovery{Added: []*store.Slot{p.NewSlot(worker(id))}, Synced: true})
		}
		p.settled()
		st, _ := p.Current()
		if st.Version != v+1 {
			t.Errorf("version %d, want %d", st.Version, v+1)
		}
		for i, id := range []string{"a", "b", "c"} {
			if got := st.Entries[i].Worker.ID; got != id {
				t.Errorf("worker %d is %s, want %s: sorted by id", i, got, id)
			}
		}
	})
}

// Inputs do not put the commit off: the first of them times it.
func TestSettleTimeIsFromTheFirstInput(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		p.settled()
		_, stale := p.Current()
		for seq := range uint64(5) {
			sl.Offer(1, p.load(seq+1, 1))
			sl.Diagnose(func(*store.Diagnostics) {})
			p.Apply(store.Discovery{})
			p.after(settle / 5)
		}
		if !closed(stale) {
			t.Error("not committed within the settle time of the first report")
		}
	})
}

// The number of a worker that is gone is not given out again.
func TestRowsAreNotUsedAgain(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		p.Apply(store.Discovery{Removed: slots})
		p.settled()
		if row := p.discover("c")[0].Row(); row <= slots[1].Row() {
			t.Errorf("row %d again after %d", row, slots[1].Row())
		}
	})
}

// A report for a worker that went before the commit is counted as ignored.
func TestReportsOfRemovedWorkersAreCounted(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		p.settled()
		slots[0].Offer(1, p.load(1, 1))
		slots[1].Offer(1, p.load(1, 1))
		p.Apply(store.Discovery{Removed: slots[:1]})
		p.settled()
		want := strings.NewReader(`
# HELP loadplane_store_reports_ignored_total Reports of a binding that had ended or of a worker that was gone.
# TYPE loadplane_store_reports_ignored_total counter
loadplane_store_reports_ignored_total 1
# HELP loadplane_store_reports_total Reports committed.
# TYPE loadplane_store_reports_total counter
loadplane_store_reports_total 1
`)
		if err := testutil.GatherAndCompare(p.reg, want, "loadplane_store_reports_total", "loadplane_store_reports_ignored_total"); err != nil {
			t.Error(err)
		}
	})
}

// Of two reports with one sequence the first stays, waiting or not.
func TestEqualSequenceDoesNotReplaceTheWaitingReport(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		sl.Offer(1, p.load(1, 2))
		p.settled()
		if e, _ := p.entry("a"); e.Load.Ranks[0] != rank(0, 1) {
			t.Error("the second report replaced the first")
		}
	})
}

// A suspended worker has no expiry to wait for, and its age does not change
// the reason.
func TestSuspendedWorkerFallsDueNoMore(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		p.slept.Add(int64(time.Minute))
		p.after(250 * time.Millisecond)
		p.is("a", "stale/suspended")
		st, _ := p.Current()
		if st.NextDue != 0 {
			t.Fatalf("due in %v", st.NextDue.Sub(p.clock.Now()))
		}
		p.after(time.Hour)
		sl.Diagnose(func(*store.Diagnostics) {}) // something to commit
		p.settled()
		p.is("a", "stale/suspended")
		if p.version() != st.Version {
			t.Errorf("version %d, want %d", p.version(), st.Version)
		}
	})
}

// The doubt lasts one interval of the worker past its detection. Within it
// nothing counts as received, a first report included.
func TestDoubtEndsAnIntervalAfterItsDetection(t *testing.T) {
	for name, c := range map[string]struct {
		after        time.Duration
		heard, fresh string
	}{
		"at its end": {2 * interval, "stale/suspended", "stale/age"},
		"past it":    {2*interval + 1, "fresh/", "fresh/"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				var d store.Discovery
				for _, id := range []string{"heard", "new"} {
					w := worker(id)
					w.Interval = 2 * interval // not the default
					d.Added = append(d.Added, p.NewSlot(w))
				}
				p.Apply(d)
				for _, sl := range d.Added {
					sl.Bind(store.Stream{Source: "s1", Generation: 1})
				}
				d.Added[0].Offer(1, p.load(1, 1))
				p.settled()
				p.slept.Add(int64(time.Minute))
				_, stale := p.Current()
				<-stale // detected
				<-time.After(c.after)
				for _, sl := range d.Added {
					sl.Offer(1, p.load(2, 1))
				}
				p.settled()
				p.is("heard", c.heard)
				p.is("new", c.fresh)
			})
		})
	}
}

// The doubt begins at the last tick of the watchdog that was in time.
func TestDoubtBeginsAtTheLastTick(t *testing.T) {
	for name, c := range map[string]struct {
		at    time.Duration // of the report; the tick is at 250 ms
		moves bool
	}{
		"before the tick": {250*time.Millisecond - 1, true},
		"at the tick":     {250 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				sl.Offer(1, p.load(1, 1))
				p.settled()
				_, first := p.entry("a")
				p.after(c.at - 2*settle)
				l := p.load(2, 1)
				sl.Offer(1, l)
				p.after(time.Millisecond)
				p.slept.Add(int64(time.Minute))
				p.settled()
				p.is("a", "stale/suspended")
				_, second := p.entry("a")
				want := first.Received
				if c.moves {
					want = l.Received
				}
				if second.Sequence != 2 || second.Received != want {
					t.Errorf("sequence %d received at %v, want %v", second.Sequence, second.Received, want)
				}
			})
		})
	}
}

// stuckHandler holds the committer up at the first line that it logs.
type stuckHandler struct {
	slog.Handler
	once *sync.Once
}

func (h stuckHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h stuckHandler) Handle(context.Context, slog.Record) error {
	h.once.Do(func() { <-time.After(2 * time.Second) })
	return nil
}

// A process that stood still without sleep of the machine is in doubt too:
// what it reads within an interval after that may have waited.
func TestStoppedProcessIsInDoubt(t *testing.T) {
	stuck := func(o *store.Options) { o.Logger = slog.New(stuckHandler{slog.DiscardHandler, new(sync.Once)}) }
	runWith(t, stuck, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Offer(1, p.load(1, 1))
		p.settled()
		p.slept.Add(int64(time.Minute)) // is logged, and so stops the committer
		_, stale := p.Current()
		<-stale
		for _, c := range []struct {
			wait time.Duration
			want string
		}{{0, "stale/suspended"}, {interval, "fresh/"}} {
			p.after(c.wait)
			_, before := p.entry("a")
			sl.Offer(1, p.load(before.Sequence+1, 1))
			p.settled()
			p.is("a", c.want)
			if _, l := p.entry("a"); l.Sequence != before.Sequence+1 {
				t.Errorf("sequence %d, want %d", l.Sequence, before.Sequence+1)
			}
		}
	})
}

// Values that stand still are suspect only beside movement in the same pool,
// and only with requests running.
func TestWhatIsSuspect(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(frozen, moving *store.Worker)
		running int64
		want    bool
	}{
		"same pool":       {func(_, _ *store.Worker) {}, 5, true},
		"a shared model":  {func(f, m *store.Worker) { f.Models, m.Models = []string{"k", "l"}, []string{"l", "m"} }, 5, true},
		"no models":       {func(f, m *store.Worker) { f.Models, m.Models = nil, nil }, 5, true},
		"another model":   {func(_, m *store.Worker) { m.Models = []string{"n"} }, 5, false},
		"one has models":  {func(_, m *store.Worker) { m.Models = nil }, 5, false},
		"another role":    {func(_, m *store.Worker) { m.Role = store.RoleDecode }, 5, false},
		"nothing running": {func(_, _ *store.Worker) {}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				frozen, moving := worker("frozen"), worker("moving")
				c.change(frozen, moving)
				d := store.Discovery{Added: []*store.Slot{p.NewSlot(frozen), p.NewSlot(moving)}, Synced: true}
				p.Apply(d)
				for _, sl := range d.Added {
					sl.Bind(store.Stream{Source: "s1", Generation: 1})
				}
				for seq := range uint64(32) {
					d.Added[0].Offer(1, p.load(seq+1, c.running))
					d.Added[1].Offer(1, p.load(seq+1, int64(seq)))
					p.after(time.Second)
				}
				e, _ := p.entry("frozen")
				if got := e.Flags&store.FlagSuspect != 0; got != c.want {
					t.Errorf("flags %v, want suspect %v", e.Flags.Words(), c.want)
				}
			})
		})
	}
}

// What a report changes is no expiry.
func TestExpirationsAreCounted(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for seq := range uint64(2) {
			sl.Offer(1, p.load(seq+1, 1))
			p.after(staleAfter)
		}
		p.is("a", "stale/age")
		want := strings.NewReader(`
# HELP loadplane_store_expirations_total Workers whose freshness changed by time alone.
# TYPE loadplane_store_expirations_total counter
loadplane_store_expirations_total 2
`)
		if err := testutil.GatherAndCompare(p.reg, want, "loadplane_store_expirations_total"); err != nil {
			t.Error(err)
		}
	})
}

// The committer is seen running four times a second, with nothing to commit.
func TestBeatMovesWithoutInput(t *testing.T) {
	run(t, func(p *plane) {
		for range 3 {
			p.after(time.Minute)
			if age := p.clock.Now().Sub(p.Beat()); age > 250*time.Millisecond {
				t.Errorf("last seen %v ago", age)
			}
		}
	})
}

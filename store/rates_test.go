package store_test

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// Rates come from two reports of one source and rank set; what did not grow
// gives none.
func TestPrefillRates(t *testing.T) {
	type sample struct{ tokens, busyUs, timeMs int64 }
	for name, c := range map[string]struct {
		from, to   sample
		other      func(*store.Load)
		busy, wall float64 // 0 for unknown
	}{
		"both":             {from: sample{1000, 500_000, 1000}, to: sample{3000, 1_500_000, 3000}, busy: 2000, wall: 1000},
		"busy stood still": {from: sample{1000, 500_000, 1000}, to: sample{3000, 500_000, 3000}, wall: 1000},
		"busy unknown":     {from: sample{1000, -1, 1000}, to: sample{3000, -1, 3000}, wall: 1000},
		"time unknown":     {from: sample{1000, 500_000, -1}, to: sample{3000, 1_500_000, -1}, busy: 2000},
		"tokens went back": {from: sample{3000, 500_000, 1000}, to: sample{1000, 1_500_000, 3000}},
		"tokens unknown":   {from: sample{-1, 500_000, 1000}, to: sample{1000, 1_500_000, 3000}},
		"other source":     {from: sample{1000, 500_000, 1000}, to: sample{3000, 1_500_000, 3000}, other: func(l *store.Load) { l.Source = "s2" }},
		"other ranks":      {from: sample{1000, 500_000, 1000}, to: sample{3000, 1_500_000, 3000}, other: func(l *store.Load) { l.Ranks[0].DPRank = 4 }},
		"sent by engine": {from: sample{1000, 500_000, 1000}, to: sample{3000, 1_500_000, 3000}, wall: 1000, busy: 77,
			other: func(l *store.Load) { l.Ranks[0].SetFloat(store.PrefillThroughput, 77) }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				for i, s := range []sample{c.from, c.to} {
					l := p.load(uint64(i+1), 1)
					l.Samples[0] = store.Sample{TimeUnixMs: s.timeMs, PrefillUncachedTokens: s.tokens, PrefillBusyUs: s.busyUs, GeneratedTokens: -1}
					if i == 1 && c.other != nil {
						c.other(l)
					}
					sl.Offer(1, l)
					p.after(time.Second)
				}
				e, _ := p.entry("a")
				for f, want := range map[store.Field]float64{store.PrefillThroughput: c.busy, store.PrefillThroughputWall: c.wall} {
					if got, ok := e.Ranks[0].Float(f); ok != (want != 0) || got != want {
						t.Errorf("%s is %v known %v, want %v", store.Fields[f].Name, got, ok, want)
					}
				}
				if e.Load.Ranks[0].Has(store.PrefillThroughputWall) {
					t.Error("the accepted report was changed")
				}
			})
		})
	}
}

// All loads zero while a counter grows: the values contradict each other.
func TestInconsistentWorker(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		zero := rank(0, 0)
		for _, f := range []store.Field{store.NumWaitingReqs, store.NumUsedTokens, store.NumTotalTokens} {
			zero.SetCount(f, 0)
		}
		for i, generated := range []int64{100, 200, 300, 300} {
			l := p.loadOf(uint64(i+1), zero)
			l.Samples[0].GeneratedTokens = generated
			sl.Offer(1, l)
			p.settled()
			e, _ := p.entry("a")
			if want := i == 1 || i == 2; (e.Flags&store.FlagInconsistent != 0) != want {
				t.Errorf("report %d: flags %v, want inconsistent %v", i, e.Flags.Words(), want)
			}
		}
	})
}

func TestFlagWords(t *testing.T) {
	for flag, word := range map[store.Flag]string{
		store.FlagInconsistent: "inconsistent", store.FlagSuspect: "suspect", store.FlagRatioAboveOne: "ratio_above_one",
		store.FlagStalled: "stalled", store.FlagFrozenSeries: "frozen_series",
		store.FlagUnstableSource: "unstable_source", store.FlagRanksUnknown: "ranks_unknown",
	} {
		if got := flag.Words(); len(got) != 1 || got[0] != word {
			t.Errorf("flag %b is %v, want %q", flag, got, word)
		}
	}
	if got := (store.FlagInconsistent | store.FlagRanksUnknown).Words(); len(got) != 2 || got[0] != "inconsistent" {
		t.Errorf("two flags are %v", got)
	}
	if store.Flag(0).Words() != nil {
		t.Error("no flags have words")
	}
}

// Counters are compared with those of the last report, not with those of the
// last one that changed the content.
func TestRatesAreAgainstTheLastReport(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for i, s := range []store.Sample{
			{TimeUnixMs: 1000, PrefillUncachedTokens: 1000, PrefillBusyUs: 500_000},
			{TimeUnixMs: 2000, PrefillUncachedTokens: 1000, PrefillBusyUs: 1_000_000}, // makes no version
			{TimeUnixMs: 3000, PrefillUncachedTokens: 3000, PrefillBusyUs: 1_500_000},
		} {
			l := p.load(uint64(i+1), 1)
			l.Samples[0] = s
			sl.Offer(1, l)
			p.settled()
		}
		e, _ := p.entry("a")
		for f, want := range map[store.Field]float64{store.PrefillThroughput: 4000, store.PrefillThroughputWall: 2000} {
			if got, _ := e.Ranks[0].Float(f); got != want {
				t.Errorf("%s is %v, want %v", store.Fields[f].Name, got, want)
			}
		}
	})
}

// Two idle reports of one source contradict each other only where a counter
// grew between them.
func TestWhatIsInconsistent(t *testing.T) {
	busy := func(l *store.Load) { l.Ranks[0].SetCount(store.NumRunningReqs, 1) }
	blind := func(l *store.Load) {
		r := store.Rank{}
		for _, f := range []store.Field{store.NumRunningReqs, store.NumUsedTokens, store.NumTotalTokens} {
			r.SetCount(f, 0)
		}
		l.Ranks[0] = r
	}
	unused := func(l *store.Load) {
		r := store.Rank{}
		for _, f := range []store.Field{store.NumRunningReqs, store.NumWaitingReqs} {
			r.SetCount(f, 0)
		}
		l.Ranks[0] = r
	}
	for name, c := range map[string]struct {
		first, second func(*store.Load)
		want          bool
	}{
		"generated tokens grew": {want: true},
		"prefill tokens grew": {want: true,
			first:  func(l *store.Load) { l.Samples[0] = store.Sample{PrefillUncachedTokens: 1, GeneratedTokens: -1} },
			second: func(l *store.Load) { l.Samples[0] = store.Sample{PrefillUncachedTokens: 2, GeneratedTokens: -1} }},
		"was busy":        {first: busy},
		"is busy":         {second: busy},
		"load unknown":    {first: blind, second: blind},
		"used unknown":    {first: unused, second: unused},
		"counter unknown": {first: func(l *store.Load) { l.Samples[0].GeneratedTokens = -1 }},
		"other source":    {second: func(l *store.Load) { l.Source = "s2" }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				for i, change := range []func(*store.Load){c.first, c.second} {
					zero := rank(0, 0)
					for _, f := range []store.Field{store.NumWaitingReqs, store.NumUsedTokens, store.NumTotalTokens} {
						zero.SetCount(f, 0)
					}
					l := p.loadOf(uint64(i+1), zero)
					l.Samples[0].GeneratedTokens = int64(100 * (i + 1))
					if change != nil {
						change(l)
					}
					sl.Offer(1, l)
					p.settled()
				}
				e, _ := p.entry("a")
				if got := e.Flags&store.FlagInconsistent != 0; got != c.want {
					t.Errorf("flags %v, want inconsistent %v", e.Flags.Words(), c.want)
				}
			})
		})
	}
}

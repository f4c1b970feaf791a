package store_test

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// stuck is a rank at which requests wait and none run.
func stuck(dp int32) store.Rank {
	r := rank(dp, 0)
	r.SetCount(store.NumWaitingReqs, 117)
	return r
}

// Requests that wait for 30 s at a rank that runs none show, as they are: the
// values are neither smoothed nor cut (bug 68).
func TestBug68StalledWorker(t *testing.T) {
	unknown := store.Rank{}
	unknown.SetCount(store.NumWaitingReqs, 117)
	for name, c := range map[string]struct {
		role store.Role
		rank store.Rank
		// other is what the report in the middle says.
		other *store.Load
		want  bool
	}{
		"waits and runs none":  {rank: stuck(0), want: true},
		"runs some":            {rank: func() store.Rank { r := stuck(0); r.SetCount(store.NumRunningReqs, 1); return r }()},
		"nothing waits":        {rank: func() store.Rank { r := stuck(0); r.SetCount(store.NumWaitingReqs, 0); return r }()},
		"running unknown":      {rank: unknown},
		"a prefill worker":     {role: store.RolePrefill, rank: stuck(0)},
		"a decode worker":      {role: store.RoleDecode, rank: stuck(0), want: true},
		"moved in between":     {rank: stuck(0), other: &store.Load{Source: "s1", Ranks: []store.Rank{rank(0, 3)}}},
		"another source since": {rank: stuck(0), other: &store.Load{Source: "s2", Ranks: []store.Rank{stuck(0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				w := worker("a")
				if c.role != 0 {
					w.Role = c.role
				}
				sl := p.NewSlot(w)
				p.Apply(store.Discovery{Added: []*store.Slot{sl}, Synced: true})
				for i := range 31 {
					l := p.loadOf(uint64(i+1), c.rank, rank(1, 2))
					if c.other != nil && i >= 15 {
						l.Source = c.other.Source
					}
					if c.other != nil && i == 15 {
						l.Ranks = c.other.Ranks
						l.Samples = unknownSamples(len(l.Ranks))
					}
					sl.Bind(store.Stream{Source: l.Source, Generation: uint64(i + 1)})
					sl.Offer(uint64(i+1), l)
					p.after(time.Second)
					e, _ := p.entry("a")
					if want := c.want && i == 30; (e.Flags&store.FlagStalled != 0) != want {
						t.Fatalf("report %d: flags %v, want stalled %v", i, e.Flags.Words(), want)
					}
				}
			})
		})
	}
}

// Ranks that stall by turns are none that stalls for 30 s.
func TestRanksStallByTurns(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for i := range 60 {
			ranks := []store.Rank{rank(0, 2), rank(1, 2)}
			ranks[i/20%2] = stuck(int32(i / 20 % 2))
			sl.Offer(1, p.loadOf(uint64(i+1), ranks...))
			p.after(time.Second)
			if e, _ := p.entry("a"); e.Flags&store.FlagStalled != 0 {
				t.Fatalf("report %d: flags %v", i, e.Flags.Words())
			}
		}
	})
}

// A report that the plane asked for counts from when it asked: one that was
// begun before the doubt was detected may be as old as that.
func TestDoubtOfAPolledReport(t *testing.T) {
	for name, c := range map[string]struct {
		begun time.Duration // after the detection
		want  string
	}{
		"begun before": {-1, "stale/suspended"},
		"begun after":  {1, "fresh/"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				sl.Offer(1, p.load(1, 1))
				p.settled()
				p.slept.Add(int64(time.Minute))
				_, stale := p.Current()
				<-stale // detected
				detected := p.clock.Now()
				<-time.After(interval / 2) // a pushed report would be in doubt still
				l := p.load(2, 1)
				l.Begun = detected.Add(c.begun)
				sl.Offer(1, l)
				p.settled()
				p.is("a", c.want)
			})
		})
	}
}

// A prefill worker whose requests are all on their way to a decode worker runs
// none and is not idle: nothing contradicts its counters (bug 36).
func TestBug36InflightIsNotIdle(t *testing.T) {
	for name, c := range map[string]struct {
		inflight int64
		want     bool
	}{"nothing anywhere": {0, true}, "requests in flight": {12, false}} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				for i := range 2 {
					r := rank(0, 0)
					for _, f := range []store.Field{store.NumWaitingReqs, store.NumUsedTokens, store.NumTotalTokens} {
						r.SetCount(f, 0)
					}
					r.SetCount(store.PrefillInflightReqs, c.inflight)
					l := p.loadOf(uint64(i+1), r)
					l.Samples[0].PrefillUncachedTokens = int64(100 * i)
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

package snapshot_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/loadplane/loadplane/store/snapshot/filter"
	"google.golang.org/protobuf/proto"
)

// change replaces what discovery says of a worker, in place.
func (p *plane) change(sl *store.Slot, w *store.Worker) {
	p.st.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: w}}})
	p.after(time.Millisecond)
}

func (p *plane) feed(s filter.Selection) *snapshot.Feed { return p.Feed(newFilter(p.t, s)) }

func newFilter(t *testing.T, s filter.Selection) *filter.Filter {
	t.Helper()
	f, err := filter.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func ids(v *snapshot.View) (out []string) {
	for _, w := range v.Workers {
		out = append(out, w.Worker.ID)
	}
	return out
}

func TestFeedHasTheWorkersOfItsFilter(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "n"), worker("c:1", store.RolePrefill, "m", "n"))
		for _, sl := range slots {
			p.report(sl, 1, 0.5)
		}
		whole, _ := p.Current()
		v, _ := p.feed(filter.Selection{Models: []string{"n"}}).Current()
		p.want("workers", ids(v), "b:1", "c:1")
		if v.Digest != whole.Workers[1].Hash+whole.Workers[2].Hash || v.FilterHash == 0 || v.Workers[1] != whole.Workers[2] || v.Receipts[0] != whole.Receipts[1] {
			t.Error("the workers of a filter are not those of the whole view")
		}
		var keys []snapshot.PoolKey
		for _, pool := range v.Pools {
			keys = append(keys, pool.Key)
		}
		// c serves m too, and is in the filter: its pool m has one worker there.
		if want := []snapshot.PoolKey{{Model: "m", Role: store.RolePrefill}, {Model: "n", Role: store.RoleRegular}, {Model: "n", Role: store.RolePrefill}}; !slices.Equal(keys, want) {
			t.Errorf("pools %v, want %v", keys, want)
		}
		if v.Version > whole.Version || v.Version < whole.Version-1 || v.Seen != whole.Version || v.Lineage != whole.Lineage || v.Epoch != whole.Epoch || v.Tick != whole.Tick {
			t.Errorf("named %s %d %d at %d", v.Lineage, v.Epoch, v.Version, v.Seen)
		}
	})
}

func TestFeedOfTheEmptyFilterIsTheWholeView(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a:1", store.RoleRegular, "m"))[0]
		f := p.Feed(nil)
		whole, _ := p.Current()
		if v, _ := f.Current(); v != whole || v.FilterHash != 0 || v.Seen != v.Version {
			t.Error("another view")
		}
		if moved, _ := f.Moved(whole.Version); moved {
			t.Error("moved without a change")
		}
		p.report(sl, 1, 0.5)
		if moved, _ := f.Moved(whole.Version); !moved {
			t.Error("not moved by a change")
		}
	})
}

// TestFeedIsStillWhileOthersChange changes workers of another model, in all
// ways, for longer than tombstones are kept.
func TestFeedIsStillWhileOthersChange(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("b:1", store.RoleRegular, "m"), worker("c:1", store.RoleRegular, "n"))
		p.report(slots[0], 1, 0.5)
		p.report(slots[1], 1, 0.5)
		f := p.feed(filter.Selection{Models: []string{"m"}})
		first, _ := f.Current()
		for seq := range uint64(100) {
			p.after(time.Second)
			p.report(slots[1], seq+2, float64(seq))
			p.report(slots[0], seq+2, 0.5) // equal
			if seq%10 == 0 {
				extra := p.add(worker("a:1", store.RoleRegular, "o"))
				p.remove(extra[0])
			}
			if moved, _ := f.Moved(first.Version); moved {
				t.Fatalf("moved in second %d", seq)
			}
		}
		v, _ := f.Current()
		if v.Version != first.Version || v.Seen == first.Seen || v.Snapshot != first.Snapshot {
			t.Errorf("version %d after %d", v.Version, first.Version)
		}
		if whole, _ := p.Current(); v.Receipts[0] != whole.Receipts[0] || v.Receipts[0].Sequence != 101 || whole.Horizon == 0 || whole.Covers(first.Version) {
			t.Errorf("receipt %v, horizon %d", v.Receipts[0], whole.Horizon)
		}
		// What was forgotten concerned others: the change can be told.
		p.report(slots[0], 200, 0.75)
		v, _ = f.Current()
		if !v.Covers(first.Version) || v.Version <= first.Version {
			t.Errorf("version %d does not cover %d", v.Version, first.Version)
		}
		p.want("changed", changed(v.Snapshot, first.Version), "b:1")
		p.want("removed", removed(v.Snapshot, first.Version))
	})
}

// TestWorkerEntersAndLeavesAFilter changes a worker's zone in place.
func TestWorkerEntersAndLeavesAFilter(t *testing.T) {
	run(t, func(p *plane) {
		in := func(zone string) *store.Worker {
			w := worker("a:1", store.RoleRegular, "m")
			w.Zone = zone
			return w
		}
		slots := p.add(in("eu"), worker("b:1", store.RoleRegular, "m"))
		p.report(slots[0], 1, 0.5)
		f := p.feed(filter.Selection{Zones: []string{"us"}})
		outside, _ := f.Current()
		if len(outside.Workers)+len(outside.Pools) != 0 || outside.Digest != 0 || outside.Version == 0 {
			t.Fatalf("a filter that selects nothing: %v", outside.Snapshot)
		}
		p.report(slots[1], 1, 0.5) // the entry of a is older than the newest version
		p.change(slots[0], in("us"))
		entered, _ := f.Current()
		p.want("changed by entering", changed(entered.Snapshot, outside.Version), "a:1")
		p.want("pools by entering", changedPools(entered.Snapshot, outside.Version), "m")
		if entered.Receipts[0] == nil || entered.Receipts[0].Sequence != 1 {
			t.Error("the receipt did not come along")
		}
		p.change(slots[0], in("eu"))
		left, _ := f.Current()
		p.want("removed by leaving", removed(left.Snapshot, entered.Version), "a:1")
		p.want("pools removed by leaving", removedPools(left.Snapshot, entered.Version), "m")
		p.want("removed since before", removed(left.Snapshot, left.Version))
		p.change(slots[0], in("us"))
		again, _ := f.Current()
		p.want("removed after it came back", removed(again.Snapshot, entered.Version))
		p.want("changed after it came back", changed(again.Snapshot, entered.Version), "a:1")
	})
}

// TestFeedThatComesBackTellsWhatLeft makes a feed anew: what its readers lack
// follows from the store.
func TestFeedThatComesBackTellsWhatLeft(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m", "n"))
		s := filter.Selection{Models: []string{"m"}}
		before, _ := p.feed(s).Current()
		p.remove(slots[1])
		p.add(worker("z:1", store.RoleRegular, "other"))
		v, _ := p.feed(s).Current()
		if !v.Covers(before.Version) {
			t.Fatal("not covered")
		}
		p.want("removed", removed(v.Snapshot, before.Version), "b:1")
		p.want("pools removed", removedPools(v.Snapshot, before.Version), "n")
		p.after(2 * time.Minute)
		p.report(slots[0], 1, 0.5)
		if v, _ = p.feed(s).Current(); v.Covers(before.Version) {
			t.Error("covered after it was forgotten")
		}
	})
}

// TestFeedForgets bounds by time what a feed that is read all along remembers.
func TestFeedForgets(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m", "n"))
		f := p.feed(filter.Selection{Models: []string{"m"}})
		before, _ := f.Current()
		p.remove(slots[1])
		v, _ := f.Current()
		gone := v.Version
		p.after(time.Minute - time.Second)
		p.report(slots[0], 1, 0.5)
		if v, _ = f.Current(); !v.Covers(before.Version) || len(v.Tombstones) != 1 || len(v.PoolGraves) != 2 {
			t.Errorf("%d tombstones in time", len(v.Tombstones))
		}
		p.after(2 * time.Second)
		p.report(slots[0], 2, 0.25)
		if v, _ = f.Current(); v.Covers(before.Version) || !v.Covers(gone) || len(v.Tombstones)+len(v.PoolGraves) != 0 {
			t.Errorf("%d tombstones after it; covers %d: %t", len(v.Tombstones), gone, v.Covers(gone))
		}
	})
}

// TestFeedThatWasNotReadForLong comes back after the store forgot what left.
func TestFeedThatWasNotReadForLong(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"))
		f := p.feed(filter.Selection{Models: []string{"m"}})
		before, _ := f.Current()
		p.remove(slots[1])
		p.after(2 * time.Minute)
		p.report(slots[0], 1, 0.5)
		v, _ := f.Current()
		if v.Covers(before.Version) || v.Version <= before.Version {
			t.Error("covered although the store forgot it")
		}
		p.want("workers", ids(v), "a:1")
		if m := decode(t, v.Pools[0].Encoded, &loadplanev1.Pool{}); m.GetWorkers() != 1 {
			t.Errorf("pool %v", m)
		}
	})
}

// TestPoolsOfAFeedThatWasNotReadForLong has a worker leave a pool whose other
// worker stays as it was, and the store forget it.
func TestPoolsOfAFeedThatWasNotReadForLong(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"), worker("z:1", store.RoleRegular, "n"))
		p.after(20 * time.Second) // what is not heard stays missing
		f := p.feed(filter.Selection{Models: []string{"m"}})
		before, _ := f.Current()
		p.remove(slots[1])
		p.after(2 * time.Minute)
		p.report(slots[2], 1, 0.5)
		v, _ := f.Current()
		if v.Workers[0] != before.Workers[0] || v.Horizon == 0 {
			t.Fatalf("the worker that stayed changed, or nothing was forgotten: horizon %d", v.Horizon)
		}
		m := decode(t, v.Pools[0].Encoded, &loadplanev1.Pool{})
		if m.GetWorkers() != 1 || v.Pools[0].Version <= before.Version {
			t.Errorf("pool %v of version %d", m, v.Pools[0].Version)
		}
	})
}

func TestEndOfWarmingMovesEveryFeed(t *testing.T) {
	run(t, func(p *plane) {
		p.add(worker("a:1", store.RoleRegular, "m"))
		f := p.feed(filter.Selection{Models: []string{"none"}})
		v, _ := f.Current()
		if !v.Warming {
			t.Fatal("not warming")
		}
		p.after(11 * time.Second)
		if moved, _ := f.Moved(v.Version); !moved {
			t.Error("the end of the warming did not move the feed")
		}
		if next, _ := f.Current(); next.Warming || next.Version <= v.Version {
			t.Errorf("warming %t at %d", next.Warming, next.Version)
		}
	})
}

// TestFeedMadeAfterTheWarming has another version than one made before, since
// it has another content.
func TestFeedMadeAfterTheWarming(t *testing.T) {
	run(t, func(p *plane) {
		p.add(worker("a:1", store.RoleRegular, "m"))
		s := filter.Selection{Models: []string{"none"}}
		cold, _ := p.feed(s).Current()
		p.after(11 * time.Second)
		warm, _ := p.feed(s).Current()
		if cold.Version >= warm.Version || !cold.Warming || warm.Warming {
			t.Errorf("version %d while warming, %d after it", cold.Version, warm.Version)
		}
		p.add(worker("b:1", store.RoleRegular, "m"))
		if later, _ := p.feed(s).Current(); later.Version != warm.Version {
			t.Errorf("version %d, then %d although only others changed", warm.Version, later.Version)
		}
	})
}

func TestBriefHasNoRanks(t *testing.T) {
	run(t, func(p *plane) {
		w := worker("a:1", store.RoleRegular, "m")
		w.Labels = map[string]string{"a": "b"}
		p.report(p.add(w)[0], 1, 0.5, 0.25)
		v, _ := p.Current()
		want := decode(t, v.Workers[0].Encoded, &loadplanev1.Worker{})
		if len(want.GetRanks()) != 2 {
			t.Fatal("no ranks")
		}
		want.Ranks = nil
		if got := decode(t, v.Workers[0].Brief(), &loadplanev1.Worker{}); !proto.Equal(got, want) || got.GetContentHash() != v.Workers[0].Hash {
			t.Errorf("got %v\nwant %v", got, want)
		}
		one, two := v.Workers[0].Brief(), v.Workers[0].Brief()
		if &one[0] != &two[0] {
			t.Error("encoded twice")
		}
	})
}

func TestNamedAndBareViews(t *testing.T) {
	run(t, func(p *plane) {
		p.report(p.add(worker("a:1", store.RoleRegular, "m"))[0], 1, 0.5)
		v, _ := p.feed(filter.Selection{Models: []string{"m"}}).Current()
		version := v.Version
		named := v.Named(version + 5)
		if named.Version != version+5 || v.Version != version || len(named.Workers) != 1 || len(named.Receipts) != 1 || named.Digest != v.Digest || named.Overdue(0) {
			t.Errorf("named %+v", named.Snapshot)
		}
		bare := v.Bare()
		if len(bare.Workers)+len(bare.Receipts)+len(bare.Pools) != 0 || bare.Version != version || bare.Digest != v.Digest || bare.Tick != v.Tick ||
			bare.FilterHash != v.FilterHash || bare.Lineage != v.Lineage || !bare.Published.Equal(v.Published) {
			t.Errorf("bare %+v", bare.Snapshot)
		}
		if due := p.clock.Now(); v.Overdue(due) || !v.Overdue(due.Add(4*time.Second)) {
			t.Error("overdue before its time, or not after it")
		}
	})
}

// reader holds what it was told of one filter.
type reader struct {
	filter  *filter.Filter
	feed    *snapshot.Feed
	version uint64
	workers map[uint32]uint64 // hash by row
	pools   map[snapshot.PoolKey][]byte
	fulls   int
}

// take brings the reader to a view as an event would.
func (r *reader) take(v *snapshot.View) {
	switch {
	case r.version >= v.Version && r.version <= v.Seen && r.version > 0:
		return // holds it already
	case !v.Covers(r.version):
		r.fulls++
		r.workers, r.pools = map[uint32]uint64{}, map[snapshot.PoolKey][]byte{}
	}
	base := r.version
	if len(r.workers)+len(r.pools) == 0 {
		base = 0
	}
	for t := range v.Removed(base) {
		delete(r.workers, t.Row)
	}
	for w := range v.Changed(base) {
		r.workers[w.Row] = w.Hash
	}
	for k := range v.RemovedPools(base) {
		delete(r.pools, k)
	}
	for p := range v.ChangedPools(base) {
		r.pools[p.Key] = p.Encoded
	}
	r.version = v.Version
}

// TestFeedsAddUp makes random changes under readers of many filters that look
// now and then, some by a feed that they share and some by a new one. What they
// hold is always what the whole view has of their filter, and a version never
// names two contents.
func TestFeedsAddUp(t *testing.T) {
	for seed := range uint64(4) {
		run(t, func(p *plane) { p.addUp(seed) })
	}
}

func (p *plane) addUp(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	readers := p.readers()
	slots, workers := map[string]*store.Slot{}, map[string]*store.Worker{}
	seq := uint64(0)
	names := map[string]uint64{}
	for range 1500 {
		id := fmt.Sprintf("w%d:1", rng.IntN(8))
		seq++
		switch op := rng.IntN(10); {
		case slots[id] == nil:
			workers[id] = randomWorker(rng, id)
			slots[id] = p.add(workers[id])[0]
		case op == 0:
			p.remove(slots[id])
			delete(slots, id)
		case op < 3:
			workers[id] = randomWorker(rng, id)
			p.change(slots[id], workers[id])
		default:
			p.report(slots[id], seq, float64(rng.IntN(4))/4, float64(rng.IntN(2)))
		}
		if rng.IntN(60) == 0 {
			p.after(time.Duration(rng.IntN(40)) * time.Second)
		}
		for i, r := range readers {
			if rng.IntN(1+i%7*3) == 0 {
				p.look(rng, r, names)
			}
		}
	}
	fulls := 0
	for _, r := range readers {
		p.look(rng, r, names)
		fulls += r.fulls
	}
	if p.t.Logf("%d fulls, %d names", fulls, len(names)); fulls > 1500 || len(names) < 500 {
		p.t.Error("too many fulls, or too few contents")
	}
}

func randomWorker(rng *rand.Rand, id string) *store.Worker {
	w := worker(id, store.Role(1+rng.IntN(2)), []string{"a", "b", "c"}[rng.IntN(3):]...)
	w.Zone = []string{"", "x", "y"}[rng.IntN(3)]
	w.Labels = map[string]string{"tier": fmt.Sprint(rng.IntN(2))}
	return w
}

// readers returns three of each filter; the first two share a feed.
func (p *plane) readers() (out []*reader) {
	for _, s := range []filter.Selection{
		{Models: []string{"a"}},
		{Models: []string{"b", "none"}},
		{Zones: []string{"x"}},
		{Zones: []string{"x", "y"}, Roles: []store.Role{store.RolePrefill}},
		{WorkerIDs: []string{"w1:1", "w2:1"}},
		{Labels: map[string][]string{"tier": {"1"}}},
		{Models: []string{"none"}},
	} {
		f := newFilter(p.t, s)
		shared := p.Feed(f)
		for i := range 3 {
			r := &reader{filter: f, feed: shared}
			if i == 2 {
				r.feed = nil
			}
			out = append(out, r)
		}
	}
	return out
}

// look brings a reader up to date and compares it with the whole view.
func (p *plane) look(rng *rand.Rand, r *reader, names map[string]uint64) {
	p.t.Helper()
	feed := r.feed
	if feed == nil || rng.IntN(10) == 0 {
		feed = p.Feed(r.filter)
		if r.feed != nil && rng.IntN(2) == 0 {
			r.feed = feed
		}
	}
	if rng.IntN(3) == 0 {
		feed.Moved(r.version)
	}
	v, _ := feed.Current()
	moved, _ := feed.Moved(v.Version)
	before := r.version
	r.take(v)
	whole, _ := p.Current()
	workers, digest := map[uint32]uint64{}, uint64(0)
	for _, w := range whole.Workers {
		if r.filter.Match(w.Worker) {
			workers[w.Row] = w.Hash
			digest += w.Hash
		}
	}
	pools := map[snapshot.PoolKey][]byte{}
	for _, pool := range v.Pools {
		pools[pool.Key] = pool.Encoded
	}
	if moved || v.Digest != digest || !maps.Equal(workers, r.workers) || !maps.EqualFunc(pools, r.pools, bytes.Equal) {
		p.t.Fatalf("filter %x: from %d to %d at %d: held %v, want %v; pools %d, want %d", v.FilterHash, before, v.Version, v.Seen, r.workers, workers, len(r.pools), len(pools))
	}
	for version := range map[uint64]bool{v.Version: true, r.version: true} {
		name := fmt.Sprintf("%x %d", v.FilterHash, version)
		if known, named := names[name]; named && known != digest {
			p.t.Fatalf("%s names two contents", name)
		}
		names[name] = digest
	}
}

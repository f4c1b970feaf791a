package snapshot_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// remove takes a worker out and returns the version in which it is gone.
func (p *plane) remove(sl *store.Slot) uint64 {
	p.t.Helper()
	p.st.Apply(store.Discovery{Removed: []*store.Slot{sl}})
	p.after(time.Millisecond)
	v, _ := p.Current()
	return v.Version
}

func removedPools(s *snapshot.Snapshot, base uint64) (out []string) {
	for k := range s.RemovedPools(base) {
		out = append(out, k.Model)
	}
	return out
}

func changedPools(s *snapshot.Snapshot, base uint64) (out []string) {
	for p := range s.ChangedPools(base) {
		out = append(out, p.Key.Model)
	}
	return out
}

func removed(s *snapshot.Snapshot, base uint64) (out []string) {
	for t := range s.Removed(base) {
		out = append(out, t.Worker.ID)
	}
	return out
}

func changed(s *snapshot.Snapshot, base uint64) (out []string) {
	for w := range s.Changed(base) {
		out = append(out, w.Worker.ID)
	}
	return out
}

func (p *plane) want(what string, got []string, want ...string) {
	p.t.Helper()
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestPoolThatLeftIsRemembered(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "n"))
		before, _ := p.Current()
		gone := p.remove(slots[1])
		v, _ := p.Current()
		p.want("removed since the version before", removedPools(v.Snapshot, before.Version), "n")
		p.want("removed since it was gone", removedPools(v.Snapshot, gone))
		p.want("workers since the version before", removed(v.Snapshot, before.Version), "b:1")
		p.want("workers since it was gone", removed(v.Snapshot, gone))

		p.add(worker("c:1", store.RoleRegular, "n"))
		v, _ = p.Current()
		p.want("removed after it came back", removedPools(v.Snapshot, before.Version))
		p.want("changed after it came back", changedPools(v.Snapshot, gone), "n")
		p.want("workers that did not come back", removed(v.Snapshot, before.Version), "b:1")
		p.want("workers that came", changed(v.Snapshot, gone), "c:1")
	})
}

// TestPoolThatLeftTwiceIsToldOnce removes a pool, brings it back and removes it
// again.
func TestPoolThatLeftTwiceIsToldOnce(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "n"))
		before, _ := p.Current()
		p.remove(slots[1])
		again := p.add(worker("b:1", store.RoleRegular, "n"))
		p.Current()
		p.remove(again[0])
		v, _ := p.Current()
		if len(v.PoolGraves) != 2 {
			t.Fatalf("%d graves", len(v.PoolGraves))
		}
		p.want("removed", removedPools(v.Snapshot, before.Version), "n")
	})
}

// TestRelabelledWorkerIsNotRemoved moves a worker from one pool to another.
func TestRelabelledWorkerIsNotRemoved(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a:1", store.RoleRegular, "m"))[0]
		before, _ := p.Current()
		p.st.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: worker("a:1", store.RoleRegular, "n")}}})
		p.after(time.Millisecond)
		v, _ := p.Current()
		if len(v.Tombstones) != 1 {
			t.Fatalf("%d tombstones, want that of the old attributes", len(v.Tombstones))
		}
		p.want("removed", removed(v.Snapshot, before.Version))
		p.want("changed", changed(v.Snapshot, before.Version), "a:1")
		p.want("removed pools", removedPools(v.Snapshot, before.Version), "m")
		p.want("changed pools", changedPools(v.Snapshot, before.Version), "n")
	})
}

func TestPoolHasTheVersionOfItsChange(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "n"))
		p.report(slots[0], 1, 0.5)
		p.report(slots[1], 1, 0.5)
		first, _ := p.Current()
		p.report(slots[0], 2, 0.75)
		second, _ := p.Current()
		if second.Pools[0] == first.Pools[0] || second.Pools[0].Version != second.Version {
			t.Errorf("pool m has version %d at %d", second.Pools[0].Version, second.Version)
		}
		if second.Pools[1] != first.Pools[1] {
			t.Error("a pool that did not change was replaced")
		}
		p.want("changed", changedPools(second.Snapshot, first.Version), "m")
		p.want("workers", changed(second.Snapshot, first.Version), "a:1")
		// Versions that nobody asked for are skipped: the pool changed in one of
		// them, and is told to all who hold an earlier one.
		p.report(slots[1], 2, 0.25)
		p.report(slots[0], 3, 0.125)
		third, _ := p.Current()
		p.want("changed over a skipped version", changedPools(third.Snapshot, second.Version), "m", "n")
	})
}

func TestCovers(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"), worker("c:1", store.RoleRegular, "m"))
		built, _ := p.Current() // the first that anybody could be told of
		first := p.remove(slots[0])
		second := p.remove(slots[1])
		check := func(what string, want map[uint64]bool) {
			t.Helper()
			v, _ := p.Current()
			want[0], want[v.Version], want[v.Version+1], want[1<<63] = false, true, false, false
			for base, covered := range want {
				if got := v.Covers(base); got != covered {
					t.Errorf("%s: version %d covers %d: %t", what, v.Version, base, got)
				}
			}
		}
		check("nothing dropped", map[uint64]bool{built.Version - 1: false, built.Version: true, first: true, second: true})
		p.after(time.Minute + time.Second)
		p.report(slots[2], 1, 0.5)
		check("both dropped", map[uint64]bool{built.Version: false, first: false, second: true})
	})
}

func TestPoolGravesHaveAHorizon(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "n", "o"))
		p.Current()
		p.st.Apply(store.Discovery{Updated: []store.Update{{Slot: slots[1], Worker: worker("b:1", store.RoleRegular, "o")}}})
		p.after(time.Minute)
		v, _ := p.Current()
		gone := v.Version
		p.report(slots[0], 1, 0.5)
		if v, _ = p.Current(); len(v.PoolGraves) != 1 || !v.Covers(gone-1) {
			t.Errorf("%d graves within the time that they are kept", len(v.PoolGraves))
		}
		p.after(time.Minute)
		p.report(slots[0], 2, 0.25)
		if v, _ = p.Current(); len(v.PoolGraves) != 0 || v.Covers(gone-1) || !v.Covers(gone) {
			t.Errorf("%d graves after it; covers %d: %t, %d: %t", len(v.PoolGraves), gone-1, v.Covers(gone-1), gone, v.Covers(gone))
		}
	})
}

func TestPoolGravesAreBounded(t *testing.T) {
	const most = 20_000
	run(t, func(p *plane) {
		models := make([]string, most+1)
		for i := range models {
			models[i] = fmt.Sprintf("m%05d", i)
		}
		sl := p.add(worker("a:1", store.RoleRegular, models...))[0]
		before, _ := p.Current()
		p.st.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: worker("a:1", store.RoleRegular, models[:2]...)}}})
		p.after(time.Millisecond)
		v, _ := p.Current()
		if len(v.PoolGraves) != most-1 || !v.Covers(before.Version) {
			t.Fatalf("%d graves", len(v.PoolGraves))
		}
		p.remove(sl)
		v, _ = p.Current()
		if len(v.PoolGraves) != most || v.Covers(before.Version) || !v.Covers(before.Version+1) {
			t.Errorf("%d graves", len(v.PoolGraves))
		}
	})
}

package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// graves returns the tombstones as "row@version", and the horizon.
func (p *plane) graves() (list []string, horizon uint64) {
	st, _ := p.Current()
	for _, g := range st.Tombstones {
		list = append(list, fmt.Sprintf("%d@%d", g.Row, g.Version))
	}
	return list, st.Horizon
}

// wantGraves compares the tombstones and the horizon.
func (p *plane) wantGraves(horizon uint64, want ...string) {
	p.t.Helper()
	if got, h := p.graves(); !slices.Equal(got, want) || h != horizon {
		p.t.Errorf("tombstones %v, horizon %d, want %v, %d", got, h, want, horizon)
	}
}

func at(sl *store.Slot, version uint64) string { return fmt.Sprintf("%d@%d", sl.Row(), version) }

func (p *plane) apply(d store.Discovery) {
	p.Apply(d)
	p.settled()
}

func TestRemovalLeavesATombstone(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		p.wantGraves(0)
		before := p.clock.Now()
		p.apply(store.Discovery{Removed: slots[:1]})
		p.wantGraves(0, at(slots[0], p.version()))
		st, _ := p.Current()
		if g := st.Tombstones[0]; g.Worker.ID != "a" || g.At != before.Add(settle) {
			t.Errorf("tombstone %+v", g)
		}
		p.report(slots[1], 1, 3)
		p.wantGraves(0, at(slots[0], p.version()-1))
	})
}

func (p *plane) report(sl *store.Slot, seq uint64, running int64) {
	sl.Offer(1, p.load(seq, running))
	p.settled()
}

// TestRelabelLeavesATombstone changes a worker in place. What a filter can
// match leaves the old attributes behind, all else does not.
func TestRelabelLeavesATombstone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *store.Worker)
		buries bool
	}{
		"models":   {func(w *store.Worker) { w.Models = []string{"n"} }, true},
		"zone":     {func(w *store.Worker) { w.Zone = "eu" }, true},
		"labels":   {func(w *store.Worker) { w.Labels = map[string]string{"tier": "2"} }, true},
		"role":     {func(w *store.Worker) { w.Role = store.RoleDecode }, true},
		"draining": {func(w *store.Worker) { w.Draining = true }, false},
		"interval": {func(w *store.Worker) { w.Interval++ }, false},
		"nothing":  {func(*store.Worker) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(p *plane) {
				sl := p.discover("a")[0]
				version := p.version()
				old := worker("a")
				changed := worker("a")
				c.change(changed)
				p.apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: changed}}})
				if !c.buries {
					p.wantGraves(0)
					return
				}
				p.wantGraves(0, at(sl, version+1))
				st, _ := p.Current()
				if w := st.Tombstones[0].Worker; w.Role != old.Role || w.Zone != "" || !slices.Equal(w.Models, old.Models) || len(w.Labels) != 0 {
					t.Errorf("the tombstone has the attributes %+v", w)
				}
				if e := st.Entries[0]; e.Version != version+1 || e.Worker != changed {
					t.Errorf("the entry is %+v of version %d", e.Worker, e.Version)
				}
			})
		})
	}
}

func TestSameCommitLeavesNoTombstone(t *testing.T) {
	run(t, func(p *plane) {
		p.discover("a")
		b := p.NewSlot(worker("b"))
		p.Apply(store.Discovery{Added: []*store.Slot{b}})
		p.apply(store.Discovery{Removed: []*store.Slot{b}})
		p.wantGraves(0)
	})
}

func TestReplacedWorkerLeavesItsOldRow(t *testing.T) {
	run(t, func(p *plane) {
		old := p.discover("a")
		again := p.NewSlot(worker("a"))
		p.apply(store.Discovery{Removed: old, Added: []*store.Slot{again}})
		p.wantGraves(0, at(old[0], p.version()))
		if e, _ := p.entry("a"); e.Row != again.Row() || e.Version != p.version() {
			t.Errorf("row %d of version %d", e.Row, e.Version)
		}
	})
}

// TestTombstonesAge looks at the edge of the time that they are kept. They
// are dropped by the first commit of content after it.
func TestTombstonesAge(t *testing.T) {
	for _, c := range []struct {
		after   time.Duration
		dropped bool
	}{
		{time.Minute - time.Millisecond, false},
		{time.Minute, false},
		{time.Minute + time.Millisecond, true},
	} {
		t.Run(c.after.String(), func(t *testing.T) {
			run(t, func(p *plane) {
				slots := p.discover("a", "b", "c")
				p.apply(store.Discovery{Removed: slots[:1]})
				first := p.version()
				p.after(c.after - settle)
				p.apply(store.Discovery{Removed: slots[1:2]})
				second := p.version()
				if c.dropped {
					p.wantGraves(first, at(slots[1], second))
				} else {
					p.wantGraves(0, at(slots[0], first), at(slots[1], second))
				}
			})
		})
	}
}

func TestEqualReportsDropNoTombstone(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		p.apply(store.Discovery{Removed: slots[:1]})
		version := p.version()
		p.report(slots[1], 1, 3)
		for n := range uint64(70) {
			p.report(slots[1], n+2, 3)
			p.after(time.Second - settle)
		}
		if p.version() != version+1 {
			t.Fatalf("version %d, want %d", p.version(), version+1)
		}
		p.wantGraves(0, at(slots[0], version))
	})
}

// TestTombstonesAreBounded removes one more worker than is remembered.
func TestTombstonesAreBounded(t *testing.T) {
	const most = 20_000
	run(t, func(p *plane) {
		d := store.Discovery{Synced: true}
		for i := range most + 1 {
			d.Added = append(d.Added, p.NewSlot(worker(fmt.Sprintf("w%05d", i))))
		}
		p.apply(d)
		p.apply(store.Discovery{Removed: d.Added[:most]})
		got, horizon := p.graves()
		if len(got) != most || horizon != 0 {
			t.Fatalf("%d tombstones, horizon %d", len(got), horizon)
		}
		first := p.version()
		p.apply(store.Discovery{Removed: d.Added[most:]})
		got, horizon = p.graves()
		if len(got) != most || horizon != first || got[most-1] != at(d.Added[most], first+1) {
			t.Errorf("%d tombstones, horizon %d, want that of %d", len(got), horizon, first)
		}
	})
}

func TestEntryHasTheVersionOfItsChange(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.discover("a", "b")
		p.report(slots[0], 1, 3)
		p.report(slots[1], 1, 3)
		a, _ := p.entry("a")
		b, _ := p.entry("b")
		if b.Version != p.version() || a.Version != b.Version-1 {
			t.Errorf("a changed in %d, b in %d, now %d", a.Version, b.Version, p.version())
		}
		p.report(slots[0], 2, 3)
		if again, _ := p.entry("a"); again != a {
			t.Error("an equal report replaced the entry")
		}
		p.after(staleAfter)
		if a, _ = p.entry("a"); a.Freshness != store.Stale || a.Version < b.Version {
			t.Errorf("an expiry left version %d", a.Version)
		}
	})
}

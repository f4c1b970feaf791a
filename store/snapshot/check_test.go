package snapshot

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

// A view that does not follow from the state is found.
func TestCheckFindsDamage(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(v *View)
		want   string
	}{
		"none": {func(*View) {}, ""},
		"a hash": {func(v *View) {
			w := v.Workers[0]
			v.Workers[0] = &Worker{Entry: w.Entry, Hash: w.Hash + 1, Encoded: w.Encoded}
			v.Digest++
		}, "does not follow from its entry"},
		"another entry": {func(v *View) {
			e := *v.Entries[0]
			v.Workers[0] = newWorker(&e)
		}, "does not follow from its entry"},
		"the digest": {func(v *View) { v.Digest++ }, "digest"},
		"a pool": {func(v *View) {
			p := *v.Pools[0]
			p.Encoded = p.Encoded[1:]
			v.Pools[0] = &p
		}, "pool"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, stop := discovered(t)
				defer stop()
				v, _ := b.Current()
				c.damage(v)
				err := b.Check()
				if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
					t.Errorf("Check: %v, want %q", err, c.want)
				}
			})
		})
	}
}

// A reader that judges freshness waits for an overdue commit, and not for ever.
func TestFreshWaitsForTheCommitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := discovered(t)
		stop()
		for _, c := range []struct{ wait, want time.Duration }{{0, 0}, {time.Hour, 100 * time.Millisecond}} {
			<-time.After(c.wait) // the end of the warming falls due
			began := time.Now()
			b.Fresh(t.Context())
			if took := time.Since(began); took != c.want {
				t.Errorf("took %v, want %v", took, c.want)
			}
		}
	})
}

// discovered returns a builder over a running store with one worker.
func discovered(t *testing.T) (b *Builder, stop func()) {
	t.Helper()
	st, err := store.New(store.Options{
		Lineage: "l", Clock: store.NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond, ReportInterval: time.Second,
		Discovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- st.Run(ctx) }()
	_, stale := st.Current()
	st.Apply(store.Discovery{Added: []*store.Slot{st.NewSlot(&store.Worker{ID: "a"})}, Synced: true})
	<-stale
	return New(st), func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestBug56OthersCostALook changes one worker among many: a reader of another
// model that is woken builds nothing.
func TestBug56OthersCostALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, stop := discovered(t)
		defer stop()
		f, err := filter.New(filter.Selection{Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		feed := b.Feed(f)
		v, stale := feed.Current()
		built := b.last.Load()
		for i := range 100 {
			b.st.Apply(store.Discovery{Added: []*store.Slot{b.st.NewSlot(&store.Worker{ID: strconv.Itoa(i), Models: []string{"n"}})}})
			<-stale
			var moved bool
			if moved, stale = feed.Moved(v.Version); moved {
				t.Fatal("moved by a worker of another model")
			}
			if looked := b.recent.Load(); len(looked.entries) != 1 {
				t.Fatalf("looked at %d entries, one changed", len(looked.entries))
			}
		}
		if b.last.Load() != built || feed.view != v {
			t.Error("a view was built for nobody")
		}
	})
}

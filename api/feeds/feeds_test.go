package feeds

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/api/frame"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

func newSet(t *testing.T) *Set {
	t.Helper()
	st, err := store.New(store.Options{
		Lineage: "l", Clock: store.NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond, ReportInterval: time.Second, Discovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return New(snapshot.New(st))
}

func newFilter(t *testing.T, models ...string) *filter.Filter {
	t.Helper()
	f, err := filter.New(filter.Selection{Models: models})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReadersOfOneFilterShareAFeed(t *testing.T) {
	s := newSet(t)
	a, again, b := s.Take(newFilter(t, "x", "y")), s.Take(newFilter(t, "y", "x")), s.Take(newFilter(t, "x"))
	if a != again || a == b || s.Len() != 2 {
		t.Fatalf("one feed for one filter: %t; for another: %t; %d in use", a == again, a == b, s.Len())
	}
	a.Release()
	if s.Take(newFilter(t, "x", "y")) != a {
		t.Error("a feed was given up while it is read")
	}
	a.Release()
	a.Release()
	b.Release()
	if s.Len() != 0 {
		t.Errorf("%d feeds are kept that nobody reads", s.Len())
	}
	if s.Take(newFilter(t, "x")) == b {
		t.Error("a feed that was dropped is used again")
	}
}

func TestWholeViewIsAlwaysThere(t *testing.T) {
	s := newSet(t)
	whole := s.Take(nil)
	whole.Release()
	whole.Release()
	if s.Take(nil) != whole || s.Len() != 0 {
		t.Error("the feed of all workers is not kept")
	}
}

// TestWhatIsKeptIsGivenBack counts the bytes of events and receipts.
func TestWhatIsKeptIsGivenBack(t *testing.T) {
	s := newSet(t)
	f := s.Take(newFilter(t, "x"))
	s.Take(newFilter(t, "x"))
	view, _ := f.Current()
	first := f.Change(view.Snapshot, frame.Change{Limit: 100})
	if again := f.Change(view.Snapshot, frame.Change{Limit: 100}); again[0] != first[0] {
		t.Error("an event was encoded twice")
	}
	if s.Kept() != int64(first[0].Size()) || s.Kept() == 0 {
		t.Errorf("%d bytes are counted, kept are %d", s.Kept(), first[0].Size())
	}
	f.Release()
	if s.Kept() != 0 {
		t.Errorf("%d bytes are counted after the release", s.Kept())
	}
	if again := f.Change(view.Snapshot, frame.Change{Limit: 100}); again[0] == first[0] || s.Kept() != 0 {
		t.Error("something is kept after the release")
	}
}

// TestNothingIsKeptForOneReader takes and releases a feed.
func TestNothingIsKeptForOneReader(t *testing.T) {
	s := newSet(t)
	f := s.Take(newFilter(t, "x"))
	view, _ := f.Current()
	same := func(of *Feed) bool {
		one, two := of.Change(view.Snapshot, frame.Change{}), of.Change(view.Snapshot, frame.Change{})
		return one[0] == two[0]
	}
	for round := range 2 {
		if same(f) || s.Kept() != 0 {
			t.Errorf("round %d: %d bytes are kept for one reader", round, s.Kept())
		}
		s.Take(newFilter(t, "x"))
		if !same(f) || s.Kept() == 0 {
			t.Errorf("round %d: %d bytes are kept for two readers", round, s.Kept())
		}
		f.Release()
	}
	if !same(s.Take(nil)) {
		t.Error("nothing is kept of the whole view")
	}
}

// TestFiltersOfOneHashAreTwo pretends that two filters have one hash.
func TestFiltersOfOneHashAreTwo(t *testing.T) {
	s := newSet(t)
	a := s.Take(newFilter(t, "x"))
	s.inUse[newFilter(t, "y").Hash()] = a
	b := s.Take(newFilter(t, "y"))
	if a == b {
		t.Fatal("a filter got the feed of another")
	}
	a.Release()
	b.Release()
	if s.inUse[newFilter(t, "y").Hash()] != nil {
		t.Error("a feed was left behind")
	}
}

func TestSpentBudgetKeepsNothing(t *testing.T) {
	s := newSet(t)
	s.budget = frame.NewBudget(1)
	f, g := s.Take(newFilter(t, "x")), s.Take(newFilter(t, "y"))
	s.Take(newFilter(t, "x"))
	s.Take(newFilter(t, "y"))
	v, _ := f.Current()
	w, _ := g.Current()
	f.Change(v.Snapshot, frame.Change{})
	one, two := g.Change(w.Snapshot, frame.Change{}), g.Change(w.Snapshot, frame.Change{})
	if one[0] == two[0] {
		t.Error("an event is kept above the budget")
	}
	f.Release()
	one, two = g.Change(w.Snapshot, frame.Change{}), g.Change(w.Snapshot, frame.Change{})
	if one[0] != two[0] {
		t.Error("an event is not kept within the budget")
	}
}

package store

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What was published and is not what the rows say is found.
func TestCheckFindsDamage(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(s *Store, st *State)
		want   string
	}{
		"none": {func(*Store, *State) {}, ""},
		"a row too many": {func(s *Store, _ *State) {
			txn := s.db.Txn(true)
			defer txn.Commit()
			_, _ = txn.DeleteAll(tableLoads, indexID, uint32(2))
		}, "1 rows, 2 published"},
		"another entry":   {func(_ *Store, st *State) { e := *st.Entries[0]; st.Entries[0] = &e }, "not what was committed"},
		"another receipt": {func(_ *Store, st *State) { l := *st.Live[0]; st.Live[0] = &l }, "not what was committed"},
		"another worker row": {func(s *Store, st *State) {
			txn := s.db.Txn(true)
			defer txn.Commit()
			_ = txn.Insert(tableWorkers, &workerRow{1, st.Entries[1].Worker})
		}, "another worker"},
		"another aggregate": {func(_ *Store, st *State) { st.Entries[0].Aggregate.SetCount(SumRunningReqs, 9) }, "aggregate"},
		"another order": {func(_ *Store, st *State) {
			slices.Reverse(st.Entries)
			slices.Reverse(st.Live)
			st.index[1], st.index[2] = 1, 0
		}, "not sorted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := twoHeard(t)
				c.damage(s.Store, s.current.Load().state)
				err := s.Check()
				if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
					t.Errorf("Check: %v, want %q", err, c.want)
				}
			})
		})
	}
}

// A removed worker leaves nothing in any table, whatever is said of it later.
func TestRemovedWorkersLeaveNoRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := twoHeard(t)
		gone := s.added
		s.Apply(Discovery{Removed: gone})
		for range 2 {
			s.commitNow(t)
			for _, table := range []string{tableWorkers, tableStreams, tableLoads, tableDiagnostics} {
				rows, err := s.db.Txn(false).Get(table, indexID)
				if err != nil {
					t.Fatal(err)
				}
				for row := rows.Next(); row != nil; row = rows.Next() {
					t.Errorf("table %s keeps %+v", table, row)
				}
			}
			for _, sl := range gone {
				sl.Bind(Stream{Source: "s", Generation: 2})
				sl.Diagnose(func(d *Diagnostics) { d.Refused++ })
			}
		}
	})
}

// heard is a store without a committer.
type heard struct {
	*Store
	added []*Slot
}

// commitNow makes one commit.
func (s heard) commitNow(t *testing.T) {
	t.Helper()
	c := &committer{Store: s.Store, lastTick: s.opts.Clock.Now(), slept: s.opts.SleptFor()}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
}

// twoHeard returns a store that committed a report of two workers each.
func twoHeard(t *testing.T) heard {
	t.Helper()
	s, err := New(Options{
		Lineage: "l", Clock: NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond, ReportInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := Discovery{Synced: true}
	for _, id := range []string{"a", "b"} {
		sl := s.NewSlot(&Worker{ID: id, Dialect: DialectPush, Interval: time.Second})
		r := Rank{}
		r.SetCount(NumRunningReqs, 1)
		sl.Bind(Stream{Source: "s", Generation: 1})
		sl.Diagnose(func(d *Diagnostics) { d.Refused++ })
		sl.Offer(1, &Load{
			Source: "s", Sequence: 1, Status: StatusHealthy, Ranks: []Rank{r}, Samples: make([]Sample, 1), Received: s.opts.Clock.Now(),
		})
		d.Added = append(d.Added, sl)
	}
	s.Apply(d)
	h := heard{s, d.Added}
	h.commitNow(t)
	return h
}

package store

import (
	"fmt"
	"slices"
)

// Check recomputes what was published from the rows and returns how they
// differ; nil when they agree. It holds up commits while it runs.
func (s *Store) Check() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	st := s.current.Load().state
	txn := s.db.Txn(false)
	rows, err := txn.Get(tableLoads, indexID)
	if err != nil {
		return err
	}
	count := 0
	for obj := rows.Next(); obj != nil; obj = rows.Next() {
		count++
		row, ok := obj.(*loadRow)
		if !ok {
			return fmt.Errorf("store: the loads table holds %T", obj)
		}
		if err := checkRow(st, row); err != nil {
			return err
		}
		w, err := find[workerRow](txn, tableWorkers, row.entry.Row)
		if err != nil {
			return err
		}
		if w == nil || w.worker != row.entry.Worker {
			return fmt.Errorf("store: row %d: the workers table has another worker", row.entry.Row)
		}
	}
	if count != len(st.Entries) {
		return fmt.Errorf("store: %d rows, %d published", count, len(st.Entries))
	}
	if !slices.IsSortedFunc(st.Entries, byID) {
		return fmt.Errorf("store: version %d: entries are not sorted", st.Version)
	}
	return nil
}

// checkRow holds a published entry against its row.
func checkRow(st *State, row *loadRow) error {
	i, ok := st.Find(row.entry.Row)
	if !ok || st.Entries[i] != row.entry || st.Live[i] != row.live {
		return fmt.Errorf("store: row %d: published is not what was committed", row.entry.Row)
	}
	e := row.entry
	if (e.Load == nil) != (row.live == nil) {
		return fmt.Errorf("store: row %d: load without receipt", e.Row)
	}
	want := Summarize(e.Ranks)
	if (want == nil) != (e.Aggregate == nil) || (want != nil && *want != *e.Aggregate) {
		return fmt.Errorf("store: row %d: aggregate does not follow from the ranks", e.Row)
	}
	if !slices.IsSortedFunc(e.Ranks, func(a, b Rank) int { return int(a.DPRank) - int(b.DPRank) }) {
		return fmt.Errorf("store: row %d: ranks are not sorted", e.Row)
	}
	return nil
}

package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-memdb"
)

// The tables. Every one has a single index, the row number in four bytes,
// since each further index would be rewritten with the row.
const (
	tableWorkers     = "workers"
	tableStreams     = "streams"
	tableLoads       = "loads"
	tableDiagnostics = "diagnostics"
	indexID          = "id"
)

var errRowKey = errors.New("store: not a row number")

// workerRow is what discovery says of a worker.
type workerRow struct {
	row    uint32
	worker *Worker
}

// loadRow is the hot row: the content of a worker and its receipt.
type loadRow struct {
	entry *Entry
	live  *Live // nil until heard
}

// keyed is a row of any table.
type keyed interface{ key() uint32 }

func (r *workerRow) key() uint32   { return r.row }
func (r *loadRow) key() uint32     { return r.entry.Row }
func (s *Stream) key() uint32      { return s.Row }
func (d *Diagnostics) key() uint32 { return d.Row }

// rowIndexer indexes rows by number, without reflection.
type rowIndexer struct{}

// FromObject implements memdb.SingleIndexer.
func (rowIndexer) FromObject(obj any) (bool, []byte, error) {
	k, ok := obj.(keyed)
	if !ok {
		return false, nil, errRowKey
	}
	return true, binary.BigEndian.AppendUint32(nil, k.key()), nil
}

// FromArgs implements memdb.Indexer.
func (rowIndexer) FromArgs(args ...any) ([]byte, error) {
	if len(args) == 1 {
		if row, ok := args[0].(uint32); ok {
			return binary.BigEndian.AppendUint32(nil, row), nil
		}
	}
	return nil, errRowKey
}

func schema() *memdb.DBSchema {
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, name := range []string{tableWorkers, tableStreams, tableLoads, tableDiagnostics} {
		s.Tables[name] = &memdb.TableSchema{
			Name:    name,
			Indexes: map[string]*memdb.IndexSchema{indexID: {Name: indexID, Unique: true, Indexer: rowIndexer{}}},
		}
	}
	return s
}

// find returns a row of a table, nil without one.
func find[T any](txn *memdb.Txn, table string, row uint32) (*T, error) {
	obj, err := txn.First(table, indexID, row)
	if err != nil || obj == nil {
		return nil, err
	}
	found, ok := obj.(*T)
	if !ok {
		return nil, fmt.Errorf("store: table %s holds %T", table, obj)
	}
	return found, nil
}

// extra is what a commit writes beside the state: rows without versions.
type extra struct {
	streams     []*Stream
	diagnostics []*Diagnostics
}

// write brings the tables from prev to next in one transaction.
func write(db *memdb.MemDB, prev, next *State, x extra) error {
	txn := db.Txn(true)
	defer txn.Abort() // no effect after Commit
	for i, e := range prev.Entries {
		if _, ok := next.FindNear(e.Row, i); !ok {
			if err := deleteRow(txn, e.Row); err != nil {
				return err
			}
		}
	}
	for i := range next.Entries {
		if err := writeRow(txn, prev, next, i); err != nil {
			return err
		}
	}
	if err := writeExtra(txn, next, x); err != nil {
		return err
	}
	txn.Commit()
	return nil
}

func deleteRow(txn *memdb.Txn, row uint32) error {
	for _, table := range []string{tableWorkers, tableStreams, tableLoads, tableDiagnostics} {
		if _, err := txn.DeleteAll(table, indexID, row); err != nil {
			return err
		}
	}
	return nil
}

// writeRow writes what is new of a worker; an unchanged one costs a lookup.
func writeRow(txn *memdb.Txn, prev, next *State, i int) error {
	e, l := next.Entries[i], next.Live[i]
	j, known := prev.FindNear(e.Row, i)
	if !known || prev.Entries[j].Worker != e.Worker {
		if err := txn.Insert(tableWorkers, &workerRow{e.Row, e.Worker}); err != nil {
			return err
		}
	}
	if known && prev.Entries[j] == e && prev.Live[j] == l {
		return nil
	}
	return txn.Insert(tableLoads, &loadRow{e, l})
}

func writeExtra(txn *memdb.Txn, next *State, x extra) error {
	for _, s := range x.streams {
		if _, ok := next.Find(s.Row); ok {
			if err := txn.Insert(tableStreams, s); err != nil {
				return err
			}
		}
	}
	for _, g := range x.diagnostics {
		if _, ok := next.Find(g.Row); ok {
			if err := txn.Insert(tableDiagnostics, g); err != nil {
				return err
			}
		}
	}
	return nil
}

// Package store keeps the state of the plane in go-memdb and decides what
// changes it.
//
// Everything that is known of a worker ends here as plain values: what
// discovery says (Worker), the last accepted report (Load) and the way to the
// engine (Stream, Diagnostics). Writers hand values to a Slot and return at
// once. One committer (Store.Run) takes all slots, all discovery changes and
// all expiries that are due into one write transaction, with one reading of
// the clock, and publishes the result as an immutable State. What a commit
// decides is a pure function of the state before it, its input and that
// reading.
//
// Readers pull: Store.Current returns the state and a channel that closes when
// its content is superseded. Nothing in this package holds a function, a
// channel or a lock of a reader, so a slow one delays nobody.
package store

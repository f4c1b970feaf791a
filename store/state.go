package store

import "time"

// Entry is the content of one worker at one version. It is immutable, and two
// versions in which a worker did not change share it.
type Entry struct {
	// Row is the worker's row number, from 1; never reused within a lineage.
	Row    uint32
	Worker *Worker
	// Load is the last accepted report; nil until heard. Its sequence, times
	// and error text are those of the report that last changed the content;
	// Live has the newest.
	Load      *Load
	Freshness Freshness
	// Reason is empty when the worker is fresh.
	Reason Reason
	Flags  Flag
	// Partial says that a core field is unknown on a rank.
	Partial bool
	// Ranks are those of Load, with derived rates filled in.
	Ranks []Rank
	// Aggregate is nil where there are no ranks.
	Aggregate *Aggregate

	// Version is the one in which the entry last changed.
	Version uint64

	// zero says that a rank has no token or no request capacity.
	zero bool
	// note is the reason to show while nothing was heard.
	note Reason
}

// Live is the receipt of a worker's last accepted report: what moves without
// a version. It is immutable.
type Live struct {
	// Row is the worker's row number.
	Row uint32
	// Tick is the commit that brought it.
	Tick uint64
	// Sequence is that of the last accepted report.
	Sequence uint64
	// Received is when that report was read, or, for one that was read in a
	// suspension, the receipt before it.
	Received Instant
	// ReceivedUnixMs is the wall clock then, Unix milliseconds.
	ReceivedUnixMs int64
	// ValidUntil is when the worker stops being fresh.
	ValidUntil Instant
	// ReportUnixMs is the engine's wall clock at the report, Unix
	// milliseconds; below 0 for unknown.
	ReportUnixMs int64
	// OldestSampleUnixMs is the oldest sample time of a rank; below 0 for
	// unknown.
	OldestSampleUnixMs int64
	// LastError is the text of the engine's last failure; empty for none.
	LastError string
	// Samples belong to the entry's ranks.
	Samples []Sample
	// ChangedAt is when the values last changed.
	ChangedAt Instant

	// stalled is, rank by rank, the receipt since which the rank has had
	// requests waiting and none running in every report, 0 for not now; nil
	// where no rank has.
	stalled []Instant
	// suspended says that the machine slept since Received.
	suspended bool
}

// Content is the view at one version. It is immutable.
type Content struct {
	// Version counts the commits that changed content, from 1.
	Version uint64
	// Warming says that the plane has not yet heard the workers it expects.
	Warming bool
	// Published is the wall clock at the commit.
	Published time.Time
	// Entries are sorted by worker id.
	Entries []*Entry
	// Tombstones are what left the view, in the order of their versions:
	// workers that were removed, and the attributes that a worker had before
	// they changed in place.
	Tombstones []*Tombstone
	// Horizon is the highest version whose tombstone was dropped; 0 for none.
	// A change against a version below it cannot be told.
	Horizon uint64

	// index finds an entry by row number.
	index map[uint32]int
}

// Find returns the index of a row in Entries.
func (c *Content) Find(row uint32) (int, bool) {
	i, ok := c.index[row]
	return i, ok
}

// Tombstone says that a worker left the view, or left what its attributes
// were matched by. It is immutable.
type Tombstone struct {
	// Row is the row number that the worker had, or still has.
	Row uint32
	// Worker has the attributes that it had.
	Worker *Worker
	// Version is the one that the worker is gone from.
	Version uint64
	// At is when.
	At Instant
}

// FindNear is Find for a caller that knows where the row most likely is: where
// it was in another version. It is cheaper where the guess is right.
func (c *Content) FindNear(row uint32, guess int) (int, bool) {
	if guess < len(c.Entries) && c.Entries[guess].Row == row {
		return guess, true
	}
	return c.Find(row)
}

// State is what one tick of the committer left: a content and the receipts
// that belong to it. It is immutable.
type State struct {
	*Content
	// Tick counts the commits, those of receipts only included.
	Tick uint64
	// Live has the receipts, index by index with Content.Entries; nil where
	// nothing was heard.
	Live []*Live
	// NextDue is the earliest instant at which time alone changes the
	// content; 0 for never.
	NextDue Instant

	// syncedAt is when every discovery source had delivered; 0 before.
	syncedAt Instant
	// doubt is the last span in which the process stood still.
	doubt doubt
}

// doubt is a span in which the machine slept or the process was stopped: from
// the last watchdog tick on time to its detection. Reports read in it, and up
// to one of their intervals after it, may have waited in a buffer.
type doubt struct{ from, detected Instant }

func (d doubt) covers(l *Load, interval time.Duration) bool {
	switch {
	case d.detected == 0 || l.Received < d.from:
		return false
	case l.Begun != 0:
		return l.Begun < d.detected
	}
	return l.Received <= d.detected.Add(interval)
}

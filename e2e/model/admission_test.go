package model

import (
	"maps"
	"slices"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// claim is what a stream says of itself and where it comes from.
type claim struct {
	host, peer int
	role       pb.Role
	source     string
	broken     bool // the address is none
}

// mark says that something of r waits for a commit.
func (w *world) mark(r *row) {
	if !slices.Contains(w.dirty, r) {
		w.dirty = append(w.dirty, r)
	}
	w.wake()
}

func (w *world) wake() {
	if w.settleAt.IsZero() {
		w.settleAt = w.now.Add(settle)
	}
}

// refuse counts a reason; r is nil where no worker is known.
func (w *world) refuse(r *row, reason string) string {
	w.refused[reason]++
	if r != nil {
		w.mark(r)
	}
	return reason
}

// keeper returns the worker that has an origin; nil for none.
func (w *world) keeper(host int) *row {
	for _, r := range w.listed {
		if r.host == host && !r.duplicate {
			return r
		}
	}
	return nil
}

func (w *world) shared(host int) bool {
	n := 0
	for _, r := range w.listed {
		if r.host == host {
			n++
		}
	}
	return n > 1
}

// bind admits the first report of a stream. It returns the stream, or the
// reason why there is none.
func (w *world) bind(c claim, first *report) (*stream, string) {
	r := w.keeper(c.host)
	switch {
	case c.broken:
		return nil, w.refuse(nil, "bad_address")
	case r == nil:
		return nil, w.refuse(nil, "unknown_worker")
	case r.dialect == pb.Dialect_DIALECT_NONE && w.shared(c.host):
		return nil, w.refuse(r, "duplicate_origin")
	case r.dialect == pb.Dialect_DIALECT_NONE:
		return nil, w.refuse(r, "dialect_mismatch")
	case c.role != r.role:
		return nil, w.refuse(r, "role_mismatch")
	case c.peer != c.host:
		return nil, w.refuse(r, "peer_mismatch")
	case c.source != r.source && r.retired[c.source] && r.stillHeard(first):
		return nil, w.refuse(r, "retired")
	}
	accepted, reason := w.order(r, first)
	if reason != "" {
		return nil, w.refuse(r, reason)
	}
	if r.bound != nil {
		w.refuse(r, "superseded")
	}
	r.takeOver(c.source)
	r.bound = &stream{r, c.source}
	w.mark(r)
	if accepted {
		w.leave(r, first)
	}
	return r.bound, ""
}

// stillHeard says that a report of any instance was accepted within
// stale_after before next.
func (r *row) stillHeard(next *report) bool {
	return !r.heard.IsZero() && next.received.Sub(r.heard) < staleAfter
}

// takeOver makes source the current instance and retires the one before.
func (r *row) takeOver(source string) {
	if source == r.source {
		return
	}
	if r.waiting != nil && r.waiting.source != source {
		r.waiting = nil
	}
	delete(r.retired, source)
	if r.source != "" {
		r.retired[r.source] = true
	}
	r.source = source
}

// order judges the sequence of a report. A report that is not newer is
// counted and is no error.
func (w *world) order(r *row, next *report) (accepted bool, reason string) {
	last, known := r.sequences[next.source]
	switch {
	case known && next.sequence <= last:
		w.refused["old_sequence"]++
		return false, ""
	case known && next.sequence-last <= maxJump:
		return true, ""
	case next.sequence > maxFirst || known && r.stillHeard(next):
		return false, "sequence_jump"
	}
	return true, ""
}

// leave leaves an accepted report for the next commit.
func (w *world) leave(r *row, next *report) {
	r.sequences[next.source] = next.sequence
	r.heard = next.received
	r.waiting = next
	w.mark(r)
}

// admit takes a further report of a stream, or returns why not; "ended" for a
// stream that lost its right before.
func (w *world) admit(s *stream, next *report) string {
	if s.row.bound != s {
		return "ended"
	}
	accepted, reason := w.order(s.row, next)
	if reason != "" {
		return w.refuse(s.row, reason)
	}
	if accepted {
		w.leave(s.row, next)
	}
	return ""
}

// end ends the right of a stream, for a reason or by its own will.
func (w *world) end(s *stream, reason string) {
	if s.row.bound != s {
		return
	}
	s.row.bound = nil
	w.mark(s.row)
	if reason != "" {
		w.refuse(s.row, reason)
	}
}

// reconcile replaces what discovery says.
func (w *world) reconcile(want map[string]listing) {
	c := change{updated: map[*row]listing{}, synced: true}
	first := w.syncedAt.IsZero() && len(w.changes) == 0
	next := map[string]*row{}
	taken := map[int]bool{}
	for _, id := range slices.Sorted(maps.Keys(want)) {
		l, old := want[id], w.listed[id]
		duplicate := taken[l.host]
		taken[l.host] = true
		if old == nil || old.host != l.host || old.role != l.role || old.dialect != l.dialect || old.duplicate != duplicate {
			next[id] = &row{listing: l, duplicate: duplicate, retired: map[string]bool{}, sequences: map[string]uint64{}}
			c.added = append(c.added, next[id])
			continue
		}
		next[id] = old
		if !filtered(&old.listing, &l) || old.draining != l.draining {
			old.listing, c.updated[old] = l, l
		}
	}
	for id, old := range w.listed {
		if next[id] == old {
			continue
		}
		reason := "worker_removed"
		if next[id] != nil {
			reason = "identity_changed"
		}
		if old.bound != nil {
			old.bound = nil
			w.refuse(old, reason)
		}
		c.removed = append(c.removed, old)
	}
	w.listed = next
	if first || len(c.removed)+len(c.added)+len(c.updated) > 0 {
		w.changes = append(w.changes, c)
		w.wake()
	}
}

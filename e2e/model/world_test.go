package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// The constants that the rules depend on.
const (
	interval     = time.Second
	staleAfter   = 3 * time.Second
	settle       = 10 * time.Millisecond
	heartbeat    = time.Second
	watchdog     = 250 * time.Millisecond
	sleepLimit   = 100 * time.Millisecond
	warmingLimit = 10 * time.Second
	suspectAfter = 30 * time.Second
	keepGraves   = time.Minute

	maxFirst = uint64(1) << 62
	maxJump  = uint64(1) << 32
)

// listing is what discovery says of a worker.
type listing struct {
	id       string
	host     int // the engine at 10.0.0.<host>:30000
	role     pb.Role
	dialect  pb.Dialect
	models   []string
	zone     string
	label    string // value of the label "tier"; empty for none
	draining bool
}

func (l *listing) url() string { return fmt.Sprintf("http://10.0.0.%d:30000", l.host) }

// filtered says that no filter can tell a from b.
func filtered(a, b *listing) bool {
	return a.zone == b.zone && a.label == b.label && slices.Equal(a.models, b.models)
}

// numbers are the known numbers of a rank by the names of the wire.
type numbers map[string]float64

// String is short: lists of operations are full of ranks.
func (n numbers) String() string {
	return fmt.Sprintf("{%d known, %g running}", len(n), n["num_running_reqs"])
}

// report is what an engine says.
type report struct {
	source   string
	sequence uint64
	status   pb.Status
	ranks    []numbers // index is the DP rank
	clock    int64     // of the engine, Unix milliseconds
	received time.Time
}

func sameValues(a, b *report) bool {
	return a.source == b.source && a.status == b.status && slices.EqualFunc(a.ranks, b.ranks, maps.Equal)
}

func (r *report) any(holds func(n numbers) bool) bool { return slices.ContainsFunc(r.ranks, holds) }

func zeroRoom(n numbers) bool {
	tokens, okT := n["max_total_num_tokens"]
	requests, okR := n["max_running_requests"]
	return okT && tokens == 0 || okR && requests == 0
}

func busy(n numbers) bool { return n["num_running_reqs"] > 0 }

// row is one identity of a worker: what admission knows of it, and what the
// last commit shows.
type row struct {
	listing
	duplicate bool

	// source is the current instance, sequences where each one stands.
	source    string
	retired   map[string]bool
	sequences map[string]uint64
	heard     time.Time
	bound     *stream
	// waiting is the report for the next commit.
	waiting *report

	shown     listing
	last      *report
	receipt   time.Time
	suspended bool
	changedAt time.Time
	suspect   bool
	freshness pb.Freshness
	reason    string
}

// stream is the model's side of a report stream.
type stream struct {
	row    *row
	source string
}

// change is one change of discovery that waits for a commit.
type change struct {
	removed, added []*row
	updated        map[*row]listing
	synced         bool
}

// grave is what a removal or a change in place leaves.
type grave struct {
	version uint64
	at      time.Time
}

// world predicts one life of a plane from the rules of the product. It moves
// by advance and by the methods that stand for operations.
type world struct {
	start, now time.Time
	version    uint64
	commits    int
	warming    bool
	syncedAt   time.Time
	rows       []*row          // committed, by id
	listed     map[string]*row // what discovery says, by id
	settleAt   time.Time
	changes    []change
	dirty      []*row
	graves     []grave
	horizon    uint64
	refused    map[string]int

	slept, noticed time.Duration
	// tick is the last watchdog tick on time, doubt the last span in which
	// the machine slept.
	tick                time.Time
	doubtFrom, doubtEnd time.Time
}

func newWorld(start time.Time) *world {
	return &world{
		start: start, now: start, tick: start, version: 1, warming: true,
		listed: map[string]*row{}, refused: map[string]int{},
	}
}

// advance lets time pass: every commit that falls due on the way is made.
func (w *world) advance(to time.Time) {
	for at := w.next(); !at.IsZero() && !at.After(to); at = w.next() {
		w.now = at
		w.commit()
	}
	w.now = to
	if !w.asleep() {
		w.tick = later(w.tick, w.lastTick())
	}
}

func (w *world) lastTick() time.Time {
	return w.start.Add(w.now.Sub(w.start).Truncate(watchdog))
}

func (w *world) asleep() bool { return w.slept-w.noticed > sleepLimit }

// next returns when the next commit is due; zero for never.
func (w *world) next() time.Time {
	at := w.settleAt
	if w.warming && !w.syncedAt.IsZero() {
		at = earlier(at, w.syncedAt.Add(warmingLimit))
	}
	for _, r := range w.rows {
		at = earlier(at, r.expiry())
	}
	if w.asleep() {
		at = earlier(at, w.lastTick().Add(watchdog))
	}
	return at
}

// expiry returns when age changes the judgement; zero for never.
func (r *row) expiry() time.Time {
	switch {
	case r.last == nil, r.reason == "age", r.reason == "suspended",
		r.freshness == pb.Freshness_FRESHNESS_STALE && r.reason == "engine_unreachable":
		return time.Time{}
	}
	return r.receipt.Add(staleAfter)
}

// commit takes what waits, then judges every worker.
func (w *world) commit() {
	w.commits++
	w.settleAt = time.Time{} // what waited is taken, whatever the commit is for
	slept := w.asleep()
	if slept {
		w.doubtFrom, w.doubtEnd = w.tick, w.now
		w.tick, w.noticed = w.now, w.slept
	}
	changed := w.discover()
	changed = w.accept() || changed
	changed = w.judge(slept) || changed
	changed = w.warm() || changed
	if changed {
		w.version++
		w.forget()
	}
}

// discover applies the changes of discovery.
func (w *world) discover() (changed bool) {
	seen := slices.Clone(w.rows)
	bury := func(r *row) {
		if slices.Contains(seen, r) {
			w.graves = append(w.graves, grave{w.version + 1, w.now})
		}
	}
	for _, c := range w.changes {
		for _, r := range c.removed {
			bury(r)
			w.rows = slices.DeleteFunc(w.rows, func(o *row) bool { return o == r })
		}
		for _, r := range c.added {
			r.shown = r.listing
			r.freshness, r.reason = pb.Freshness_FRESHNESS_MISSING, r.missing()
			w.rows = append(w.rows, r)
		}
		for r, l := range c.updated {
			if !filtered(&r.shown, &l) {
				bury(r)
			}
			r.shown = l
		}
		if c.synced && w.syncedAt.IsZero() {
			w.syncedAt = w.now
		}
		changed = changed || len(c.removed)+len(c.added)+len(c.updated) > 0
	}
	slices.SortFunc(w.rows, func(a, b *row) int { return cmp.Compare(a.id, b.id) })
	w.changes = nil
	return changed
}

func (r *row) missing() string {
	if r.duplicate {
		return "duplicate_origin"
	}
	return "no_report"
}

// accept takes the reports that wait, in the order in which workers were
// first heard of since the last commit.
func (w *world) accept() (changed bool) {
	for _, r := range w.dirty {
		next := r.waiting
		r.waiting = nil
		if next != nil && slices.Contains(w.rows, r) {
			changed = w.take(r, next) || changed
		}
	}
	w.dirty = nil
	return changed
}

func (w *world) take(r *row, next *report) (changed bool) {
	before := r.last
	moved := before == nil || !sameValues(before, next)
	if moved {
		r.changedAt = next.received
	}
	suspect := before != nil && before.source == next.source && next.any(busy) &&
		next.received.Sub(r.changedAt) >= suspectAfter && w.othersMoved(r)
	switch doubtful := !w.doubtEnd.IsZero() && !next.received.Before(w.doubtFrom) &&
		!next.received.After(w.doubtEnd.Add(interval)); {
	case !doubtful:
		r.receipt, r.suspended = next.received, false
	case before == nil:
		r.receipt = next.received.Add(-staleAfter)
	}
	changed = moved || suspect != r.suspect
	r.last, r.suspect = next, suspect
	return r.judge(w.now) || changed
}

// othersMoved says that another worker of a pool of r changed after r did.
func (w *world) othersMoved(r *row) bool {
	return slices.ContainsFunc(w.rows, func(o *row) bool {
		if o == r || o.last == nil || !o.changedAt.After(r.changedAt) || o.shown.role != r.shown.role {
			return false
		}
		shared := slices.ContainsFunc(o.shown.models, func(m string) bool { return slices.Contains(r.shown.models, m) })
		return shared || len(o.shown.models)+len(r.shown.models) == 0
	})
}

func (w *world) judge(slept bool) (changed bool) {
	for _, r := range w.rows {
		if r.last == nil {
			continue
		}
		r.suspended = r.suspended || slept
		changed = r.judge(w.now) || changed
	}
	return changed
}

func (r *row) judge(now time.Time) (changed bool) {
	freshness, reason := r.judgement(now)
	changed = freshness != r.freshness || reason != r.reason
	r.freshness, r.reason = freshness, reason
	return changed
}

func (r *row) judgement(now time.Time) (pb.Freshness, string) {
	old := now.Sub(r.receipt) >= staleAfter
	switch {
	case r.last.status == pb.Status_STATUS_UNREACHABLE && !old:
		return pb.Freshness_FRESHNESS_UNREACHABLE, "engine_unreachable"
	case r.last.status == pb.Status_STATUS_UNREACHABLE:
		return pb.Freshness_FRESHNESS_STALE, "engine_unreachable"
	case r.suspended:
		return pb.Freshness_FRESHNESS_STALE, "suspended"
	case old:
		return pb.Freshness_FRESHNESS_STALE, "age"
	case r.last.status == pb.Status_STATUS_HEALTHY && r.last.any(zeroRoom):
		return pb.Freshness_FRESHNESS_STALE, "zero_capacity"
	case r.last.status == pb.Status_STATUS_STALE:
		return pb.Freshness_FRESHNESS_STALE, "engine_stale"
	}
	return pb.Freshness_FRESHNESS_FRESH, ""
}

// warm ends the warming once every worker that can be heard was, or its time
// is up.
func (w *world) warm() (changed bool) {
	if !w.warming || w.syncedAt.IsZero() {
		return false
	}
	waits := slices.ContainsFunc(w.rows, func(r *row) bool {
		return r.last == nil && !r.duplicate && r.dialect != pb.Dialect_DIALECT_NONE
	})
	if waits && w.now.Before(w.syncedAt.Add(warmingLimit)) {
		return false
	}
	w.warming = false
	return true
}

// forget drops graves that are older than a minute.
func (w *world) forget() {
	for len(w.graves) > 0 && w.now.Sub(w.graves[0].at) > keepGraves {
		w.horizon = w.graves[0].version
		w.graves = w.graves[1:]
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

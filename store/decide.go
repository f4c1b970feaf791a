package store

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"
)

// Tombstones are kept for a time, so that a reader that comes back can be told
// what it missed, and up to a number.
const (
	keepTombstones = time.Minute
	maxTombstones  = 20_000
)

// rules are the constants that a decision depends on.
type rules struct {
	staleAfter, interval time.Duration
}

// input is what one commit takes.
type input struct {
	now  Instant
	wall time.Time
	// changes, notes and offers take effect in this order, expiries last.
	changes []Discovery
	notes   []note
	offers  []offer
	// slept says that the machine was found to have slept.
	slept bool
	// doubt replaces the state's where it is not zero.
	doubt doubt
}

type note struct {
	row    uint32
	reason Reason
}

type offer struct {
	row  uint32
	load *Load
}

// decision is what a commit leaves.
type decision struct {
	next *State
	// content says that there is a new version.
	content bool
	// expired counts workers whose freshness time alone changed, ignored the
	// offers for workers that are gone.
	expired, ignored int
}

// decide returns the state after prev. It is a pure function: it reads no
// clock and changes neither argument.
func decide(prev *State, in input, r rules) *decision {
	d := &draft{rules: r, in: in, prev: prev, warming: prev.Warming, syncedAt: prev.syncedAt, doubt: prev.doubt}
	d.entries, d.live, d.index = slices.Clone(prev.Entries), slices.Clone(prev.Live), prev.index
	if in.doubt.detected != 0 {
		d.doubt = in.doubt
	}
	for _, c := range in.changes {
		d.discover(c)
	}
	for _, n := range in.notes {
		d.note(n)
	}
	for _, o := range in.offers {
		d.accept(o)
	}
	if in.slept {
		d.suspend()
	}
	d.expire()
	d.warm()
	return d.finish()
}

// draft is a decision in the making.
type draft struct {
	rules
	in       input
	prev     *State
	entries  []*Entry
	live     []*Live
	index    map[uint32]int
	graves   []*Tombstone
	warming  bool
	syncedAt Instant
	doubt    doubt
	moved    map[poolKey]Instant // when values last changed; made when first asked for
	out      decision
}

// discover applies one change of the discovered workers.
func (d *draft) discover(c Discovery) {
	if len(c.Removed)+len(c.Added) > 0 {
		d.regroup(c)
	}
	for _, u := range c.Updated {
		d.update(u)
	}
	if c.Synced && d.syncedAt == 0 {
		d.syncedAt = d.in.now
	}
}

// regroup takes workers out and others in.
func (d *draft) regroup(c Discovery) {
	type member struct {
		entry *Entry
		live  *Live
	}
	gone := make(map[uint32]bool, len(c.Removed))
	for _, sl := range c.Removed {
		gone[sl.row] = true
	}
	members := make([]member, 0, len(d.entries)+len(c.Added))
	for i, e := range d.entries {
		if gone[e.Row] {
			d.bury(e)
		} else {
			members = append(members, member{e, d.live[i]})
		}
	}
	for _, sl := range c.Added {
		e := &Entry{Row: sl.row, Worker: sl.worker, Version: d.version()}
		e.Freshness, e.Reason = judge(e, nil, d.in.now)
		members = append(members, member{e, nil})
	}
	slices.SortFunc(members, func(a, b member) int { return byID(a.entry, b.entry) })
	d.entries, d.live = make([]*Entry, len(members)), make([]*Live, len(members))
	d.index = make(map[uint32]int, len(members))
	for i, m := range members {
		d.entries[i], d.live[i], d.index[m.entry.Row] = m.entry, m.live, i
	}
	d.out.content = true
}

func (d *draft) update(u Update) {
	i, ok := d.index[u.Slot.row]
	if !ok || reflect.DeepEqual(d.entries[i].Worker, u.Worker) {
		return
	}
	if old := d.entries[i].Worker; !sameAttributes(old, u.Worker) {
		d.bury(d.entries[i])
	}
	e := *d.entries[i]
	e.Worker = u.Worker
	d.put(i, &e)
}

// sameAttributes says that no filter can tell a from b.
func sameAttributes(a, b *Worker) bool {
	return a.Role == b.Role && a.Zone == b.Zone && slices.Equal(a.Models, b.Models) && maps.Equal(a.Labels, b.Labels)
}

// bury leaves a tombstone of an entry. A worker that comes and goes in one
// commit leaves none: nobody saw it.
func (d *draft) bury(e *Entry) {
	if _, seen := d.prev.Find(e.Row); seen {
		d.graves = append(d.graves, &Tombstone{Row: e.Row, Worker: e.Worker, Version: d.version(), At: d.in.now})
	}
}

// version is the one that this commit makes if it changes content.
func (d *draft) version() uint64 { return d.prev.Version + 1 }

func byID(a, b *Entry) int {
	return cmp.Or(cmp.Compare(a.Worker.ID, b.Worker.ID), cmp.Compare(a.Row, b.Row))
}

// put replaces an entry.
func (d *draft) put(i int, e *Entry) {
	e.Version = d.version()
	d.entries[i] = e
	d.out.content = true
}

// note sets the reason that is shown while nothing was heard.
func (d *draft) note(n note) {
	i, ok := d.index[n.row]
	if !ok || d.live[i] != nil || d.entries[i].note == n.reason {
		return
	}
	e := *d.entries[i]
	e.note = n.reason
	e.Freshness, e.Reason = judge(&e, nil, d.in.now)
	d.put(i, &e)
}

// accept takes a report. One that equals the last in all that has versions
// moves the receipt only.
func (d *draft) accept(o offer) {
	i, ok := d.index[o.row]
	if !ok {
		d.out.ignored++
		return
	}
	old, before := d.entries[i], d.live[i]
	e := &Entry{Row: old.Row, Worker: old.Worker, Load: o.load}
	var samples []Sample
	if before != nil {
		samples = before.Samples
	}
	e.Ranks = withRates(o.load, old, samples)
	e.zero, e.Partial = zeroCapacity(e.Ranks), partial(e.Ranks)
	l := d.receive(o, before)
	valuesEqual := old.Load != nil && old.Load.Source == o.load.Source &&
		old.Load.Status == o.load.Status && slices.Equal(old.Ranks, e.Ranks)
	if valuesEqual {
		l.ChangedAt = before.ChangedAt
	}
	l.stalled = stalledSince(e, old, l, before)
	e.Flags = o.load.Flags | d.oddities(e, old, l, before)
	e.Freshness, e.Reason = judge(e, l, d.in.now)
	d.live[i] = l
	if d.moved != nil {
		d.move(e.Worker, l)
	}
	if valuesEqual && e.Flags == old.Flags && e.Freshness == old.Freshness && e.Reason == old.Reason {
		return
	}
	e.Aggregate = Summarize(e.Ranks)
	d.put(i, e)
}

// receive returns the receipt of a report. One that may have waited in a
// buffer while the process stood still does not count as received.
func (d *draft) receive(o offer, before *Live) *Live {
	l := &Live{
		Row: o.row, Tick: d.prev.Tick + 1, Sequence: o.load.Sequence,
		Received: o.load.Received, ReceivedUnixMs: o.load.ReceivedUnixMs,
		ReportUnixMs: o.load.ReportUnixMs, OldestSampleUnixMs: oldest(o.load.Samples),
		LastError: o.load.LastError, Samples: o.load.Samples, ChangedAt: o.load.Received,
	}
	i := d.index[o.row]
	if d.doubt.covers(o.load, d.entries[i].Worker.Interval) {
		if before != nil {
			l.Received, l.ReceivedUnixMs, l.suspended = before.Received, before.ReceivedUnixMs, before.suspended
		} else {
			l.Received -= Instant(d.staleAfter)
			l.ReceivedUnixMs -= d.staleAfter.Milliseconds()
		}
	}
	l.ValidUntil = max(l.Received.Add(d.staleAfter), 1)
	return l
}

func oldest(samples []Sample) int64 {
	at := int64(-1)
	for _, s := range samples {
		if s.TimeUnixMs >= 0 && (at < 0 || s.TimeUnixMs < at) {
			at = s.TimeUnixMs
		}
	}
	return at
}

// oddities returns the flags that need the report before this one or the
// rest of the pool.
func (d *draft) oddities(e, old *Entry, l, before *Live) Flag {
	var f Flag
	if before == nil || old.Load.Source != e.Load.Source {
		return 0
	}
	if idle(e.Ranks) && idle(old.Ranks) && grew(before.Samples, l.Samples) {
		f |= FlagInconsistent
	}
	if slices.ContainsFunc(l.stalled, func(since Instant) bool {
		return since != 0 && e.Load.Received.Sub(since) >= stalledAfter
	}) {
		f |= FlagStalled
	}
	still := e.Load.Received.Sub(l.ChangedAt) >= suspectAfter
	if still && running(e.Ranks) && d.poolMoved(e, l.ChangedAt) {
		f |= FlagSuspect
	}
	return f
}

// poolMoved says that the values of another worker of a pool of e changed
// after since.
func (d *draft) poolMoved(e *Entry, since Instant) bool {
	if d.moved == nil {
		d.moved = map[poolKey]Instant{}
		for i, l := range d.live {
			d.move(d.entries[i].Worker, l)
		}
	}
	// The worker's own values did not change after since.
	return slices.ContainsFunc(poolsOf(e.Worker), func(k poolKey) bool { return d.moved[k] > since })
}

// poolKey names a pool.
type poolKey struct {
	model string
	role  Role
}

func poolsOf(w *Worker) []poolKey {
	if len(w.Models) == 0 {
		return []poolKey{{"", w.Role}}
	}
	keys := make([]poolKey, len(w.Models))
	for i, m := range w.Models {
		keys[i] = poolKey{m, w.Role}
	}
	return keys
}

// move notes when the values of a worker last changed.
func (d *draft) move(w *Worker, l *Live) {
	if l == nil {
		return
	}
	for _, k := range poolsOf(w) {
		d.moved[k] = max(d.moved[k], l.ChangedAt)
	}
}

// suspend makes every heard worker stale until its next report.
func (d *draft) suspend() {
	for i, l := range d.live {
		if l == nil || l.suspended {
			continue
		}
		asleep := *l
		asleep.suspended = true
		asleep.Tick = d.prev.Tick + 1
		d.live[i] = &asleep
	}
}

// expire judges every worker anew.
func (d *draft) expire() {
	for i, e := range d.entries {
		f, r := judge(e, d.live[i], d.in.now)
		if f == e.Freshness && r == e.Reason {
			continue
		}
		aged := *e
		aged.Freshness, aged.Reason = f, r
		d.put(i, &aged)
		d.out.expired++
	}
}

// warm ends the warming once every worker that can be heard was, or its time
// is up. It begins to count when discovery has synced.
func (d *draft) warm() {
	if !d.warming || d.syncedAt == 0 {
		return
	}
	waiting := slices.ContainsFunc(d.entries, func(e *Entry) bool {
		return e.Load == nil && e.Worker.Hearable() && e.Reason != ReasonNoEngine
	})
	if !waiting || d.in.now >= d.warmUntil() {
		d.warming = false
		d.out.content = true
	}
}

// warmUntil is how long the plane waits for workers that were not heard: three
// intervals of the slowest, or 10 s, after discovery synced.
func (d *draft) warmUntil() Instant {
	slowest := d.interval
	for _, e := range d.entries {
		slowest = max(slowest, e.Worker.Interval)
	}
	return d.syncedAt.Add(max(3*slowest, 10*time.Second))
}

// finish assembles the next state.
func (d *draft) finish() *decision {
	content := d.prev.Content
	if d.out.content {
		content = &Content{
			Version: d.version(), Warming: d.warming, Published: d.in.wall,
			Entries: d.entries, index: d.index,
		}
		content.Tombstones, content.Horizon = d.tombstones()
	}
	d.out.next = &State{
		Content: content, Tick: d.prev.Tick + 1, Live: d.live,
		NextDue: d.nextDue(), syncedAt: d.syncedAt, doubt: d.doubt,
	}
	return &d.out
}

// tombstones returns those to keep, and the horizon that the others leave.
func (d *draft) tombstones() ([]*Tombstone, uint64) {
	all := append(slices.Clip(d.prev.Tombstones), d.graves...)
	drop, horizon := 0, d.prev.Horizon
	for drop < len(all) && (len(all)-drop > maxTombstones || d.in.now.Sub(all[drop].At) > keepTombstones) {
		horizon = all[drop].Version
		drop++
	}
	return all[drop:], horizon
}

func (d *draft) nextDue() Instant {
	var next Instant
	earlier := func(at Instant) {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	for i, e := range d.entries {
		earlier(due(e, d.live[i]))
	}
	if d.warming && d.syncedAt != 0 {
		earlier(d.warmUntil())
	}
	return next
}

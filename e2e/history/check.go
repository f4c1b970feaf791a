package history

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Rule is what a history must keep to.
type Rule string

// The rules.
const (
	// Ordered: within a lineage what a client is told never goes back, and a
	// stream brings a version once.
	Ordered Rule = "ordered"
	// Unique: a version has one content, whoever is told.
	Unique Rule = "unique"
	// Atomic: the workers sum to the digest of their version, and the chunks of
	// an event are complete and of one version.
	Atomic Rule = "atomic"
	// Reliable: what is shown of a worker is a report that its engine sent
	// before, it never goes back within a source, and in a quiet time the newest
	// one is shown. Reports may be skipped.
	Reliable Rule = "reliable"
	// Resumable: a stream continues exactly from the cursor that it was opened
	// with, or begins with a full; a delta is against what the stream brought
	// last.
	Resumable Rule = "resumable"
	// Bookmarked: a heartbeat repeats the version that it follows.
	Bookmarked Rule = "bookmarked"
	// Valid: what is called fresh is not past its validity.
	Valid Rule = "valid"
)

// Limits are what a history is measured by.
type Limits struct {
	// Overdue is for how long after the end of its validity a worker may still
	// be called fresh; 0 where the clocks of the record have no error.
	Overdue time.Duration
	// MaxViolations bounds those that are kept; 0 for 100.
	MaxViolations int
}

// Violation is a rule that a line breaks. It is a plain value.
type Violation struct {
	// Line is its number, from 1.
	Line int
	Rule Rule
	// Client is empty where the line is of no client.
	Client string
	Fact   string
}

// String returns the violation on one line.
func (v Violation) String() string {
	return fmt.Sprintf("line %d: %s: client %q: %s", v.Line, v.Rule, v.Client, v.Fact)
}

// Summary is what a history holds. It is a plain value.
type Summary struct {
	Lines, Reports, Streams, Resumed, Quiets int
	// Messages counts those of every event, chunks apart.
	Messages, Fulls, Deltas, Heartbeats int
	// Versions counts the distinct ones that clients were told of.
	Versions int
	// Violations are the first ones, Broken is how many there are.
	Violations []Violation
	Broken     int
}

// Check reads a history and checks it, in one pass. The error is one of
// reading.
func Check(from io.Reader, limits Limits) (Summary, error) {
	c := NewChecker(limits)
	err := Read(from, c.Add)
	return c.Summary(), err
}

// Checker checks a history line by line. It is for one goroutine.
type Checker struct {
	limits  Limits
	sum     Summary
	digests map[Cursor]uint64
	clients map[string]*client
	// sent has when each report was sent, recent those since the last quiet
	// time by worker.
	sent   map[Report]int64
	recent map[string][]timed
}

type timed struct {
	Report
	at int64
}

// client is what a client was told.
type client struct {
	name string
	// told is the last cursor of each lineage, alive when the last message
	// came.
	told  map[string]Cursor
	alive int64
	// stream is the open one: its cursor so far, and whether anything came.
	stream   int
	resume   *Cursor
	last     Cursor
	digest   uint64
	begun    bool
	chunk    *Message
	receipts map[string]Receipt
	// newest is the highest sequence that was shown of a worker's source.
	newest map[source]uint64
}

type source struct{ worker, source string }

// NewChecker returns a checker of an empty history.
func NewChecker(limits Limits) *Checker {
	limits.MaxViolations = cmp.Or(limits.MaxViolations, 100)
	return &Checker{
		limits: limits, digests: map[Cursor]uint64{}, clients: map[string]*client{},
		sent: map[Report]int64{}, recent: map[string][]timed{},
	}
}

// Add takes the next line.
func (c *Checker) Add(l Line) {
	c.sum.Lines++
	switch {
	case l.Report != nil:
		c.report(*l.Report, l.At)
	case l.Open != nil:
		c.open(l.Open)
	case l.Message != nil:
		c.message(l.Message, l.At)
	case l.Quiet != nil:
		c.quiet(l.Quiet, l.At)
	}
}

// Summary returns what was found so far.
func (c *Checker) Summary() Summary {
	c.sum.Versions = len(c.digests)
	return c.sum
}

func (c *Checker) broken(rule Rule, cl *client, format string, args ...any) {
	c.sum.Broken++
	if len(c.sum.Violations) >= c.limits.MaxViolations {
		return
	}
	v := Violation{Line: c.sum.Lines, Rule: rule, Fact: fmt.Sprintf(format, args...)}
	if cl != nil {
		v.Client = cl.name
	}
	c.sum.Violations = append(c.sum.Violations, v)
}

func (c *Checker) report(r Report, at int64) {
	c.sum.Reports++
	if _, twice := c.sent[r]; twice {
		return // a report may be sent again; it is as old as the first time
	}
	c.sent[r] = at
	c.recent[r.Worker] = append(c.recent[r.Worker], timed{r, at})
}

func (c *Checker) of(name string) *client {
	cl := c.clients[name]
	if cl == nil {
		cl = &client{name: name, told: map[string]Cursor{}, receipts: map[string]Receipt{}, newest: map[source]uint64{}}
		c.clients[name] = cl
	}
	return cl
}

func (c *Checker) open(o *Open) {
	c.sum.Streams++
	cl := c.of(o.Client)
	cl.stream, cl.resume, cl.begun, cl.chunk = o.Stream, o.Resume, false, nil
	cl.last, cl.digest = Cursor{}, 0
	if o.Resume == nil {
		return
	}
	c.sum.Resumed++
	cl.last = *o.Resume
	if told, ok := cl.told[o.Resume.Lineage]; !ok || *o.Resume != told {
		c.broken(Resumable, cl, "it resumes from %v and was told %v", *o.Resume, told)
	}
}

func (c *Checker) message(m *Message, at int64) {
	cl := c.of(m.Client)
	if m.Stream != cl.stream {
		c.broken(Resumable, cl, "a message of stream %d on stream %d", m.Stream, cl.stream)
		return
	}
	if !c.whole(cl, m) {
		return
	}
	c.sum.Messages++
	switch m.Event {
	case EventFull:
		c.sum.Fulls++
		c.full(cl, m)
	case EventDelta:
		c.sum.Deltas++
		c.delta(cl, m)
	default:
		c.sum.Heartbeats++
		c.repeat(cl, m)
	}
	c.content(cl, m)
	c.receive(cl, m, at)
	cl.told[m.Lineage] = m.Cursor
	cl.last, cl.digest, cl.begun, cl.alive = m.Cursor, m.Digest, true, at
}

// whole says whether an event is complete with m.
func (c *Checker) whole(cl *client, m *Message) bool {
	want := uint32(0)
	if cl.chunk != nil {
		want = cl.chunk.Chunk + 1
		if cl.chunk.Cursor != m.Cursor || cl.chunk.Chunks != m.Chunks || cl.chunk.Event != m.Event {
			c.broken(Atomic, cl, "chunk %d of %v is of another event than the one before", m.Chunk, m.Cursor)
		}
	}
	if m.Chunk != want {
		c.broken(Atomic, cl, "chunk %d of %v in the place of %d", m.Chunk, m.Cursor, want)
	}
	cl.chunk = nil
	if m.Chunks > 1 && m.Chunk+1 < m.Chunks {
		cl.chunk = m
		return false
	}
	return true
}

// full is right at any time, but a version that a stream has brought.
func (c *Checker) full(cl *client, m *Message) {
	if cl.begun && m.Lineage == cl.last.Lineage && !after(m.Cursor, cl.last) {
		c.broken(Ordered, cl, "a full of %v after %v", m.Cursor, cl.last)
	}
	c.forward(cl, m)
	cl.receipts = map[string]Receipt{}
}

func (c *Checker) delta(cl *client, m *Message) {
	switch {
	case !cl.begun && cl.resume == nil:
		c.broken(Resumable, cl, "a stream without a cursor begins with a delta")
	case m.Lineage != cl.last.Lineage || m.Epoch != cl.last.Epoch || m.Base != cl.last.Version:
		c.broken(Resumable, cl, "a delta of %v against %d after %v", m.Cursor, m.Base, cl.last)
	case !after(m.Cursor, cl.last):
		c.broken(Ordered, cl, "a delta of %v after %v", m.Cursor, cl.last)
	}
	c.forward(cl, m)
	for _, id := range m.Gone {
		delete(cl.receipts, id)
	}
}

// repeat checks a message without content.
func (c *Checker) repeat(cl *client, m *Message) {
	switch {
	case !cl.begun && cl.resume == nil:
		c.broken(Resumable, cl, "a stream without a cursor begins with a %s", m.Event)
	case m.Cursor != cl.last || (cl.begun && m.Digest != cl.digest):
		c.broken(Bookmarked, cl, "a %s of %v after %v", m.Event, m.Cursor, cl.last)
	}
}

// forward checks that a client is not led back, over all of its streams.
func (c *Checker) forward(cl *client, m *Message) {
	if told, ok := cl.told[m.Lineage]; ok && after(told, m.Cursor) {
		c.broken(Ordered, cl, "%v after %v", m.Cursor, told)
	}
}

// after compares two cursors of one lineage.
func after(a, b Cursor) bool {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Version, b.Version)) > 0
}

// content checks what a message says of its version.
func (c *Checker) content(cl *client, m *Message) {
	if m.Sum != m.Digest {
		c.broken(Atomic, cl, "%v has the digest %x, its workers sum to %x", m.Cursor, m.Digest, m.Sum)
	}
	if known, seen := c.digests[m.Cursor]; seen && known != m.Digest {
		c.broken(Unique, cl, "%v has the digests %x and %x", m.Cursor, known, m.Digest)
	}
	c.digests[m.Cursor] = m.Digest
	if overdue := time.Duration(m.OverdueMs) * time.Millisecond; overdue > c.limits.Overdue {
		c.broken(Valid, cl, "%v calls a worker fresh %v after the end of its validity", m.Cursor, overdue)
	}
	if m.Valid > m.Fresh || m.Fresh > m.Workers {
		c.broken(Valid, cl, "%v has %d workers, %d fresh, %d valid", m.Cursor, m.Workers, m.Fresh, m.Valid)
	}
}

// receive checks the receipts of a message.
func (c *Checker) receive(cl *client, m *Message, at int64) {
	for id, r := range m.Receipts {
		sent, known := c.sent[Report{Worker: id, Source: r.Source, Sequence: r.Sequence}]
		if !known || sent > at {
			c.broken(Reliable, cl, "%v shows the report %d of %q of %s, which was not sent", m.Cursor, r.Sequence, r.Source, id)
		}
		from := source{id, r.Source}
		if r.Sequence < cl.newest[from] {
			c.broken(Reliable, cl, "%v shows the report %d of %s after %d", m.Cursor, r.Sequence, id, cl.newest[from])
		}
		cl.newest[from] = max(cl.newest[from], r.Sequence)
		cl.receipts[id] = r
	}
}

// quiet checks that the connected clients have the newest report of every
// worker.
func (c *Checker) quiet(q *Quiet, at int64) {
	c.sum.Quiets++
	connected := slices.DeleteFunc(slices.Collect(maps.Values(c.clients)), func(cl *client) bool { return cl.alive < q.From })
	for id, reports := range c.recent {
		due := -1
		for i, r := range reports {
			if r.at >= q.From && r.at <= at-q.Within {
				due = i
			}
		}
		if due >= 0 {
			for _, cl := range connected {
				c.visible(cl, reports[due])
			}
		}
		c.recent[id] = slices.Clone(reports[max(due, 0):])
	}
}

// visible checks that a client has a report or a later one.
func (c *Checker) visible(cl *client, want timed) {
	r, heard := cl.receipts[want.Worker]
	sent := c.sent[Report{Worker: want.Worker, Source: r.Source, Sequence: r.Sequence}]
	switch {
	case !heard:
		c.broken(Reliable, cl, "in a quiet time it has no report of %s", want.Worker)
	case r.Source == want.Source && r.Sequence < want.Sequence, r.Source != want.Source && sent < want.at:
		c.broken(Reliable, cl, "in a quiet time it has the report %d of %q of %s, and %d of %q was sent",
			r.Sequence, r.Source, want.Worker, want.Sequence, want.Source)
	}
}

package store

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Event is a word for something that happened to a worker. The words are part
// of the API and listed in docs/operations.md.
type Event string

// The events.
const (
	// EventDiscovered: discovery lists the worker; the detail says where.
	EventDiscovered Event = "discovered"
	// EventIdentityChanged: the worker took the place of one with the same id or
	// origin, of which nothing is kept.
	EventIdentityChanged Event = "identity_changed"
	// EventChanged: discovery changed the worker in place; the detail says what.
	EventChanged Event = "changed"
	// EventDialectChanged: another dialect is in force.
	EventDialectChanged Event = "dialect_changed"
	// EventRegistration: the way to the engine has another state.
	EventRegistration Event = "registration"
	// EventCallFailed: a call to the engine failed.
	EventCallFailed Event = "call_failed"
	// EventBound: a stream or a session speaks for the worker.
	EventBound Event = "bound"
	// EventSourceChanged: another source instance speaks for the worker.
	EventSourceChanged Event = "source_changed"
	// EventStreamEnded: the stream that spoke for the worker ended.
	EventStreamEnded Event = "stream_ended"
	// EventRefused: a report or a stream was refused.
	EventRefused Event = "refused"
	// EventMissing: nothing was heard yet, for another reason than before.
	EventMissing Event = "missing"
	// EventFresh: the worker became fresh.
	EventFresh Event = "fresh"
	// EventStale: the worker became stale, or is for another reason.
	EventStale Event = "stale"
	// EventUnreachable: the engine could not be sampled.
	EventUnreachable Event = "unreachable"
)

const (
	// maxHappenings bounds those that are kept of a worker.
	maxHappenings = 32
	// maxHappeningDetail bounds a detail, bytes. With all that is kept, 10,000
	// workers take 75 MB at the very most.
	maxHappeningDetail = 160
)

// Happening is something that happened to a worker. It is a plain value.
type Happening struct {
	// At is when it happened last.
	At    Instant
	Event Event
	// Reason is empty where no word applies.
	Reason Reason
	// Detail is for people, at most 160 bytes; empty where the words say all.
	Detail string
	// Count is how often it happened in a row, from 1; it stays at its largest
	// value.
	Count uint32
}

// history is what happened to a worker last, oldest first.
type history struct {
	list []Happening
	// shared says that a reader may hold the list: it is not changed any more.
	shared bool
}

// add records a happening. One that says the same as the last counts it up, and
// its detail is the one that is kept.
func (h *history) add(n Happening) {
	n.Detail, n.Count = shorten(n.Detail), 1
	if h.shared {
		h.list, h.shared = slices.Clone(h.list), false
	}
	if last := len(h.list) - 1; last >= 0 && n.repeats(h.list[last]) {
		if n.Count = h.list[last].Count; n.Count < 1<<32-1 {
			n.Count++
		}
		h.list[last] = n
		return
	}
	if len(h.list) == maxHappenings {
		h.list = slices.Delete(h.list, 0, 1)
	}
	h.list = append(h.list, n)
}

// repeats says that n says the same as the happening before it. What was refused
// and which call failed may differ in detail each time.
func (n Happening) repeats(before Happening) bool {
	varies := n.Event == EventRefused || n.Event == EventCallFailed
	return n.Event == before.Event && n.Reason == before.Reason && (varies || n.Detail == before.Detail)
}

// share returns the list for readers.
func (h *history) share() []Happening {
	h.shared = true
	return slices.Clip(h.list)
}

// shorten cuts a text at a rune. What is kept holds no longer text in memory.
func shorten(s string) string {
	if len(s) <= maxHappeningDetail {
		return s
	}
	cut := maxHappeningDetail - len("...")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// happened returns what a commit made of a worker, in order; old is nil where
// the worker is new, which its slot recorded.
func happened(old, e *Entry, now Instant) (list []Happening) {
	if old != nil && old.Worker != e.Worker {
		list = changes(old.Worker, e.Worker, now)
	}
	news := old == nil && e.Freshness != Missing || old != nil && (old.Freshness != e.Freshness || old.Reason != e.Reason)
	if news {
		list = append(list, Happening{At: now, Event: eventOf(e.Freshness), Reason: e.Reason})
	}
	return list
}

// changes returns what discovery changed in place.
func changes(old, w *Worker, now Instant) (list []Happening) {
	if old.Dialect != w.Dialect {
		list = append(list, Happening{At: now, Event: EventDialectChanged, Detail: old.Dialect.String() + " to " + w.Dialect.String()})
	}
	var fields []string
	for _, f := range []struct {
		name    string
		changed bool
	}{
		{"draining begun", w.Draining && !old.Draining}, {"draining ended", old.Draining && !w.Draining},
		{"role", old.Role != w.Role}, {"models", !slices.Equal(old.Models, w.Models)}, {"zone", old.Zone != w.Zone},
		{"labels", !maps.Equal(old.Labels, w.Labels)}, {"interval", old.Interval != w.Interval}, {"discovered by", old.DiscoveredBy != w.DiscoveredBy},
	} {
		if f.changed {
			fields = append(fields, f.name)
		}
	}
	if len(fields) > 0 {
		list = append(list, Happening{At: now, Event: EventChanged, Detail: strings.Join(fields, ", ")})
	}
	return list
}

func eventOf(f Freshness) Event {
	switch f {
	case Fresh:
		return EventFresh
	case Stale:
		return EventStale
	case Unreachable:
		return EventUnreachable
	}
	return EventMissing
}

package client

import (
	"errors"
	"maps"
	"time"
)

// Cause is why a stream or an attempt to open one ended.
type Cause string

// The causes.
const (
	// CauseUnreachable: no stream was had, or it broke; the address is down, the
	// plane is draining, or the network lost it.
	CauseUnreachable Cause = "unreachable"
	// CauseClosed: the plane ended the stream in order, without a reason.
	CauseClosed Cause = "closed"
	// CauseGoAway: the plane asked its clients to reconnect.
	CauseGoAway Cause = "go_away"
	// CauseSilent: no message came for 2.5 heartbeats, or no first one for 5 s.
	CauseSilent Cause = "silent"
	// CauseBroken: a message could not be applied; see the errors of Replica.
	CauseBroken Cause = "broken"
	// CauseExhausted: the plane has no room (RESOURCE_EXHAUSTED).
	CauseExhausted Cause = "exhausted"
	// CauseRefused: the plane refused in a way that waiting does not cure:
	// INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, NOT_FOUND,
	// UNIMPLEMENTED. It is asked again after 5 to 30 s.
	CauseRefused Cause = "refused"
)

// Causes returns every Cause.
func Causes() []Cause {
	return []Cause{CauseUnreachable, CauseClosed, CauseGoAway, CauseSilent, CauseBroken, CauseExhausted, CauseRefused}
}

// EventNames returns every name that EventName has for an event.
func EventNames() []string { return []string{"full", "delta", "heartbeat", "go_away"} }

// Status is what a Watcher does at one moment. It is a plain value.
type Status struct {
	// Address is that of the stream that brings messages; empty while there is
	// none.
	Address string
	// Since is when Address last changed, and at first when the Watcher was
	// made.
	Since time.Time
	// LastMessage is when the last message came; zero before the first.
	LastMessage time.Time
	// LastError is why the last stream or attempt ended, with its address; nil
	// before. It stays when a later attempt succeeds. It wraps the
	// *connect.Error, ErrSilent, ErrGoAway, ErrClosed or the error of
	// Replica.Apply.
	LastError error
	// LastCause sorts LastError; empty before.
	LastCause Cause
	// Messages counts those that were applied, by EventName; every chunk of an
	// event is one.
	Messages map[string]uint64
	// Ended counts streams and attempts that ended, by cause. An end because
	// the context of Run ended is not counted.
	Ended map[Cause]uint64
	// Torn counts streams that ended since a view did not sum to the digest of
	// the plane (ErrTorn), which must not be.
	Torn uint64
	// Adoptions counts how often the lineage of the view changed.
	Adoptions uint64
}

// Connected says whether a stream brings messages.
func (s Status) Connected() bool { return s.Address != "" }

// Reconnects returns how many streams and attempts ended, each of which made
// the Watcher try again.
func (s Status) Reconnects() uint64 {
	n := uint64(0)
	for _, count := range s.Ended {
		n += count
	}
	return n
}

// clone returns a copy that shares nothing.
func (s Status) clone() Status {
	s.Messages, s.Ended = maps.Clone(s.Messages), maps.Clone(s.Ended)
	return s
}

// move notes that the address of the stream is another since at.
func (s *Status) move(address string, at time.Time) {
	if s.Address != address {
		s.Address, s.Since = address, at
	}
}

// end notes how a stream or an attempt ended.
func (s *Status) end(e ending, at time.Time) {
	s.move("", at)
	s.LastError, s.LastCause = e.err, e.cause
	s.Ended[e.cause]++
	if errors.Is(e.err, ErrTorn) {
		s.Torn++
	}
}

package client

import (
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/retry"
)

// exhaustedWait is for a plane that has no room and names no time.
const exhaustedWait = time.Second

// ending is how a stream or an attempt to open one ended.
type ending struct {
	retry.Ending
	cause Cause
	err   error
}

// finish notes the error that ended it, and what follows from it.
func (e *ending) finish(address string, err error) {
	if e.cause == "" {
		e.cause = causeOf(err)
	}
	e.Stay, e.Refused = retryOf(err), e.cause == CauseRefused
	e.err = &attemptError{address, err}
}

// causeOf sorts the error that ended a stream; nil is the end in order.
func causeOf(err error) Cause {
	switch {
	case err == nil || errors.Is(err, ErrClosed):
		return CauseClosed
	case errors.Is(err, ErrSilent):
		return CauseSilent
	case errors.Is(err, ErrGoAway):
		return CauseGoAway
	}
	switch connect.CodeOf(err) {
	case connect.CodeResourceExhausted:
		return CauseExhausted
	case connect.CodeInvalidArgument, connect.CodeUnauthenticated, connect.CodePermissionDenied,
		connect.CodeNotFound, connect.CodeUnimplemented:
		return CauseRefused
	}
	return CauseUnreachable
}

// retryOf returns how long the plane asks to stay away: the delay of a
// google.rpc.RetryInfo, at most a minute. A plane without room that names none
// gets a second; else it is 0.
func retryOf(err error) time.Duration {
	var e *connect.Error
	if !errors.As(err, &e) {
		return 0
	}
	for _, d := range e.Details() {
		if d.Type() == "google.rpc.RetryInfo" {
			if wait, ok := retry.Delay(d.Bytes()); ok {
				return wait
			}
		}
	}
	if e.Code() == connect.CodeResourceExhausted {
		return exhaustedWait
	}
	return 0
}

package client

import (
	"errors"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/retry"
)

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
	e.Stay, e.Refused = retry.Asked(err), e.cause == CauseRefused
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

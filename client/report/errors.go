package report

import (
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/retry"
)

// Errors of Run and of Status.LastError.
var (
	// ErrRunning is returned by Run while another call of it runs.
	ErrRunning = errors.New("the reporter runs already")
	// ErrClosed: the plane ended the stream without an error.
	ErrClosed = errors.New("the plane ended the stream")
	// ErrSilent: the plane did not answer a new stream in time.
	ErrSilent = errors.New("no answer came in time")
	// ErrSourceChanged: the engine is another process than that of the stream,
	// which takes a new one.
	ErrSourceChanged = errors.New("the source instance changed")
)

// errMoved: the URL is another one now, which takes another lease.
var errMoved = errors.New("the URL of the engine changed")

const (
	// refusedWait is how long a reporter stays away that was refused in a way
	// that waiting does not cure.
	refusedWait = 30 * time.Second
	// firstTurn and lastTurn bound the bound of the random wait for a lease that
	// another reporter has, and leastTurn the wait.
	firstTurn = 100 * time.Millisecond
	lastTurn  = 5 * time.Second
	leastTurn = 10 * time.Millisecond
)

// advise says what to do about an error, where that is known.
func advise(err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnimplemented:
		return fmt.Errorf("%w: this is not an ingest listener of a plane, whose port is 7401 by default", err)
	case connect.CodeDeadlineExceeded:
		return fmt.Errorf("%w: the plane did not answer in time", err)
	}
	return err
}

// refused says that the plane refused in a way that waiting does not cure.
func refused(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeUnimplemented:
		return true
	}
	return false
}

// lost says that the way to the plane is broken, or the plane going.
func lost(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	}
	return false
}

// stayOf returns how long to stay away after an error: 0 where the plane asks
// for nothing and nothing forbids an attempt.
func stayOf(err error) time.Duration {
	if refused(err) {
		return refusedWait
	}
	return retry.Asked(err)
}

package client

import (
	"errors"
	"strings"
)

// Errors of Replica.Apply. The view is unchanged, and the watch must be opened
// anew without a cursor, which Resume sees to.
var (
	// ErrGap: a delta is against a version that is not the one held, a
	// heartbeat is of another version, or a chunk is missing.
	ErrGap = errors.New("the change is against another version")
	// ErrTorn: the workers do not sum to the digest of the message.
	ErrTorn = errors.New("the digest does not match the workers")
	// ErrBackwards: a message of the same lineage is older than the view.
	ErrBackwards = errors.New("the version went back")
	// ErrMalformed: a message lacks its cursor or its event, names a worker
	// twice, changes the lineage within a stream, or repeats a version with
	// other content.
	ErrMalformed = errors.New("the message is not one of a watch")
)

// Errors that Status reports of a stream.
var (
	// ErrSilent: no message came in time.
	ErrSilent = errors.New("no message came in time")
	// ErrGoAway: the plane asked its clients to reconnect.
	ErrGoAway = errors.New("the plane asked to reconnect")
	// ErrClosed: the plane ended the stream without an error.
	ErrClosed = errors.New("the plane ended the stream")
	// ErrStuck: the HTTP client holds on to streams that were cancelled; no new
	// one is opened until it gives one back.
	ErrStuck = errors.New("the HTTP client does not end cancelled streams")
)

// ErrRunning is returned by Run while another call of it runs.
var ErrRunning = errors.New("the watcher runs already")

// maxText bounds an error as text, bytes: a plane chooses its length.
const maxText = 1 << 10

// attemptError is the error of a stream with its address.
type attemptError struct {
	address string
	err     error
}

func (e *attemptError) Error() string {
	text := e.address + ": " + e.err.Error()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return text
}

func (e *attemptError) Unwrap() error { return e.err }

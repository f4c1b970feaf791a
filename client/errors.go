package client

import "errors"

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

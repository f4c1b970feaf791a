package push

import "errors"

// Errors of Register.
var (
	// ErrClosed: the set does not run, or is ending.
	ErrClosed = errors.New("the load reporter is closing")
	// ErrFull: there are as many targets as are allowed.
	ErrFull = errors.New("there are too many report targets")
)

// errBlocked ends a stream that took nothing for writeTimeout.
var errBlocked = errors.New("the router took no report in time")

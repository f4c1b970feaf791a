package pick

import "errors"

// ErrOption is wrapped by the error of NewPicker.
var ErrOption = errors.New("the option is out of range")

// Error says why nothing was chosen. It is immutable, and equal to one of the
// errors of this package.
type Error struct {
	// Reason is the word for it.
	Reason Reason

	text string
}

// Error returns a sentence for people.
func (e *Error) Error() string { return e.text }

// Errors of Picker.Pick.
var (
	// ErrNoCandidates has ReasonNoCandidates.
	ErrNoCandidates = &Error{ReasonNoCandidates, "the pool has no worker that takes requests"}
	// ErrNoneReachable has ReasonNoneReachable.
	ErrNoneReachable = &Error{ReasonNoneReachable, "every worker of the pool is unreachable"}
	// ErrNoneFresh has ReasonNoneFresh.
	ErrNoneFresh = &Error{ReasonNoneFresh, "no worker of the pool is fresh"}
	// ErrAllTried has ReasonAllTried.
	ErrAllTried = &Error{ReasonAllTried, "the request avoids every worker that is left"}
)

package balance

import (
	"errors"

	"github.com/loadplane/loadplane/client/pick"
)

// ErrOption is wrapped by errors of New, as is pick.ErrOption by those of the
// options that package pick has too.
var ErrOption = errors.New("the option is not valid")

// Error says why nothing could be picked from the view. It is immutable, and
// equal to one of the errors of this package.
type Error struct {
	// Reason is the word for it.
	Reason pick.Reason

	text string
}

// Error returns a sentence for people.
func (e *Error) Error() string { return e.text }

// Errors of Pick, beside those of package pick.
var (
	// ErrNoView has ReasonNoView. There is no static worker for the request
	// either.
	ErrNoView = &Error{ReasonNoView, "no view has come from a plane yet"}
	// ErrUnknownPool has ReasonUnknownPool. There is no static worker for the
	// request either.
	ErrUnknownPool = &Error{ReasonUnknownPool, "the view has no worker of the model and role"}
)

// ReasonOf returns the word for an error of Pick or PickPair; empty for others.
func ReasonOf(err error) pick.Reason {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Reason
	}
	if e := (*pick.Error)(nil); errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

package control

import (
	"context"
	"errors"
	"net/http"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
)

// Desk decides on what is asked. It is safe for concurrent use.
type Desk interface {
	// Register begins or renews the reports to a router. Errors are a *Fault,
	// or those of push.Set.Register.
	Register(ctx context.Context, r push.Registration) error
	// Refresh takes a hint that the load changed. Errors are a *Fault.
	Refresh(h Hint) error
	// Ready says why the reporter does no good; nil where it does.
	Ready() error
	// Status returns a value that encodes as the JSON of GET /v1/status.
	Status() any
}

// Hint is what a frontend says of a change. It is a plain value.
type Hint struct {
	// Reason is a word such as "completion", of 64 bytes at most; empty for
	// none.
	Reason string `json:"reason,omitempty"`
	// Count is how many requests it is about, from 1.
	Count int `json:"count"`
}

// Fault is an answer other than that all is well. It is immutable.
type Fault struct {
	// Status is the HTTP status.
	Status int
	// Message is for people.
	Message string
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }

// faultOf returns the answer to an error.
func faultOf(err error) *Fault {
	var f *Fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, push.ErrFull):
		return &Fault{http.StatusTooManyRequests, err.Error()}
	case errors.Is(err, push.ErrClosed):
		return &Fault{http.StatusServiceUnavailable, err.Error()}
	}
	return &Fault{http.StatusInternalServerError, err.Error()}
}

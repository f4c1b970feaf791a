package kubeapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/loadplane/loadplane/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons for which a list or a watch failed or ended.
const (
	// ReasonForbidden: the API server answered 403; a right is missing.
	ReasonForbidden store.Reason = "api_forbidden"
	// ReasonUnauthorized: the API server answered 401; the credential is not
	// good.
	ReasonUnauthorized store.Reason = "api_unauthorized"
	// ReasonExpired: the API server has the asked version no more (410); the
	// list is read anew.
	ReasonExpired store.Reason = "api_expired"
	// ReasonThrottled: the API server answered 429.
	ReasonThrottled store.Reason = "api_throttled"
	// ReasonServer: the API server answered with another 5xx.
	ReasonServer store.Reason = "api_error"
	// ReasonRejected: the API server answered with another status that is no
	// success.
	ReasonRejected store.Reason = "api_rejected"
	// ReasonUnreachable: no connection to the API server, or it broke.
	ReasonUnreachable store.Reason = "api_unreachable"
	// ReasonTimeout: the answer took too long.
	ReasonTimeout store.Reason = "api_timeout"
	// ReasonBadAnswer: the answer, or an event of a watch, cannot be read.
	ReasonBadAnswer store.Reason = "api_bad_answer"
	// ReasonSilent: nothing came in a watch for too long; the list is read
	// anew.
	ReasonSilent store.Reason = "watch_silent"
	// ReasonShort: a watch ended as soon as it began.
	ReasonShort store.Reason = "watch_short"
	// ReasonEmptied: a list was empty of a sudden; the last one is kept until
	// another list confirms it.
	ReasonEmptied store.Reason = "list_emptied"
	// ReasonPanic: the code that takes over what came panicked. That is a fault
	// of the plane, which tries again after a pause.
	ReasonPanic store.Reason = "mirror_panic"
)

// Errors of this package's own.
var (
	errTimeout = errors.New("no answer in time")
	errShort   = errors.New("the watch ended as soon as it began")
	errSilent  = errors.New("nothing came in the watch for too long")
	errTooBig  = errors.New("the answer is too large")
	errPanic   = errors.New("taking over what came panicked")
)

// reasonOf says what an error of a request means.
func reasonOf(err error) store.Reason {
	var (
		status  apierrors.APIStatus
		request *url.Error // of what happened before there was an answer
	)
	switch {
	case errors.Is(err, errShort):
		return ReasonShort
	case errors.Is(err, errSilent):
		return ReasonSilent
	case errors.Is(err, errPanic):
		return ReasonPanic
	case errors.Is(err, errTooBig):
		return ReasonBadAnswer
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout
	case errors.As(err, &status):
		return reasonOfStatus(status.Status())
	case errors.As(err, &request) && !request.Timeout():
		return ReasonUnreachable
	}
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return ReasonTimeout
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe):
		return ReasonUnreachable
	}
	return ReasonBadAnswer
}

func reasonOfStatus(s metav1.Status) store.Reason {
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if c.Type == "ClientWatchDecoding" {
				return ReasonBadAnswer
			}
		}
	}
	switch {
	case s.Reason == metav1.StatusReasonExpired, s.Reason == metav1.StatusReasonGone, s.Code == http.StatusGone:
		return ReasonExpired
	case s.Code == http.StatusForbidden:
		return ReasonForbidden
	case s.Code == http.StatusUnauthorized:
		return ReasonUnauthorized
	case s.Code == http.StatusTooManyRequests:
		return ReasonThrottled
	case s.Code == http.StatusGatewayTimeout:
		return ReasonTimeout
	case s.Code >= http.StatusInternalServerError:
		return ReasonServer
	}
	return ReasonRejected
}

package survey

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// Judge says what is wrong with what egress.Client.Get returned: nothing, for
// a complete answer of status 200. The status comes first: of an answer that
// says no, the body does not matter.
func Judge(a *egress.Answer, err error) (store.Reason, error) {
	if a != nil {
		if reason := judgeStatus(a.Status); reason != "" {
			return reason, fmt.Errorf("the engine answered %d", a.Status)
		}
	}
	if err == nil {
		return "", nil
	}
	return judgeError(err), err
}

// judgeStatus says what an HTTP status means; empty for 200.
func judgeStatus(status int) store.Reason {
	switch {
	case status == http.StatusOK:
		return ""
	case status >= 300 && status < 400:
		return registry.ReasonRedirected
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return registry.ReasonAuth
	case Absent(status):
		return registry.ReasonUnsupported
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return registry.ReasonEngineError
	case status >= 400 && status < 500:
		return registry.ReasonRejected
	}
	return registry.ReasonEngineError
}

// Absent says whether a status says for certain that an engine does not have
// what was asked for.
func Absent(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented
}

func judgeError(err error) store.Reason {
	switch {
	case errors.Is(err, egress.ErrCredential):
		return registry.ReasonCredential
	case errors.Is(err, egress.ErrTimeout):
		return ReasonTimeout
	case errors.Is(err, egress.ErrTooLarge):
		return ReasonTooLarge
	case errors.Is(err, egress.ErrEncoding):
		return ReasonCompressed
	case errors.Is(err, egress.ErrTLS):
		return ReasonTLS
	case errors.Is(err, egress.ErrBroken):
		return ReasonBroken
	}
	return registry.ConnectReason(err)
}

// RulesOut says whether a reason rules out that the engine has what was asked for:
// it said so, or wants a credential. Anything else may change by itself, as
// long as engines start, are replaced and stand behind proxies.
func RulesOut(reason store.Reason) bool {
	return reason == registry.ReasonUnsupported || reason == registry.ReasonAuth
}

// Passing says whether trouble is of the kind that passes soon.
func Passing(reason store.Reason) bool {
	switch reason {
	case registry.ReasonConnectFailed, registry.ReasonEgressDenied, registry.ReasonCredential, registry.ReasonEngineError,
		ReasonTimeout, ReasonTLS, ReasonBroken:
		return true
	}
	return false
}

// Unreached says whether the other pages of an engine would fail alike.
func Unreached(reason store.Reason) bool {
	switch reason {
	case registry.ReasonConnectFailed, registry.ReasonEgressDenied, registry.ReasonCredential, ReasonTLS:
		return true
	}
	return false
}

// waiting says whether a page is that of an engine that has nothing to say
// yet, and may later.
func waiting(reason store.Reason) bool {
	return reason == sample.ReasonNoData || reason == sample.ReasonNoLoad
}

// Gone says that a page that was read is there no more, or that the process
// that served it may not be.
func Gone(reason store.Reason) bool {
	return reason == registry.ReasonConnectFailed || reason == ReasonBroken || !Passing(reason) && !waiting(reason)
}

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/api/query"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
)

// retryAfter is told to those who are refused for want of room.
const retryAfter = time.Second

// refusal is why a request gets no answer, for either kind of client.
type refusal struct {
	reason  store.Reason
	code    connect.Code
	status  int
	message string
	// retry is how long to wait; 0 where waiting does not help.
	retry time.Duration
}

func refuseTooMany(reason store.Reason, limit int) *refusal {
	return &refusal{
		reason: reason, code: connect.CodeResourceExhausted, status: http.StatusTooManyRequests,
		message: fmt.Sprintf("the limit is %d", limit), retry: retryAfter,
	}
}

func refuseDraining(why string) *refusal {
	message := "the plane is about to stop"
	if why != "" {
		message = why
	}
	return &refusal{
		reason: ReasonDraining, code: connect.CodeUnavailable, status: http.StatusServiceUnavailable,
		message: message, retry: retryAfter,
	}
}

func refuseSlow(pause time.Duration) *refusal {
	return &refusal{
		reason: ReasonSlowClient, code: connect.CodeResourceExhausted, status: http.StatusTooManyRequests,
		message: "watches of this client were cut too often for being slow", retry: pause,
	}
}

// refuseQuery refuses what package query could not read.
func refuseQuery(err error) *refusal {
	reason := ReasonBadParameter
	switch {
	case errors.Is(err, query.ErrUnknown):
		reason = ReasonUnknownParameter
	case errors.Is(err, query.ErrFilter):
		reason = ReasonBadFilter
	}
	return &refusal{
		reason: reason, code: connect.CodeInvalidArgument, status: http.StatusBadRequest,
		message: err.Error(),
	}
}

// Error returns the reason and the message.
func (r *refusal) Error() string { return string(r.reason) + ": " + r.message }

// rpc returns r as a Connect error.
func (r *refusal) rpc() *connect.Error {
	err := connect.NewError(r.code, errors.New(r.Error()))
	if r.retry == 0 {
		return err
	}
	detail, detailErr := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
	if detailErr == nil {
		err.AddDetail(detail)
	}
	return err
}

// http writes r as a JSON answer.
func (r *refusal) http(w http.ResponseWriter) {
	if r.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.retry.Seconds()))))
	}
	// Three strings can always be encoded.
	body, _ := json.Marshal(wireError{r.code.String(), r.reason, r.message})
	answerJSON(w, r.status, append(body, '\n'))
}

// wireError is a refusal as JSON: in the form of Connect, and with the reason.
type wireError struct {
	Code    string       `json:"code"`
	Reason  store.Reason `json:"reason"`
	Message string       `json:"message"`
}

func answerJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

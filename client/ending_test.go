package client

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/retry"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

func TestCauseOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Cause
	}{
		{nil, CauseClosed},
		{ErrClosed, CauseClosed},
		{ErrSilent, CauseSilent},
		{&attemptError{"a", ErrGoAway}, CauseGoAway},
		{connect.NewError(connect.CodeUnavailable, nil), CauseUnreachable},
		{connect.NewError(connect.CodeInternal, nil), CauseUnreachable},
		{connect.NewError(connect.CodeResourceExhausted, nil), CauseExhausted},
		{&attemptError{"a", connect.NewError(connect.CodeUnauthenticated, nil)}, CauseRefused},
		{errors.New("fault"), CauseUnreachable},
	} {
		if got := causeOf(c.err); got != c.want {
			t.Errorf("%v is %q, want %q", c.err, got, c.want)
		}
	}
}

func TestRetryOf(t *testing.T) {
	other := connect.NewError(connect.CodeUnavailable, nil)
	detail, err := connect.NewErrorDetail(&errdetails.DebugInfo{Detail: "x"})
	if err != nil {
		t.Fatal(err)
	}
	other.AddDetail(detail)
	for _, c := range []struct {
		name string
		err  error
		want time.Duration
	}{
		{"no error", nil, 0},
		{"not of the plane", errors.New("x"), 0},
		{"another detail", other, 0},
		{"a delay", &attemptError{"a", withRetry(connect.CodeUnavailable, 1500*time.Millisecond)}, 1500 * time.Millisecond},
		{"no room", connect.NewError(connect.CodeResourceExhausted, nil), retry.Exhausted},
		{"no room, a delay", withRetry(connect.CodeResourceExhausted, 20*time.Millisecond), 20 * time.Millisecond},
	} {
		if got := retry.Asked(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

package monitor

import (
	"errors"
	"fmt"
	"io"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fault is why a session was not opened or ended.
type fault struct {
	reason store.Reason
	err    error
	// final says that Serve returns the reason, moved that nothing failed: the
	// load reporter is elsewhere.
	final, moved bool
}

func faultf(reason store.Reason, format string, args ...any) *fault {
	return &fault{reason: reason, err: fmt.Errorf(format, args...)}
}

// refusal turns an error of admission into a fault. It is final where another
// stream speaks for the worker, or discovery wants none of this session.
func refusal(err error) *fault {
	var r *registry.Refusal
	if !errors.As(err, &r) {
		return &fault{reason: ingest.ReasonMalformed, err: err}
	}
	f := &fault{reason: r.Reason, err: r}
	switch r.Reason {
	case registry.ReasonSuperseded, registry.ReasonWorkerRemoved, registry.ReasonIdentityChanged, registry.ReasonShuttingDown:
		f.final = true
	}
	return f
}

// lost says what an error of the stream means.
func lost(err error) *fault {
	if errors.Is(err, io.EOF) {
		return faultf(ReasonSessionEnded, "the engine ended the session")
	}
	st := status.Convert(err)
	f := faultf(registry.ReasonEngineError, "the engine ended the session with %s: %s", st.Code(), st.Message())
	switch st.Code() {
	case codes.Unimplemented:
		f.reason, f.final = registry.ReasonUnsupported, true
	case codes.Unauthenticated, codes.PermissionDenied:
		f.reason, f.final = registry.ReasonAuth, true
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		f.reason = registry.ReasonConnectFailed
	}
	return f
}

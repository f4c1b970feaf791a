package ingest

import (
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// MaxRefusedInRow is how many reports in a row may be refused before the
// stream ends.
const MaxRefusedInRow = 10

// retryAfter is the hint that goes with RESOURCE_EXHAUSTED.
const retryAfter = 5 * time.Second

// Code returns the status code that ends a stream or a call for a reason, and whether
// the reason is one of ingest or registry. It is chosen for what an engine
// does next: UNAVAILABLE and RESOURCE_EXHAUSTED make it come back by itself,
// INVALID_ARGUMENT, PERMISSION_DENIED and UNAUTHENTICATED make it wait for a
// renewed registration, and the others end its reporting until it is
// registered again. A reporter that registers itself does so at once after
// NOT_FOUND, and waits for its turn after ALREADY_EXISTS.
func Code(reason store.Reason) (codes.Code, bool) {
	switch reason {
	case registry.ReasonShuttingDown, registry.ReasonNotSynced:
		return codes.Unavailable, true
	case ReasonMessageTooLarge, ReasonTooManyStreams, ReasonStreamRate, ReasonCallRate, ReasonReportRate, ReasonAnswersUnread,
		registry.ReasonTooManyWorkers, registry.ReasonTooManyLeases:
		return codes.ResourceExhausted, true
	case registry.ReasonWorkerRemoved, registry.ReasonIdentityChanged, registry.ReasonUnknownLease, registry.ReasonLeaseExpired:
		return codes.NotFound, true
	case registry.ReasonSuperseded:
		return codes.Aborted, true
	case registry.ReasonRetired, registry.ReasonUnsteady:
		return codes.FailedPrecondition, true
	case registry.ReasonLeaseHeld:
		return codes.AlreadyExists, true
	case registry.ReasonPeerMismatch, registry.ReasonRegistrationOff:
		return codes.PermissionDenied, true
	case ReasonUnauthorized:
		return codes.Unauthenticated, true
	}
	return codes.InvalidArgument, invalid(reason)
}

// invalid says whether the fault is in what the engine sent.
func invalid(reason store.Reason) bool {
	switch reason {
	case registry.ReasonUnknownWorker, registry.ReasonRoleMismatch, registry.ReasonDialectMismatch,
		registry.ReasonSequenceJump, registry.ReasonOldSequence, registry.ReasonClaimChanged,
		registry.ReasonBadAddress, registry.ReasonBadRegistration, store.ReasonDuplicateOrigin, store.ReasonNoEngine:
		return true
	case ReasonMissingSource, ReasonMissingWorker, ReasonBadRole, ReasonIdentityTooLong, ReasonTooManyRefused,
		ReasonMissingLease:
		return true
	case ReasonMalformed, ReasonTooManyRanks, ReasonStringTooLong, ReasonBadStatus, ReasonBadTime,
		ReasonUnreachableWithRanks, ReasonMissingError, ReasonNoRanks, ReasonBadRank,
		ReasonDuplicateRank, ReasonCountOutOfRange, ReasonFloatOutOfRange, ReasonUsedOverCapacity,
		ReasonRunningOverMaximum:
		return true
	}
	return false
}

// Status returns the gRPC status that ends a stream for a refusal. Its text
// is the refusal's; RESOURCE_EXHAUSTED carries a hint when to come back.
func Status(r *registry.Refusal) error {
	code, _ := Code(r.Reason)
	st := status.New(code, r.Error())
	if code != codes.ResourceExhausted {
		return st.Err()
	}
	hinted, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	if err != nil {
		return st.Err()
	}
	return hinted.Err()
}

// ReceiveReason returns why a message could not be received, where that is a
// fault of the message; empty where the stream just ended.
func ReceiveReason(err error) store.Reason {
	if status.Code(err) == codes.ResourceExhausted {
		return ReasonMessageTooLarge
	}
	return ""
}

// Streak counts the reports of a stream that were refused in a row. The zero
// Streak is ready; it is for one goroutine.
type Streak struct{ refused int }

// Accept begins a new row.
func (s *Streak) Accept() { s.refused = 0 }

// Refuse counts a refusal. It returns the refusal that ends the stream, nil
// while the stream may go on.
func (s *Streak) Refuse(r *registry.Refusal) *registry.Refusal {
	if !r.Drop {
		return r
	}
	if s.refused++; s.refused < MaxRefusedInRow {
		return nil
	}
	return refusef(ReasonTooManyRefused, "%d reports in a row, the last one as %s", s.refused, r.Error())
}

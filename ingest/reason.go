package ingest

import (
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Reasons why a report is refused. The stream goes on.
const (
	// ReasonMalformed: the bytes are no message of the dialect.
	ReasonMalformed store.Reason = "malformed"
	// ReasonMessageTooLarge: a message is above MaxMessageBytes. One above 1 MiB
	// is not even read, and ends the stream.
	ReasonMessageTooLarge store.Reason = "message_too_large"
	// ReasonTooManyRanks: more ranks than the limit.
	ReasonTooManyRanks store.Reason = "too_many_ranks"
	// ReasonStringTooLong: the model or the zone is too long.
	ReasonStringTooLong store.Reason = "string_too_long"
	// ReasonBadStatus: the status is not set or not known.
	ReasonBadStatus store.Reason = "bad_status"
	// ReasonBadTime: the time of the report or of a sample is negative.
	ReasonBadTime store.Reason = "bad_time"
	// ReasonUnreachableWithRanks: an unreachable engine reports ranks.
	ReasonUnreachableWithRanks store.Reason = "unreachable_with_ranks"
	// ReasonMissingError: an unreachable engine does not say why.
	ReasonMissingError store.Reason = "missing_error"
	// ReasonNoRanks: a report with a sample has no ranks.
	ReasonNoRanks store.Reason = "no_ranks"
	// ReasonBadRank: a rank number cannot be read, is negative or is above the
	// limit. Of a polled page nothing is used then.
	ReasonBadRank store.Reason = "bad_rank"
	// ReasonDuplicateRank: two ranks have one number.
	ReasonDuplicateRank store.Reason = "duplicate_rank"
	// ReasonCountOutOfRange: a count is negative or above 2^50.
	ReasonCountOutOfRange store.Reason = "count_out_of_range"
	// ReasonFloatOutOfRange: a float is not finite, negative or above its
	// limit.
	ReasonFloatOutOfRange store.Reason = "float_out_of_range"
	// ReasonUsedOverCapacity: a rank uses more tokens than it has.
	ReasonUsedOverCapacity store.Reason = "used_over_capacity"
	// ReasonRunningOverMaximum: a rank runs more requests than it can.
	ReasonRunningOverMaximum store.Reason = "running_over_maximum"
)

// Reasons of identity: the message does not say properly whose it is, and
// the stream ends.
const (
	// ReasonMissingSource: the source instance is empty.
	ReasonMissingSource store.Reason = "missing_source"
	// ReasonMissingWorker: the worker or its address is missing.
	ReasonMissingWorker store.Reason = "missing_worker"
	// ReasonBadRole: the role is not set or not known.
	ReasonBadRole store.Reason = "bad_role"
	// ReasonIdentityTooLong: the source instance or the address is too long.
	ReasonIdentityTooLong store.Reason = "identity_too_long"
	// ReasonMissingLease: the first frame of a stream of a reporter that
	// registers itself does not name its lease.
	ReasonMissingLease store.Reason = "missing_lease"
)

// Reasons of the stream and the connection: the stream ends or is not begun.
const (
	// ReasonTooManyRefused: MaxRefusedInRow reports in a row were refused.
	ReasonTooManyRefused store.Reason = "too_many_refused"
	// ReasonTooManyStreams: the connection has all the streams it may have.
	ReasonTooManyStreams store.Reason = "too_many_streams"
	// ReasonStreamRate: streams are opened faster than the server allows.
	ReasonStreamRate store.Reason = "stream_rate"
	// ReasonUnauthorized: the peer has no credential that is accepted.
	ReasonUnauthorized store.Reason = "unauthorized"
	// ReasonCallRate: an address calls faster than the server allows.
	ReasonCallRate store.Reason = "call_rate"
	// ReasonReportRate: far more reports come than were granted, and go on to.
	ReasonReportRate store.Reason = "report_rate"
	// ReasonAnswersUnread: the peer does not read what it is answered.
	ReasonAnswersUnread store.Reason = "answers_unread"
)

// Refuse returns the refusal for one of this package's reasons. Reports are
// dropped; faults of identity, of the stream and of the connection end the
// stream.
func Refuse(reason store.Reason, message string) *registry.Refusal {
	return &registry.Refusal{Reason: reason, Message: message, Drop: drops(reason)}
}

func drops(reason store.Reason) bool {
	switch reason {
	case ReasonMissingSource, ReasonMissingWorker, ReasonBadRole, ReasonIdentityTooLong,
		ReasonMissingLease, ReasonTooManyRefused, ReasonReportRate, ReasonAnswersUnread,
		ReasonTooManyStreams, ReasonStreamRate, ReasonUnauthorized, ReasonCallRate:
		return false
	}
	return true
}

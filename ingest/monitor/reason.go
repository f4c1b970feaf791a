package monitor

import "github.com/loadplane/loadplane/store"

// Reasons why a session was not opened or ended. Those of reports are of
// package ingest, those of identity and of the connection the registry's.
const (
	// ReasonNoReporterPort: neither discovery nor the engine says on which port
	// its load reporter listens.
	ReasonNoReporterPort store.Reason = "no_reporter_port"
	// ReasonAckTimeout: the engine did not open the stream, or did not answer
	// the register frame, in time.
	ReasonAckTimeout store.Reason = "ack_timeout"
	// ReasonReporterSilent: no report came for three intervals, at least three
	// seconds, and a second more, or none that has a newer sequence.
	ReasonReporterSilent store.Reason = "reporter_silent"
	// ReasonReporterStuck: the engine takes no frames, so that one could not be
	// sent in time.
	ReasonReporterStuck store.Reason = "reporter_stuck"
	// ReasonUnexpectedFrame: a frame came out of order, is empty, or is not
	// readable where it has to be.
	ReasonUnexpectedFrame store.Reason = "unexpected_frame"
	// ReasonSessionRefused: the engine ended the session with an error frame.
	ReasonSessionRefused store.Reason = "session_refused"
	// ReasonSessionEnded: the engine ended the session without an error.
	ReasonSessionEnded store.Reason = "session_ended"
	// ReasonReportFlood: more frames came than any engine has to send.
	ReasonReportFlood store.Reason = "report_flood"
	// ReasonSessionPanic: the code that reads frames panicked. That is a fault
	// of the plane, which goes on.
	ReasonSessionPanic store.Reason = "session_panic"
)

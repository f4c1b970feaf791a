package loadstat

import "github.com/loadplane/loadplane/store"

// Reasons why the sockets of an engine are not heard. Those of messages are of
// package ingest, those of connections the registry's.
const (
	// ReasonForeignEndpoint: the engine names another host than its own for its
	// sockets, which is not dialled.
	ReasonForeignEndpoint store.Reason = "foreign_endpoint"
	// ReasonBadEndpoint: what the engine says of its sockets cannot be: no or
	// too many ranks, or ports that do not exist.
	ReasonBadEndpoint store.Reason = "bad_endpoint"
	// ReasonNoPublisher: what answers on a port does not behave as a ZMQ
	// publisher does.
	ReasonNoPublisher store.Reason = "no_publisher"
	// ReasonRankSilent: nothing came on an open connection for three
	// heartbeats of the engine.
	ReasonRankSilent store.Reason = "rank_silent"
	// ReasonRanksMissing: some DP ranks are heard and others are not, so there
	// is no report.
	ReasonRanksMissing store.Reason = "ranks_missing"
	// ReasonMessageFlood: more messages came than any engine has to publish.
	ReasonMessageFlood store.Reason = "message_flood"
	// ReasonSocketPanic: the code that reads messages panicked. That is a fault
	// of the plane, which goes on with another connection.
	ReasonSocketPanic store.Reason = "socket_panic"
)

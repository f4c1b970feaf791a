package registry

import "github.com/loadplane/loadplane/store"

// Reasons for which a stream or a report is refused.
const (
	// ReasonShuttingDown: the plane drains; the engine should come back.
	ReasonShuttingDown store.Reason = "shutting_down"
	// ReasonBadAddress: the worker_addr of the report is no URL or host:port.
	ReasonBadAddress store.Reason = "bad_address"
	// ReasonNotSynced: the first discovery is not complete, or the addresses
	// of the worker are not known yet; the engine should come back.
	ReasonNotSynced store.Reason = "not_synced"
	// ReasonUnknownWorker: no discovered worker has the claimed origin.
	ReasonUnknownWorker store.Reason = "unknown_worker"
	// ReasonDialectMismatch: the worker is discovered with a dialect in which
	// nobody pushes.
	ReasonDialectMismatch store.Reason = "dialect_mismatch"
	// ReasonRoleMismatch: the report claims another role than discovery, or
	// none.
	ReasonRoleMismatch store.Reason = "role_mismatch"
	// ReasonPeerMismatch: the connection comes from an address that is not
	// the worker's.
	ReasonPeerMismatch store.Reason = "peer_mismatch"
	// ReasonRetired: another instance took over and is still heard, or the
	// instance is that of what ran at the address under another UID.
	ReasonRetired store.Reason = "retired"
	// ReasonSequenceJump: the first sequence is above 2^62, or it is more
	// than 2^32 above the last accepted one.
	ReasonSequenceJump store.Reason = "sequence_jump"
	// ReasonOldSequence: the sequence is not above the last accepted one. It
	// is counted only; the stream goes on.
	ReasonOldSequence store.Reason = "old_sequence"
	// ReasonClaimChanged: a later message of a stream claims another worker,
	// role or source instance than the first.
	ReasonClaimChanged store.Reason = "claim_changed"
	// ReasonSuperseded: a newer stream speaks for the worker.
	ReasonSuperseded store.Reason = "superseded"
	// ReasonWorkerRemoved: discovery does not list the worker any more.
	ReasonWorkerRemoved store.Reason = "worker_removed"
	// ReasonIdentityChanged: the URL, role, dialect, UID or id of the worker
	// changed, or it gained or lost its origin.
	ReasonIdentityChanged store.Reason = "identity_changed"
)

// Reasons for which a registration of a reporter is refused or ends.
const (
	// ReasonLeaseHeld: another registered reporter holds the worker's lease and
	// is heard.
	ReasonLeaseHeld store.Reason = "lease_held"
	// ReasonUnknownLease: the named lease is not known, or not any more; the
	// reporter should register anew.
	ReasonUnknownLease store.Reason = "unknown_lease"
	// ReasonLeaseExpired: the lease was not renewed in time, or was given back.
	ReasonLeaseExpired store.Reason = "lease_expired"
	// ReasonRegistrationOff: nobody may register itself here.
	ReasonRegistrationOff store.Reason = "registration_off"
	// ReasonTooManyWorkers: there are as many workers as are allowed.
	ReasonTooManyWorkers store.Reason = "too_many_workers"
	// ReasonUnsteady: a reporter that was silent sends again, and another
	// dialect is heard; its reports do not count before it has kept its
	// interval for a while.
	ReasonUnsteady store.Reason = "unsteady"
	// ReasonTooManyLeases: the address has as many leases of workers that
	// discovery does not list as are allowed.
	ReasonTooManyLeases store.Reason = "too_many_leases"
	// ReasonBadRegistration: the URL, another text or a time of a registration
	// cannot be used.
	ReasonBadRegistration store.Reason = "bad_registration"
)

// Reasons for which a registration call, or another way to an engine, failed.
// A worker that was never heard shows them in place of store.ReasonNoReport.
const (
	// ReasonConnectFailed: no connection, or it broke or took too long.
	ReasonConnectFailed store.Reason = "connect_failed"
	// ReasonEgressDenied: the worker comes from a source outside the plane, and
	// its address is on the deny list.
	ReasonEgressDenied store.Reason = "egress_denied"
	// ReasonCredential: a token or CA file could not be used, or there is no
	// address to tell the engine.
	ReasonCredential store.Reason = "credential"
	// ReasonLoopbackAddress: the engine is on another host, and the address to
	// tell it is a loopback address.
	ReasonLoopbackAddress store.Reason = "loopback_address"
	// ReasonAuth: the engine answered 401 or 403.
	ReasonAuth store.Reason = "auth"
	// ReasonUnsupported: the engine answered that it does not have what was
	// asked for: 404 or 405.
	ReasonUnsupported store.Reason = "unsupported"
	// ReasonConflict: the engine answered 409; it reports to this address
	// under another of its names.
	ReasonConflict store.Reason = "conflict"
	// ReasonRedirected: the engine answered with a redirect, which is not
	// followed.
	ReasonRedirected store.Reason = "redirected"
	// ReasonRejected: the engine answered with another 4xx.
	ReasonRejected store.Reason = "rejected"
	// ReasonEngineError: the engine answered 429 or 5xx, or with a status
	// that makes no sense.
	ReasonEngineError store.Reason = "engine_error"
	// ReasonBadAnswer: the engine accepted, but its answer could not be used;
	// the lease is renewed after a third of it. Counted and logged.
	ReasonBadAnswer store.Reason = "bad_answer"
)

// Reasons for which a dialer's session ends that are no fault.
const (
	// ReasonInstanceChanged: another process of the engine answers than
	// before; what is known of the engine is asked for again.
	ReasonInstanceChanged store.Reason = "instance_changed"
)

// RegistrationState is the state word of the way to a worker, a registration
// or a dialer's, as shown by store.Diagnostics.Registration.
type RegistrationState string

// The states of a registration, and those of a way that is no registration.
const (
	// StatePending: no call was answered yet.
	StatePending RegistrationState = "pending"
	// StateRegistered: the engine accepted the last call.
	StateRegistered RegistrationState = "registered"
	// StateRetrying: the last call failed and is repeated with back-off.
	StateRetrying RegistrationState = "retrying"
	// StateConflict: the engine is taken under another name; the call is
	// repeated after one lease.
	StateConflict RegistrationState = "conflict"
	// StateParked: the engine refused; the call is repeated when discovery
	// changes the worker, or after a minute.
	StateParked RegistrationState = "parked"
	// StateProbing: the engine is asked which dialects it offers.
	StateProbing RegistrationState = "probing"
	// StatePolling: the engine answered when it was last asked for its load.
	StatePolling RegistrationState = "polling"
	// StateSubscribed: every DP rank that the engine names was heard since its
	// sockets were subscribed to.
	StateSubscribed RegistrationState = "subscribed"
	// StateFailing: the engine did not answer well when it was last asked for
	// its load; it is asked again.
	StateFailing RegistrationState = "failing"
	// StateOff: nothing is sent to this worker.
	StateOff RegistrationState = "off"
)

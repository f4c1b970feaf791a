package access

import "github.com/loadplane/loadplane/store"

// Reasons why a request is refused before it reaches its handler.
const (
	// ReasonNoCredential: the request carries no bearer token and no client
	// certificate.
	ReasonNoCredential store.Reason = "no_credential"
	// ReasonWrongCredential: the request carries a bearer token that is not
	// the one in force.
	ReasonWrongCredential store.Reason = "wrong_credential"
	// ReasonTooManyConnections: the listener has all the connections it takes.
	ReasonTooManyConnections store.Reason = "too_many_connections"
	// ReasonTooManyConnectionsPerAddress: the peer's address has all the
	// connections it may have.
	ReasonTooManyConnectionsPerAddress store.Reason = "too_many_connections_per_address"
	// ReasonCrossOrigin: a browser sent the request for a page of another
	// origin.
	ReasonCrossOrigin store.Reason = "cross_origin"
)

package api

import "github.com/loadplane/loadplane/store"

// Reasons why a request is refused.
const (
	// ReasonTooManyWatchers: the plane serves as many watches as it may.
	ReasonTooManyWatchers store.Reason = "too_many_watchers"
	// ReasonTooManyWatchesPerConnection: the connection carries as many
	// watches as it may.
	ReasonTooManyWatchesPerConnection store.Reason = "too_many_watches_per_connection"
	// ReasonWatchRate: watches are opened faster than the plane allows.
	ReasonWatchRate store.Reason = "watch_rate"
	// ReasonDraining: the plane is about to stop.
	ReasonDraining store.Reason = "draining"
	// ReasonNotBuilt: a field of the request asks for what this version
	// cannot do.
	ReasonNotBuilt store.Reason = "not_built"
	// ReasonUnknownParameter: the query has a key or a value that does not
	// exist.
	ReasonUnknownParameter store.Reason = "unknown_parameter"
)

// Reasons why a message could not be sent. The watch ends with it.
const (
	// ReasonDeadline: the reader did not take a message within WriteTimeout.
	ReasonDeadline store.Reason = "deadline"
	// ReasonClient: the reader is gone.
	ReasonClient store.Reason = "client"
)

// Checks that make the plane not ready, as ReadyReport lists them. A draining
// plane is not ready with ReasonDraining.
const (
	// ReasonWarming: workers that are expected were not yet heard.
	ReasonWarming store.Reason = "warming"
	// ReasonStoreStalled: the store did not commit an expiry that is long due.
	ReasonStoreStalled store.Reason = "store_stalled"
)

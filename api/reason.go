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
	// ReasonSlowClient: watches of the client were cut more than three times
	// in the last minute.
	ReasonSlowClient store.Reason = "slow_client"
	// ReasonTooManyHeld: as many answers are held back as may be.
	ReasonTooManyHeld store.Reason = "too_many_held"
	// ReasonTooManyAnswers: as many whole answers are being written as may be,
	// and none ended in time.
	ReasonTooManyAnswers store.Reason = "too_many_answers"
	// ReasonUnknownParameter: the query has a key that does not exist.
	ReasonUnknownParameter store.Reason = "unknown_parameter"
	// ReasonBadParameter: a parameter has a value that it cannot have.
	ReasonBadParameter store.Reason = "bad_parameter"
	// ReasonBadFilter: the filter is out of its bounds.
	ReasonBadFilter store.Reason = "bad_filter"
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

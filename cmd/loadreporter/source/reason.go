package source

import "github.com/loadplane/loadplane/store"

// Reasons of samples without load, beside those of polls.
const (
	// ReasonAsleep: the engine answers that it sleeps, and serves no requests.
	ReasonAsleep store.Reason = "asleep"
)

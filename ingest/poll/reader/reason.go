package reader

import "github.com/loadplane/loadplane/store"

// Reasons of readers. Those of requests are of package survey and the
// registry's, those of what stands on a page are of package sample.
const (
	// ReasonNotReady: the engine's health page answers 503, so its load page
	// is not believed yet.
	ReasonNotReady store.Reason = "not_ready"
)

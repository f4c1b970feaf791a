package api

import "github.com/loadplane/loadplane/store/snapshot"

// SetChunk makes a small limit testable: events are cut at n bytes.
func (a *API) SetChunk(n int) { a.chunk = n }

// Torn is the check of a view's digest, which nothing makes fail from outside.
func Torn(view *snapshot.View) bool { return torn(view) }

package api

// SetChunk makes a small limit testable: events are cut at n bytes.
func (a *API) SetChunk(n int) { a.chunk = n }

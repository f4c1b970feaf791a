// Package node is what the one process does that owns an engine: it samples
// the engine and sends its load to routers that ask for it and to planes at
// which it registers itself.
package node

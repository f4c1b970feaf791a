// Package api serves the view to routers and people: the Connect services
// (which also speak gRPC and gRPC-Web), the JSON snapshot, the line-by-line
// JSON watch, health, and the endpoints for operators.
//
// Every watch, whatever its encoding, is one goroutine in one loop: it loads
// the newest view, sends what the watcher lacks, and waits. A watcher holds
// nothing but the version and tick that it was last sent. A slow one skips
// versions, and one that does not take a message within WriteTimeout is cut; neither delays
// the store, an engine or another watcher.
//
// The bytes of a version are joined once, out of what package snapshot
// encoded, and shared by all watchers.
package api

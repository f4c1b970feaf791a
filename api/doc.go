// Package api serves the view to routers and people: the Connect services
// (which also speak gRPC and gRPC-Web), the JSON snapshot, the line-by-line
// JSON watch, health, and the endpoints for operators.
//
// Every watch, whatever its encoding, is one goroutine in one loop: it loads
// the newest view of its filter, sends what the watcher lacks, and waits. A
// watcher holds nothing but the name of the version that it was last sent. A
// slow one skips versions and gets a longer interval; one that does not take a
// message within WriteTimeout is cut, and one that is cut again and again is
// refused for a while. None delays the store, an engine or another watcher.
//
// A change of workers that a filter does not select wakes its watchers for a
// look and sends nothing. The bytes of a version are joined once, out of what
// package snapshot encoded, and shared by all watchers of a filter. Answers with
// a whole view are bounded in number while they are written, since each holds
// its own bytes.
package api

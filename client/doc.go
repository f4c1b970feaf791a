// Package client is what a router imports to follow the plane. A Watcher keeps
// a stream to one of several planes and has the view in force at any time; a
// View is immutable, and judges validity by the router's own clock; a Replica
// turns the messages of one stream after another into views and keeps to the
// rules of versions and lineages. The package depends on the wire definitions
// and the Connect runtime only; package client/metrics shows a Watcher to
// Prometheus.
//
// While no plane can be reached the last view stays. Its workers turn invalid
// one by one, none later than the plane allowed, and the router goes on by what
// it knows itself.
package client

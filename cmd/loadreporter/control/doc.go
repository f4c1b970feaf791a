// Package control is the HTTP face of a reporter: routers ask for reports as
// they ask an engine, frontends hint that the load changed, and people and
// probes look at its state. Who decides is a Desk: the process that owns the
// engine, or one that forwards to it.
package control

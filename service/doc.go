// Package service puts the plane together: it wires the packages of the line
// and the sources of discovery, binds the listeners, runs everything, and takes
// it down in order.
//
//	New  wires and binds; it starts nothing.
//	Run  blocks until its context ends or a component fails, then drains:
//	     not ready, watches and report streams ended as UNAVAILABLE,
//	     listeners shut down within a bound, discovery, and the committer
//	     last.
//
// The configuration is in config, TLS and authentication in access, the socket of
// operators in admin.
package service

// Package report is the native reporter: it registers an engine with a plane,
// keeps the lease, and streams its load at the interval that the plane grants.
//
// A Reporter samples by a function of its user, at a fixed rate (package
// schedule). What a slow network holds up is replaced by what is newer, never
// queued, and never delays a sample. The package depends on the wire definitions
// and the Connect runtime only.
package report

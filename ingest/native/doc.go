// Package native is the native dialect: reporters that register themselves on
// the ingest listener and stream loadplane.v1 reports, in which every number
// but the rank's may be unknown.
//
// A stream has three goroutines. The receiver decodes, validates and admits;
// the sender writes what the reporter is answered, the newest only, so that one
// that does not read costs nobody anything; the handler waits for the end of
// the lease, of the binding or of the stream, and admits what was held back.
// Reports above twice the granted rate are merged: the newest counts.
package native

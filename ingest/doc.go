// Package ingest is the wire side of engines: the gRPC server that they
// connect to, and the validation of what they report.
//
// Every dialect has a sub-package of its own that decodes its messages into a
// Report. Validate turns a Report into the immutable store.Load that the rest
// of the plane works on; it is a pure function and knows no dialect. What an
// engine is told when something is refused stands in one table, Code.
package ingest

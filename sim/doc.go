// Package sim runs simulated engines. On the wire they behave as engines of
// several families do: as an SGLang with the push load reporter, which is asked
// over HTTP to report, dials the address it was given and streams its load
// under a lease; as one that is dialled for its load, or publishes it on
// sockets; as engines whose pages are polled; or as one that registers itself
// at a plane. Load comes from a small queueing model, faults come on request.
//
// An Engine lives through one or more lives; a life is one engine process, see
// package reporter. The lives and the faults are here, the pages in package
// face, answers to requests in package serve, and the ways of telling load in
// packages push, monitor, loadstat and native.
package sim

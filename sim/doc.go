// Package sim runs simulated engines. On the wire they behave as an SGLang
// engine with the push load reporter does: they are asked over HTTP to report,
// dial the address they were given and stream their load under a lease. Load
// comes from a small queueing model, faults come on request.
//
// An Engine lives through one or more lives; a life is one engine process, see
// package reporter. The HTTP face, the lives and the faults are here.
package sim

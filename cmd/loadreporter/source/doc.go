// Package source samples the load of the engine that a reporter stands beside.
//
// A Source has one sample under way at a time and asks the engine for one thing
// at a time. Each request is bounded, so that an engine that hangs costs the
// samples that it does not answer and no other. Samples begin at a fixed rate,
// that of the consumer that wants most, and at hints; what came of the last one
// is there at once for all consumers, good or bad.
package source

// Package registry decides who may speak for which worker: it discovers
// workers, asks their engines to report (registration with a lease), binds
// report streams to workers, and admits reports by identity and sequence.
//
// Identity comes from discovery and from the connection, never from a message.
//
// Registry.Run reconciles: it turns the --worker flags and the workers file
// into one store.Discovery per change, and runs one registration loop per
// worker. A loop waits for nobody but its own engine, and the reconciler waits
// for no loop, so a slow engine delays no other worker. Streams come in from
// outside by Registry.Bind; what they may do is decided under the lock of
// their worker alone.
package registry

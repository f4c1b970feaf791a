// Package consumers holds tests that run the example routers of docs/examples,
// in several languages, against the built program and against a plane that
// sends what a test says. It has no code of its own.
package consumers

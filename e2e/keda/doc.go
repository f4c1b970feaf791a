// Package keda has tests of the scaler listener with the client that KEDA
// itself asks external scalers by, against the built service with an engine
// whose load the tests set. It is a module of its own, since KEDA's messages and
// ours have the same names. "make test-keda" builds the service and runs them.
package keda

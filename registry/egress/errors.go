package egress

import "errors"

// Errors of a request. What Get returns wraps exactly one of them, or both
// ErrConnect and ErrDenied.
var (
	// ErrCredential: a token or CA file could not be used.
	ErrCredential = errors.New("credential cannot be used")
	// ErrConnect: there is no connection.
	ErrConnect = errors.New("no connection")
	// ErrDenied: the address is not to be connected to.
	ErrDenied = errors.New("the address is on the deny list")
	// ErrTLS: there is a connection, but TLS did not come about or does not
	// trust the engine.
	ErrTLS = errors.New("no trusted connection")
	// ErrTimeout: the answer was not complete in time.
	ErrTimeout = errors.New("no complete answer in time")
	// ErrBroken: the connection broke, or what came is no HTTP.
	ErrBroken = errors.New("the answer broke off")
	// ErrTooLarge: the headers or the body are above their limit.
	ErrTooLarge = errors.New("the answer is too large")
	// ErrEncoding: the body is compressed, which nobody asked for.
	ErrEncoding = errors.New("the answer is compressed")
)

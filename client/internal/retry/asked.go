package retry

import (
	"errors"
	"time"

	"connectrpc.com/connect"
)

// Exhausted is how long to stay away from a plane that has no room and names no
// time.
const Exhausted = time.Second

// Asked returns how long the plane asks to stay away by an error: the delay of
// a google.rpc.RetryInfo, at most LongestWait. A plane without room that names
// none gets Exhausted; else it is 0.
func Asked(err error) time.Duration {
	var e *connect.Error
	if !errors.As(err, &e) {
		return 0
	}
	for _, d := range e.Details() {
		if d.Type() == "google.rpc.RetryInfo" {
			if wait, ok := Delay(d.Bytes()); ok {
				return wait
			}
		}
	}
	if e.Code() == connect.CodeResourceExhausted {
		return Exhausted
	}
	return 0
}

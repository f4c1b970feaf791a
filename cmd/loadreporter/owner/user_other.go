//go:build !linux

package owner

import "net"

// sameUser leaves it to the modes of the socket and its folder who may connect.
// It is safe for concurrent use.
type sameUser struct{ net.Listener }

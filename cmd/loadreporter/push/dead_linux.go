package push

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// noticeDead ends a connection whose peer acknowledges nothing.
func noticeDead(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}

package owner

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// sameUser closes connections of other users, but for root. It is safe for
// concurrent use.
type sameUser struct{ net.Listener }

// Accept returns the next connection of this user.
func (l sameUser) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || ours(c) {
			return c, err
		}
		_ = c.Close()
	}
}

// ours says whether the peer is of this user, or root.
func ours(c net.Conn) bool {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return err == nil && failed == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0)
}

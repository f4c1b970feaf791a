package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// socketMode lets the owner in, and root.
const socketMode = 0o600

// dialTimeout bounds the question whether somebody answers at a socket.
const dialTimeout = time.Second

// Listen binds a Unix socket that only the process's user can open. The socket
// of a process that died is replaced. Closing removes the socket, unless
// another one stands there by then. Errors say what is in the way.
func Listen(path string) (net.Listener, error) {
	if err := makeWay(path); err != nil {
		return nil, err
	}
	// On Linux a socket is made with the mode of its descriptor, so that nobody
	// else can connect at any time. Elsewhere that fails, and the mode is set
	// after.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
	}}
	ln, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	unix, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, errors.New("not a Unix socket")
	}
	unix.SetUnlinkOnClose(false)
	s := &socket{UnixListener: unix, path: path}
	err = os.Chmod(path, socketMode)
	if err == nil {
		s.made, err = os.Lstat(path)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// makeWay removes a socket at which nobody answers, and refuses anything else.
func makeWay(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is there and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, dialTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process answers at %s", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot tell whether another process answers: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// socket removes itself when it is closed. It is safe for concurrent use.
type socket struct {
	*net.UnixListener
	path string
	made fs.FileInfo
	once sync.Once
}

// Close removes the socket and closes it. The file is compared before: while the
// socket is open, no other file has its number.
func (s *socket) Close() error {
	s.once.Do(func() {
		if now, err := os.Lstat(s.path); err == nil && s.made != nil && os.SameFile(s.made, now) {
			_ = os.Remove(s.path)
		}
	})
	return s.UnixListener.Close()
}

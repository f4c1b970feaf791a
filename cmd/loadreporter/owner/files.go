package owner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what the address of a unix socket holds on every system.
const maxSocketPath = 103

// ErrReplaced says that the lock file is not the one that was locked, so that
// another process may own the engine as well.
var ErrReplaced = errors.New("the lock file was removed or replaced")

// Files are the lock and the socket for one engine. It is a plain value.
type Files struct {
	// Lock is a file that the owner has locked; Socket is the owner's. Life is
	// where it notes the life of the engine.
	Lock, Socket, Life string
}

// FilesIn returns the files for an engine, which its origin names, in a private
// folder below base. It makes the folder where there is none, and refuses one
// that others can write to. Processes of different users have different files.
func FilesIn(base, origin string) (Files, error) {
	dir := filepath.Join(base, "loadreporter-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Files{}, fmt.Errorf("state folder: %w", err)
	}
	if err := checkPrivate(dir); err != nil {
		return Files{}, fmt.Errorf("state folder %s: %w", dir, err)
	}
	sum := sha256.Sum256([]byte(SameHost(origin)))
	name := filepath.Join(dir, hex.EncodeToString(sum[:8]))
	f := Files{Lock: name + ".lock", Socket: name + ".sock", Life: name + ".life"}
	if len(f.Socket) > maxSocketPath {
		return Files{}, fmt.Errorf("state folder: the path of the socket, %s, has more than %d bytes", f.Socket, maxSocketPath)
	}
	return f, nil
}

// SameHost gives the usual names of the loopback interface in host:port one
// name, 127.0.0.1, as they lead to one process.
func SameHost(origin string) string {
	host, port, err := net.SplitHostPort(origin)
	if err != nil {
		return origin
	}
	switch strings.ToLower(host) {
	case "localhost", "localhost.", "::1", "::ffff:127.0.0.1":
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// checkPrivate says what is wrong with a folder that is to be ours alone.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return errors.New("is no folder")
	case !ok || int(owner.Uid) != os.Geteuid():
		return errors.New("belongs to another user")
	case info.Mode().Perm()&0o077 != 0:
		return errors.New("is open to other users; want mode 0700")
	}
	return nil
}

// lock is the locked file. It is for one goroutine.
type lock struct{ file *os.File }

// tryLock returns the lock, nil where another process has it.
func tryLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &lock{f}
	switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		l.free()
		return nil, nil
	case err == nil:
		err = l.check(path)
	}
	if err != nil {
		l.free()
		return nil, fmt.Errorf("lock: %w", err)
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprintf(f, "%d\n", os.Getpid()) // for people only
	return l, nil
}

// check says whether the file at a path is still the locked one.
func (l *lock) check(path string) error {
	ours, err := l.file.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(ours, now) {
		return ErrReplaced
	}
	return nil
}

// free gives the lock back. The file stays: who removed it could remove one
// that another process has locked meanwhile.
func (l *lock) free() { _ = l.file.Close() }

// listen serves the socket. What is there is the rest of an owner that died,
// as the caller has the lock.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return sameUser{ln}, nil
}

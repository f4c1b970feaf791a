package owner

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is the usual number of a user without rights.
const nobody = 65534

// connectAs connects as another user does. The thread that is that user ends
// with its goroutine.
func connectAs(uid int, path string) (int, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- result{-1, errno}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		done <- result{fd, err}
	}()
	r := <-done
	return r.fd, r.err
}

func TestOtherUsersAreNotServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	// An abstract address, as the mode of a file would keep others away already.
	path := fmt.Sprintf("@loadreporter-test-%d", os.Getpid())
	plain, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln := sameUser{plain}
	defer ln.Close()
	fd, err := connectAs(nobody, path)
	if err != nil {
		t.Fatal(err)
	}
	other := os.NewFile(uintptr(fd), "other")
	defer other.Close()
	own, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := io.WriteString(own, "own"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.WriteString("oth"); err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 3)
	if _, err := io.ReadFull(c, text); err != nil || string(text) != "own" {
		t.Errorf("%q, %v is served", text, err)
	}
	_ = c.Close()
	if n, err := other.Read(text); n != 0 || err == nil {
		t.Errorf("another user reads %q", text[:n])
	}
}

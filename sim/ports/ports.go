// Package ports keeps rows of neighbouring ports for simulated engines, which
// listen on them beside their pages.
package ports

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// attempts are the places that are tried for a row.
const attempts = 100

// Listen binds an address, host:port; port 0 takes a free one.
type Listen func(address string) (net.Listener, error)

// Row is a row of neighbouring ports of one host. It keeps its numbers when its
// listeners are closed, and binds them again. All methods are safe for
// concurrent use.
type Row struct {
	listen Listen
	host   string
	base   int
	size   int

	mu    sync.Mutex
	bound []net.Listener // nobody took them yet
}

// Reserve finds a row of free ports and binds it. The error says that there is
// none, or is that of the first listener.
func Reserve(listen Listen, host string, size int) (*Row, error) {
	for range attempts {
		r, err := Bind(listen, host, 0)
		if err != nil {
			return nil, err
		}
		r.size = size
		if r.extend() == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("no %d neighbouring free ports of %s", size, host)
}

// Bind binds one port, 0 for a free one.
func Bind(listen Listen, host string, number int) (*Row, error) {
	l, err := listen(net.JoinHostPort(host, strconv.Itoa(number)))
	if err != nil {
		return nil, err
	}
	host, text, _ := net.SplitHostPort(l.Addr().String()) // an address that is listened on
	base, _ := strconv.Atoi(text)
	return &Row{listen: listen, host: host, base: base, size: 1, bound: []net.Listener{l}}, nil
}

// Address returns host:port of the first port, the host as it is bound.
func (r *Row) Address() string { return net.JoinHostPort(r.host, strconv.Itoa(r.base)) }

// Base returns the first port.
func (r *Row) Base() int { return r.base }

// Size returns the number of ports.
func (r *Row) Size() int { return r.size }

// Take returns listeners on all ports, in order: those of Reserve if they are
// still there, else new ones. They belong to the caller.
func (r *Row) Take() ([]net.Listener, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.bound) == 0 {
		if err := r.extend(); err != nil {
			return nil, err
		}
	}
	taken := r.bound
	r.bound = nil
	return taken, nil
}

// Release closes listeners that nobody took.
func (r *Row) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
}

// extend binds the ports that are missing, or none.
func (r *Row) extend() error {
	for len(r.bound) < r.size {
		number := r.base + len(r.bound)
		if number > 65_535 {
			r.drop()
			return errors.New("no such port")
		}
		l, err := r.listen(net.JoinHostPort(r.host, strconv.Itoa(number)))
		if err != nil {
			r.drop()
			return err
		}
		r.bound = append(r.bound, l)
	}
	return nil
}

func (r *Row) drop() {
	for _, l := range r.bound {
		_ = l.Close()
	}
	r.bound = nil
}

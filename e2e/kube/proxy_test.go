package kube

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// proxy forwards connections to an API server until it is told not to. All its
// methods may be called at any time.
type proxy struct {
	listener net.Listener
	target   string
	work     sync.WaitGroup

	mu   sync.Mutex
	down bool
	open map[net.Conn]bool
}

// newProxy returns a proxy to a server, which ends with the test.
func newProxy(t *testing.T, s *apiServer) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), open: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.work.Wait()
	})
	return p
}

// url is where the server is reached through the proxy.
func (p *proxy) url() string { return "https://" + p.listener.Addr().String() }

// cut closes every connection and takes no new one.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.open {
		_ = c.Close()
	}
}

// restore takes connections again.
func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.keep(c) {
			p.work.Go(func() { p.forward(c) })
		}
	}
}

// keep notes an open connection, or closes it while the proxy is down.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		_ = c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *proxy) forget(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

func (p *proxy) forward(from net.Conn) {
	defer p.forget(from)
	to, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(to) {
		return
	}
	defer p.forget(to)
	p.work.Go(func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	})
	_, _ = io.Copy(from, to)
}

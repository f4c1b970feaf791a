package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/gaps"
)

const (
	metricsPath = "/metrics"
	healthPath  = "/health"
	// dripEach is the time between two bytes of an engine that drips.
	dripEach = time.Second
)

// PagesSpec says how many engines with pages there are and how they answer.
// It is a plain value.
type PagesSpec struct {
	// Ranks is the number of DP ranks on each page, at least 1.
	Ranks int
	// Black is how many engines, from the first, accept and never answer;
	// Drip is how many after them send an answer of a byte a second.
	Black, Drip int
	// Interval is the one at which the engines should be read; intervals are
	// held against it.
	Interval time.Duration
}

// Pages are engines that serve a metrics page of vLLM, each on an address of
// its own, 127.x.y.z, at one port. Every answer has other values. It is safe
// for concurrent use.
type Pages struct {
	spec PagesSpec
	ln   net.Listener
	page *page

	asked *gaps.Recorder[int]

	mu    sync.Mutex
	conns map[net.Conn]bool
	most  int
}

// OpenPages binds the port of the engines. Close gives it back.
func OpenPages(spec PagesSpec) (*Pages, error) {
	p, err := newPage(spec.Ranks)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp4", "0.0.0.0:0") // for all addresses of the loopback net
	if err != nil {
		return nil, err
	}
	return &Pages{spec: spec, ln: ln, page: p, asked: gaps.New[int](), conns: map[net.Conn]bool{}}, nil
}

// Size is the length of a page in bytes.
func (p *Pages) Size() int { return p.page.size }

// Port is the port of the engines' origins.
func (p *Pages) Port() int { return portOf(p.ln) }

// Serve answers until Close, and returns when all connections ended.
func (p *Pages) Serve() error {
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer p.cut()
	for {
		c, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		p.track(c, true)
		handlers.Go(func() {
			defer p.track(c, false)
			defer c.Close()
			p.handle(c)
		})
	}
}

// Close gives the port back and ends Serve.
func (p *Pages) Close() error { return p.ln.Close() }

func (p *Pages) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Pages) track(c net.Conn, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	if open {
		p.conns[c] = true
	}
	p.most = max(p.most, len(p.conns))
}

// handle answers on a connection as its engine does, until it ends.
func (p *Pages) handle(c net.Conn) {
	switch i := engineOf(c.LocalAddr()); {
	case i < p.spec.Black:
		_, _ = io.Copy(io.Discard, c) // until the plane gives it up
	case i < p.spec.Black+p.spec.Drip:
		drip(c)
	default:
		p.answer(c, i)
	}
}

// engineOf is the inverse of Host.
func engineOf(addr net.Addr) int {
	a, err := netip.ParseAddrPort(addr.String())
	if err != nil || !a.Addr().Unmap().Is4() {
		return 0
	}
	b := a.Addr().Unmap().As4()
	return (int(b[1])-1)<<16 + int(b[2])<<8 + int(b[3]) - 1
}

// drip sends a byte of an answer each second until the connection ends.
func drip(c net.Conn) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, c)
	}()
	defer func() { _ = c.Close(); <-gone }()
	tick := time.NewTicker(dripEach)
	defer tick.Stop()
	for _, b := range answer(200, "text/plain", make([]byte, 1<<10)) {
		select {
		case <-gone:
			return
		case <-tick.C:
		}
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
	}
}

// answer answers each request on a connection of engine i.
func (p *Pages) answer(c net.Conn, i int) {
	sheet := p.page.clone()
	in := bufio.NewReader(c)
	for {
		path, err := readRequest(in)
		if err != nil {
			return
		}
		out := notFound
		switch path {
		case metricsPath:
			p.asked.Note(i, Now())
			out = sheet.patched()
		case healthPath:
			out = healthy
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

var (
	notFound = answer(404, "application/json", []byte(`{"detail":"Not Found"}`))
	healthy  = answer(200, "text/plain", nil)
)

// readRequest reads a request without a body and returns its path.
func readRequest(in *bufio.Reader) (path string, err error) {
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return path, nil
		}
		if !first {
			continue
		}
		parts := bytes.Fields(line)
		if len(parts) != 3 {
			return "", fmt.Errorf("no request: %q", line)
		}
		path = string(parts[1])
	}
}

// Record begins to record the intervals that begin from now on.
func (p *Pages) Record() {
	p.asked.Record(p.spec.Interval, Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = len(p.conns)
}

// Intervals says how engines were asked for their pages since Record. It is a
// plain value.
type Intervals struct {
	gaps.Seen
	// Most is how many connections were open at once, Open how many are now.
	Most, Open int
}

// Intervals returns what was recorded.
func (p *Pages) Intervals() Intervals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Intervals{Seen: p.asked.Seen(Now()), Most: p.most, Open: len(p.conns)}
}

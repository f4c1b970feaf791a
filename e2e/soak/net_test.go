package soak

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// buffered is how many bytes a direction of a link holds.
const buffered = 64 << 10

var errRefused = errors.New("connection refused")

// network is a network in memory. It is safe for concurrent use.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	links     []*link
}

func newNetwork() *network { return &network{listeners: map[string]*listener{}} }

// listener accepts the links to one name.
type listener struct {
	network *network
	name    string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (n *network) listen(name string) *listener {
	l := &listener{network: n, name: name, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[name] = l
	return l
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.network.mu.Lock()
		if l.network.listeners[l.name] == l {
			delete(l.network.listeners, l.name)
		}
		l.network.mu.Unlock()
		close(l.closed)
	})
	return nil
}

// dial connects an owner at an address to a listener. tap, if not nil, sees
// what the owner writes.
func (n *network) dial(owner string, from netip.AddrPort, to string, tap func([]byte)) (*end, error) {
	n.mu.Lock()
	l := n.listeners[to]
	n.mu.Unlock()
	if l == nil {
		return nil, errRefused
	}
	k := newLink(owner)
	near := &end{link: k, in: k.down, out: k.up, remote: l.Addr(), tap: tap}
	far := &end{link: k, in: k.up, out: k.down, remote: net.TCPAddrFromAddrPort(from)}
	select {
	case l.conns <- far:
	case <-l.closed:
		return nil, errRefused
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links = append(slices.DeleteFunc(n.links, (*link).gone), k)
	return near, nil
}

// of returns the links of an owner that are not closed.
func (n *network) of(owner string) []*link {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links = slices.DeleteFunc(n.links, (*link).gone)
	var found []*link
	for _, k := range n.links {
		if k.owner == owner {
			found = append(found, k)
		}
	}
	return found
}

// calm ends the faults of all links. One that lost writes is reset: its ends
// do not agree any more.
func (n *network) calm() {
	n.mu.Lock()
	links := slices.Clone(n.links)
	n.mu.Unlock()
	for _, k := range links {
		k.calm()
	}
}

// link is a connection: what its owner writes goes up. Its two ends are for a
// reader and a writer each; its faults may change at any time.
type link struct {
	owner    string
	up, down *half

	mu     sync.Mutex
	reset  bool
	halves [2]*half
}

// half is one direction of a link, guarded by the link's mutex.
type half struct {
	link  *link
	cond  sync.Cond
	queue []segment
	held  int
	// eof says that the writer closed, deaf that the reader did.
	eof, deaf bool

	readBy, writeBy deadline
	fault           fault
}

type segment struct {
	data []byte
	at   time.Time // not to be read before
}

// fault is what goes wrong in one direction. The zero value is none.
type fault struct {
	// delay and jitter put off what is written.
	delay, jitter time.Duration
	rng           *rand.Rand
	// stalled holds everything back.
	stalled bool
	// vanish loses what is written.
	vanish bool
	// cut resets the link after that many bytes more; 0 for never.
	cut int
}

func newLink(owner string) *link {
	k := &link{owner: owner, up: new(half), down: new(half)}
	k.halves = [2]*half{k.up, k.down}
	for _, h := range k.halves {
		h.link, h.cond.L = k, &k.mu
	}
	return k
}

func (k *link) gone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reset || k.up.eof && k.down.eof
}

// change sets the faults of both directions.
func (k *link) change(set func(up, down *fault)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set(&k.up.fault, &k.down.fault)
	k.wake()
}

func (k *link) calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.up.fault.vanish || k.down.fault.vanish {
		k.reset = true
	}
	k.up.fault, k.down.fault = fault{}, fault{}
	k.wake()
}

func (k *link) wake() {
	for _, h := range k.halves {
		h.cond.Broadcast()
	}
}

// read blocks until something is due.
func (h *half) read(p []byte) (int, error) {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	for {
		switch {
		case h.deaf:
			return 0, net.ErrClosed
		case h.readBy.past:
			return 0, os.ErrDeadlineExceeded
		case len(h.queue) > 0 && (h.link.reset || !h.fault.stalled && !time.Now().Before(h.queue[0].at)):
			return h.take(p), nil
		case h.link.reset:
			return 0, syscall.ECONNRESET
		case len(h.queue) == 0 && h.eof:
			return 0, io.EOF
		}
		h.cond.Wait()
	}
}

func (h *half) take(p []byte) int {
	s := &h.queue[0]
	n := copy(p, s.data)
	if s.data = s.data[n:]; len(s.data) == 0 {
		h.queue = h.queue[1:]
	}
	h.held -= n
	h.cond.Broadcast()
	return n
}

// write blocks until everything is on its way.
func (h *half) write(p []byte) (int, error) {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	written := 0
	for {
		switch {
		case h.eof:
			return written, net.ErrClosed
		case h.link.reset:
			return written, syscall.ECONNRESET
		case h.deaf:
			return written, syscall.EPIPE
		case h.writeBy.past:
			return written, os.ErrDeadlineExceeded
		case written == len(p), h.fault.vanish:
			return len(p), nil
		case h.held < buffered:
			written += h.put(p[written:])
			continue
		}
		h.cond.Wait()
	}
}

// put takes as much of p as there is room for, and cuts the link where that
// is due.
func (h *half) put(p []byte) int {
	n := min(len(p), buffered-h.held)
	if h.fault.cut > 0 {
		n = min(n, h.fault.cut)
		if h.fault.cut -= n; h.fault.cut == 0 {
			h.link.reset = true
		}
	}
	at := time.Now().Add(h.fault.delay)
	if h.fault.jitter > 0 {
		at = at.Add(time.Duration(h.fault.rng.Int64N(int64(h.fault.jitter))))
	}
	if last := len(h.queue) - 1; last >= 0 && h.queue[last].at.After(at) {
		at = h.queue[last].at // bytes stay in order
	}
	h.queue = append(h.queue, segment{slices.Clone(p[:n]), at})
	h.held += n
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, h.broadcast)
	}
	h.link.wake()
	return n
}

func (h *half) broadcast() {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	h.cond.Broadcast()
}

// deadline is a point in time that a reader or writer does not wait beyond.
type deadline struct {
	timer *time.Timer
	past  bool
}

// set is called with the link's mutex held.
func (d *deadline) set(h *half, t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.past = nil, !t.IsZero() && !t.After(time.Now())
	if !t.IsZero() && !d.past {
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(t), func() {
			h.link.mu.Lock()
			defer h.link.mu.Unlock()
			if d.timer == timer {
				d.past = true
				h.cond.Broadcast()
			}
		})
		d.timer = timer
	}
	h.cond.Broadcast()
}

// end is one end of a link.
type end struct {
	link    *link
	in, out *half
	remote  net.Addr
	tap     func([]byte)
}

func (e *end) Read(p []byte) (int, error) { return e.in.read(p) }

func (e *end) Write(p []byte) (int, error) {
	if e.tap != nil {
		e.tap(p)
	}
	return e.out.write(p)
}

func (e *end) Close() error {
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	e.out.eof, e.in.deaf = true, true
	e.in.readBy.set(e.in, time.Time{})
	e.out.writeBy.set(e.out, time.Time{})
	e.link.wake()
	return nil
}

func (e *end) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
func (e *end) RemoteAddr() net.Addr { return e.remote }

func (e *end) SetDeadline(t time.Time) error {
	return errors.Join(e.SetReadDeadline(t), e.SetWriteDeadline(t))
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	e.in.readBy.set(e.in, t)
	return nil
}

func (e *end) SetWriteDeadline(t time.Time) error {
	e.link.mu.Lock()
	defer e.link.mu.Unlock()
	e.out.writeBy.set(e.out, t)
	return nil
}

package browser

import (
	"net"
	"sync"
	"testing"
)

// link forwards connections to a plane, and harms them when it is told to.
type link struct {
	addr    string
	to      string
	ln      net.Listener
	running sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	// refusing says that new connections are closed at once.
	refusing bool
	// frozen is closed while nothing is forwarded.
	frozen chan struct{}
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{addr: ln.Addr().String(), to: to, ln: ln, frozen: make(chan struct{})}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		l.cut()
		l.running.Wait()
	})
	return l
}

func (l *link) accept() {
	for {
		near, err := l.ln.Accept()
		if err != nil {
			return
		}
		l.forward(near)
	}
}

func (l *link) forward(near net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	far, err := net.Dial("tcp", l.to)
	if err != nil || l.refusing {
		_ = near.Close()
		if err == nil {
			_ = far.Close()
		}
		return
	}
	l.conns = append(l.conns, near, far)
	frozen := l.frozen
	l.running.Go(func() { carry(near, far, frozen) })
	l.running.Go(func() { carry(far, near, frozen) })
}

// carry copies what comes. Once it is frozen it copies nothing more and closes
// nothing, as a network does that loses all packets.
func carry(to, from net.Conn, frozen <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-frozen:
			return
		default:
		}
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// cut closes the connections and refuses new ones.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusing = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// freeze loses all that is sent over the connections, and over new ones.
func (l *link) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.frozen)
}

// mend lets new connections work again. Frozen ones stay as they are.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refusing = false
	select {
	case <-l.frozen:
		l.frozen = make(chan struct{})
	default:
	}
}

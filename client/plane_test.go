package client

import (
	"context"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"google.golang.org/grpc/test/bufconn"
)

// beat is the heartbeat of the scripted planes.
const beat = time.Second

var errDown = errors.New("connection refused")

// network connects by the name of a host, in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	conns     []*conn
	// dials counts attempts by address.
	dials map[string]int
	// lost holds dials until their context ends.
	lost bool
}

func newNetwork() *network {
	return &network{listeners: map[string]*bufconn.Listener{}, dials: map[string]int{}}
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address]++
	l, lost := n.listeners[address], n.lost
	n.mu.Unlock()
	if lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if l == nil {
		return nil, errDown
	}
	under, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: under, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(slices.DeleteFunc(n.conns, (*conn).over), c)
	return c, nil
}

// dialed returns what was dialled, and how often.
func (n *network) dialed() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.dials)
}

// lose makes the network lose everything: what is read is thrown away, what is
// written waits for ever, dials too.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	for _, c := range n.conns {
		c.hole.Store(true)
	}
}

// heal ends that for new connections.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = false
}

// conn is the client's end of a connection.
type conn struct {
	net.Conn
	hole   atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (c *conn) over() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.hole.Load() {
			return n, err
		}
	}
}

func (c *conn) Write(p []byte) (int, error) {
	if c.hole.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// opening is a watch that a plane was asked for.
type opening struct {
	*pb.WatchSnapshotsRequest
	at     time.Time
	header http.Header
	// number counts them from 0.
	number int
}

// sender sends messages of a watch.
type sender = connect.ServerStream[pb.WatchSnapshotsResponse]

// plane is a scripted SnapshotService. Every second it hears of each worker.
type plane struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
	*testing.T
	net     *network
	host    string
	lineage string
	epoch   uint64
	zero    time.Time
	stop    func()

	mu      sync.Mutex
	version uint64
	warming bool
	workers []*pb.Worker
	stale   chan struct{}
	opened  []opening
	// script, if not nil, answers a watch in place of serve.
	script func(ctx context.Context, o opening, s *sender) error
}

// newPlane returns a plane with two workers, not yet up.
func (n *network) newPlane(t *testing.T, host, lineage string) *plane {
	return &plane{
		T: t, net: n, host: host, lineage: lineage, epoch: 7, version: 1,
		zero: time.Now().Add(-1234 * time.Millisecond), stale: make(chan struct{}),
		workers: []*pb.Worker{w(1, "a", 1), w(2, "b", 2)},
	}
}

// up makes the plane reachable.
func (p *plane) up() *plane {
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(p))
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
	listener := bufconn.Listen(8 << 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	p.net.mu.Lock()
	p.net.listeners[p.host+":80"] = listener
	p.net.mu.Unlock()
	p.stop = sync.OnceFunc(func() {
		p.net.mu.Lock()
		delete(p.net.listeners, p.host+":80")
		p.net.mu.Unlock()
		_ = server.Close()
		<-done
	})
	p.Cleanup(p.stop)
	return p
}

// answer sets the script.
func (p *plane) answer(script func(ctx context.Context, o opening, s *sender) error) *plane {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
	return p
}

// refuse answers every watch with an error.
func (p *plane) refuse(err error) *plane {
	return p.answer(func(context.Context, opening, *sender) error { return err })
}

// change makes a version that differs from the last in worker a.
func (p *plane) change() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	p.workers = slices.Clone(p.workers)
	p.workers[0] = w(1, "a", 1+p.version<<8)
	close(p.stale)
	p.stale = make(chan struct{})
}

func (p *plane) openings() []opening {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.opened)
}

func (p *plane) WatchSnapshots(ctx context.Context, r *pb.WatchSnapshotsRequest, s *sender) error {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	p.mu.Lock()
	o := opening{r, time.Now(), info.RequestHeader(), len(p.opened)}
	p.opened = append(p.opened, o)
	script := p.script
	p.mu.Unlock()
	if script == nil {
		script = p.serve
	}
	return script(ctx, o, s)
}

// serve sends what a watcher lacks, and heartbeats.
func (p *plane) serve(ctx context.Context, o opening, s *sender) error {
	sent := uint64(0)
	if c := o.GetResume(); c.GetLineage() == p.lineage && c.GetEpoch() == p.epoch {
		sent = c.GetVersion()
	}
	timer := time.NewTimer(beat)
	defer timer.Stop()
	for {
		m, stale := p.next(sent)
		sent = m.GetCursor().GetVersion()
		if err := s.Send(m); err != nil {
			return err
		}
		timer.Reset(beat)
		select {
		case <-stale:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the message for a watcher that has a version.
func (p *plane) next(sent uint64) (*pb.WatchSnapshotsResponse, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	digest := sum(p.workers)
	var m *pb.WatchSnapshotsResponse
	switch sent {
	case p.version:
		m = heartbeat(p.version, digest)
	case 0:
		m = full(p.version, p.workers...)
	default:
		m = delta(sent, p.version, digest, &pb.Delta{Workers: p.workers[:1]})
	}
	return p.headLocked(m), p.stale
}

// head fills in the head of a message, and receipts of the fresh workers.
func (p *plane) head(m *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.headLocked(m)
}

func (p *plane) headLocked(m *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
	now := uint64(time.Since(p.zero) / time.Millisecond)
	m.Cursor.Lineage, m.Cursor.Epoch = p.lineage, p.epoch
	m.ServerId, m.ServerClockMs, m.Warming = p.lineage, now, p.warming
	m.HeartbeatIntervalMs = uint32(beat.Milliseconds())
	m.Liveness = &pb.Liveness{}
	for _, x := range p.workers {
		if x.GetFreshness() != pb.Freshness_FRESHNESS_FRESH {
			continue
		}
		// Each reports once a second, at a time of its own.
		phase := uint64(x.GetRow()) * 100
		received := (now-phase)/1000*1000 + phase
		m.Liveness.Workers = append(m.Liveness.Workers, &pb.WorkerLiveness{
			Row: x.GetRow(), SequenceId: received, ReceivedMs: received,
			ValidUntilMs: received + uint64(staleAfter.Milliseconds()),
		})
	}
	return m
}

// watch runs a watcher of planes in memory until the test ends or stop is
// called.
func (n *network) watch(t *testing.T, o Options) (w *Watcher, stop func()) {
	t.Helper()
	w, err := NewWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	w.dial = n.dial
	return w, run(t, w)
}

func run(t *testing.T, w *Watcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		began := time.Now()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(began); took >= time.Second {
			t.Errorf("Run took %v to return", took)
		}
	})
	t.Cleanup(stop)
	return stop
}

// hosts are options with the addresses of hosts.
func hosts(names ...string) Options {
	var o Options
	for _, name := range names {
		o.Addresses = append(o.Addresses, "http://"+name)
	}
	return o
}

// wait lets fake time pass.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, body func(t *testing.T, n *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { body(t, newNetwork()) })
}

// ratchet follows a watcher and fails where a view steps back.
type ratchet struct {
	*testing.T
	stop func()
	// lineages are those seen, each change noted.
	lineages []string
	views    int
}

func follow(t *testing.T, w *Watcher) *ratchet {
	r := &ratchet{T: t}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var last *View
		for {
			v, stale := w.View()
			if v != nil && v != last {
				r.see(last, v)
				last = v
			}
			select {
			case <-stale:
			case <-quit:
				return
			}
		}
	}()
	r.stop = sync.OnceFunc(func() {
		close(quit)
		<-done
	})
	t.Cleanup(r.stop)
	return r
}

func (r *ratchet) see(last, v *View) {
	r.views++
	switch {
	case last == nil || last.Lineage() != v.Lineage():
		r.lineages = append(r.lineages, v.Lineage())
	case older(v.cursor, last.cursor):
		r.Errorf("view %v after %v", v.cursor, last.cursor)
	}
	if sum(v.Workers()) != v.Digest() {
		r.Errorf("view %v is torn", v.cursor)
	}
}

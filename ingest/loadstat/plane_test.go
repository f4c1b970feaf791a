package loadstat

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	workerA   = "http://10.0.0.1:30000"
	workerB   = "http://10.0.0.2:30000"
	hostA     = "10.0.0.1"
	hostB     = "10.0.0.2"
	basePort  = 5600
	testStale = 3 * time.Second
)

// plane is a store and a registry that subscribes, in a bubble of fake time.
type plane struct {
	t        *testing.T
	store    *store.Store
	registry *registry.Registry
	sub      *Subscriber
	net      *network
	facts    *facts
	stop     context.CancelFunc
	runs     sync.WaitGroup
}

// facts is what engines say of themselves, by worker. It stands for their HTTP
// side.
type facts struct {
	mu    sync.Mutex
	stats map[string]registry.LoadStat
	asked map[string]int
}

func (f *facts) set(worker string, stat registry.LoadStat) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats[worker] = stat
}

func (f *facts) asks(worker string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[worker]
}

func (f *facts) Facts(_ context.Context, t registry.Target) registry.Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[t.URL]++
	return registry.Finding{Facts: registry.Facts{Family: "sglang", LoadStat: f.stats[t.URL]}, Complete: true}
}

func (f *facts) Probe(ctx context.Context, t registry.Target) registry.Finding {
	return f.Facts(ctx, t)
}

// inBubble runs body with engines that have some ranks each, at hostA and
// hostB. They publish their load each second.
func inBubble(t *testing.T, ranks int, body func(p *plane, a, b *engine)) {
	t.Helper()
	inBubbleWith(t, ranks, func(*registry.Options, *Options) {}, body)
}

func inBubbleWith(t *testing.T, ranks int, change func(*registry.Options, *Options), body func(p *plane, a, b *engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, change)
		a, b := p.net.engine(hostA, ranks), p.net.engine(hostB, ranks)
		p.facts.set(workerA, registry.LoadStat{Host: "0.0.0.0", Port: basePort, Topic: "load", Ranks: ranks})
		p.facts.set(workerB, registry.LoadStat{Port: basePort, Topic: "load", Ranks: ranks})
		ctx, stop := context.WithCancel(t.Context())
		p.stop = stop
		for _, part := range []func(context.Context) error{p.store.Run, p.registry.Run} {
			p.runs.Go(func() {
				if err := part(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
		body(p, a, b)
		p.close()
	})
}

func newPlane(t *testing.T, change func(*registry.Options, *Options)) *plane {
	t.Helper()
	p := &plane{
		t: t, net: &network{listeners: map[string]*publisher{}},
		facts: &facts{stats: map[string]registry.LoadStat{}, asked: map[string]int{}},
	}
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: testStale, Settle: 10 * time.Millisecond,
		ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet,
	})
	p.must(err)
	opts := Options{Clock: clock, StaleAfter: testStale, Dial: p.net.dial, Registerer: prometheus.NewPedanticRegistry(), Logger: quiet}
	reg := registry.Options{
		Store: p.store, Workers: []string{workerA + ",dialect=loadstat", workerB + ",dialect=loadstat"},
		ReportInterval: time.Second, StaleAfter: testStale, Lease: 15 * time.Second,
		ReportPort: func() uint16 { return 7401 }, Logger: quiet, Prober: p.facts,
	}
	change(&reg, &opts)
	p.sub, err = New(opts)
	p.must(err)
	reg.Dialers = map[store.Dialect]registry.Dialer{store.DialectLoadstat: p.sub}
	p.registry, err = registry.New(reg)
	p.must(err)
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) close() {
	p.stop()
	p.runs.Wait()
	p.net.close()
	if n := p.metric(p.sub.metrics.engines) + p.metric(p.sub.metrics.sockets); n != 0 {
		p.t.Errorf("the gauges of engines and sockets are off by %d at the end", n)
	}
	synctest.Wait()
}

func (p *plane) metric(c prometheus.Collector) int { return int(testutil.ToFloat64(c)) }

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// worker is what the store has of a worker.
type worker struct {
	*store.Entry
	live *store.Live
	diag store.Diagnostics
}

func (p *plane) worker(id string) worker {
	p.t.Helper()
	st, _ := p.store.Current()
	i := slices.IndexFunc(st.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
	if i < 0 {
		p.t.Fatalf("there is no worker %s", id)
	}
	_, d, _ := p.store.Inspect(st.Entries[i].Row)
	return worker{st.Entries[i], st.Live[i], d}
}

// wantFresh checks that a worker is fresh with some ranks.
func (p *plane) wantFresh(id string, ranks int) worker {
	p.t.Helper()
	w := p.worker(id)
	if w.Freshness != store.Fresh || len(w.Ranks) != ranks {
		p.t.Fatalf("%s is %s (%s) with %d ranks, want fresh with %d; %+v", id, w.Freshness, w.Reason, len(w.Ranks), ranks, w.diag)
	}
	return w
}

// wantNothing checks that a worker was never heard, and why.
func (p *plane) wantNothing(id string, reason store.Reason) worker {
	p.t.Helper()
	w := p.worker(id)
	if w.Load != nil || w.Freshness != store.Missing || w.Reason != reason || w.diag.RegistrationError == "" {
		p.t.Errorf("%s is %s (%s) with load %v, want missing (%s); %+v", id, w.Freshness, w.Reason, w.Load, reason, w.diag)
	}
	return w
}

// network connects to publishers in memory.
type network struct {
	mu        sync.Mutex
	listeners map[string]*publisher
	dialled   []string
	engines   []*engine
	runs      sync.WaitGroup
}

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	if kind != "tcp" {
		return nil, syscall.EPROTONOSUPPORT
	}
	n.mu.Lock()
	n.dialled = append(n.dialled, addr)
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	return l.accept(ctx)
}

// dials returns the addresses that were dialled since it was last called.
func (n *network) dials() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	addrs := n.dialled
	n.dialled = nil
	return addrs
}

func (n *network) close() {
	for _, e := range n.engines {
		e.down()
		e.stop()
	}
	n.runs.Wait()
}

// engine is a process with a publisher for each rank.
type engine struct {
	net   *network
	host  string
	port  int
	stop  context.CancelFunc
	mu    sync.Mutex
	ranks []*publisher
}

// engine begins an engine, whose ranks publish what they have each second.
func (n *network) engine(host string, ranks int) *engine {
	ctx, stop := context.WithCancel(context.Background())
	e := &engine{net: n, host: host, port: basePort, stop: stop}
	n.engines = append(n.engines, e)
	e.up(ranks)
	n.runs.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(heartbeat):
				for _, r := range e.publishers() {
					r.beat()
				}
			}
		}
	})
	return e
}

func (e *engine) publishers() []*publisher {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.ranks)
}

func (e *engine) rank(i int) *publisher { return e.publishers()[i] }

// down ends the process.
func (e *engine) down() {
	for i, r := range e.publishers() {
		e.listen(i, nil)
		r.end()
	}
}

// listen has a publisher, or nobody, answer at a rank's port.
func (e *engine) listen(rank int, r *publisher) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	at := sockets{host: e.host, port: e.port}
	delete(e.net.listeners, at.addr(rank))
	if r != nil {
		e.net.listeners[at.addr(rank)] = r
	}
}

// up begins another process.
func (e *engine) up(ranks int) {
	var fresh []*publisher
	for i := range ranks {
		r := &publisher{net: e.net, rank: i, values: []any{int64(i + 1), int64(2), int64(30), int64(100)}}
		fresh = append(fresh, r)
		e.listen(i, r)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ranks = fresh
}

func (e *engine) restart(ranks int) {
	e.down()
	e.up(ranks)
}

// publisher is the socket of one rank.
type publisher struct {
	net  *network
	rank int

	mu sync.Mutex
	// values follow the tag; sequence is the next.
	values   []any
	sequence int64
	// frozen publishes nothing. raw stands for what speaks on a connection, and
	// wrap changes the plane's end.
	frozen bool
	raw    func(net.Conn)
	wrap   func(net.Conn) net.Conn
	conns  map[*zmq4.Conn]string
	far    []net.Conn
}

func (r *publisher) accept(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	r.mu.Lock()
	raw, wrap := r.raw, r.wrap
	r.far = append(r.far, far)
	r.mu.Unlock()
	r.net.runs.Go(func() {
		defer far.Close()
		if raw != nil {
			raw(far)
			return
		}
		r.serve(far)
	})
	if wrap != nil {
		return wrap(near), nil
	}
	return near, nil
}

// eager does not wait until what it writes is read, as a socket does not.
type eager struct {
	net.Conn
	queue chan []byte
	ended context.Context
}

// newEager returns a connection that writes in a goroutine until the
// connection ends or done is called.
func newEager(c net.Conn) (e *eager, done func()) {
	ended, end := context.WithCancel(context.Background())
	e = &eager{c, make(chan []byte, 64), ended}
	var runs sync.WaitGroup
	runs.Go(func() {
		defer end()
		for {
			select {
			case <-ended.Done():
				return
			case p := <-e.queue:
				if _, err := c.Write(p); err != nil {
					return
				}
			}
		}
	})
	return e, func() {
		c.Close()
		end()
		runs.Wait()
	}
}

func (e *eager) Write(p []byte) (int, error) {
	select {
	case <-e.ended.Done():
		return 0, net.ErrClosed
	case e.queue <- slices.Clone(p):
		return len(p), nil
	}
}

// serve is a publisher: it learns what is subscribed to.
func (r *publisher) serve(c net.Conn) {
	e, done := newEager(c)
	defer done()
	conn, err := zmq4.Open(e, null.Security(), zmq4.Pub, nil, true, nil)
	if err != nil {
		return
	}
	defer r.forget(conn)
	for {
		msg, err := conn.RecvMsg()
		if err != nil {
			return
		}
		if msg.Type == zmq4.UsrMsg && len(msg.Frames) == 1 && len(msg.Frames[0]) > 0 && msg.Frames[0][0] == 1 {
			r.mu.Lock()
			if r.conns == nil {
				r.conns = map[*zmq4.Conn]string{}
			}
			r.conns[conn] = string(msg.Frames[0][1:])
			r.mu.Unlock()
		}
	}
}

func (r *publisher) forget(c *zmq4.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

// end closes all connections.
func (r *publisher) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.far {
		c.Close()
	}
	r.far = nil
}

// set changes the publisher.
func (r *publisher) set(change func(r *publisher)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// beat publishes what there is, unless the rank is frozen.
func (r *publisher) beat() {
	r.mu.Lock()
	frozen, values := r.frozen, r.values
	r.mu.Unlock()
	if !frozen {
		r.publish(values...)
	}
}

// say makes values the rank's and publishes them.
func (r *publisher) say(values ...any) {
	r.set(func(r *publisher) { r.values = values })
	r.publish(values...)
}

// publish sends values with the next sequence.
func (r *publisher) publish(values ...any) {
	r.mu.Lock()
	n := r.sequence
	r.sequence++
	r.mu.Unlock()
	r.send([]byte("load"), sequence(n), array(values...))
}

// send sends a message to all subscribers.
func (r *publisher) send(frames ...[]byte) {
	r.mu.Lock()
	var to []*zmq4.Conn
	for c := range r.conns {
		to = append(to, c)
	}
	r.mu.Unlock()
	for _, c := range to {
		_ = c.SendMsg(zmq4.NewMsgFrom(frames...))
	}
}

func sequence(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// array is the payload of a message.
func array(values ...any) []byte {
	b, err := msgpack.Marshal(append([]any{"LoadStat"}, values...))
	if err != nil {
		panic(err)
	}
	return b
}

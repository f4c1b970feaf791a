package loadstat

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Times between messages.
const (
	// publishPeriod is the shortest, for values that change.
	publishPeriod = 50 * time.Millisecond
	// heartbeat is the longest.
	heartbeat = time.Second
)

// Config is what a Publisher needs. It is a plain value.
type Config struct {
	// Process is sampled. Required.
	Process *reporter.Process
	// Role is that of the engine.
	Role pb.WorkerType
	// Faults may change at any time; Silent stops the messages. Required.
	Faults *reporter.Faults
}

// Publisher publishes the load of one engine process. It is not safe for
// concurrent use.
type Publisher struct {
	config Config
	ranks  []*rank
}

// rank is the socket of one rank. sequence, sent and at belong to the goroutine
// that publishes.
type rank struct {
	sequence int64
	sent     []byte
	at       time.Time

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
}

// New returns a publisher for a number of ranks that publishes nothing yet.
func New(ranks int, c Config) *Publisher {
	p := &Publisher{config: c}
	for range ranks {
		p.ranks = append(p.ranks, &rank{subscribers: map[*subscriber]struct{}{}})
	}
	return p
}

// Run publishes on one listener for each rank, in order, and closes them. It
// returns nil when ctx has ended, or the error of a listener, and when every
// goroutine has stopped. Sequences go on in the next Run.
func (p *Publisher) Run(ctx context.Context, listeners []net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	for i, l := range listeners {
		tasks.Go(func() { p.ranks[i].accept(ctx, l, cancel) })
	}
	tasks.Go(func() { p.publish(ctx) })
	<-ctx.Done()
	for _, l := range listeners {
		_ = l.Close()
	}
	tasks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// accept serves subscribers until the listener fails, tells fail, and returns
// when they have left.
func (r *rank) accept(ctx context.Context, l net.Listener, fail func(error)) {
	var subscribers sync.WaitGroup
	defer subscribers.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			fail(err)
			return
		}
		subscribers.Go(func() { r.serve(ctx, conn) })
	}
}

func (r *rank) join(s *subscriber) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscribers[s] = struct{}{}
}

func (r *rank) leave(s *subscriber) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.subscribers, s)
}

// publish sends what changed, and what did not when a heartbeat is due, until
// ctx ends.
func (p *Publisher) publish(ctx context.Context) {
	tick := time.NewTicker(publishPeriod)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			p.publishOnce(now)
		case <-ctx.Done():
			return
		}
	}
}

// publishOnce says nothing where there is no sample: the wire has no word for
// it.
func (p *Publisher) publishOnce(now time.Time) {
	if p.config.Faults.Silent.Load() || !p.heard() {
		return
	}
	s, err := p.config.Process.Sample()
	if err != nil {
		return
	}
	for i, r := range p.ranks {
		load := s.Ranks[i]
		running := load.NumRunningReqs
		if p.config.Role == pb.WorkerType_WORKER_TYPE_PREFILL {
			running = 0 // as on its pages; sglang#31495
		}
		r.publish(now, payload(load, running, s.Counters[i]))
	}
}

// heard says whether there is any subscriber: without one nothing is sampled.
func (p *Publisher) heard() bool {
	for _, r := range p.ranks {
		r.mu.Lock()
		n := len(r.subscribers)
		r.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// publish sends a payload to all that want it if it is new or the last one is
// a heartbeat old.
func (r *rank) publish(now time.Time, payload []byte) {
	if bytes.Equal(payload, r.sent) && now.Sub(r.at) < heartbeat {
		return
	}
	r.sent, r.at = payload, now
	m := message(r.sequence, payload)
	r.sequence++
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.subscribers {
		if s.wants() {
			s.offer(m)
		}
	}
}

package api_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// storm is many clients that come back at once, and does what they are told:
// one that is refused waits as long as the plane says, and a little more.
type storm struct {
	*plane
	mu       sync.Mutex
	admitted []time.Time
	refused  int
}

// TestReconnectsStayWithinTheRate ends a thousand watches and has all clients
// come back at once, with their cursors. The plane takes them at its rate, and
// each in the end.
func TestReconnectsStayWithinTheRate(t *testing.T) {
	const watchers = 1000
	exempt := func(s *setup) { s.api.Exempt = func(netip.Addr) bool { return false } }
	inBubbleBehind(t, exempt, func(l net.Listener) net.Listener { return addressed{l} }, func(p *plane) {
		for _, id := range []string{"a:1", "b:1", "c:1"} {
			p.add(newWorker(id))
			p.report(id, 1, 1, 8)
		}
		p.after(settle)
		replicas := make([]client.Replica, watchers)
		before := heap()
		for round := range 2 {
			s := &storm{plane: p}
			begin := time.Now()
			stop := s.rage(replicas)
			for range 20 {
				if p.after(time.Second); s.count() == watchers {
					break
				}
			}
			p.Logf("round %d: %d watches in %v, %d refusals; %d goroutines, %d KiB more on the heap for both ends",
				round, len(s.admitted), s.last().Sub(begin), s.refused, runtime.NumGoroutine(), (heap()-before)/1024)
			s.check(begin, watchers)
			stop()
			p.after(10 * time.Second) // the rate recovers
		}
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// rage opens a watch for each replica, fifty on a connection, and returns what
// ends them.
func (s *storm) rage(replicas []client.Replica) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	clients := make([]loadplanev1connect.SnapshotServiceClient, (len(replicas)+49)/50)
	for i := range clients {
		clients[i] = s.snapshots()
	}
	for i := range replicas {
		running.Go(func() {
			for pause := time.Duration(0); ctx.Err() == nil; {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
				pause = s.follow(ctx, clients[i/50], &replicas[i])
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// follow opens a watch and follows it until ctx ends, or returns how long to
// wait.
func (s *storm) follow(ctx context.Context, c loadplanev1connect.SnapshotServiceClient, r *client.Replica) time.Duration {
	stream, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{Resume: r.Resume()})
	if err != nil {
		if ctx.Err() == nil {
			s.Error(err)
		}
		return time.Second
	}
	defer func() { _ = stream.Close() }()
	for first := true; stream.Receive(); first = false {
		if first {
			s.mu.Lock()
			s.admitted = append(s.admitted, time.Now())
			s.mu.Unlock()
		}
		if _, err := r.Apply(stream.Msg(), time.Now()); err != nil {
			s.Error(err)
		}
	}
	var rpc *connect.Error
	if ctx.Err() != nil || !errors.As(stream.Err(), &rpc) {
		return 0
	}
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
	if len(rpc.Details()) == 0 || rpc.Code() != connect.CodeResourceExhausted {
		s.Errorf("refused without a time to wait: %v", rpc)
		return time.Second
	}
	detail, _ := rpc.Details()[0].Value()
	delay := detail.(*errdetails.RetryInfo).GetRetryDelay().AsDuration()
	return delay + rand.N(time.Second)
}

func (s *storm) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.admitted)
}

func (s *storm) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.admitted) == 0 {
		return time.Time{}
	}
	return s.admitted[len(s.admitted)-1]
}

// check wants all to be in, and at no time more than the burst and the rate
// allow.
func (s *storm) check(begin time.Time, watchers int) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.admitted) != watchers {
		s.Errorf("%d of %d are in", len(s.admitted), watchers)
	}
	for i, at := range s.admitted {
		if most := 400 + 200*at.Sub(begin).Seconds(); float64(i+1) > most+1 {
			s.Fatalf("%d are in after %v, at most %v may", i+1, at.Sub(begin), most)
		}
	}
	if s.refused < watchers/2 {
		s.Errorf("%d refusals", s.refused)
	}
	if got := s.metric("loadplane_api_watchers", ""); got != float64(watchers) {
		s.Errorf("%v watches are open", got)
	}
}

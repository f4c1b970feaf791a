package api_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/api/query"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/loadplane/loadplane/store/snapshot/filter"
	"google.golang.org/protobuf/proto"
)

// protocols are those that a watch is served by.
func protocols() map[string][]connect.ClientOption {
	return map[string][]connect.ClientOption{
		"connect":  nil,
		"gRPC":     {connect.WithGRPC()},
		"gRPC-Web": {connect.WithGRPCWeb()},
	}
}

// rule is something that every watch promises.
type rule struct {
	name  string
	holds func(p *plane, c loadplanev1connect.SnapshotServiceClient)
}

// rules are what the documentation of the protocol promises. Each is tried on a
// plane with the fresh workers a:1 of model m, b:1 of n, and c:1 of both.
func rules() []rule {
	filtered := func(req *pb.WatchSnapshotsRequest) *pb.WatchSnapshotsRequest {
		req.Filter = ofModel("m")
		return req
	}
	return []rule{
		{"ordered", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			s, last := p.watch(c, filtered(&pb.WatchSnapshotsRequest{})), uint64(0)
			s.full()
			for n := range uint64(30) {
				p.report([]string{"a:1", "b:1", "c:1"}[n%3], n+2, int64(n), 1)
				p.after(settle)
				if n%3 == 1 {
					continue // of the other model
				}
				if v := s.delta().GetCursor().GetVersion(); v <= last {
					p.Errorf("version %d after %d", v, last)
				} else {
					last = v
				}
			}
		}},
		{"unique", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			early := p.watch(c, filtered(&pb.WatchSnapshotsRequest{}))
			early.full()
			for n := range uint64(10) {
				p.report("a:1", n+2, int64(n+2), 1)
				early.delta()
				late := p.watch(c, filtered(&pb.WatchSnapshotsRequest{FullOnly: n%2 == 0}))
				late.full()
				if viewContent(early.view()) != viewContent(late.view()) || !proto.Equal(early.Msg().GetCursor(), late.Msg().GetCursor()) {
					p.Errorf("%v and %v have another content", early.Msg().GetCursor(), late.Msg().GetCursor())
				}
				late.end()
			}
		}},
		{"atomic", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			s := p.watch(c, filtered(&pb.WatchSnapshotsRequest{}))
			s.full()
			for n := range uint64(10) { // both in one commit
				p.report("a:1", n+2, int64(n+2), 1)
				p.report("c:1", n+2, int64(n+2), 1)
				s.delta()
				for _, id := range []string{"a:1", "c:1"} {
					if got := s.view().Worker(id).GetAggregate().GetNumRunningReqs(); got != int64(n+2) {
						p.Errorf("%s has %d at the version of %d", id, got, n+2)
					}
				}
			}
		}},
		{"resumable", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			s := p.watch(c, filtered(&pb.WatchSnapshotsRequest{}))
			s.full()
			for n := range uint64(5) {
				s.end()
				p.report("a:1", n+2, int64(n+2), 1)
				p.change(workerOf("b:1", []string{"m", "n"}[n%2]))
				p.after(settle)
				again := p.watch(c, filtered(&pb.WatchSnapshotsRequest{Resume: s.replica.Resume()}))
				again.replica = s.replica
				again.delta()
				s = again
			}
			if got := viewIDs(s.view()); got != "a:1 b:1 c:1" {
				p.Errorf("holds %s", got)
			}
		}},
		{"bookmarked", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			s := p.watch(c, filtered(&pb.WatchSnapshotsRequest{HeartbeatIntervalMs: 200, MinIntervalMs: 900}))
			held := s.full().GetCursor()
			for n := range uint64(20) {
				p.report("a:1", n+2, int64(n+2), 1)
				m := s.next()
				if m.GetHeartbeat() != nil && !proto.Equal(m.GetCursor(), held) {
					p.Errorf("a heartbeat of %v, held is %v", m.GetCursor(), held)
				}
				held = m.GetCursor()
			}
		}},
		{"filtered", func(p *plane, c loadplanev1connect.SnapshotServiceClient) {
			s := p.watch(c, filtered(&pb.WatchSnapshotsRequest{}))
			s.full()
			if got := viewIDs(s.view()); got != "a:1 c:1" {
				p.Errorf("holds %s", got)
			}
			p.report("b:1", 2, 9, 1)
			s.heartbeat()
			p.change(workerOf("c:1", "n"))
			s.delta()
			if got := viewIDs(s.view()); got != "a:1" || len(s.view().Pools()) != 1 {
				p.Errorf("holds %s and %d pools", got, len(s.view().Pools()))
			}
		}},
	}
}

func TestWatchConformance(t *testing.T) {
	for protocol, opts := range protocols() {
		for _, r := range rules() {
			t.Run(protocol+", "+r.name, func(t *testing.T) {
				inBubble(t, nil, func(p *plane) {
					p.add(workerOf("a:1", "m"), workerOf("b:1", "n"), workerOf("c:1", "m", "n"))
					for _, id := range []string{"a:1", "b:1", "c:1"} {
						p.report(id, 1, 1, 1)
					}
					p.after(settle)
					r.holds(p, p.snapshots(opts...))
				})
			})
		}
	}
}

// names are the digests of what cursors name. It is safe for concurrent use.
type names struct {
	mu    sync.Mutex
	known map[string]uint64
}

// check fails where a cursor was known to name another content.
func (n *names) check(m *pb.WatchSnapshotsResponse) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := fmt.Sprintf("%x %d", m.GetCursor().GetFilterHash(), m.GetCursor().GetVersion())
	digest, known := n.known[name]
	if known && digest != m.GetDigest() {
		return fmt.Errorf("%s names %x and %x", name, digest, m.GetDigest())
	}
	n.known[name] = m.GetDigest()
	return nil
}

// follower follows a filter at its own pace, leaves and comes back, now and
// then for another filter.
type follower struct {
	client  loadplanev1connect.SnapshotServiceClient
	rng     *rand.Rand
	names   *names
	hurry   <-chan struct{}
	pace    time.Duration
	req     *pb.WatchSnapshotsRequest
	replica client.Replica
	events  map[string]int
}

// randomFilter returns one of few, so that some are shared.
func randomFilter(rng *rand.Rand) *pb.Filter {
	switch rng.IntN(8) {
	case 0:
		return nil
	case 1:
		return ofModel("none")
	case 2:
		return &pb.Filter{WorkerIds: []string{fmt.Sprintf("w%02d:30000", rng.IntN(12))}}
	case 3:
		return &pb.Filter{Labels: []*pb.LabelMatch{{Key: "tier", Values: []string{"1"}}}, Zones: []string{"eu", "us"}}
	case 4:
		return &pb.Filter{Zones: []string{"eu"}}
	}
	return ofModel([]string{"llama", "mixtral"}[rng.IntN(2)])
}

func (f *follower) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := f.stream(ctx); err != nil {
			return err
		}
		if f.rng.IntN(10) == 0 && !f.hurried() {
			f.req.Filter, f.replica = randomFilter(f.rng), client.Replica{}
		}
	}
	return nil
}

func (f *follower) hurried() bool {
	select {
	case <-f.hurry:
		return true
	default:
		return false
	}
}

// stream opens a watch and leaves it after some messages.
func (f *follower) stream(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f.req.Resume = f.replica.Resume()
	s, err := f.client.WatchSnapshots(ctx, f.req)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer func() { _ = s.Close() }()
	for range 20 + f.rng.IntN(60) {
		if !s.Receive() {
			return unlessEnded(ctx, s.Err())
		}
		if _, err := f.replica.Apply(s.Msg(), time.Now()); err != nil {
			return fmt.Errorf("%w: filter %v", err, f.req.GetFilter())
		}
		if err := f.names.check(s.Msg()); err != nil {
			return err
		}
		f.events[client.EventName(s.Msg())]++
		select {
		case <-time.After(time.Duration(f.rng.Int64N(int64(f.pace) + 1))):
		case <-f.hurry:
		case <-ctx.Done():
		}
	}
	return nil
}

// TestBug55RandomChangesEndOnOneDigest makes twenty thousand changes under
// fifty watchers of random filters, pauses, intervals and reconnects, by every
// protocol. At the end each holds what the store has of its filter. Under the
// race detector there are fewer changes.
func TestBug55RandomChangesEndOnOneDigest(t *testing.T) {
	inBubble(t, func(s *setup) { s.chunk, s.api.WriteTimeout = 4000, time.Minute }, func(p *plane) {
		ctx, stop := context.WithCancel(p.Context())
		hurry, shared := make(chan struct{}), &names{known: map[string]uint64{}}
		var running sync.WaitGroup
		var all []*follower
		for i := range 50 {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			f := &follower{
				client: p.snapshots([][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithGRPCWeb()}}[i%3]...),
				rng:    rng, names: shared, hurry: hurry, pace: time.Duration(i*i/3) * time.Millisecond, events: map[string]int{},
				req: &pb.WatchSnapshotsRequest{
					Filter: randomFilter(rng), Detail: pb.Detail(rng.IntN(3)), FullOnly: i%10 == 9, ClientId: fmt.Sprint("router-", i),
					MinIntervalMs: []uint32{0, 0, 50, 900}[i%4],
				},
			}
			all = append(all, f)
			running.Go(func() {
				if err := f.run(ctx); err != nil {
					p.Errorf("watcher %d: %v", i, err)
				}
			})
		}
		p.randomChanges(20_000 / raceShare)
		close(hurry)
		<-time.After(3 * time.Second) // for what is held back, and what the connections hold
		stop()
		running.Wait()
		p.checkFollowers(all)
	})
}

// randomChanges makes n changes, several in a commit, and lets workers go
// stale now and then.
func (p *plane) randomChanges(n int) {
	o := &operator{plane: p, rng: rand.New(rand.NewPCG(5, 6))}
	for range n {
		o.step()
		if o.rng.IntN(4) == 0 {
			<-time.After(time.Duration(1+o.rng.IntN(40)) * time.Millisecond)
		}
		if o.rng.IntN(400) == 0 {
			<-time.After(staleAfter)
		}
	}
	<-time.After(2 * staleAfter)
	synctest.Wait()
}

// checkFollowers compares what each holds with the store.
func (p *plane) checkFollowers(all []*follower) {
	p.Helper()
	if err := p.views.Check(); err != nil {
		p.Fatal(err)
	}
	whole, _ := p.views.Current()
	events, filters := map[string]int{}, map[uint64]bool{}
	for i, f := range all {
		for event, n := range f.events {
			events[event] += n
		}
		q, err := query.Selection(f.req.GetFilter(), f.req.GetDetail())
		if err != nil {
			p.Fatal(err)
		}
		filters[q.Filter.Hash()] = true
		digest, ids := sumOf(whole, q.Filter)
		v := f.replica.View()
		if v == nil || v.Digest() != digest || !slices.Equal(workerIDs(v), ids) {
			p.Errorf("watcher %d, filter %v: holds %v, want %v", i, f.req.GetFilter(), v, ids)
			continue
		}
		res, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{Filter: f.req.GetFilter(), Detail: f.req.GetDetail()})
		if err != nil {
			p.Fatal(err)
		}
		for j, want := range res.GetSnapshot().GetFull().GetPools() {
			if len(v.Pools()) <= j || !proto.Equal(v.Pools()[j], want) {
				p.Errorf("watcher %d, filter %v: pools %v, want %v", i, f.req.GetFilter(), v.Pools(), want)
			}
		}
		for j, want := range res.GetSnapshot().GetFull().GetWorkers() {
			if !proto.Equal(v.Workers()[j], want) {
				p.Errorf("watcher %d: worker %v, want %v", i, v.Workers()[j], want)
			}
		}
	}
	p.Logf("%d versions, %d filters at the end, %v", p.version(), len(filters), events)
	if len(filters) < 6 || events["delta"] < int(p.version()) || events["heartbeat"] < len(all) || events["full"] < len(all) {
		p.Error("too few filters, or too few messages of a kind")
	}
}

// sumOf returns the digest and the workers of a filter, from the whole view.
func sumOf(whole *snapshot.View, f *filter.Filter) (digest uint64, ids []string) {
	for _, w := range whole.Workers {
		if f.Match(w.Worker) {
			digest += w.Hash
			ids = append(ids, w.Worker.ID)
		}
	}
	return digest, ids
}

func workerIDs(v *client.View) (ids []string) {
	for _, w := range v.Workers() {
		ids = append(ids, w.GetWorkerId())
	}
	return ids
}

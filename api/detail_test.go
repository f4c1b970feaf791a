package api_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// TestResumeAtAnotherDetail comes back for more or less than what the cursor
// names: that is another content.
func TestResumeAtAnotherDetail(t *testing.T) {
	const ranks, workers = pb.Detail_DETAIL_RANKS, pb.Detail_DETAIL_WORKERS
	for _, c := range []struct {
		name     string
		filter   *pb.Filter
		had, now pb.Detail
		want     string
	}{
		{"with ranks, all", nil, workers, ranks, "full"},
		{"with ranks, of a filter", ofModel("m"), workers, ranks, "full"},
		{"without ranks, all", nil, ranks, workers, "full"},
		{"the same, with ranks", nil, pb.Detail_DETAIL_UNSPECIFIED, ranks, "heartbeat"},
		{"the same, without ranks", nil, workers, workers, "heartbeat"},
		{"the same, without ranks, of a filter", ofModel("m"), workers, workers, "heartbeat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.steadyPair()
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: c.filter, Detail: c.had})
				hash := s.full().GetCursor().GetFilterHash()
				if whole := c.filter == nil && c.had != workers; (hash == 0) != whole {
					p.Errorf("filter_hash %x", hash)
				}
				res, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{Filter: c.filter, Detail: c.had})
				if err != nil || res.GetSnapshot().GetCursor().GetFilterHash() != hash {
					p.Errorf("GetSnapshot has the cursor %v, %v", res.GetSnapshot().GetCursor(), err)
				}
				again := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: c.filter, Detail: c.now, Resume: s.replica.Resume()})
				again.replica = s.replica
				if got := client.EventName(again.next()); got != c.want {
					p.Errorf("a %s, want a %s", got, c.want)
				}
				if w := again.view().Worker("a:1"); (len(w.GetRanks()) > 0) != (c.now != workers) {
					p.Errorf("%d ranks are held", len(w.GetRanks()))
				}
			})
		})
	}
}

// TestBug54ChangeOfFilter has a client come for other engines: it has them at
// once, whether or not it names what it held.
func TestBug54ChangeOfFilter(t *testing.T) {
	for _, named := range []bool{false, true} {
		inBubble(t, nil, func(p *plane) {
			p.steadyPair()
			c := p.snapshots()
			s := p.watch(c, &pb.WatchSnapshotsRequest{Filter: ofModel("m"), ClientId: "router-1"})
			s.full()
			s.end()
			req, begin := &pb.WatchSnapshotsRequest{Filter: ofModel("n"), ClientId: "router-1"}, time.Now()
			if named {
				req.Resume = s.replica.Resume()
			}
			again := p.watch(c, req)
			if again.full(); viewIDs(again.view()) != "b:1" || time.Since(begin) != 0 {
				p.Errorf("%s after %v", viewIDs(again.view()), time.Since(begin))
			}
		})
	}
}

// TestBug22OldSequences delivers the sequences 10, 9 and 11, and 11 again, two
// by two within a commit.
func TestBug22OldSequences(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		running := func() int64 { return s.view().Worker("a:1").GetAggregate().GetNumRunningReqs() }
		for _, step := range []struct {
			first, second uint64
		}{{10, 9}, {11, 11}} {
			p.report("a:1", step.first, int64(step.first), 1)
			p.report("a:1", step.second, 99, 1)
			if s.delta(); running() != int64(step.first) {
				p.Errorf("sequences %d and %d: %d run", step.first, step.second, running())
			}
			s.heartbeat()
		}
	})
}

// mute is a connection that loses what is written once it is told to.
type mute struct {
	net.Conn
	on atomic.Bool
}

// Write writes b, or says so.
func (m *mute) Write(b []byte) (int, error) {
	if m.on.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// TestBug59ClientThatVanished loses all that one client sends, and hears
// nothing of its end. Another is served on, and the place is free in time.
func TestBug59ClientThatVanished(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		p.keepFresh("a:1", 1)
		other := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m"), HeartbeatIntervalMs: 500})
		other.full()
		gone, dial := new(mute), p.dial
		p.dial = func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			gone.Conn = conn
			return gone, err
		}
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")}).full()
		gone.on.Store(true)
		for n := range 32 {
			begin := time.Now()
			if other.heartbeat(); time.Since(begin) > 500*time.Millisecond {
				p.Errorf("heartbeat %d came after %v", n, time.Since(begin))
			}
		}
		if got := p.metric("loadplane_api_watchers", ""); got != 1 {
			p.Errorf("%v watches are open after 16 s", got)
		}
	})
}

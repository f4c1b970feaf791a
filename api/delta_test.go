package api_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// remove takes a worker out of discovery.
func (p *plane) remove(id string) {
	p.store.Apply(store.Discovery{Removed: []*store.Slot{p.slots[id]}})
	delete(p.slots, id)
}

// change replaces what discovery says of a worker, in place.
func (p *plane) change(w *store.Worker) {
	p.store.Apply(store.Discovery{Updated: []store.Update{{Slot: p.slots[w.ID], Worker: w}}})
}

func (p *plane) version() uint64 {
	state, _ := p.store.Current()
	return state.Version
}

func TestDeltaTellsWhatLeft(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		other := newWorker("b:30000")
		other.Models = []string{"llama"}
		p.add(newWorker("a:30000"), other, newWorker("c:30000"))
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		gone := p.slots["b:30000"].Row()
		p.remove("b:30000")
		d := s.delta().GetDelta()
		if len(d.GetRemoved()) != 1 || d.GetRemoved()[0].GetRow() != gone || d.GetRemoved()[0].GetWorkerId() != "b:30000" ||
			len(d.GetRemovedPools()) != 1 || d.GetRemovedPools()[0].GetModel() != "llama" || len(d.GetWorkers())+len(d.GetPools()) != 0 {
			p.Errorf("a removal: %v", d)
		}
		renamed := newWorker("c:30000")
		renamed.Models = []string{"llama"}
		p.change(renamed)
		d = s.delta().GetDelta()
		if len(d.GetRemoved()) != 0 || len(d.GetWorkers()) != 1 || len(d.GetPools()) != 2 || len(d.GetRemovedPools()) != 0 {
			p.Errorf("a change in place: %v", d)
		}
		// The worker comes back under another row in the commit that takes it.
		old := p.slots["a:30000"]
		p.remove("a:30000")
		p.add(newWorker("a:30000"))
		d = s.delta().GetDelta()
		if len(d.GetRemoved()) != 1 || d.GetRemoved()[0].GetRow() != old.Row() || len(d.GetWorkers()) != 1 || s.view().Worker("a:30000").GetRow() == old.Row() {
			p.Errorf("another worker of the same id: %v", d)
		}
	})
}

func TestFullOnly(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"), newWorker("b:30000"))
		p.report("b:30000", 1, 3, 1)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{FullOnly: true})
		s.full()
		p.report("a:30000", 1, 3, 1)
		m := s.full()
		if len(m.GetFull().GetWorkers()) != 2 || len(m.GetLiveness().GetWorkers()) != 2 {
			p.Errorf("got %v", m)
		}
		s.heartbeat()
	})
}

// TestResume opens watches with cursors of all kinds on a plane that is at a
// version above five, told since the fourth, and below which a worker was
// removed.
func TestResume(t *testing.T) {
	const full, delta, heartbeat = "full", "delta", "heartbeat"
	for _, c := range []struct {
		name string
		// cursor changes that of the newest version.
		cursor   func(c *pb.Cursor)
		fullOnly bool
		want     string
	}{
		{"the newest version", func(*pb.Cursor) {}, false, heartbeat},
		{"the version before", func(c *pb.Cursor) { c.Version-- }, false, delta},
		{"the first version that was told", func(c *pb.Cursor) { c.Version -= 2 }, false, delta},
		{"a version that was told to nobody", func(c *pb.Cursor) { c.Version -= 3 }, false, full},
		{"a newer version", func(c *pb.Cursor) { c.Version++ }, false, full},
		{"the newest number there is", func(c *pb.Cursor) { c.Version = 1<<64 - 1 }, false, full},
		{"no version", func(c *pb.Cursor) { c.Version = 0 }, false, full},
		{"another lineage", func(c *pb.Cursor) { c.Lineage = "lineage-2" }, false, full},
		{"no lineage", func(c *pb.Cursor) { c.Lineage = "" }, false, full},
		{"another lineage, an older version", func(c *pb.Cursor) { c.Lineage = "lineage-2"; c.Version-- }, false, full},
		{"an older epoch", func(c *pb.Cursor) { c.Epoch-- }, false, full},
		{"a newer epoch", func(c *pb.Cursor) { c.Epoch++ }, false, full},
		{"another filter", func(c *pb.Cursor) { c.FilterHash = 1 }, false, full},
		{"nothing", nil, false, full},
		{"the version before, fulls only", func(c *pb.Cursor) { c.Version-- }, true, full},
		{"the newest version, fulls only", func(*pb.Cursor) {}, true, heartbeat},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				cursor := p.history()
				req := &pb.WatchSnapshotsRequest{FullOnly: c.fullOnly}
				if c.cursor != nil {
					c.cursor(cursor)
					req.Resume = cursor
				}
				begin := time.Now()
				s := p.watch(p.snapshots(), req)
				if !s.Receive() {
					p.Fatal(s.Err())
				}
				m := s.Msg()
				if got := client.EventName(m); got != c.want || time.Since(begin) != 0 {
					p.Errorf("a %s after %v, want a %s at once", got, time.Since(begin), c.want)
				}
				if d := m.GetDelta(); d != nil && (d.GetBaseVersion() != cursor.GetVersion() || len(d.GetRemoved())+len(d.GetWorkers()) == 0) {
					p.Errorf("delta %v", d)
				}
				// Only b is left: a was removed.
				if receipts := m.GetLiveness().GetWorkers(); len(receipts) != 1 || receipts[0].GetRow() != p.slots["b:30000"].Row() {
					p.Errorf("the first message has the receipts %v", receipts)
				}
				if m.GetCursor().GetVersion() != p.version() || m.GetDigest() == 0 {
					p.Errorf("head %v", m)
				}
			})
		})
	}
}

// history makes the versions that TestResume needs and returns the newest.
func (p *plane) history() *pb.Cursor {
	p.add(newWorker("a:30000"), newWorker("b:30000"))
	p.after(settle)
	p.report("a:30000", 1, 1, 1)
	p.after(settle)
	p.report("b:30000", 1, 1, 1)
	p.after(settle)
	p.views.Current() // the first version that anybody is told of
	p.remove("a:30000")
	p.after(settle)
	p.views.Current()
	p.report("b:30000", 2, 5, 1)
	p.after(settle)
	view, _ := p.views.Current()
	return &pb.Cursor{Lineage: view.Lineage, Epoch: view.Epoch, Version: view.Version}
}

// TestResumeBelowTheHorizon comes back after what it missed was forgotten.
func TestResumeBelowTheHorizon(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		want  string
	}{
		{"in time", time.Minute - time.Second, "delta"},
		{"too late", time.Minute + time.Second, "full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.add(newWorker("a:30000"), newWorker("b:30000"))
				p.after(settle)
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
				s.full()
				s.end()
				p.remove("a:30000")
				p.after(c.after)
				p.report("b:30000", 1, 1, 1)
				p.after(settle)
				again := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Resume: s.replica.Resume()})
				again.replica = s.replica
				if got := client.EventName(again.next()); got != c.want {
					p.Errorf("got a %s, want a %s", got, c.want)
				}
				if again.view().Worker("a:30000") != nil || again.view().Worker("b:30000") == nil {
					p.Errorf("view %v", again.view().Workers())
				}
			})
		})
	}
}

// TestLiveBaseBelowTheHorizon stops reading until a removal that the watcher
// was not told of is forgotten.
func TestLiveBaseBelowTheHorizon(t *testing.T) {
	inBubble(t, func(s *setup) { s.api.WriteTimeout = 10 * time.Minute }, func(p *plane) {
		p.add(newWorker("a:30000"), newWorker("b:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		for n := range uint64(20) {
			p.report("a:30000", n+2, int64(n+1), 512)
			p.after(100 * time.Millisecond)
		}
		p.remove("b:30000")
		p.after(time.Minute + time.Second)
		p.report("a:30000", 30, 30, 512)
		p.after(settle)
		fulls := 0
		for s.view().Version() < p.version() {
			if m := s.next(); m.GetFull() != nil {
				fulls++
				if len(m.GetLiveness().GetWorkers()) != 1 || m.GetCursor().GetVersion() != p.version() {
					p.Errorf("the full has version %d and receipts %v", m.GetCursor().GetVersion(), m.GetLiveness())
				}
			}
		}
		if fulls != 1 || s.view().Worker("b:30000") != nil {
			p.Errorf("%d fulls; workers %v", fulls, s.view().Workers())
		}
		p.report("a:30000", 31, 31, 512)
		s.delta()
	})
}

// TestWatchersShareBytes counts what is encoded for three watchers of one
// pace, a fourth that asks for fulls only, and a fifth that resumes.
func TestWatchersShareBytes(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.after(settle)
		encoded := func(fulls, deltas float64) {
			p.Helper()
			if f, d := p.metric("loadplane_api_fulls_encoded_total", ""), p.metric("loadplane_api_deltas_encoded_total", ""); f != fulls || d != deltas {
				p.Errorf("%v fulls and %v deltas were encoded, want %v and %v", f, d, fulls, deltas)
			}
		}
		var all []*stream
		for _, opts := range [][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithProtoJSON()}} {
			s := p.watch(p.snapshots(opts...), &pb.WatchSnapshotsRequest{})
			s.full()
			all = append(all, s)
		}
		whole := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{FullOnly: true})
		whole.full()
		encoded(1, 0)
		left := all[0].replica.Resume()
		for n := range uint64(5) {
			p.report("a:30000", n+1, int64(n+1), 1)
			for _, s := range all {
				s.delta()
			}
			whole.full()
			encoded(float64(n+2), float64(n+1))
		}
		p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Resume: left}).Receive()
		encoded(6, 6)
	})
}

// TestChunksOfAnEvent reads a full in chunks, one every two seconds, while
// versions pass and the plane drains. What was begun is sent whole first, and
// each chunk has the write timeout to itself.
func TestChunksOfAnEvent(t *testing.T) {
	const workers = 40
	inBubble(t, func(s *setup) { s.chunk = 32 << 10 }, func(p *plane) {
		for i := range workers {
			id := fmt.Sprintf("w%02d:30000", i)
			p.add(newWorker(id))
			p.report(id, 1, 1, 64)
		}
		p.after(settle)
		version := p.version()
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		first := s.full()
		chunks := first.GetFull().GetChunks()
		if chunks < 5 {
			p.Fatalf("%d chunks", chunks)
		}
		for number, m := uint32(0), first; ; number++ {
			f := m.GetFull()
			if f.GetChunk() != number || f.GetChunks() != chunks || m.GetCursor().GetVersion() != version || m.GetDigest() != first.GetDigest() {
				p.Fatalf("chunk %d: %d of %d of version %d", number, f.GetChunk(), f.GetChunks(), m.GetCursor().GetVersion())
			}
			if n, last := len(m.GetLiveness().GetWorkers()), number == chunks-1; last && n != workers || !last && n != 0 {
				p.Errorf("chunk %d carries %d receipts", number, n)
			}
			if (s.view() == nil) == (number == chunks-1) {
				p.Errorf("a view after chunk %d: %v", number, s.view())
			}
			if number == chunks-1 {
				break
			}
			if number == 1 {
				p.report("w00:30000", 2, 2, 64)
			}
			if number == 2 {
				p.api.Drain("the plane restarts")
			}
			p.after(2 * time.Second)
			m = s.full()
		}
		held, m := s.view().Version(), s.next()
		for ; m.GetDelta() != nil; m = s.next() {
			if m.GetDelta().GetBaseVersion() != held {
				p.Errorf("a delta against %d, held is %d", m.GetDelta().GetBaseVersion(), held)
			}
			held = s.view().Version()
		}
		if m.GetGoAway() == nil || m.GetCursor().GetVersion() != held || len(s.view().Workers()) != workers {
			p.Errorf("after the full: %v at version %d", client.EventName(m), s.view().Version())
		}
		if got := p.metric("loadplane_api_messages_sent_total", "full"); got != float64(chunks) {
			p.Errorf("%v fulls are counted, want %d messages", got, chunks)
		}
	})
}

// TestReaderThatStopsWithinAnEventIsCut takes the first chunks and no more.
func TestReaderThatStopsWithinAnEventIsCut(t *testing.T) {
	inBubble(t, func(s *setup) { s.chunk = 32 << 10 }, func(p *plane) {
		for i := range 40 {
			id := fmt.Sprintf("w%02d:30000", i)
			p.add(newWorker(id))
			p.report(id, 1, 1, 64)
		}
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		p.after(4 * time.Second)
		s.full()
		p.after(4 * time.Second)
		if got := p.metric("loadplane_api_watchers", ""); got != 1 {
			p.Fatalf("%v watches are open, want 1", got)
		}
		p.after(2 * time.Second)
		if got := p.metric("loadplane_api_watchers", ""); got != 0 {
			p.Errorf("%v watches are open after the write timeout", got)
		}
		for s.Receive() {
			if _, err := s.replica.Apply(s.Msg(), time.Now()); err != nil {
				p.Fatal(err)
			}
		}
		if s.Err() == nil || s.view() != nil {
			p.Errorf("the stream ended with %v, and a view %v", s.Err(), s.view())
		}
	})
}

func TestSnapshotIsOneMessage(t *testing.T) {
	inBubble(t, func(s *setup) { s.chunk = 100 }, func(p *plane) {
		p.steadyInBubble()
		res, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
		if err != nil {
			p.Fatal(err)
		}
		if f := res.GetSnapshot().GetFull(); len(f.GetWorkers()) != 2 || f.GetChunks() != 0 {
			p.Errorf("got %v", f)
		}
		if s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}); s.full().GetFull().GetChunks() < 2 {
			p.Error("the limit is not in force")
		}
	})
}

// TestGoAwayNamesWhatIsHeld drains the plane while readers are behind. Each
// gets the change first, since it resumes from the last cursor.
func TestGoAwayNamesWhatIsHeld(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		var all []*stream
		for range 16 {
			s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
			s.full()
			all = append(all, s)
		}
		for n := range uint64(20) {
			p.report("a:30000", n+2, int64(n+1), 512)
			p.after(100 * time.Millisecond)
		}
		p.api.Drain("")
		for _, s := range all {
			m := s.next()
			for m.GetDelta() != nil {
				m = s.next()
			}
			if m.GetGoAway() == nil || m.GetCursor().GetVersion() != p.version() || s.replica.Resume().GetVersion() != p.version() {
				p.Errorf("a %s of version %d, want a go_away of %d", client.EventName(m), m.GetCursor().GetVersion(), p.version())
			}
			if s.Receive() {
				p.Error("a message after go_away")
			}
			wantCode(p, s.Err(), connect.CodeUnavailable)
		}
	})
}

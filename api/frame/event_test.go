package frame

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/proto"
)

// changing is a snapshot of n workers at version 10, of which every second
// changed in version 9. Worker "gone" left in version 8, a pool in version 9.
func changing(n int) *snapshot.Snapshot {
	s := &snapshot.Snapshot{Lineage: "l", Content: &store.Content{
		Version:    10,
		Tombstones: []*store.Tombstone{{Row: 99, Worker: &store.Worker{ID: "gone"}, Version: 8}},
	}}
	for i := range n {
		id := fmt.Sprintf("worker-%03d", i)
		encoded, _ := proto.Marshal(&pb.Worker{Row: uint32(i + 1), WorkerId: id})
		e := &store.Entry{Row: uint32(i + 1), Version: uint64(3 + i%2*6)}
		s.Workers = append(s.Workers, &snapshot.Worker{Entry: e, Encoded: encoded})
	}
	for _, model := range []string{"a", "b"} {
		encoded, _ := proto.Marshal(&pb.Pool{Key: &pb.PoolKey{Model: model}})
		s.Pools = append(s.Pools, &snapshot.Pool{Key: snapshot.PoolKey{Model: model}, Version: 9, Encoded: encoded})
	}
	s.PoolGraves = []*snapshot.PoolGrave{{Key: snapshot.PoolKey{Model: "c", Role: store.RoleDecode}, Version: 9}}
	return s
}

// messages decodes chunks.
func messages(t *testing.T, chunks []*Chunk) []*pb.WatchSnapshotsResponse {
	t.Helper()
	var out []*pb.WatchSnapshotsResponse
	for _, c := range chunks {
		m := new(pb.WatchSnapshotsResponse)
		if err := proto.Unmarshal(c.bytes, m); err != nil {
			t.Fatal(err)
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("unknown fields in %x", c.bytes)
		}
		out = append(out, m)
	}
	return out
}

// joined merges the chunks into one message, without their numbers.
func joined(t *testing.T, all []*pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
	t.Helper()
	whole := new(pb.WatchSnapshotsResponse)
	for i, m := range all {
		number, count := max(m.GetFull().GetChunk(), m.GetDelta().GetChunk()), max(m.GetFull().GetChunks(), m.GetDelta().GetChunks())
		if want := uint32(len(all)); len(all) > 1 && (number != uint32(i) || count != want) || len(all) == 1 && number+count > 0 {
			t.Errorf("chunk %d of %d says %d of %d", i, want, number, count)
		}
		proto.Merge(whole, m)
	}
	if f := whole.GetFull(); f != nil {
		f.Chunk, f.Chunks = 0, 0
	}
	if d := whole.GetDelta(); d != nil {
		d.Chunk, d.Chunks = 0, 0
	}
	return whole
}

func TestDeltaHasWhatIsNewerThanItsBase(t *testing.T) {
	s := changing(4)
	for _, c := range []struct {
		base           uint64
		workers, pools int
		gone, lost     int
	}{
		{2, 4, 2, 1, 1},
		{3, 2, 2, 1, 1},
		{7, 2, 2, 1, 1},
		{8, 2, 2, 0, 1},
		{9, 0, 0, 0, 0},
		{10, 0, 0, 0, 0},
	} {
		d := messages(t, encodeEvent(s, Change{Base: c.base}))[0].GetDelta()
		if d.GetBaseVersion() != c.base || len(d.GetWorkers()) != c.workers || len(d.GetPools()) != c.pools ||
			len(d.GetRemoved()) != c.gone || len(d.GetRemovedPools()) != c.lost {
			t.Errorf("base %d: %v", c.base, d)
		}
		for _, r := range d.GetRemoved() {
			if r.GetRow() != 99 || r.GetWorkerId() != "gone" {
				t.Errorf("removed %v", r)
			}
		}
		for _, k := range d.GetRemovedPools() {
			if k.GetModel() != "c" || k.GetRole() != pb.Role_ROLE_DECODE {
				t.Errorf("removed pool %v", k)
			}
		}
	}
}

func TestChunksReassemble(t *testing.T) {
	s := changing(40)
	for name, base := range map[string]uint64{"full": 0, "delta": 2} {
		whole := encodeEvent(s, Change{Base: base})
		if len(whole) != 1 {
			t.Fatalf("%s: %d chunks without a limit", name, len(whole))
		}
		want := joined(t, messages(t, whole))
		for _, limit := range []int{1, 20, 64, 200, whole[0].Size() - 6, whole[0].Size()} {
			chunks := encodeEvent(s, Change{Base: base, Limit: limit})
			all := messages(t, chunks)
			if got := joined(t, all); !proto.Equal(got, want) {
				t.Errorf("%s, limit %d: the chunks are another message", name, limit)
			}
			for i, m := range all {
				if m.GetDelta().GetBaseVersion() != base {
					t.Errorf("%s, limit %d: chunk %d has base %d", name, limit, i, m.GetDelta().GetBaseVersion())
				}
				if parts := len(m.GetFull().GetWorkers()) + len(m.GetDelta().GetWorkers()) + len(m.GetFull().GetPools()) +
					len(m.GetDelta().GetPools()) + len(m.GetDelta().GetRemoved()) + len(m.GetDelta().GetRemovedPools()); parts == 0 {
					t.Errorf("%s, limit %d: chunk %d is empty", name, limit, i)
				} else if heads := 20; parts > 1 && chunks[i].Size() > limit+heads {
					t.Errorf("%s, limit %d: chunk %d has %d bytes", name, limit, i, chunks[i].Size())
				}
			}
		}
		if n := len(encodeEvent(s, Change{Base: base, Limit: 1})); n < 40 {
			t.Errorf("%s: %d chunks for one each", name, n)
		}
	}
}

// TestLargeWorkerHasItsOwnChunk puts one above the limit between small ones.
func TestLargeWorkerHasItsOwnChunk(t *testing.T) {
	for name, base := range map[string]uint64{"full": 0, "delta": 2} {
		s := changing(5)
		ranks := make([]*pb.RankLoad, 4096)
		for i := range ranks {
			ranks[i] = &pb.RankLoad{DpRank: int32(i)}
		}
		s.Workers[2].Encoded, _ = proto.Marshal(&pb.Worker{Row: 3, Ranks: ranks})
		s.Tombstones, s.PoolGraves = nil, nil
		all := messages(t, encodeEvent(s, Change{Base: base, Limit: 1000}))
		var sizes []int
		for _, m := range all {
			sizes = append(sizes, len(m.GetFull().GetWorkers())+len(m.GetDelta().GetWorkers()))
		}
		if !slices.Equal(sizes, []int{2, 1, 2}) {
			t.Errorf("%s: workers by chunk %v, want 2, 1, 2", name, sizes)
		}
	}
}

func TestEmptyEvents(t *testing.T) {
	s := changing(0)
	s.Pools, s.PoolGraves, s.Tombstones = nil, nil, nil
	for _, limit := range []int{0, 10} {
		if m := messages(t, encodeEvent(s, Change{Limit: limit})); len(m) != 1 || m[0].GetFull() == nil {
			t.Errorf("an empty full: %v", m)
		}
		if m := messages(t, encodeEvent(s, Change{Base: 9, Limit: limit})); len(m) != 1 || m[0].GetDelta().GetBaseVersion() != 9 {
			t.Errorf("an empty delta: %v", m)
		}
	}
}

func TestEventsAreShared(t *testing.T) {
	var counts Counts
	cache := Cache{Counts: &counts}
	s := changing(4)
	first := cache.Change(s, Change{Base: 5})
	if again := cache.Change(s, Change{Base: 5}); again[0] != first[0] {
		t.Error("one delta was built twice")
	}
	for what, other := range map[string][]*Chunk{"base": cache.Change(s, Change{Base: 6}), "kind": cache.Change(s, Change{}), "limit": cache.Change(s, Change{Base: 5, Limit: 10})} {
		if other[0] == first[0] {
			t.Errorf("another %s got the same event", what)
		}
	}
	if fulls, deltas := counts.Encoded(); fulls != 1 || deltas != 3 {
		t.Errorf("%d fulls and %d deltas were encoded, want 1 and 3", fulls, deltas)
	}
}

func TestSupersededEventsAreDropped(t *testing.T) {
	var cache Cache
	s := changing(4)
	old := cache.Change(s, Change{Base: 5})
	next := *s
	next.Content = &store.Content{Version: 11}
	newest := cache.Change(&next, Change{Base: 10})
	if len(cache.events.kept) != 1 {
		t.Errorf("%d events are kept, want that of the newest version", len(cache.events.kept))
	}
	late := cache.Change(s, Change{Base: 5})
	if late[0] == old[0] || !bytes.Equal(late[0].bytes, old[0].bytes) {
		t.Error("a reader that is behind did not get an event of its own")
	}
	if len(cache.events.kept) != 1 || cache.Change(&next, Change{Base: 10})[0] != newest[0] {
		t.Error("a reader that is behind changed what is kept")
	}
}

func TestKeptEventsAreBounded(t *testing.T) {
	var cache Cache
	s := changing(2)
	for base := range uint64(3 * maxShared) {
		if n := len(cache.Change(s, Change{Base: base})); n != 1 {
			t.Fatalf("%d chunks", n)
		}
	}
	if n := len(cache.events.kept); n != maxShared {
		t.Errorf("%d events are kept, want %d", n, maxShared)
	}
}

func TestLivenessIsShared(t *testing.T) {
	var cache Cache
	v := testView(2)
	block := cache.Receipts(v, Since{Tick: 1})
	if &block[0] != &cache.Receipts(v, Since{Tick: 1})[0] {
		t.Error("one block was built twice")
	}
	if bytes.Equal(block, cache.Receipts(v, Since{})) {
		t.Error("two spans got one block")
	}
	next := *v
	next.Tick++
	cache.Receipts(&next, Since{Tick: 1})
	if len(cache.blocks.kept) != 1 {
		t.Errorf("%d blocks are kept, want those of the newest tick", len(cache.blocks.kept))
	}
	if got := cache.Receipts(v, Since{Tick: 1}); !bytes.Equal(got, block) || cache.blocks.newest != next.Tick {
		t.Error("a view that is behind got another block or moved the cache back")
	}
}

// TestBriefEventsHaveNoRanks encodes both details of one version.
func TestBriefEventsHaveNoRanks(t *testing.T) {
	s := changing(3)
	for _, w := range s.Workers {
		w.Encoded, _ = proto.Marshal(&pb.Worker{Row: w.Row, Ranks: []*pb.RankLoad{{DpRank: 1}, {DpRank: 2}}, Flags: []string{"f"}})
	}
	for name, base := range map[string]uint64{"full": 0, "delta": 2} {
		var cache Cache
		whole := messages(t, cache.Change(s, Change{Base: base}))[0]
		brief := messages(t, cache.Change(s, Change{Base: base, Brief: true}))[0]
		want := append(whole.GetFull().GetWorkers(), whole.GetDelta().GetWorkers()...)
		if len(want) != 3 || len(want[0].GetRanks()) != 2 {
			t.Fatalf("%s with ranks: %v", name, whole)
		}
		for _, w := range want {
			w.Ranks = nil
		}
		if !proto.Equal(whole, brief) {
			t.Errorf("%s without ranks: %v, want %v", name, brief, whole)
		}
	}
}

// TestBudgetCountsWhatIsKept has an event of an old version come out late.
func TestBudgetCountsWhatIsKept(t *testing.T) {
	budget := NewBudget(1 << 20)
	var s shared[string, int]
	build := func(size int) func() (int, int) { return func() (int, int) { return size, size } }
	late := s.find(budget, place[string]{1, "a"}, build(100))
	s.get(budget, place[string]{2, "a"}, build(7))
	s.get(budget, place[string]{2, "a"}, build(7))
	if got := late(); got != 100 || budget.Used() != 7 {
		t.Errorf("built %d, %d bytes are counted, want 7", got, budget.Used())
	}
	s.get(budget, place[string]{2, "b"}, build(5))
	if budget.Used() != 12 {
		t.Errorf("%d bytes are counted, want 12", budget.Used())
	}
	s.keepAny(budget, false)
	s.get(budget, place[string]{3, "b"}, build(5))
	if budget.Used() != 0 {
		t.Errorf("%d bytes are counted after all was dropped", budget.Used())
	}
	s.keepAny(budget, true)
	late = s.find(budget, place[string]{3, "b"}, build(5))
	s.keepAny(budget, false)
	late()
	if s.keepAny(budget, true); budget.Used() != 0 {
		t.Errorf("%d bytes are counted of what came late", budget.Used())
	}
	if s.get(budget, place[string]{3, "b"}, build(5)); budget.Used() != 5 {
		t.Errorf("%d bytes are counted, want 5", budget.Used())
	}
}

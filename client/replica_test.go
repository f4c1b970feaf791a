package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

const staleAfter = 3 * time.Second

// start is the local clock of these tests.
var start = time.Now()

// w is a worker with a content of its own.
func w(row uint32, id string, hash uint64) *pb.Worker {
	return &pb.Worker{Row: row, WorkerId: id, ContentHash: hash, Freshness: pb.Freshness_FRESHNESS_FRESH}
}

func pool(model string) *pb.Pool { return &pb.Pool{Key: &pb.PoolKey{Model: model}} }

// message has the head of a version and no event.
func message(version, digest uint64) *pb.WatchSnapshotsResponse {
	return &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "l", Epoch: 7, Version: version}, Digest: digest,
		ServerClockMs: 100_000, StaleAfterMs: uint32(staleAfter.Milliseconds()),
	}
}

func full(version uint64, workers ...*pb.Worker) *pb.WatchSnapshotsResponse {
	m := message(version, sum(workers))
	m.Event = &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers}}
	return m
}

func sum(workers []*pb.Worker) (digest uint64) {
	for _, w := range workers {
		digest += w.GetContentHash()
	}
	return digest
}

func delta(base, version, digest uint64, d *pb.Delta) *pb.WatchSnapshotsResponse {
	m := message(version, digest)
	d.BaseVersion = base
	m.Event = &pb.WatchSnapshotsResponse_Delta{Delta: d}
	return m
}

func heartbeat(version, digest uint64) *pb.WatchSnapshotsResponse {
	m := message(version, digest)
	m.Event = &pb.WatchSnapshotsResponse_Heartbeat{Heartbeat: &pb.Heartbeat{}}
	return m
}

// heard adds receipts that are valid for a time.
func heard(m *pb.WatchSnapshotsResponse, valid time.Duration, rows ...uint32) *pb.WatchSnapshotsResponse {
	if m.Liveness == nil {
		m.Liveness = &pb.Liveness{}
	}
	for _, row := range rows {
		m.Liveness.Workers = append(m.Liveness.Workers, &pb.WorkerLiveness{
			Row: row, SequenceId: uint64(row), ValidUntilMs: uint64(int64(m.GetServerClockMs()) + valid.Milliseconds()),
		})
	}
	return m
}

// of changes the cursor of a message.
func of(m *pb.WatchSnapshotsResponse, change func(c *pb.Cursor)) *pb.WatchSnapshotsResponse {
	change(m.Cursor)
	return m
}

func lineage(name string) func(c *pb.Cursor) { return func(c *pb.Cursor) { c.Lineage = name } }

// apply applies messages that must be taken.
func apply(t *testing.T, r *Replica, all ...*pb.WatchSnapshotsResponse) *View {
	t.Helper()
	for i, m := range all {
		if _, err := r.Apply(m, start); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	return r.View()
}

func ids(v *View) (out []string) {
	for _, w := range v.Workers() {
		out = append(out, w.GetWorkerId())
	}
	return out
}

func models(v *View) (out []string) {
	for _, p := range v.Pools() {
		out = append(out, p.GetKey().GetModel())
	}
	return out
}

func TestFullReplacesEverything(t *testing.T) {
	var r Replica
	if r.View() != nil || r.Resume() != nil {
		t.Error("a new replica holds something")
	}
	first := full(3, w(2, "b", 20), w(1, "a", 10))
	first.GetFull().Pools = []*pb.Pool{pool("n"), pool("m")}
	first.Warming = true
	v := apply(t, &r, heard(first, time.Second, 1))
	if !slices.Equal(ids(v), []string{"a", "b"}) || !slices.Equal(models(v), []string{"m", "n"}) {
		t.Errorf("workers %v, pools %v", ids(v), models(v))
	}
	if v.Lineage() != "l" || v.Epoch() != 7 || v.Version() != 3 || v.Digest() != 30 || !v.Warming() || v.Age(start.Add(time.Second)) != time.Second {
		t.Errorf("view %v", v.cursor)
	}
	if v.Worker("a").GetRow() != 1 || v.Worker("x") != nil || v.Receipt(v.Worker("a")).GetSequenceId() != 1 || v.Receipt(v.Worker("b")) != nil {
		t.Error("a worker or its receipt is not found")
	}
	v = apply(t, &r, full(5, w(3, "c", 5)))
	if !slices.Equal(ids(v), []string{"c"}) || len(v.Pools()) != 0 || len(v.receipts) != 0 || v.Warming() {
		t.Errorf("workers %v, pools %v, receipts %v", ids(v), models(v), v.receipts)
	}
}

func TestDelta(t *testing.T) {
	var r Replica
	first := full(3, w(1, "a", 1), w(2, "b", 2), w(3, "c", 4))
	first.GetFull().Pools = []*pb.Pool{pool("m"), pool("n")}
	apply(t, &r, heard(first, time.Second, 1, 2, 3))
	v := apply(t, &r, heard(delta(3, 9, 1+16+32, &pb.Delta{
		Removed: []*pb.RemovedWorker{{Row: 2, WorkerId: "b"}, {Row: 77, WorkerId: "never had"}},
		// The worker b comes back under another row: removals apply first.
		Workers:      []*pb.Worker{w(3, "c", 16), w(4, "b", 32)},
		Pools:        []*pb.Pool{pool("o"), pool("n")},
		RemovedPools: []*pb.PoolKey{{Model: "m"}, {Model: "n"}, {Model: "never had"}},
	}), time.Second, 4, 77))
	if !slices.Equal(ids(v), []string{"a", "b", "c"}) || !slices.Equal(models(v), []string{"n", "o"}) || v.Version() != 9 {
		t.Errorf("workers %v, pools %v at %d", ids(v), models(v), v.Version())
	}
	if v.Worker("b").GetRow() != 4 || v.Worker("c").GetContentHash() != 16 {
		t.Errorf("workers %v", v.Workers())
	}
	if len(v.receipts) != 3 || v.Receipt(w(2, "b", 2)) != nil || v.Receipt(v.Worker("b")) == nil || v.Receipt(v.Worker("c")) == nil {
		t.Errorf("receipts %v", v.receipts)
	}
}

func TestHeartbeatMovesLivenessOnly(t *testing.T) {
	var r Replica
	before := apply(t, &r, heard(full(3, w(1, "a", 1), w(2, "b", 2)), time.Second, 1, 2))
	beat := heard(heartbeat(3, 3), 2*time.Second, 2)
	beat.Liveness.Workers[0].SequenceId = 50
	v := apply(t, &r, beat)
	if v == before || !slices.Equal(v.Workers(), before.Workers()) || v.Version() != 3 {
		t.Error("a heartbeat changed the content")
	}
	if v.Receipt(v.Worker("b")).GetSequenceId() != 50 || v.Receipt(v.Worker("a")).GetSequenceId() != 1 || before.Receipt(v.Worker("b")).GetSequenceId() != 2 {
		t.Error("the receipts did not move, or those of the old view did")
	}
	leave := message(3, 3)
	leave.Event = &pb.WatchSnapshotsResponse_GoAway{GoAway: &pb.GoAway{ReconnectWithinMs: 5}}
	apply(t, &r, leave)
	if c := r.Resume(); c.GetVersion() != 3 {
		t.Errorf("after go_away the cursor is %v", c)
	}
}

// TestErrors feeds a bad message to a replica at version 3. The view stays,
// and the next stream begins without a cursor.
func TestErrors(t *testing.T) {
	chunk := func(m *pb.WatchSnapshotsResponse, number, count uint32) *pb.WatchSnapshotsResponse {
		if f := m.GetFull(); f != nil {
			f.Chunk, f.Chunks = number, count
		} else {
			m.GetDelta().Chunk, m.GetDelta().Chunks = number, count
		}
		return m
	}
	part := func(number, count uint32) *pb.WatchSnapshotsResponse {
		return chunk(delta(3, 5, 1, &pb.Delta{Workers: []*pb.Worker{w(9+number, fmt.Sprint("x", number), 0)}}), number, count)
	}
	twoPools := full(5, w(1, "a", 1))
	twoPools.GetFull().Pools = []*pb.Pool{pool("m"), pool("n"), pool("m")}
	for _, c := range []struct {
		name string
		want error
		// all but the last are taken.
		send []*pb.WatchSnapshotsResponse
	}{
		{"delta against a newer base", ErrGap, list(delta(4, 5, 1, &pb.Delta{}))},
		{"delta against an older base", ErrGap, list(delta(2, 5, 1, &pb.Delta{}))},
		{"delta against a base of another epoch", ErrGap, list(of(delta(3, 5, 1, &pb.Delta{}), func(c *pb.Cursor) { c.Epoch = 8 }))},
		{"delta of another filter", ErrGap, list(of(delta(3, 5, 1, &pb.Delta{}), func(c *pb.Cursor) { c.FilterHash = 8 }))},
		{"heartbeat of a newer version", ErrGap, list(heartbeat(4, 1))},
		{"heartbeat of another epoch", ErrGap, list(of(heartbeat(3, 1), func(c *pb.Cursor) { c.Epoch = 8 }))},
		{"heartbeat of another filter", ErrGap, list(of(heartbeat(3, 1), func(c *pb.Cursor) { c.FilterHash = 8 }))},
		{"torn full", ErrTorn, list(torn(full(5, w(1, "a", 9))))},
		{"torn delta", ErrTorn, list(delta(3, 5, 7, &pb.Delta{Workers: []*pb.Worker{w(1, "a", 8)}}))},
		{"torn heartbeat", ErrTorn, list(heartbeat(3, 2))},
		{"older version", ErrBackwards, list(full(2, w(1, "a", 1)))},
		{"older epoch", ErrBackwards, list(of(full(99, w(1, "a", 1)), func(c *pb.Cursor) { c.Epoch = 6 }))},
		{"older heartbeat", ErrBackwards, list(heartbeat(2, 1))},
		{"no cursor", ErrMalformed, list(&pb.WatchSnapshotsResponse{Event: heartbeat(3, 1).Event})},
		{"no event", ErrMalformed, list(message(3, 1))},
		{"a row twice", ErrMalformed, list(full(5, w(1, "a", 1), w(1, "b", 1)))},
		{"a worker twice", ErrMalformed, list(full(5, w(1, "a", 1), w(2, "a", 1)))},
		{"a pool twice", ErrMalformed, list(twoPools)},
		{"more chunks than an event can have", ErrMalformed, list(part(0, maxChunks+1))},
		{"as many chunks as a number holds", ErrMalformed, list(part(0, 1<<32-1))},
		{"two contents of a version", ErrMalformed, list(full(3, w(1, "a", 2)))},
		{"another lineage within the stream", ErrMalformed, list(of(full(5, w(1, "a", 1)), lineage("other")))},
		{"the first chunk is missing", ErrGap, list(part(1, 2))},
		{"a chunk is missing", ErrGap, list(part(0, 3), part(2, 3))},
		{"a chunk comes twice", ErrGap, list(part(0, 3), part(0, 3))},
		{"a chunk of another version", ErrGap, list(part(0, 2), of(part(1, 2), func(c *pb.Cursor) { c.Version = 6 }))},
		{"a chunk of another filter", ErrGap, list(part(0, 2), of(part(1, 2), func(c *pb.Cursor) { c.FilterHash = 6 }))},
		{"a chunk of another number", ErrGap, list(part(0, 2), part(1, 3))},
		{"a chunk of another base", ErrGap, list(part(0, 2), chunk(delta(2, 5, 1, &pb.Delta{}), 1, 2))},
		{"a chunk of another kind", ErrGap, list(part(0, 2), chunk(full(5, w(1, "a", 1)), 1, 2))},
		{"a heartbeat between chunks", ErrGap, list(part(0, 2), heartbeat(3, 1))},
		{"a new event between chunks", ErrGap, list(part(0, 2), delta(3, 5, 1, &pb.Delta{}))},
		{"a chunk beyond the last", ErrGap, list(chunk(full(5, w(1, "a", 1)), 1, 0))},
		{"torn over chunks", ErrTorn, list(part(0, 2), torn(part(1, 2)))},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Replica
			held := apply(t, &r, full(3, w(1, "a", 1)))
			last := len(c.send) - 1
			apply(t, &r, c.send[:last]...)
			v, err := r.Apply(c.send[last], start)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if v != held || r.View() != held || !slices.Equal(ids(held), []string{"a"}) {
				t.Error("the view changed")
			}
			if cursor := r.Resume(); cursor != nil {
				t.Errorf("the next stream begins at %v", cursor)
			}
			if v := apply(t, &r, full(6, w(2, "b", 4))); v.Version() != 6 || r.Resume().GetVersion() != 6 {
				t.Error("a full did not heal the replica")
			}
		})
	}
}

func list(all ...*pb.WatchSnapshotsResponse) []*pb.WatchSnapshotsResponse { return all }

func torn(m *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
	m.Digest++
	return m
}

// TestFullSettlesTwoContents lets a plane that told two contents of a version
// say once more which it is.
func TestFullSettlesTwoContents(t *testing.T) {
	var r Replica
	apply(t, &r, full(3, w(1, "a", 1)))
	if _, err := r.Apply(full(3, w(1, "a", 2)), start); !errors.Is(err, ErrMalformed) {
		t.Fatal(err)
	}
	r.Resume()
	if v := apply(t, &r, full(3, w(1, "a", 2))); v.Digest() != 2 {
		t.Errorf("digest %d", v.Digest())
	}
}

func TestChunksAreOneEvent(t *testing.T) {
	var r Replica
	parts := list(full(4, w(2, "b", 2)), full(4), full(4, w(1, "a", 1)))
	for i, m := range parts {
		m.Digest = 3
		m.GetFull().Chunk, m.GetFull().Chunks = uint32(i), 3
	}
	parts[1].GetFull().Pools = []*pb.Pool{pool("m")}
	heard(parts[2], time.Second, 1)
	for _, m := range parts[:2] {
		if v, err := r.Apply(m, start); v != nil || err != nil {
			t.Fatalf("a part gave %v, %v", v, err)
		}
	}
	v := apply(t, &r, parts[2])
	if !slices.Equal(ids(v), []string{"a", "b"}) || len(v.Pools()) != 1 || v.Receipt(v.Worker("a")) == nil {
		t.Errorf("workers %v, pools %v", ids(v), models(v))
	}
	for i, d := range []*pb.Delta{
		{Removed: []*pb.RemovedWorker{{Row: 1}}},
		{Workers: []*pb.Worker{w(3, "a", 8)}, RemovedPools: []*pb.PoolKey{{Model: "m"}}},
	} {
		d.Chunk, d.Chunks = uint32(i), 2
		v = apply(t, &r, delta(4, 6, 10, d))
	}
	if !slices.Equal(ids(v), []string{"a", "b"}) || v.Worker("a").GetRow() != 3 || len(v.Pools()) != 0 {
		t.Errorf("workers %v, pools %v", v.Workers(), models(v))
	}
	if parts[0].GetFull().GetWorkers()[0].GetWorkerId() != "b" {
		t.Error("a message was changed")
	}
}

// TestStreamEndsWithinAnEvent forgets the chunks of the stream before.
func TestStreamEndsWithinAnEvent(t *testing.T) {
	var r Replica
	apply(t, &r, full(3, w(1, "a", 1)))
	half := delta(3, 5, 3, &pb.Delta{Workers: []*pb.Worker{w(2, "b", 2)}, Chunks: 2})
	if v := apply(t, &r, half); v.Version() != 3 {
		t.Errorf("half an event led to version %d", v.Version())
	}
	if c := r.Resume(); c.GetVersion() != 3 {
		t.Fatalf("resumes at %v", c)
	}
	if v := apply(t, &r, delta(3, 6, 5, &pb.Delta{Workers: []*pb.Worker{w(2, "b", 4)}})); v.Version() != 6 {
		t.Errorf("version %d", v.Version())
	}
}

func TestNewEpochBeginsWithAFull(t *testing.T) {
	var r Replica
	apply(t, &r, full(30, w(1, "a", 1)))
	v := apply(t, &r, of(full(2, w(1, "a", 4)), func(c *pb.Cursor) { c.Epoch = 8 }))
	if v.Epoch() != 8 || v.Version() != 2 {
		t.Errorf("view %v", v.cursor)
	}
}

func TestAnotherFilterIsAnotherView(t *testing.T) {
	var r Replica
	apply(t, &r, full(3, w(1, "a", 1), w(2, "b", 2)))
	r.Resume()
	v := apply(t, &r, of(full(3, w(1, "a", 1)), func(c *pb.Cursor) { c.FilterHash = 5 }))
	if len(v.Workers()) != 1 || r.Resume().GetFilterHash() != 5 {
		t.Errorf("view %v of %v", v.cursor, ids(v))
	}
}

// TestValidityByTheLocalClock looks at the edges of a receipt that had a time
// left when its message was sent.
func TestValidityByTheLocalClock(t *testing.T) {
	for _, c := range []struct {
		name  string
		left  time.Duration
		valid time.Duration
	}{
		{"a second", time.Second, time.Second},
		{"as long as can be", staleAfter, staleAfter},
		{"longer than can be", time.Hour, staleAfter},
		{"nothing", 0, 0},
		{"over already", -time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Replica
			stale := w(2, "b", 2)
			stale.Freshness = pb.Freshness_FRESHNESS_STALE
			v := apply(t, &r, heard(full(3, w(1, "a", 1), stale, w(3, "never heard", 4)), c.left, 1, 2))
			a := v.Worker("a")
			for _, e := range []struct {
				at   time.Duration
				want bool
			}{
				{max(0, c.valid-time.Nanosecond), c.valid > 0}, {c.valid, false}, {c.valid + time.Nanosecond, false},
			} {
				now := start.Add(e.at)
				if got := v.Valid(a, now); got != e.want || v.CountValid(now) != count(e.want) {
					t.Errorf("at %v: valid %t, %d valid workers", e.at, got, v.CountValid(now))
				}
			}
			if v.Valid(stale, start) || v.Valid(v.Worker("never heard"), start) {
				t.Error("a worker that is stale or was never heard is valid")
			}
		})
	}
	t.Run("the clocks' extremes", func(t *testing.T) {
		for _, clocks := range [][2]uint64{{0, 1<<64 - 1}, {1<<64 - 1, 0}, {1 << 63, 1<<63 - 1}} {
			var r Replica
			m := heard(full(3, w(1, "a", 1)), 0, 1)
			m.Liveness.Workers[0].ValidUntilMs, m.ServerClockMs = clocks[0], clocks[1]
			v := apply(t, &r, m)
			if now := start.Add(staleAfter); v.Valid(v.Worker("a"), now) {
				t.Errorf("valid until %d at %d is valid after %v", clocks[0], clocks[1], staleAfter)
			}
		}
	})
}

func count(valid bool) int {
	if valid {
		return 1
	}
	return 0
}

// TestLineageRule lets a plane restart under a replica that holds two valid
// workers.
func TestLineageRule(t *testing.T) {
	for _, c := range []struct {
		name string
		// after is when the new plane is heard.
		after   time.Duration
		warming bool
		// fresh of the three workers of the new lineage are fresh.
		fresh int
		epoch uint64
		adopt bool
	}{
		{"not warming, all fresh", 0, false, 3, 8, true},
		{"not warming, nothing fresh", 0, false, 0, 8, true},
		{"not warming, of an older epoch", 0, false, 0, 1, true},
		{"warming, nothing fresh", 0, true, 0, 8, false},
		{"warming, fewer fresh", 0, true, 1, 8, false},
		{"warming, as many fresh", 0, true, 2, 8, true},
		{"warming, more fresh", 0, true, 3, 8, true},
		{"warming, before the old ones run out", time.Second - 1, true, 0, 8, false},
		{"warming, as the old ones run out", time.Second, true, 0, 8, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Replica
			old := apply(t, &r, heard(full(30, w(1, "a", 1), w(2, "b", 2)), time.Second, 1, 2))
			if r.Resume() != old.cursor {
				t.Fatal("the cursor is not that of the view")
			}
			v, err := r.Apply(reborn(c.epoch, c.warming, c.fresh), start.Add(c.after))
			if err != nil {
				t.Fatal(err)
			}
			if adopted := v.Lineage() == "m"; adopted != c.adopt {
				t.Errorf("adopted: %t, want %t", adopted, c.adopt)
			}
			if got := r.Resume().GetLineage() == "m"; got != c.adopt {
				t.Errorf("the cursor is of lineage %s", r.Resume().GetLineage())
			}
		})
	}
}

// reborn is the first full of another lineage.
func reborn(epoch uint64, warming bool, fresh int) *pb.WatchSnapshotsResponse {
	workers := []*pb.Worker{w(1, "a", 1), w(2, "b", 2), w(3, "c", 4)}
	m := of(full(2, workers...), func(c *pb.Cursor) { c.Lineage, c.Epoch = "m", epoch })
	m.Warming = warming
	for i, w := range workers {
		if i >= fresh {
			w.Freshness = pb.Freshness_FRESHNESS_MISSING
		} else {
			heard(m, time.Second, w.GetRow())
		}
	}
	return m
}

// TestCandidateIsFollowed keeps a warming lineage up to date until it is fit.
func TestCandidateIsFollowed(t *testing.T) {
	m := lineage("m")
	warming := func(x *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
		x.Warming = true
		return of(x, func(c *pb.Cursor) { m(c); c.Epoch = 8 })
	}
	begin := func(t *testing.T) *Replica {
		r := new(Replica)
		apply(t, r, heard(full(30, w(1, "a", 1), w(2, "b", 2)), time.Second, 1, 2))
		r.Resume()
		if v := apply(t, r, reborn(8, true, 0), warming(heartbeat(2, 7))); v.Lineage() != "l" {
			t.Fatal("adopted while warming and empty")
		}
		return r
	}
	t.Run("a delta makes it fit", func(t *testing.T) {
		r := begin(t)
		v := apply(t, r, warming(heard(delta(2, 3, 7, &pb.Delta{Workers: []*pb.Worker{w(1, "a", 1), w(2, "b", 2)}}), time.Second, 1, 2)))
		if v.Lineage() != "m" || len(v.Workers()) != 3 || v.Version() != 3 {
			t.Errorf("view %v", v.cursor)
		}
	})
	t.Run("the end of the warming makes it fit", func(t *testing.T) {
		r := begin(t)
		done := warming(delta(2, 3, 7, &pb.Delta{}))
		done.Warming = false
		if v := apply(t, r, done); v.Lineage() != "m" {
			t.Errorf("view %v", v.cursor)
		}
	})
	t.Run("time makes it fit", func(t *testing.T) {
		r := begin(t)
		v, err := r.Apply(warming(heartbeat(2, 7)), start.Add(time.Second))
		if err != nil || v.Lineage() != "m" {
			t.Errorf("view %v, %v", v.cursor, err)
		}
	})
	t.Run("it is forgotten with its stream", func(t *testing.T) {
		r := begin(t)
		if c := r.Resume(); c.GetLineage() != "l" {
			t.Fatalf("resumes at %v", c)
		}
		if _, err := r.Apply(warming(heartbeat(2, 7)), start); !errors.Is(err, ErrGap) {
			t.Errorf("a heartbeat of a forgotten candidate: %v", err)
		}
	})
	t.Run("an error in it costs the cursor", func(t *testing.T) {
		r := begin(t)
		if _, err := r.Apply(warming(delta(1, 3, 7, &pb.Delta{})), start); !errors.Is(err, ErrGap) || r.View().Lineage() != "l" || r.Resume() != nil {
			t.Errorf("view %v, %v", r.View().cursor, err)
		}
	})
}

// TestLineageIsAdoptedByAFullOnly begins a stream of another lineage with
// something else.
func TestLineageIsAdoptedByAFullOnly(t *testing.T) {
	for name, m := range map[string]*pb.WatchSnapshotsResponse{
		"heartbeat": heartbeat(3, 1), "delta": delta(3, 4, 1, &pb.Delta{}),
	} {
		var r Replica
		apply(t, &r, full(3, w(1, "a", 1)))
		r.Resume()
		if _, err := r.Apply(of(m, lineage("m")), start); !errors.Is(err, ErrGap) || r.View().Lineage() != "l" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMessagesAreNotChanged(t *testing.T) {
	var r Replica
	for _, m := range list(
		heard(full(3, w(2, "b", 2), w(1, "a", 1)), time.Second, 1),
		delta(3, 4, 5, &pb.Delta{Removed: []*pb.RemovedWorker{{Row: 2}}, Workers: []*pb.Worker{w(3, "c", 4)}}),
		heard(heartbeat(4, 5), time.Second, 3),
	) {
		before := proto.CloneOf(m)
		apply(t, &r, m)
		if !proto.Equal(before, m) {
			t.Errorf("got %v, was %v", m, before)
		}
	}
}

// A plane whose machine stood still, its clock with it, is believed at once
// on a new stream.
func TestNewStreamForgetsTheClock(t *testing.T) {
	var r Replica
	apply(t, &r, heard(full(3, w(1, "a", 1)), time.Second, 1))
	r.Resume()
	at := start.Add(30 * time.Second) // the server's clock shows the same as before
	v, err := r.Apply(heard(heartbeat(3, 1), 2*time.Second, 1), at)
	if err != nil {
		t.Fatal(err)
	}
	if !v.Valid(v.Worker("a"), at.Add(2*time.Second-1)) || v.Valid(v.Worker("a"), at.Add(2*time.Second)) {
		t.Error("a receipt with 2 s left is not valid for 2 s on a new stream")
	}
}

// A full on a live stream that is read late does not extend validity.
func TestFullKeepsTheClock(t *testing.T) {
	var r Replica
	apply(t, &r, full(3, w(1, "a", 1)))
	late := start.Add(2 * time.Second) // sent at start, as the server's clock says
	v, err := r.Apply(heard(full(4, w(1, "a", 1)), 3*time.Second, 1), late)
	if err != nil {
		t.Fatal(err)
	}
	if v.Valid(v.Worker("a"), start.Add(3*time.Second)) {
		t.Error("a full that was read late is valid for longer than the server said")
	}
}

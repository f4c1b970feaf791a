package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// modelPlane is a plane as plain maps. It makes the messages of a watch.
type modelPlane struct {
	rng     *rand.Rand
	version uint64
	rows    uint32
	workers map[string]*pb.Worker
	pools   map[string]*pb.Pool
	// told is the content that the watcher was last sent.
	told, toldPools map[string]uint64
	toldRows        map[string]uint32
	toldVersion     uint64
}

func newModelPlane(seed uint64) *modelPlane {
	return &modelPlane{
		rng: rand.New(rand.NewPCG(seed, 1)), version: 1,
		workers: map[string]*pb.Worker{}, pools: map[string]*pb.Pool{},
	}
}

// step changes the content of one worker and of one pool.
func (p *modelPlane) step() {
	p.version++
	id := fmt.Sprintf("w%d", p.rng.IntN(12))
	switch have := p.workers[id]; {
	case have == nil || p.rng.IntN(8) == 0: // new, or another behind the same id
		p.rows++
		p.workers[id] = w(p.rows, id, p.rng.Uint64())
	case p.rng.IntN(3) == 0:
		delete(p.workers, id)
	default:
		p.workers[id] = w(have.GetRow(), id, p.rng.Uint64())
	}
	model := fmt.Sprintf("m%d", p.rng.IntN(4))
	if delete(p.pools, model); p.rng.IntN(3) > 0 {
		p.pools[model] = pool(model)
		p.pools[model].Workers = proto.Uint32(uint32(p.version))
	}
}

// tell returns what the watcher lacks, in chunks, and notes that it was told.
func (p *modelPlane) tell(whole bool) []*pb.WatchSnapshotsResponse {
	workers, pools := slices.Collect(maps.Values(p.workers)), slices.Collect(maps.Values(p.pools))
	base := uint64(0)
	d := &pb.Delta{}
	if !whole && p.toldVersion > 0 {
		base = p.toldVersion
		workers = slices.DeleteFunc(workers, func(w *pb.Worker) bool {
			return p.told[w.GetWorkerId()] == w.GetContentHash() && p.toldRows[w.GetWorkerId()] == w.GetRow()
		})
		pools = slices.DeleteFunc(pools, func(x *pb.Pool) bool { return p.toldPools[x.GetKey().GetModel()] == uint64(x.GetWorkers()) })
		for id, row := range p.toldRows {
			if p.workers[id].GetRow() != row {
				d.Removed = append(d.Removed, &pb.RemovedWorker{Row: row, WorkerId: id})
			}
		}
		for model := range p.toldPools {
			if p.pools[model] == nil {
				d.RemovedPools = append(d.RemovedPools, &pb.PoolKey{Model: model})
			}
		}
	}
	p.note()
	return p.chunks(base, d, workers, pools)
}

func (p *modelPlane) note() {
	p.told, p.toldPools, p.toldRows, p.toldVersion = map[string]uint64{}, map[string]uint64{}, map[string]uint32{}, p.version
	for id, w := range p.workers {
		p.told[id], p.toldRows[id] = w.GetContentHash(), w.GetRow()
	}
	for model, x := range p.pools {
		p.toldPools[model] = uint64(x.GetWorkers())
	}
}

// chunks cuts an event: removals first, pools last.
func (p *modelPlane) chunks(base uint64, d *pb.Delta, workers []*pb.Worker, pools []*pb.Pool) (out []*pb.WatchSnapshotsResponse) {
	digest := sum(slices.Collect(maps.Values(p.workers)))
	n := uint32(1 + p.rng.IntN(3))
	for i := range n {
		part := workers[len(workers)*int(i)/int(n) : len(workers)*int(i+1)/int(n)]
		m := message(p.version, digest)
		if base == 0 {
			f := &pb.Full{Workers: part, Chunk: i, Chunks: n}
			if i == n-1 {
				f.Pools = pools
			}
			m.Event = &pb.WatchSnapshotsResponse_Full{Full: f}
		} else {
			x := &pb.Delta{BaseVersion: base, Workers: part, Chunk: i, Chunks: n}
			if i == 0 {
				x.Removed = d.Removed
			}
			if i == n-1 {
				x.Pools, x.RemovedPools = pools, d.RemovedPools
			}
			m.Event = &pb.WatchSnapshotsResponse_Delta{Delta: x}
		}
		out = append(out, m)
	}
	for _, w := range p.workers {
		heard(out[n-1], time.Duration(p.rng.IntN(4000))*time.Millisecond, w.GetRow())
	}
	return out
}

// dump is all that a view shows, as bytes.
func dump(t testing.TB, v *View) []byte {
	t.Helper()
	var b bytes.Buffer
	add := func(m proto.Message) {
		x, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(binary.AppendUvarint(nil, uint64(len(x))))
		b.Write(x)
	}
	add(v.cursor)
	fmt.Fprint(&b, v.Digest(), v.Warming())
	for _, w := range v.Workers() {
		add(w)
		if r := v.Receipt(w); r != nil {
			add(r)
		}
		for at := -time.Second; at < 5*time.Second; at += time.Second / 2 {
			fmt.Fprint(&b, v.Valid(w, start.Add(at)))
		}
	}
	for _, x := range v.Pools() {
		add(x)
	}
	return b.Bytes()
}

// TestViewsFollowAModel applies random fulls and deltas in chunks, of a watcher
// that skips versions, and compares every view with the model. No view changes
// afterwards.
func TestViewsFollowAModel(t *testing.T) {
	for seed := range uint64(8) {
		var r Replica
		p := newModelPlane(seed)
		type kept struct {
			view *View
			was  []byte
		}
		var views []kept
		for range 200 {
			for range p.rng.IntN(4) {
				p.step()
			}
			if p.rng.IntN(20) == 0 {
				r.Resume()
			}
			for _, m := range p.tell(p.rng.IntN(10) == 0) {
				apply(t, &r, m)
			}
			v := r.View()
			p.compare(t, v)
			views = append(views, kept{v, dump(t, v)})
		}
		for _, k := range views {
			if !bytes.Equal(k.was, dump(t, k.view)) {
				t.Fatalf("seed %d: the view of version %d changed", seed, k.view.Version())
			}
		}
	}
}

func (p *modelPlane) compare(t *testing.T, v *View) {
	t.Helper()
	if v.Version() != p.version || len(v.Workers()) != len(p.workers) || len(v.Pools()) != len(p.pools) || len(v.receipts) != len(p.workers) {
		t.Fatalf("version %d: %d workers, %d pools, %d receipts, want %d: %d, %d",
			v.Version(), len(v.Workers()), len(v.Pools()), len(v.receipts), p.version, len(p.workers), len(p.pools))
	}
	for id, w := range p.workers {
		if v.Worker(id) == nil || !proto.Equal(v.Worker(id), w) {
			t.Fatalf("version %d: worker %v, want %v", p.version, v.Worker(id), w)
		}
	}
	for _, x := range v.Pools() {
		if !proto.Equal(x, p.pools[x.GetKey().GetModel()]) {
			t.Fatalf("version %d: pool %v", p.version, x)
		}
	}
	if !slices.IsSorted(ids(v)) || !slices.IsSorted(models(v)) {
		t.Fatalf("version %d: workers %v, pools %v", p.version, ids(v), models(v))
	}
}

// FuzzReplica applies sequences of messages that were mutated byte by byte.
// Nothing panics, and no view has a digest that is not that of its workers.
func FuzzReplica(f *testing.F) {
	for seed := range uint64(6) {
		p := newModelPlane(seed)
		var all []byte
		for range 3 {
			p.step()
			for _, m := range p.tell(false) {
				all = appendFrame(f, all, m)
			}
			all = appendFrame(f, all, heartbeat(p.version, sum(slices.Collect(maps.Values(p.workers)))))
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Replica
		at := start
		for len(b) > 0 {
			n, used := binary.Uvarint(b)
			if used <= 0 {
				return
			}
			b = b[used:]
			n = min(n, uint64(len(b)))
			m := new(pb.WatchSnapshotsResponse)
			if proto.Unmarshal(b[:n], m) != nil {
				m = nil
			}
			b = b[n:]
			at = at.Add(time.Second)
			before := r.View()
			v, err := r.Apply(m, at)
			if err != nil && v != before || v != r.View() {
				t.Fatal("an error changed the view")
			}
			checkView(t, v, at)
			if err != nil {
				if r.Resume() != nil {
					t.Fatal("a cursor after an error")
				}
			}
		}
	})
}

func checkView(t *testing.T, v *View, at time.Time) {
	t.Helper()
	if v == nil {
		return
	}
	if sum(v.Workers()) != v.Digest() {
		t.Fatalf("digest %x, workers sum to %x", v.Digest(), sum(v.Workers()))
	}
	if n := v.CountValid(at.Add(50 * 24 * time.Hour)); n != 0 {
		t.Fatalf("%d workers are valid for ever", n)
	}
	rows := map[uint32]bool{}
	for _, w := range v.Workers() {
		if rows[w.GetRow()] {
			t.Fatalf("row %d stands twice", w.GetRow())
		}
		rows[w.GetRow()] = true
		v.Receipt(w)
	}
	dump(t, v)
}

func appendFrame(f *testing.F, b []byte, m proto.Message) []byte {
	x, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return append(binary.AppendUvarint(b, uint64(len(x))), x...)
}

// TestDisorderNeverShows drops, repeats and swaps messages of a watch. Every
// view is one that the plane had, by its version.
func TestDisorderNeverShows(t *testing.T) {
	refused, taken := 0, 0
	for seed := range uint64(200) {
		p := newModelPlane(seed)
		history := map[uint64][]string{}
		var all []*pb.WatchSnapshotsResponse
		for range 30 {
			p.step()
			history[p.version] = p.content()
			all = append(all, p.tell(p.rng.IntN(6) == 0)...)
		}
		for range 1 + p.rng.IntN(6) {
			i, j := p.rng.IntN(len(all)), p.rng.IntN(len(all))
			switch p.rng.IntN(3) {
			case 0:
				all = slices.Delete(all, i, i+1)
			case 1:
				all = slices.Insert(all, j, all[i])
			default:
				all[i], all[j] = all[j], all[i]
			}
		}
		var r Replica
		for _, m := range all {
			v, err := r.Apply(m, start)
			if err != nil {
				refused++
				r.Resume()
			} else {
				taken++
			}
			if v != nil && !slices.Equal(contentOf(v), history[v.Version()]) {
				t.Fatalf("seed %d: version %d shows %v, was %v", seed, v.Version(), contentOf(v), history[v.Version()])
			}
		}
	}
	if refused == 0 || taken == 0 {
		t.Errorf("%d messages were refused, %d taken", refused, taken)
	}
}

// content names the workers, each with its row and content.
func (p *modelPlane) content() []string {
	v := &View{}
	v.setWorkers(slices.Collect(maps.Values(p.workers)))
	return contentOf(v)
}

func contentOf(v *View) (out []string) {
	for _, w := range v.Workers() {
		out = append(out, fmt.Sprintf("%s/%d/%x", w.GetWorkerId(), w.GetRow(), w.GetContentHash()))
	}
	return out
}

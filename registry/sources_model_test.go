package registry

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"pgregory.net/rapid"
)

// The model has few names, addresses and UIDs, so that they meet often.
const (
	modelSources, modelIDs, modelHosts, modelUIDs = 3, 5, 4, 3
	modelEvents                                   = 100
)

// modelSpec is a worker as a source of the model lists it; 0 is unset.
type modelSpec struct {
	id, host, uid, zone int
	draining            bool
}

func (s *modelSpec) spec(t testing.TB) WorkerSpec {
	spec, err := ParseWorkerFlag(fmt.Sprintf("http://10.0.0.%d:1,id=w%d,dialect=push", 1+s.host, s.id))
	if err != nil {
		t.Fatal(err)
	}
	spec.Draining = s.draining
	if s.uid > 0 {
		spec.UID = fmt.Sprint("uid", s.uid)
	}
	if s.zone > 0 {
		spec.Zone = fmt.Sprint("z", s.zone)
	}
	return spec
}

// modelWorker is a worker as it should be.
type modelWorker struct {
	modelSpec
	by        string
	duplicate bool
}

// model is discovery by the words of its rules, without regard to cost.
type model struct {
	lists [modelSources]map[int]modelSpec // by source and id
	// uids are the last ones that were known of the workers that are there.
	uids map[int]int
}

// want returns the workers that should be there, by id.
func (m *model) want() map[int]modelWorker {
	all := map[int]modelWorker{}
	for rank := range modelSources {
		for _, id := range slices.Sorted(maps.Keys(m.lists[rank])) {
			s := m.lists[rank][id]
			if top, ok := m.winner(s.host, rank); ok {
				if m.first(rank, s.host) == id && top != nil {
					m.joinTo(all, *top, s, rank)
					continue
				}
			}
			if _, taken := all[id]; !taken {
				_, kept := keeperAt(all, s.host)
				all[id] = modelWorker{modelSpec: s, by: sourceName(rank), duplicate: kept}
			}
		}
	}
	return all
}

// winner returns who keeps a host by a source above rank, if there is one.
func (m *model) winner(host, rank int) (*int, bool) {
	upper := model{}
	copy(upper.lists[:], m.lists[:rank])
	if rank == 0 {
		return nil, false
	}
	id, ok := keeperAt(upper.want(), host)
	return &id, ok
}

// first returns the lowest id at a host in one source.
func (m *model) first(rank, host int) int {
	for _, id := range slices.Sorted(maps.Keys(m.lists[rank])) {
		if m.lists[rank][id].host == host {
			return id
		}
	}
	return -1
}

func (m *model) joinTo(all map[int]modelWorker, id int, s modelSpec, rank int) {
	w := all[id]
	w.uid, w.zone = cmp.Or(w.uid, s.uid), cmp.Or(w.zone, s.zone)
	w.draining = w.draining || s.draining
	w.by += "+" + sourceName(rank)
	all[id] = w
}

func keeperAt(all map[int]modelWorker, host int) (int, bool) {
	for id, w := range all {
		if w.host == host && !w.duplicate {
			return id, true
		}
	}
	return 0, false
}

func sourceName(rank int) string { return fmt.Sprint("s", rank) }

// modelRun is a plane beside its model.
type modelRun struct {
	*plane
	model
	rt      *rapid.T
	sources [modelSources]*teller
	streams map[int]*Binding
	rows    map[int]uint32
	shown   map[int]modelWorker
	serial  int
}

// TestRandomSources makes random changes of several sources, a hundred at a time
// and ten thousand in all, and compares what became of them with the model: the
// workers, what is known of each, and that who was left alone kept its load and
// stream.
func TestRandomSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ *testing.T }{t}, func(rt *rapid.T) { // a bare one is asked for its deadline
			r := newModelRun(t, rt)
			defer r.close()
			for done := 0; done < modelEvents; {
				n := rapid.IntRange(1, 8).Draw(rt, "burst")
				for range n {
					r.event()
				}
				done += n
				r.check()
			}
		})
	})
}

func newModelRun(t *testing.T, rt *rapid.T) *modelRun {
	r := &modelRun{rt: rt, streams: map[int]*Binding{}, rows: map[int]uint32{}, shown: map[int]modelWorker{}}
	r.uids = map[int]int{}
	opts := testOptions(newStore(t))
	for i := range r.sources {
		r.sources[i], r.lists[i] = newTeller(sourceName(i)), map[int]modelSpec{}
		opts.Sources = append(opts.Sources, r.sources[i])
	}
	r.plane = &plane{Registry: newRegistry(t, opts), t: t, st: opts.Store, net: newNetwork()}
	r.runQuietly()
	for i := range r.sources {
		r.deliver(i)
	}
	r.after(20 * time.Second) // the warming is over
	return r
}

// runQuietly runs the store, the sources and the reconciler, and no loop of a
// worker: what versions there are come of discovery.
func (r *modelRun) runQuietly() {
	ctx, stop := context.WithCancel(r.t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { _ = r.st.Run(ctx) })
	r.tend(ctx, &loops)
	loops.Go(func() { r.Registry.discover(ctx, func(*worker, time.Duration) {}) })
	r.close = func() { stop(); loops.Wait() }
	r.settle()
}

// event makes one change of one source.
func (r *modelRun) event() {
	i := rapid.IntRange(0, modelSources-1).Draw(r.rt, "source")
	id := rapid.IntRange(0, modelIDs-1).Draw(r.rt, "id")
	switch rapid.SampledFrom([]string{"put", "put", "put", "delete", "move", "replace", "fail", "again"}).Draw(r.rt, "event") {
	case "put":
		r.lists[i][id] = modelSpec{
			id: id, host: rapid.IntRange(0, modelHosts-1).Draw(r.rt, "host"), uid: rapid.IntRange(0, modelUIDs).Draw(r.rt, "uid"),
			zone: rapid.IntRange(0, 2).Draw(r.rt, "zone"), draining: rapid.Bool().Draw(r.rt, "draining"),
		}
	case "delete":
		delete(r.lists[i], id)
	case "move": // another worker gets the address
		if s, ok := r.lists[i][id]; ok {
			delete(r.lists[i], id)
			s.id = (id + 1) % modelIDs
			r.lists[i][s.id] = s
		}
	case "replace":
		if s, ok := r.lists[i][id]; ok {
			s.uid = rapid.IntRange(1, modelUIDs).Draw(r.rt, "uid")
			r.lists[i][id] = s
		}
	case "fail":
		r.sources[i].say <- Listing{Err: fmt.Errorf("fault %d", id)}
		return
	}
	r.deliver(i)
}

func (r *modelRun) deliver(i int) {
	var l Listing
	for _, s := range r.lists[i] {
		l.Specs = append(l.Specs, s.spec(r.t))
	}
	r.sources[i].say <- l
}

// check compares the plane with the model once what was delivered is taken up.
func (r *modelRun) check() {
	before, _ := r.st.Current()
	r.after(settleDiscovery + 3*testSettle)
	after, _ := r.st.Current()
	want := r.want()
	if after.Version > before.Version+1 {
		r.rt.Fatalf("one burst made %d versions", after.Version-before.Version)
	}
	if len(after.Entries) != len(want) {
		r.rt.Fatalf("%d workers, want %+v", len(after.Entries), want)
	}
	for id, w := range want {
		r.checkWorker(id, &w)
	}
	for id, stream := range r.streams {
		if _, there := want[id]; !there {
			r.forget(id, stream)
		}
	}
	r.speak()
}

func (r *modelRun) checkWorker(id int, w *modelWorker) {
	e, _ := r.entry(fmt.Sprint("w", id))
	if e == nil {
		r.rt.Fatalf("worker %d is not there", id)
	}
	spec := w.spec(r.t)
	got := e.Worker
	if got.Origin != spec.Origin || got.Zone != spec.Zone || got.Draining != spec.Draining || got.DiscoveredBy != w.by || got.Duplicate != w.duplicate {
		r.rt.Fatalf("worker %d is %+v, want %+v", id, got, w)
	}
	old, known := r.shown[id]
	same := known && old.host == w.host && old.duplicate == w.duplicate && (w.uid == 0 || r.uids[id] == 0 || r.uids[id] == w.uid)
	stream := r.streams[id]
	switch {
	case known && same != (r.rows[id] == e.Row):
		r.rt.Fatalf("worker %d: the same %v, row %d became %d, uid %d became %d", id, same, r.rows[id], e.Row, r.uids[id], w.uid)
	case same && stream != nil && (stream.Err() != nil || e.Load == nil):
		r.rt.Fatalf("worker %d was left alone and lost its load %v or stream %v", id, e.Load, stream.Err())
	case !same && stream != nil:
		r.forget(id, stream)
	}
	if !same {
		r.uids[id] = 0
		if e.Load != nil {
			r.rt.Fatalf("worker %d is another one and has the load %+v", id, e.Load)
		}
	}
	r.uids[id] = cmp.Or(w.uid, r.uids[id])
	r.rows[id], r.shown[id] = e.Row, *w
}

// forget checks that a stream ended, and forgets its worker.
func (r *modelRun) forget(id int, stream *Binding) {
	if stream.Err() == nil {
		r.rt.Fatalf("worker %d is gone and its stream is not", id)
	}
	delete(r.streams, id)
}

// speak binds a stream to every worker that may have one, and has the others
// heard again.
func (r *modelRun) speak() {
	maps.DeleteFunc(r.shown, func(id int, _ modelWorker) bool { _, there := r.want()[id]; return !there })
	for id, w := range r.shown {
		r.serial++
		if stream := r.streams[id]; stream != nil {
			if err := stream.Admit(r.load(stream.claim.Source, uint64(r.serial))); err != nil {
				r.rt.Fatalf("worker %d: %v", id, err)
			}
			continue
		}
		if w.duplicate {
			continue
		}
		spec := w.spec(r.t)
		c := Claim{Addr: spec.URL, Role: store.RoleRegular, Source: fmt.Sprint("i", r.serial), Peer: netip.MustParseAddrPort(spec.Origin)}
		b, err := r.Bind(c, r.load(c.Source, uint64(r.serial)))
		if err != nil {
			r.rt.Fatalf("worker %d: %v", id, err)
		}
		r.streams[id] = b
	}
	r.settle()
}

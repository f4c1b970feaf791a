package balance

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/pick"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	model      = "m"
	staleAfter = 3 * time.Second
	fresh      = pb.Freshness_FRESHNESS_FRESH
	missing    = pb.Freshness_FRESHNESS_MISSING
	stale      = pb.Freshness_FRESHNESS_STALE
)

// held has the view that a test put there.
type held struct{ view atomic.Pointer[client.View] }

func (h *held) View() (*client.View, <-chan struct{}) { return h.view.Load(), nil }

// now is the time of most tests; views arrive then.
var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// at is a clock that a test sets.
type at struct{ atomic.Int64 }

func (a *at) now() time.Time           { return now.Add(time.Duration(a.Load())) }
func (a *at) set(d time.Duration)      { a.Store(int64(d)) }
func (a *at) clock() func() time.Time  { return a.now }
func ago(d time.Duration) func(*entry) { return func(e *entry) { e.age = d } }

// entry is a worker of a view with its report.
type entry struct {
	*pb.Worker
	// age is that of the report when the view arrived; below 0 was never heard.
	age time.Duration
	// sampled is how long before the report its samples were taken; below 0 is
	// not known.
	sampled time.Duration
}

// worker returns a fresh one that has requests, and was heard just now.
func worker(id string, requests int64, change ...func(*entry)) entry {
	e := entry{&pb.Worker{
		WorkerId: id, Url: "http://" + id, Role: pb.Role_ROLE_REGULAR, Models: []string{model},
		Freshness: fresh, ReportIntervalMs: 1000, SourceInstanceId: "1", Status: pb.Status_STATUS_HEALTHY, Dialect: pb.Dialect_DIALECT_PUSH,
		Aggregate: &pb.Aggregate{NumRunningReqs: proto.Int64(requests), NumWaitingReqs: proto.Int64(0)},
	}, 0, -1}
	for _, f := range change {
		f(&e)
	}
	return e
}

// as changes the freshness; what was never heard has no load.
func as(f pb.Freshness, reason string) func(*entry) {
	return func(e *entry) {
		e.Freshness, e.FreshnessReason = f, reason
		if f == missing {
			e.Aggregate, e.age = nil, -1
		}
	}
}

func role(r pb.Role) func(*entry) { return func(e *entry) { e.Role = r } }

// ranked gives a worker ranks of equal load.
func ranked(n int) func(*entry) {
	return func(e *entry) {
		for i := range n {
			e.Ranks = append(e.Ranks, &pb.RankLoad{DpRank: int32(i), NumRunningReqs: proto.Int64(0), NumWaitingReqs: proto.Int64(0)})
		}
	}
}

// serverClock is what the plane's clock shows at now.
const serverClock = time.Hour

// message is a view whole, as a watch sends it at a time after now.
func message(version uint64, after time.Duration, entries ...entry) *pb.WatchSnapshotsResponse {
	clock := uint64((serverClock + after).Milliseconds())
	full := &pb.Full{}
	m := &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: version}, ServerId: "s", ServerClockMs: clock,
		StaleAfterMs: uint32(staleAfter.Milliseconds()), HeartbeatIntervalMs: 1000,
		Liveness: &pb.Liveness{}, Event: &pb.WatchSnapshotsResponse_Full{Full: full},
	}
	for i, e := range entries {
		if e.Row == 0 {
			e.Row = uint32(i + 1)
		}
		e.ContentHash = version<<16 | uint64(e.Row)
		m.Digest += e.ContentHash
		full.Workers = append(full.Workers, e.Worker)
		if e.age >= 0 {
			m.Liveness.Workers = append(m.Liveness.Workers, e.receipt(clock))
		}
		addPools(full, e.Worker)
	}
	return m
}

func (e entry) receipt(clock uint64) *pb.WorkerLiveness {
	received := clock - uint64(e.age.Milliseconds())
	l := &pb.WorkerLiveness{Row: e.Row, ReceivedMs: received, ValidUntilMs: received + uint64(staleAfter.Milliseconds())}
	if e.sampled >= 0 {
		l.ReportUnixMs, l.OldestSampleUnixMs = proto.Int64(1e12), proto.Int64(1e12-e.sampled.Milliseconds())
	}
	return l
}

func addPools(full *pb.Full, w *pb.Worker) {
	for _, m := range w.GetModels() {
		has := func(p *pb.Pool) bool { return p.GetKey().GetModel() == m && p.GetKey().GetRole() == w.GetRole() }
		if !slices.ContainsFunc(full.Pools, has) {
			full.Pools = append(full.Pools, &pb.Pool{Key: &pb.PoolKey{Model: m, Role: w.GetRole()}})
		}
	}
}

// bench is a balancer whose view and clock the test sets.
type bench struct {
	testing.TB
	*Balancer
	held    *held
	clock   *at
	replica client.Replica
	version uint64
}

func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{TB: t, held: &held{}, clock: &at{}}
	o := Options{Watcher: b.held, Model: model, Pick: pick.Options{Policy: pick.LeastLoad, Now: b.clock.clock()}}
	for _, f := range change {
		f(&o)
	}
	var err error
	if b.Balancer, err = New(o); err != nil {
		t.Fatal(err)
	}
	return b
}

// show makes a view the one in force; it arrives at the clock's time.
func (b *bench) show(entries ...entry) {
	b.Helper()
	b.version++
	v, err := b.replica.Apply(message(b.version, time.Duration(b.clock.Load()), entries...), b.clock.now())
	if err != nil {
		b.Fatal(err)
	}
	b.held.view.Store(v)
}

// pick picks, and demands a route.
func (b *bench) pick(r Request) *Route {
	b.Helper()
	route, err := b.Pick(r)
	if err != nil {
		b.Fatal(err)
	}
	return route
}

func (b *bench) inFlight(id string) int64 { return b.Local(id).InFlight }

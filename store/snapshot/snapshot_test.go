package snapshot_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type plane struct {
	*snapshot.Builder
	t     *testing.T
	st    *store.Store
	clock *store.Clock
}

func run(t *testing.T, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clock := store.NewClock()
		st, err := store.New(store.Options{
			Lineage: "line", Epoch: 42, Clock: clock, StaleAfter: 3 * time.Second, Settle: time.Millisecond,
			ReportInterval: time.Second, Discovery: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- st.Run(ctx) }()
		p := &plane{snapshot.New(st), t, st, clock}
		body(p)
		if err := p.Check(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// add discovers workers, and returns their bound slots.
func (p *plane) add(workers ...*store.Worker) []*store.Slot {
	d := store.Discovery{Synced: true}
	for _, w := range workers {
		d.Added = append(d.Added, p.st.NewSlot(w))
	}
	p.st.Apply(d)
	for _, sl := range d.Added {
		sl.Bind(store.Stream{Source: "src", Generation: 1})
	}
	p.after(time.Millisecond)
	return d.Added
}

// report offers a report whose ranks use the given shares of their tokens.
func (p *plane) report(sl *store.Slot, seq uint64, usage ...float64) {
	l := &store.Load{
		Source: "src", Sequence: seq, Status: store.StatusHealthy, Received: p.clock.Now(),
		ReportUnixMs: 5000, LastError: "old trouble", Samples: make([]store.Sample, len(usage)),
	}
	for i, u := range usage {
		r := store.Rank{DPRank: int32(i)}
		for f, info := range store.Fields {
			if info.Float {
				r.SetFloat(store.Field(f), float64(f)+0.5)
			} else {
				r.SetCount(store.Field(f), int64(f+1))
			}
		}
		r.SetFloat(store.TokenUsage, u)
		l.Ranks = append(l.Ranks, r)
		l.Samples[i].TimeUnixMs = 4000 + int64(i)
	}
	sl.Offer(1, l)
	p.after(time.Millisecond)
}

func worker(id string, role store.Role, models ...string) *store.Worker {
	return &store.Worker{ID: id, URL: "http://" + id, Origin: id, Role: role, Models: models, Dialect: store.DialectPush, Interval: time.Second}
}

// The bytes are what the generated code reads, field by field.
func TestEncodedWorkerIsTheMessage(t *testing.T) {
	run(t, func(p *plane) {
		w := worker("a:1", store.RolePrefill, "m1", "m2")
		w.Zone, w.Labels, w.Draining = "z", map[string]string{"b": "2", "a": ""}, true
		sl := p.add(w)[0]
		p.report(sl, 9, 0.25, 1.5)
		v, _ := p.Current()
		got := decode(t, v.Workers[0].Encoded, &loadplanev1.Worker{})
		want := &loadplanev1.Worker{
			Row: sl.Row(), WorkerId: "a:1", Url: "http://a:1", Role: loadplanev1.Role_ROLE_PREFILL, Models: []string{"m1", "m2"},
			Zone: proto.String("z"), Labels: map[string]string{"a": "", "b": "2"}, Draining: true,
			Dialect: loadplanev1.Dialect_DIALECT_PUSH, SourceInstanceId: "src", Status: loadplanev1.Status_STATUS_HEALTHY,
			Freshness: loadplanev1.Freshness_FRESHNESS_FRESH, ContentHash: v.Workers[0].Hash, ReportIntervalMs: 1000,
			Aggregate: got.GetAggregate(), Ranks: got.GetRanks(),
		}
		if !proto.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		e := v.Entries[0]
		for i, r := range got.GetRanks() {
			rank := &e.Ranks[i]
			if r.GetDpRank() != rank.DPRank {
				t.Errorf("rank %d has dp_rank %d", i, r.GetDpRank())
			}
			for f, info := range store.Fields {
				n, _ := rank.Count(store.Field(f))
				x, known := rank.Float(store.Field(f))
				sameNumber(t, r.ProtoReflect(), info.Name, info.Float, known, n, x)
			}
		}
		a := got.GetAggregate()
		if a.GetRankCount() != 2 || a.GetHottestRank() != 1 || a.GetHottestRankReason() != "token_usage" {
			t.Errorf("aggregate %v", a)
		}
		for s, info := range store.Sums {
			n, _ := e.Aggregate.Count(store.Sum(s))
			x, known := e.Aggregate.Float(store.Sum(s))
			sameNumber(t, a.ProtoReflect(), info.Name, info.Float, known, n, x)
		}
	})
}

// sameNumber compares one number of a message with what the store has.
func sameNumber(t *testing.T, m protoreflect.Message, name string, float, known bool, n int64, x float64) {
	t.Helper()
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if fd == nil {
		t.Fatalf("%s has no field %s", m.Descriptor().Name(), name)
	}
	if m.Has(fd) != known {
		t.Errorf("%s.%s is present: %v, want %v", m.Descriptor().Name(), name, m.Has(fd), known)
	}
	if known && ((float && m.Get(fd).Float() != x) || (!float && m.Get(fd).Int() != n)) {
		t.Errorf("%s.%s is %v, want %v or %v", m.Descriptor().Name(), name, m.Get(fd), n, x)
	}
}

func decode[M proto.Message](t *testing.T, b []byte, m M) M {
	t.Helper()
	if err := (proto.UnmarshalOptions{}).Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	if unknown := m.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		t.Fatalf("unknown fields %x", []byte(unknown))
	}
	return m
}

// The hash is over the content alone: row and hash are cut out of the bytes.
func TestHashIsOfTheContent(t *testing.T) {
	run(t, func(p *plane) {
		p.report(p.add(worker("a:1", store.RoleRegular, "m"))[0], 1, 0.5)
		v, _ := p.Current()
		w := v.Workers[0]
		var content []byte
		for b := w.Encoded; len(b) > 0; {
			num, _, n := protowire.ConsumeField(b)
			if n < 0 {
				t.Fatal(protowire.ParseError(n))
			}
			if num != 1 && num != 14 {
				content = append(content, b[:n]...)
			}
			b = b[n:]
		}
		if got := xxhash.Sum64(content); got != w.Hash || v.Digest != w.Hash {
			t.Errorf("hash %x digest %x, want %x", w.Hash, v.Digest, got)
		}
	})
}

// A new row of the same content has the same hash; other content has not.
func TestHashFollowsContent(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"))
		p.report(slots[0], 1, 0.5)
		first, _ := p.Current()
		again := p.st.NewSlot(worker("a:1", store.RoleRegular, "m"))
		p.st.Apply(store.Discovery{Removed: slots, Added: []*store.Slot{again}})
		again.Bind(store.Stream{Source: "src", Generation: 1})
		p.report(again, 1, 0.5)
		second, _ := p.Current()
		if first.Workers[0].Hash != second.Workers[0].Hash || first.Workers[0].Row == second.Workers[0].Row {
			t.Errorf("rows %d, %d hashes %x, %x", first.Workers[0].Row, second.Workers[0].Row, first.Workers[0].Hash, second.Workers[0].Hash)
		}
		p.report(again, 2, 0.75)
		if third, _ := p.Current(); third.Digest == second.Digest {
			t.Error("other values, same digest")
		}
	})
}

func TestReceipt(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"))
		p.after(time.Second)
		at := p.clock.Now().Milliseconds()
		p.report(slots[0], 7, 0.5, 0.5)
		v, _ := p.Current()
		got := decode(t, v.Receipts[0].Encoded, &loadplanev1.WorkerLiveness{})
		want := &loadplanev1.WorkerLiveness{
			Row: slots[0].Row(), SequenceId: 7, ReceivedMs: at, ValidUntilMs: at + 3000,
			OldestSampleUnixMs: proto.Int64(4000), ReportUnixMs: proto.Int64(5000), LastError: proto.String("old trouble"),
		}
		if !proto.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		if v.Receipts[1] != nil {
			t.Error("a worker that was never heard has a receipt")
		}
	})
}

// What did not change is shared between versions, and receipts alone keep the
// snapshot.
func TestViewsShare(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"))
		p.report(slots[0], 1, 0.5)
		p.report(slots[1], 1, 0.5)
		first, stale := p.Current()
		if again, _ := p.Current(); again != first {
			t.Error("two readers of one state got two views")
		}
		p.report(slots[0], 2, 0.5) // equal
		second, _ := p.Current()
		if second.Snapshot != first.Snapshot || second.Receipts[0] == first.Receipts[0] || second.Receipts[1] != first.Receipts[1] || second.Tick == first.Tick {
			t.Error("an equal report did not move exactly its receipt")
		}
		p.report(slots[1], 2, 0.9)
		third, _ := p.Current()
		select {
		case <-stale:
		default:
			t.Error("the stale channel is open after a change")
		}
		if third.Version != first.Version+1 || third.Workers[0] != first.Workers[0] || third.Workers[1] == first.Workers[1] {
			t.Error("a change of one worker did not replace exactly that worker")
		}
	})
}

func TestPools(t *testing.T) {
	run(t, func(p *plane) {
		mute, twin := worker("d:1", store.RoleRegular, "m"), worker("e:1", store.RoleRegular, "m")
		mute.Dialect, twin.Duplicate = store.DialectNone, true
		slots := p.add(worker("a:1", store.RoleRegular, "m", "n"), worker("b:1", store.RoleRegular, "m"),
			worker("c:1", store.RoleRegular, "m"), mute, twin, worker("f:1", store.RolePrefill))
		p.report(slots[0], 1, 0.2, 0.4)
		p.report(slots[1], 1, 0.9)
		p.after(2 * time.Second)
		p.report(slots[1], 2, 0.9)
		v, _ := p.Current()
		var keys []snapshot.PoolKey
		for _, pool := range v.Pools {
			keys = append(keys, pool.Key)
		}
		want := []snapshot.PoolKey{{Model: "", Role: store.RolePrefill}, {Model: "m", Role: store.RoleRegular}, {Model: "n", Role: store.RoleRegular}}
		if len(keys) != 3 || keys[0] != want[0] || keys[1] != want[1] || keys[2] != want[2] {
			t.Fatalf("pools %v, want %v", keys, want)
		}
		m := decode(t, v.Pools[1].Encoded, &loadplanev1.Pool{})
		if m.GetKey().GetModel() != "m" || m.GetWorkers() != 5 || m.GetFresh() != 2 || m.GetMissing() != 3 || m.GetStale() != 0 ||
			m.GetCoverage() != 2.0/3 || m.GetExpected() != 3 || m.GetHeard() != 2 || m.GetAggregate().GetRankCount() != 3 || m.GetHottestWorkerId() != "b:1" || m.GetHottestRank() != 0 {
			t.Errorf("pool m: %v", m)
		}
		p.after(time.Second) // a falls due
		v, _ = p.Fresh(p.t.Context())
		n := decode(t, v.Pools[2].Encoded, &loadplanev1.Pool{})
		if n.GetStale() != 1 || n.GetExpected() != 1 || n.GetHeard() != 1 || n.Fresh == nil || n.GetFresh() != 0 || n.Aggregate != nil || n.GetCoverage() != 0 || n.TokenUsageImbalance != nil {
			t.Errorf("pool n with nothing fresh: %v", n)
		}
	})
}

func TestWithoutDiscoveryTheViewIsDisabled(t *testing.T) {
	st, err := store.New(store.Options{
		Lineage: "l", Clock: store.NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond, ReportInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	v, _ := snapshot.New(st).Current()
	if v.Enabled || v.Warming || v.Version != 1 || len(v.Workers) != 0 || v.Digest != 0 {
		t.Errorf("view %+v", v.Snapshot)
	}
}

// offer leaves a report with one rank for the next commit.
func (p *plane) offer(sl *store.Slot, seq uint64, change func(*store.Load)) {
	l := &store.Load{
		Source: "src", Sequence: seq, Status: store.StatusHealthy, Received: p.clock.Now(), ReportUnixMs: -1,
		Ranks: make([]store.Rank, 1), Samples: []store.Sample{{TimeUnixMs: -1}},
	}
	change(l)
	sl.Offer(1, l)
	p.after(time.Millisecond)
}

// A known 0 is sent, an unknown number is not, in ranks, aggregates and pools.
func TestZerosAreEncoded(t *testing.T) {
	run(t, func(p *plane) {
		p.offer(p.add(worker("a:1", store.RoleRegular, "m"))[0], 1, func(l *store.Load) {
			for f, info := range store.Fields {
				if info.Float {
					l.Ranks[0].SetFloat(store.Field(f), 0)
				} else {
					l.Ranks[0].SetCount(store.Field(f), 0)
				}
			}
			l.Ranks[0].SetCount(store.MaxTotalNumTokens, 1)
			l.Ranks[0].SetCount(store.MaxRunningRequests, 1)
		})
		v, _ := p.Current()
		w := decode(t, v.Workers[0].Encoded, &loadplanev1.Worker{})
		for _, info := range store.Fields {
			known := w.GetRanks()[0].ProtoReflect()
			if !known.Has(known.Descriptor().Fields().ByName(protoreflect.Name(info.Name))) {
				t.Errorf("the rank's %s is not there", info.Name)
			}
		}
		a := v.Entries[0].Aggregate
		for s, info := range store.Sums {
			n, known := a.Count(store.Sum(s))
			x, _ := a.Float(store.Sum(s))
			sameNumber(t, w.GetAggregate().ProtoReflect(), info.Name, info.Float, known, n, x)
		}
		if got := w.GetAggregate(); got.HottestRank == nil || got.GetHottestRankReason() != "token_usage" {
			t.Errorf("hottest rank 0 is not there: %v", got)
		}
		pool := decode(t, v.Pools[0].Encoded, &loadplanev1.Pool{})
		if pool.HottestRank == nil || pool.GetHottestWorkerId() != "a:1" || pool.Stale == nil || pool.Missing == nil || pool.Unreachable == nil {
			t.Errorf("a 0 of the pool is not there: %v", pool)
		}
		if got := pool.GetAggregate(); got.HottestRank != nil || got.HottestRankReason != nil {
			t.Errorf("the pool's aggregate names a rank: %v", got)
		}
	})
}

// What only an odd worker has is in the message too.
func TestEncodedOddWorker(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"), worker("b:1", store.RoleRegular, "m"))
		p.offer(slots[0], 1, func(l *store.Load) {
			l.Status, l.Flags = store.StatusStale, store.FlagInconsistent|store.FlagRatioAboveOne
		})
		v, _ := p.Current()
		w := decode(t, v.Workers[0].Encoded, &loadplanev1.Worker{})
		if !w.GetPartial() || w.GetFreshnessReason() != "engine_stale" || w.GetStatus() != loadplanev1.Status_STATUS_STALE ||
			len(w.GetFlags()) != 2 || w.GetFlags()[0] != "inconsistent" || w.GetFlags()[1] != "ratio_above_one" {
			t.Errorf("got %v", w)
		}
		mute := decode(t, v.Workers[1].Encoded, &loadplanev1.Worker{})
		if mute.GetPartial() || len(mute.GetFlags()) != 0 || mute.GetFreshnessReason() != "no_report" ||
			mute.GetStatus() != 0 || mute.Aggregate != nil || mute.Zone != nil {
			t.Errorf("a worker that was never heard: %v", mute)
		}
	})
}

// Labels are in the order of their keys, so equal workers have equal bytes.
func TestLabelsAreSorted(t *testing.T) {
	run(t, func(p *plane) {
		w := worker("a:1", store.RoleRegular, "m")
		w.Labels = map[string]string{}
		for _, k := range "qwertzuiopasdfghjklyxcvbnm" {
			w.Labels[string(k)] = "v"
		}
		p.add(w)
		v, _ := p.Current()
		var keys []string
		for b := v.Workers[0].Encoded; len(b) > 0; {
			num, kind, n := protowire.ConsumeTag(b)
			if num == 7 {
				label, _ := protowire.ConsumeBytes(b[n:])
				_, _, tag := protowire.ConsumeTag(label)
				key, _ := protowire.ConsumeString(label[tag:])
				keys = append(keys, key)
			}
			n += protowire.ConsumeFieldValue(num, kind, b[n:])
			b = b[n:]
		}
		if len(keys) != len(w.Labels) || !slices.IsSorted(keys) {
			t.Errorf("labels in the order %v", keys)
		}
	})
}

// Times of the engine are sent where they are known, 0 included.
func TestReceiptTimes(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a:1", store.RoleRegular, "m"))[0]
		for i, at := range []int64{-1, 0} {
			p.offer(sl, uint64(i+1), func(l *store.Load) { l.ReportUnixMs, l.Samples[0].TimeUnixMs = at, at })
			v, _ := p.Current()
			m := decode(t, v.Receipts[0].Encoded, &loadplanev1.WorkerLiveness{})
			if known := at >= 0; (m.ReportUnixMs != nil) != known || (m.OldestSampleUnixMs != nil) != known || m.LastError != nil {
				t.Errorf("times %d: %v", at, m)
			}
		}
	})
}

// Pools are sorted by role within a model. Workers without an engine are out
// of coverage, and nobody expected is no coverage.
func TestPoolsOfRoles(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleDecode, "m"), worker("b:1", store.RolePrefill, "m"),
			worker("c:1", store.RoleRegular, "m"), worker("d:1", store.RoleRegular, "m"), worker("e:1", store.RoleRegular, "m"))
		slots[0].Note(store.ReasonNoEngine)
		slots[4].Note(store.ReasonNoEngine)
		p.report(slots[2], 1, 0.5)
		p.offer(slots[3], 1, func(l *store.Load) {
			l.Status, l.Ranks, l.Samples, l.LastError = store.StatusUnreachable, nil, nil, "gone"
		})
		v, _ := p.Current()
		for i, want := range []struct {
			role                                      loadplanev1.Role
			workers, fresh, missing, unreachable, out uint32
		}{
			{loadplanev1.Role_ROLE_REGULAR, 3, 1, 1, 1, 2},
			{loadplanev1.Role_ROLE_PREFILL, 1, 0, 1, 0, 1},
			{loadplanev1.Role_ROLE_DECODE, 1, 0, 1, 0, 0},
		} {
			m := decode(t, v.Pools[i].Encoded, &loadplanev1.Pool{})
			if m.GetKey().GetRole() != want.role || m.GetWorkers() != want.workers || m.GetFresh() != want.fresh ||
				m.GetMissing() != want.missing || m.GetUnreachable() != want.unreachable || m.GetStale() != 0 {
				t.Errorf("pool %d: %v, want %+v", i, m, want)
			}
			if (m.Coverage != nil) != (want.out > 0) || (want.out > 0 && m.GetCoverage() != float64(want.fresh)/float64(want.out)) {
				t.Errorf("pool %d: coverage %v, want %d of %d", i, m.Coverage, want.fresh, want.out)
			}
		}
	})
}

// Of equally hot workers the first by id is the hottest, in every build.
func TestHottestWorkerOfATie(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("b:1", store.RoleRegular, "m"), worker("a:1", store.RoleRegular, "m"))
		p.report(slots[0], 1, 0.5)
		p.report(slots[1], 1, 0.2, 0.5)
		v, _ := p.Current()
		if pool := v.Pools[0]; pool.HottestWorker != "a:1" || pool.HottestRank != 1 {
			t.Errorf("hottest is rank %d of %s, want rank 1 of a:1", pool.HottestRank, pool.HottestWorker)
		}
	})
}

// Readers that ask for one state at once get one view.
func TestOneBuildForAllReaders(t *testing.T) {
	run(t, func(p *plane) {
		slots := p.add(worker("a:1", store.RoleRegular, "m"))
		for seq := range uint64(50) {
			p.report(slots[0], seq+1, float64(seq))
			views := make([]*snapshot.View, 8)
			var readers sync.WaitGroup
			for i := range views {
				readers.Go(func() { views[i], _ = p.Current() })
			}
			readers.Wait()
			for _, v := range views {
				if v != views[0] {
					t.Fatal("two readers of one state got two views")
				}
			}
		}
	})
}

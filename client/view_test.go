package client

import (
	"fmt"
	"math"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

func TestFreshnessAtATime(t *testing.T) {
	for f, want := range map[pb.Freshness][2]pb.Freshness{
		pb.Freshness_FRESHNESS_FRESH:       {pb.Freshness_FRESHNESS_FRESH, pb.Freshness_FRESHNESS_STALE},
		pb.Freshness_FRESHNESS_STALE:       {pb.Freshness_FRESHNESS_STALE, pb.Freshness_FRESHNESS_STALE},
		pb.Freshness_FRESHNESS_UNREACHABLE: {pb.Freshness_FRESHNESS_UNREACHABLE, pb.Freshness_FRESHNESS_UNREACHABLE},
		pb.Freshness_FRESHNESS_MISSING:     {pb.Freshness_FRESHNESS_MISSING, pb.Freshness_FRESHNESS_MISSING},
		pb.Freshness(99):                   {pb.Freshness(99), pb.Freshness(99)},
	} {
		t.Run(f.String(), func(t *testing.T) {
			x := w(1, "a", 1)
			x.Freshness = f
			var r Replica
			v := apply(t, &r, heard(full(3, x), time.Second, 1))
			for i, at := range []time.Duration{0, time.Second} {
				if got := v.Freshness(v.Worker("a"), start.Add(at)); got != want[i] {
					t.Errorf("after %v it is %v, want %v", at, got, want[i])
				}
			}
		})
	}
}

func TestPool(t *testing.T) {
	role := func(model string, r pb.Role) *pb.Pool { return &pb.Pool{Key: &pb.PoolKey{Model: model, Role: r}} }
	m := full(3)
	m.GetFull().Pools = []*pb.Pool{
		role("m", pb.Role_ROLE_DECODE), role("n", pb.Role_ROLE_REGULAR), role("m", pb.Role_ROLE_PREFILL), role("", pb.Role_ROLE_REGULAR),
	}
	var r Replica
	v := apply(t, &r, m)
	for _, p := range m.GetFull().GetPools() {
		if got := v.Pool(p.GetKey().GetModel(), p.GetKey().GetRole()); got != p {
			t.Errorf("pool %v, want %v", got, p)
		}
	}
	if v.Pool("m", pb.Role_ROLE_REGULAR) != nil || v.Pool("x", pb.Role_ROLE_DECODE) != nil {
		t.Error("a pool that is not there")
	}
}

// The differences of extreme times do not overflow.
func TestSampledAtExtremes(t *testing.T) {
	for _, c := range [][2]int64{{math.MinInt64, math.MaxInt64}, {math.MaxInt64, math.MinInt64}, {-1, math.MaxInt64}, {math.MinInt64, 0}} {
		m := heard(full(3, w(1, "a", 1)), time.Second, 1)
		l := m.Liveness.Workers[0]
		l.ReceivedMs, l.OldestSampleUnixMs, l.ReportUnixMs = m.ServerClockMs, proto.Int64(c[0]), proto.Int64(c[1])
		var r Replica
		v := apply(t, &r, m)
		if at, ok := v.SampledAt(v.Worker("a")); !ok || at.After(start) || c[0] > c[1] && !at.Equal(start) {
			t.Errorf("%v: sampled at %v, %t", c, at, ok)
		}
	}
}

// bigView is of a thousand workers in ten pools.
func bigView(tb testing.TB, r *Replica) *View {
	m := full(1)
	for i := range 1000 {
		x := w(uint32(i+1), fmt.Sprintf("http://10.0.%d.%d:30000", i/250, i%250), uint64(i))
		m.GetFull().Workers = append(m.GetFull().Workers, x)
		heard(m, time.Second, x.GetRow())
	}
	for i := range 10 {
		m.GetFull().Pools = append(m.GetFull().Pools, pool(fmt.Sprintf("model-%d", i)))
	}
	m.Digest = sum(m.GetFull().GetWorkers())
	v, err := r.Apply(m, start)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func TestLookupsDoNotAllocate(t *testing.T) {
	var r Replica
	v := bigView(t, &r)
	watcher, err := NewWatcher(hosts("a"))
	if err != nil {
		t.Fatal(err)
	}
	watcher.publish(v)
	x := v.Worker("http://10.0.1.7:30000")
	if x == nil || v.Pool("model-3", pb.Role_ROLE_UNSPECIFIED) == nil {
		t.Fatal("not found")
	}
	n := 0
	for name, f := range map[string]func(){
		"Worker":      func() { v.Worker("http://10.0.1.7:30000") },
		"Worker, not": func() { v.Worker("http://10.0.1.7") },
		"Workers":     func() { n += len(v.Workers()) + len(v.Pools()) },
		"Pool":        func() { v.Pool("model-3", pb.Role_ROLE_UNSPECIFIED) },
		"Receipt":     func() { v.Receipt(x) },
		"times": func() {
			v.ReceivedAt(x)
			v.SampledAt(x)
			v.ValidUntil(x)
			v.ReportAge(x, start)
			v.Age(start)
		},
		"Valid":          func() { v.Valid(x, start) },
		"Freshness":      func() { v.Freshness(x, start) },
		"CountValid":     func() { n += v.CountValid(start) },
		"Watcher.View":   func() { watcher.View() },
		"Lineage, so on": func() { n += len(v.Lineage()) + int(v.Epoch()+v.Version()+v.Digest()) },
	} {
		if got := testing.AllocsPerRun(100, f); got != 0 {
			t.Errorf("%s allocates %v times", name, got)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	b.Run("heartbeat", func(b *testing.B) {
		var r Replica
		v := bigView(b, &r)
		m := heard(heartbeat(1, v.Digest()), time.Second, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.Apply(m, start); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("delta of ten", func(b *testing.B) {
		var r Replica
		v := bigView(b, &r)
		version := uint64(1)
		b.ReportAllocs()
		for b.Loop() {
			m := delta(version, version+1, v.Digest(), &pb.Delta{Workers: v.Workers()[100:110]})
			version++
			if _, err := r.Apply(m, start); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkView(b *testing.B) {
	var r Replica
	v := bigView(b, &r)
	x := v.Worker("http://10.0.1.7:30000")
	b.Run("Worker", func(b *testing.B) {
		for b.Loop() {
			v.Worker("http://10.0.1.7:30000")
		}
	})
	b.Run("Valid", func(b *testing.B) {
		for b.Loop() {
			v.Valid(x, start)
		}
	})
}

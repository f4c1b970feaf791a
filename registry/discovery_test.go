package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*Options)
		mention string
	}{
		"no store":           {func(o *Options) { o.Store = nil }, "Store"},
		"no port":            {func(o *Options) { o.ReportPort = nil }, "ReportPort"},
		"short lease":        {func(o *Options) { o.Lease = 3 * time.Second }, "lease"},
		"short stale-after":  {func(o *Options) { o.StaleAfter = 2 * time.Second }, "stale-after"},
		"no interval":        {func(o *Options) { o.ReportInterval = 0 }, "ReportInterval"},
		"bad worker":         {func(o *Options) { o.Workers = []string{"http://a:1,role=x"} }, "role"},
		"dialect by name":    {func(o *Options) { o.Workers = []string{"http://a:1,dialect=poll"} }, `poll is not available`},
		"monitor":            {func(o *Options) { o.Workers = []string{"http://a:1,dialect=monitor"} }, `monitor is not available`},
		"loadstat":           {func(o *Options) { o.Workers = []string{"http://a:1,dialect=loadstat"} }, `loadstat is not available`},
		"reporter port":      {func(o *Options) { o.ReporterPort = 65536 }, "65536 is not a port"},
		"registration rule":  {func(o *Options) { o.Registration = RegistrationOff + 1 }, "registration rule"},
		"report rate":        {func(o *Options) { o.MaxReportsPerSecond = -1 }, "MaxReportsPerSecond"},
		"worker interval":    {func(o *Options) { o.Workers = []string{"http://a:1,interval=10s"} }, "http://a:1,interval=10s"},
		"worker named twice": {func(o *Options) { o.Workers = []string{"http://a:1", "http://A:1/"} }, "twice"},
		"no file":            {func(o *Options) { o.WorkersFile = "/nonexistent/w.yaml" }, "/nonexistent/w.yaml"},
		"no token":           {func(o *Options) { o.TokenFile = "/nonexistent/t" }, "/nonexistent/t"},
		"negative limit":     {func(o *Options) { o.MaxWorkers = -1 }, "MaxWorkers"},
	} {
		opts := testOptions(newStore(t))
		c.change(&opts)
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: got %v, want an error that mentions %s", name, err, c.mention)
		}
	}
}

func TestRemovalEndsTheStream(t *testing.T) {
	inBubble(t, []string{testWorker, "http://10.0.0.2:1"}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 1)
		p.settle()
		before, _ := p.st.Current()
		p.discover("http://10.0.0.2:1")
		<-b.Ended()
		wantRefusal(t, b.Err(), ReasonWorkerRemoved, false)
		wantRefusal(t, b.Admit(p.load("s1", 2)), ReasonWorkerRemoved, false)
		_, err := p.Bind(claim("s1"), p.load("s1", 3))
		wantRefusal(t, err, ReasonUnknownWorker, false)
		p.settle()
		if after, _ := p.st.Current(); after.Version != before.Version+1 || len(after.Entries) != 1 {
			t.Errorf("version %d became %d with %d workers", before.Version, after.Version, len(after.Entries))
		}
	})
}

func TestIdentityChange(t *testing.T) {
	const id = "http://10.0.0.1:30000,id=w"
	for name, changed := range map[string]string{
		"role":    id + ",role=decode",
		"dialect": id + ",dialect=none",
		"origin":  "http://10.0.0.2:30000,id=w",
		"scheme":  "https://10.0.0.1:30000,id=w",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{id}, func(p *plane) {
				p.run()
				b := p.bindAs("s1", 1)
				p.settle()
				old, _ := p.entry("w")
				before, _ := p.st.Current()
				p.discover(changed)
				wantRefusal(t, b.Err(), ReasonIdentityChanged, false)
				e, _ := p.entry("w")
				after, _ := p.st.Current()
				if e.Row == old.Row || e.Load != nil || after.Version != before.Version+1 {
					t.Errorf("row %d -> %d, load %v, version %d -> %d", old.Row, e.Row, e.Load, before.Version, after.Version)
				}
			})
		})
	}
}

func TestChangeInPlaceKeepsTheStream(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 1)
		p.settle()
		old, _ := p.entry(testWorker)
		p.discover(testWorker + ",model=m,zone=z,label.a=b,draining=true,interval=500ms,peers=10.9.9.0/24,dialect=push")
		e, _ := p.entry(testWorker)
		w := e.Worker
		if e.Row != old.Row || e.Load == nil || w.Zone != "z" || !w.Draining || w.Interval != 500*time.Millisecond || w.Labels["a"] != "b" {
			t.Errorf("entry %+v, worker %+v", e, w)
		}
		if err := b.Admit(p.load("s1", 2)); err != nil {
			t.Error(err)
		}
		c := claim("s1")
		c.Peer = otherPeer
		if _, err := p.Bind(c, p.load("s1", 3)); err != nil {
			t.Errorf("the new peers are not in force: %v", err)
		}
	})
}

func TestSameListChangesNothing(t *testing.T) {
	inBubble(t, []string{testWorker + ",label.a=b"}, func(p *plane) {
		p.run()
		before, _ := p.st.Current()
		p.discover(testWorker + ",label.a=b")
		if after, _ := p.st.Current(); after.Version != before.Version {
			t.Errorf("version %d became %d", before.Version, after.Version)
		}
	})
}

func TestDuplicateOrigin(t *testing.T) {
	const a, b = testWorker + ",id=a", testWorker + ",id=b"
	inBubble(t, []string{b}, func(p *plane) {
		p.run()
		stream := p.bindAs("s1", 1)
		p.discover(a, b) // a takes the origin
		wantRefusal(t, stream.Err(), ReasonIdentityChanged, false)
		ea, _ := p.entry("a")
		eb, _ := p.entry("b")
		if ea.Worker.Duplicate || !eb.Worker.Duplicate || eb.Reason != store.ReasonDuplicateOrigin || eb.Load != nil {
			t.Errorf("a %+v, b %+v", ea.Worker, eb)
		}
		stream = p.bindAs("s1", 2)
		p.settle()
		if e, _ := p.entry("a"); e.Load == nil {
			t.Error("the keeper of the origin was not bound")
		}
		p.discover(b) // b is promoted
		wantRefusal(t, stream.Err(), ReasonWorkerRemoved, false)
		if eb, _ = p.entry("b"); eb.Worker.Duplicate || eb.Reason == store.ReasonDuplicateOrigin {
			t.Errorf("b was not promoted: %+v", eb.Worker)
		}
		p.bindAs("s1", 3)
		p.settle()
		if eb, _ = p.entry("b"); eb.Load == nil || p.diagnostics("b").Registration == string(StateOff) {
			t.Error("b cannot be heard")
		}
	})
}

func TestFlagWinsOverFile(t *testing.T) {
	r := newRegistry(t, testOptions(newStore(t), testWorker+",zone=flag"))
	r.sources.file = []WorkerSpec{{ID: testWorker, Origin: "10.0.0.1:30000", Zone: "file"}, {ID: "http://b:1", Origin: "b:1"}}
	got := r.merge()
	if len(got) != 2 || got[0].Zone != "flag" || got[0].by != "flag+file" || got[1].by != "file" {
		t.Errorf("%+v", got)
	}
}

func TestMaxWorkers(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Workers = []string{"http://c:1", "http://b:1", "http://a:1"}
		o.MaxWorkers = 2
	}, func(p *plane) {
		p.run()
		if st, _ := p.st.Current(); len(st.Entries) != 2 || testutil.ToFloat64(p.metrics.dropped) != 1 {
			t.Errorf("%d workers, %v dropped", len(st.Entries), testutil.ToFloat64(p.metrics.dropped))
		}
	})
}

// TestRandomDiscovery compares the store with the last of many random lists,
// and every stream with the life of its worker.
func TestRandomDiscovery(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.run()
		rnd := rand.New(rand.NewPCG(1, 2))
		streams := make(map[string]*Binding)
		for range 500 {
			want := make(map[string]string)
			for i := range 6 {
				if rnd.IntN(3) > 0 {
					id := fmt.Sprint("w", i)
					want[id] = fmt.Sprintf("http://10.0.0.1:%d,id=%s,zone=z%d", 1+rnd.IntN(2)+10*i, id, rnd.IntN(3))
				}
			}
			rows := make(map[string]uint32)
			for id := range streams {
				e, _ := p.entry(id)
				rows[id] = e.Row
			}
			p.discover(valuesOf(want)...)
			st, _ := p.st.Current()
			if len(st.Entries) != len(want) {
				t.Fatalf("%d workers, want %d", len(st.Entries), len(want))
			}
			for id, b := range streams {
				e, _ := p.entry(id)
				if lives := e != nil && e.Row == rows[id]; lives != (b.Err() == nil) {
					t.Fatalf("%s: same identity %v, stream %v", id, lives, b.Err())
				}
			}
			for _, e := range st.Entries {
				if fmt.Sprintf("%s,id=%s,zone=%s", e.Worker.URL, e.Worker.ID, e.Worker.Zone) != want[e.Worker.ID] {
					t.Fatalf("%+v, want %s", e.Worker, want[e.Worker.ID])
				}
				c := Claim{Addr: e.Worker.URL, Role: store.RoleRegular, Source: "s", Peer: testPeer}
				b, err := p.Bind(c, p.load("s", 1))
				if err != nil {
					t.Fatal(err)
				}
				streams[e.Worker.ID] = b
			}
			maps.DeleteFunc(streams, func(id string, _ *Binding) bool { return want[id] == "" })
		}
	})
}

func valuesOf(m map[string]string) (values []string) {
	for v := range maps.Values(m) {
		values = append(values, v)
	}
	return values
}

package sim

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/native"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// home is a plane on a real socket at which engines register themselves.
type home struct {
	t     *testing.T
	store *store.Store
	url   string
}

func newHome(t *testing.T) *home {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clock := store.NewClock()
	st, err := store.New(store.Options{
		Lineage: "test", Epoch: 1, Clock: clock, StaleAfter: 3 * time.Second, Settle: 5 * ms, ReportInterval: 100 * ms,
		Discovery: true, SleptFor: func() time.Duration { return 0 }, Logger: quiet(),
	})
	must(err)
	reg, err := registry.New(registry.Options{
		Store: st, Logger: quiet(), ReportInterval: 100 * ms, StaleAfter: 3 * time.Second, Lease: time.Minute,
		ReportPort: func() uint16 { return 7401 },
	})
	must(err)
	service, err := native.New(native.Options{Registry: reg, Clock: clock, Logger: quiet()})
	must(err)
	server, err := ingest.NewServer(ingest.ServerOptions{Logger: quiet()})
	must(err)
	service.Register(server.Registrar())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, part := range []func(context.Context) error{st.Run, reg.Run, func(ctx context.Context) error { return server.Run(ctx, l) }} {
		running.Go(func() {
			if err := part(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return &home{t, st, "http://" + l.Addr().String()}
}

// until waits for a state in which the worker of a URL is as ok wants; nil
// stands for no worker.
func (h *home) until(url, what string, ok func(e *store.Entry) bool) *store.Entry {
	h.t.Helper()
	late := time.After(30 * time.Second)
	for {
		state, stale := h.store.Current()
		var found *store.Entry
		if i := slices.IndexFunc(state.Entries, func(e *store.Entry) bool { return e.Worker.URL == url }); i >= 0 {
			found = state.Entries[i]
		}
		if ok(found) {
			return found
		}
		select {
		case <-stale:
		case <-late:
			h.t.Fatalf("%s never came; there is %+v", what, found)
		}
	}
}

func fresh(e *store.Entry) bool { return e != nil && e.Freshness == store.Fresh && len(e.Ranks) > 0 }

// TestANativeEngineRegistersItself follows one engine at a real plane through
// all that can happen to it.
func TestANativeEngineRegistersItself(t *testing.T) {
	h := newHome(t)
	f, err := New(Options{
		Engines: 1, Ranks: 8, Kinds: []Kind{KindNative}, Model: "m", Zones: []string{"z"}, Seed: 1, Logger: quiet(),
		Plane: func() string { return h.url },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	defer running.Wait()
	defer stop()
	e, url := f.Engines()[0], f.URLs()[0]

	first := h.until(url, "a fresh worker", fresh)
	w := first.Worker
	if len(f.Workers()) != 0 || w.Dialect != store.DialectNative || !slices.Equal(w.Models, []string{"m"}) || w.Zone != "z" || w.Role != store.RoleRegular || w.DiscoveredBy != "registration" {
		t.Errorf("worker %+v, listed are %v", w, f.Workers())
	}
	if len(first.Ranks) != 8 || first.Partial || first.Load.Source != e.Source() || !first.Ranks[0].Has(store.PrefillThroughput) || first.Ranks[0].Has(store.DecodePreallocReqs) {
		t.Errorf("entry %+v, ranks %v", first, first.Ranks)
	}

	e.Restart()
	again := h.until(url, "another life", func(now *store.Entry) bool { return fresh(now) && now.Load.Source == e.Source() })
	if again.Row != first.Row || again.Load.Source == first.Load.Source {
		t.Errorf("row %d with %s, before %d with %s", again.Row, again.Load.Source, first.Row, first.Load.Source)
	}
	if err := e.Rerank(4); err != nil {
		t.Fatal(err)
	}
	h.until(url, "four ranks", func(now *store.Entry) bool { return fresh(now) && now.Row == first.Row && len(now.Ranks) == 4 })

	e.SetFault(Fault{Kind: FaultFail})
	h.until(url, "the report of a failed sample", func(now *store.Entry) bool {
		return now != nil && now.Load.Status == store.StatusStale && now.Load.LastError == "simulated sampling failure" && len(now.Ranks) == 4
	})
	e.ClearFault(FaultFail)
	h.until(url, "the end of the failure", fresh)
	e.SetFault(Fault{Kind: FaultSilent})
	h.until(url, "silence", func(now *store.Entry) bool { return now != nil && now.Freshness == store.Stale })
	e.ClearFault(FaultSilent)
	h.until(url, "the end of the silence", fresh)
	e.SetFault(Fault{Kind: FaultDown})
	h.until(url, "the end of the worker", func(now *store.Entry) bool { return now == nil })
	e.ClearFault(FaultDown)
	h.until(url, "the worker's return", fresh)
	stop()
	h.until(url, "the end of the worker", func(now *store.Entry) bool { return now == nil })
}

// TestANativeEngineWithoutItsPlane serves, and ends when it is told to.
func TestANativeEngineWithoutItsPlane(t *testing.T) {
	for _, plane := range []string{"", "http://127.0.0.1:1"} {
		f, err := New(Options{Engines: 1, Kinds: []Kind{KindNative}, Logger: quiet(), Plane: func() string { return plane }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		client := realClient()
		for path, want := range map[string]int{"/health": 200, "/metrics": 404, "/v1/loads": 404, "/server_info": 404, "/v1/models": 404} {
			r, err := client.Get(f.URLs()[0] + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Body.Close()
			if r.StatusCode != want {
				t.Errorf("%s answers %d, want %d", path, r.StatusCode, want)
			}
		}
		stop()
		running.Wait()
	}
}

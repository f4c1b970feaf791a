package soak

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/push"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	heartbeat  = time.Second
	settle     = 10 * time.Millisecond
)

// plane is the parts of one plane, wired as the service wires them, on the
// names "ingest" and "api" of a network. Discovery runs once: engines are
// registered by the test.
type plane struct {
	t     *testing.T
	clock *store.Clock
	// base is the time of the clock's zero.
	base    time.Time
	store   *store.Store
	builder *snapshot.Builder
	reg     *prometheus.Registry
	slept   func() time.Duration
	server  *http.Server
	cancel  context.CancelFunc
	runs    sync.WaitGroup
}

func startPlane(t *testing.T, n *network, lineage string, workers []string, slept func() time.Duration) *plane {
	t.Helper()
	p := &plane{t: t, base: time.Now(), clock: store.NewClock(), reg: prometheus.NewRegistry(), slept: slept}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: lineage, Epoch: uint64(time.Now().UnixMilli()), Clock: p.clock, StaleAfter: staleAfter, Settle: settle,
		ReportInterval: interval, Discovery: true, SleptFor: slept, Registerer: p.reg, Logger: quiet,
	})
	p.must(err)
	known, err := registry.New(registry.Options{
		Store: p.store, Workers: workers, ReportInterval: interval, StaleAfter: staleAfter, Lease: lease,
		ReportPort: func() uint16 { return target.Port }, Registerer: p.reg, Logger: quiet,
	})
	p.must(err)
	server, err := ingest.NewServer(ingest.ServerOptions{Registerer: p.reg, Logger: quiet})
	p.must(err)
	pushed, err := push.New(push.Options{Registry: known, Clock: p.clock, Registerer: p.reg})
	p.must(err)
	pushed.Register(server.Registrar())
	p.builder = snapshot.New(p.store)
	served, err := api.New(api.Options{
		Snapshots: p.builder, ServerID: lineage, Heartbeat: heartbeat, Registerer: p.reg, Gatherer: p.reg, Logger: quiet,
	})
	p.must(err)
	p.server = api.NewHTTPServer(served.Handler(), nil, quiet)

	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.run(ctx, p.store.Run)
	_, found := p.store.Current()
	known.Rediscover()
	<-found
	ingestAt, apiAt := n.listen("ingest"), n.listen("api")
	p.run(ctx, func(ctx context.Context) error { return server.Run(ctx, ingestAt) })
	p.run(ctx, func(context.Context) error { _ = p.server.Serve(apiAt); return nil })
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) run(ctx context.Context, part func(context.Context) error) {
	p.runs.Go(func() {
		if err := part(ctx); err != nil {
			p.t.Errorf("Run: %v", err)
		}
	})
}

// stop ends the plane at once, as a crash would.
func (p *plane) stop() {
	p.must(p.server.Close())
	p.cancel()
	p.runs.Wait()
}

// pass lets d go by and everything due in it happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func neverSlept() time.Duration { return 0 }

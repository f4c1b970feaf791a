package model

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/api"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// pipeBytes is what a connection in memory holds: little, so that a reader
// that stops is noticed soon.
const pipeBytes = 2 << 10

// plane is one life of the real parts.
type plane struct {
	clock    *store.Clock
	store    *store.Store
	builder  *snapshot.Builder
	registry *registry.Registry
	metrics  *prometheus.Registry
	handler  http.Handler
	listener *bufconn.Listener
	stop     func()
}

type planeOptions struct {
	life        int
	workersFile string
	sleptFor    func() time.Duration
	// serve says that readers connect.
	serve bool
}

// newPlane starts a plane. It must be stopped.
func newPlane(t *rapid.T, o planeOptions) *plane {
	p := &plane{clock: store.NewClock(), metrics: prometheus.NewRegistry(), listener: bufconn.Listen(pipeBytes)}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	p.store, err = store.New(store.Options{
		Lineage: fmt.Sprintf("lineage-%d", o.life), Epoch: uint64(time.Now().UnixMilli()), Clock: p.clock,
		StaleAfter: staleAfter, Settle: settle, ReportInterval: interval, Discovery: true,
		SleptFor: o.sleptFor, Logger: quiet,
	})
	must(t, err)
	p.builder = snapshot.New(p.store)
	p.registry, err = registry.New(registry.Options{
		Store: p.store, WorkersFile: o.workersFile, ReportInterval: interval, StaleAfter: staleAfter,
		Lease: 15 * time.Second, ReportPort: func() uint16 { return 7401 }, Registerer: p.metrics, Logger: quiet,
	})
	must(t, err)
	served, err := api.New(api.Options{Snapshots: p.builder, ServerID: fmt.Sprintf("server-%d", o.life), Logger: quiet})
	must(t, err)
	p.handler = served.Handler()
	p.run(t, o.serve)
	return p
}

// run starts the committer and, where readers connect, the server.
func (p *plane) run(t *rapid.T, serve bool) {
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() {
		if err := p.store.Run(ctx); err != nil {
			t.Errorf("store: %v", err)
		}
	})
	server := api.NewHTTPServer(p.handler, nil, slog.New(slog.DiscardHandler))
	if serve {
		running.Go(func() { _ = server.Serve(p.listener) })
	}
	p.stop = func() {
		_ = server.Close()
		cancel()
		running.Wait()
	}
	synctest.Wait()
}

// snapshot asks for what a watch would begin with.
func (p *plane) snapshot(t *rapid.T) *pb.WatchSnapshotsResponse {
	r := httptest.NewRequest(http.MethodPost, loadplanev1connect.SnapshotServiceGetSnapshotProcedure, bytes.NewReader(nil))
	r.Header.Set("Content-Type", "application/proto")
	body := p.answer(t, r)
	res := new(pb.GetSnapshotResponse)
	must(t, proto.Unmarshal(body, res))
	return res.GetSnapshot()
}

// page is what is compared of the JSON snapshot.
type page struct {
	Version uint64
	Lineage string
	Epoch   uint64
	Warming bool
	Workers []struct {
		WorkerID        string  `json:"worker_id"`
		Freshness       string  `json:"freshness"`
		FreshnessReason *string `json:"freshness_reason"`
		Source          *string `json:"source_instance_id"`
		Sequence        *uint64 `json:"sequence_id"`
		ValidFor        *int64  `json:"valid_for_ms"`
		Ranks           []map[string]*float64
	}
}

func (p *plane) page(t *rapid.T) *page {
	got := new(page)
	must(t, json.Unmarshal(p.answer(t, httptest.NewRequest(http.MethodGet, "/v1/load_monitor/snapshot", nil)), got))
	return got
}

func (p *plane) answer(t *rapid.T, r *http.Request) []byte {
	rec := httptest.NewRecorder()
	p.handler.ServeHTTP(rec, r)
	if rec.Code != http.StatusOK {
		t.Fatalf("%s answered %d: %s", r.URL, rec.Code, rec.Body)
	}
	return rec.Body.Bytes()
}

// watcherClient returns a client with a connection for each watch. It must be
// closed.
func (p *plane) watcherClient() (c loadplanev1connect.SnapshotServiceClient, closeIdle func()) {
	transport := &http.Transport{
		DisableCompression: true,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.listener.DialContext(ctx) },
	}
	return loadplanev1connect.NewSnapshotServiceClient(&http.Client{Transport: transport}, "http://plane"), transport.CloseIdleConnections
}

// refusals returns how often each reason was counted.
func (p *plane) refusals(t *rapid.T) map[string]int {
	families, err := p.metrics.Gather()
	must(t, err)
	counts := map[string]int{}
	for _, f := range families {
		if f.GetName() != "loadplane_registry_refused_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if n := int(m.GetCounter().GetValue()); n > 0 {
				counts[m.GetLabel()[0].GetValue()] = n
			}
		}
	}
	return counts
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

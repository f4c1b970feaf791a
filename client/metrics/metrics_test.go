package metrics_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/metrics"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"connectrpc.com/connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane sends a full of an empty view and a heartbeat of it; its first watch
// then ends.
type plane struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
	calls chan struct{}
}

func (p plane) WatchSnapshots(ctx context.Context, r *pb.WatchSnapshotsRequest, s *connect.ServerStream[pb.WatchSnapshotsResponse]) error {
	p.calls <- struct{}{}
	head := func() *pb.WatchSnapshotsResponse {
		return &pb.WatchSnapshotsResponse{Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: 1}, HeartbeatIntervalMs: 30_000}
	}
	m := head()
	m.Event = &pb.WatchSnapshotsResponse_Heartbeat{Heartbeat: &pb.Heartbeat{}}
	if r.GetResume() == nil {
		m.Event = &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{}}
	}
	if err := s.Send(m); err != nil {
		return err
	}
	if r.GetResume() == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

const untouched = `
# HELP loadplane_client_connected 1 while a stream brings messages.
# TYPE loadplane_client_connected gauge
loadplane_client_connected 0
# HELP loadplane_client_digest_mismatches_total Streams that were cut because a view did not sum to the digest of the plane, which must not be.
# TYPE loadplane_client_digest_mismatches_total counter
loadplane_client_digest_mismatches_total 0
# HELP loadplane_client_lineage_adoptions_total Times that the view went over to another lineage.
# TYPE loadplane_client_lineage_adoptions_total counter
loadplane_client_lineage_adoptions_total 0
# HELP loadplane_client_messages_total Messages applied, by type.
# TYPE loadplane_client_messages_total counter
loadplane_client_messages_total{type="delta"} 0
loadplane_client_messages_total{type="full"} 0
loadplane_client_messages_total{type="go_away"} 0
loadplane_client_messages_total{type="heartbeat"} 0
# HELP loadplane_client_reconnects_total Streams and attempts that ended, by cause.
# TYPE loadplane_client_reconnects_total counter
loadplane_client_reconnects_total{cause="broken"} 0
loadplane_client_reconnects_total{cause="closed"} 0
loadplane_client_reconnects_total{cause="exhausted"} 0
loadplane_client_reconnects_total{cause="go_away"} 0
loadplane_client_reconnects_total{cause="refused"} 0
loadplane_client_reconnects_total{cause="silent"} 0
loadplane_client_reconnects_total{cause="unreachable"} 0
# HELP loadplane_client_watchdog_cuts_total Streams and attempts that were cut because no message came in time.
# TYPE loadplane_client_watchdog_cuts_total counter
loadplane_client_watchdog_cuts_total 0
`

func TestCollector(t *testing.T) {
	p := plane{calls: make(chan struct{}, 10)}
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(p))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	w, err := client.NewWatcher(client.Options{Addresses: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(metrics.New(w)); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(untouched)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, first := w.View()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	<-first
	for {
		// The second view is that of the second watch.
		_, stale := w.View()
		if w.Status().Messages["heartbeat"] > 0 {
			break
		}
		<-stale
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	if n, err := testutil.GatherAndCount(reg, "loadplane_client_view_age_seconds", "loadplane_client_valid_workers"); n != 2 || err != nil {
		t.Errorf("%d of the view, %v", n, err)
	}
	want := strings.NewReplacer(
		"connected 0", "connected 1", `{type="full"} 0`, `{type="full"} 1`,
		`{type="heartbeat"} 0`, `{type="heartbeat"} 1`, `{cause="closed"} 0`, `{cause="closed"} 1`,
	).Replace(untouched)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"loadplane_client_connected", "loadplane_client_lineage_adoptions_total", "loadplane_client_messages_total",
		"loadplane_client_reconnects_total", "loadplane_client_watchdog_cuts_total"); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/service/internal/testcert"
	"github.com/loadplane/loadplane/sim"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccreds "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// dialIngest connects to the ingest listener.
func (p *plane) dialIngest(creds grpccreds.TransportCredentials) *grpc.ClientConn {
	p.t.Helper()
	_, ingest, _ := p.Addrs()
	conn, err := grpc.NewClient("passthrough:///"+ingest.String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestReporterRegistersItself has an engine that nobody lists: it is there once
// its reporter registered, and gone when that leaves.
func TestReporterRegistersItself(t *testing.T) {
	p := startPlane(t, testConfig())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn := p.dialIngest(insecure.NewCredentials())
	registration := pb.NewRegistrationServiceClient(conn)
	lease, err := registration.Register(ctx, &pb.RegisterRequest{Url: "http://127.0.0.1:30000", Models: []string{"m"}, Engine: "vllm"})
	if err != nil || lease.GetLeaseId() == "" || lease.GetGrant().GetReportIntervalMs() == 0 {
		t.Fatalf("lease %v, error %v", lease, err)
	}
	report, err := pb.NewReportServiceClient(conn).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rank := &pb.RankSample{Load: &pb.RankLoad{NumRunningReqs: proto.Int64(3)}}
	if err := report.Send(&pb.ReportRequest{LeaseId: lease.GetLeaseId(), Report: &pb.EngineReport{
		SourceInstanceId: "a", Sequence: 1, Status: pb.Status_STATUS_HEALTHY, Ranks: []*pb.RankSample{rank},
	}}); err != nil {
		t.Fatal(err)
	}
	stream := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(httpClient(t, nil, true), p.url(config.API)), 1)
	_ = stream.Close()
	list := func() string {
		_, body, _ := p.get(httpClient(t, nil, false), config.API, "/v1/load_monitor/snapshot")
		return body
	}
	if body := list(); !strings.Contains(body, `"dialect":"native"`) || !strings.Contains(body, `"num_running_reqs":3`) || !strings.Contains(body, `"num_waiting_reqs":null`) {
		t.Errorf("the view: %s", body)
	}
	if _, err := registration.Deregister(ctx, &pb.DeregisterRequest{LeaseId: lease.GetLeaseId()}); err != nil {
		t.Fatal(err)
	}
	for err == nil { // behind the grants
		_, err = report.Recv()
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("the stream ended with %v", err)
	}
	gone := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(httpClient(t, nil, true), p.url(config.API)), 0)
	_ = gone.Close()
	if strings.Contains(p.log.String(), lease.GetLeaseId()) {
		t.Error("the lease is in the log")
	}
}

// TestWhoMayRegister has the setting registration in each of its values, and a
// listener with and without TLS.
func TestWhoMayRegister(t *testing.T) {
	for _, c := range []struct {
		rule, worker string
		want         codes.Code
		enabled      bool
	}{
		{config.RegistrationOpen, "", codes.OK, true},
		{config.RegistrationKnown, "", codes.InvalidArgument, true},
		{config.RegistrationKnown, "http://127.0.0.1:30000,dialect=native", codes.OK, true},
		{config.RegistrationOff, "", codes.PermissionDenied, false},
		{config.RegistrationOff, "http://127.0.0.1:30000,dialect=native", codes.PermissionDenied, true},
	} {
		t.Run(c.rule+" "+c.worker, func(t *testing.T) {
			cfg := testConfig()
			if cfg.Registration = c.rule; c.worker != "" {
				cfg.Worker = []string{c.worker}
			}
			p := startPlane(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := pb.NewRegistrationServiceClient(p.dialIngest(insecure.NewCredentials())).
				Register(ctx, &pb.RegisterRequest{Url: "http://127.0.0.1:30000"}, grpc.WaitForReady(true))
			if status.Code(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			_, body, _ := p.get(httpClient(t, nil, false), config.API, "/v1/load_monitor/snapshot")
			if want := fmt.Sprintf(`"enabled":%v`, c.enabled); !strings.Contains(body, want) {
				t.Errorf("it lacks %s: %s", want, body)
			}
		})
	}
}

// TestPlaneWithoutWorkersIsReady: there is nothing to wait for where nobody
// registered yet.
func TestPlaneWithoutWorkersIsReady(t *testing.T) {
	p := startPlane(t, testConfig())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := loadplanev1connect.NewSnapshotServiceClient(httpClient(t, nil, true), p.url(config.API)).
		WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() && stream.Msg().GetWarming() {
	}
	if stream.Err() != nil {
		t.Fatal(stream.Err())
	}
	if code, body, _ := p.get(httpClient(t, nil, false), config.Ops, "/readyz"); code != 200 {
		t.Errorf("readyz: %d %s", code, body)
	}
}

func TestRegisteringNeedsTheToken(t *testing.T) {
	ca := testcert.NewAuthority(t, "ca")
	f := testcert.NewFiles(t, ca, ca)
	cfg := testConfig()
	cfg.TLSCert, cfg.TLSKey, cfg.APITokenFile = f.Cert, f.Key, f.Token
	p := startPlane(t, cfg)
	c := pb.NewRegistrationServiceClient(p.dialIngest(grpccreds.NewTLS(&tls.Config{RootCAs: ca.Pool()})))
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "wrong": codes.Unauthenticated, testcert.Token: codes.OK} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		if _, err := c.Register(ctx, &pb.RegisterRequest{Url: "http://127.0.0.1:30000"}); status.Code(err) != want {
			t.Errorf("with %q: %v, want %s", token, err, want)
		}
		cancel()
	}
}

// TestEveryDialectOfTheDialers has engines of which each is heard in another
// dialect, chosen by the plane.
func TestEveryDialectOfTheDialers(t *testing.T) {
	kinds := []sim.Kind{sim.KindSGLang, sim.KindSGLangMonitor, sim.KindSGLangLoadStat, sim.KindVLLM}
	fleet, err := sim.New(sim.Options{Engines: len(kinds), Kinds: kinds, Ranks: 2, Seed: 1, Logger: testLogger(io.Discard)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	cfg := testConfig()
	for _, w := range fleet.Workers() {
		cfg.Worker = append(cfg.Worker, w.Flag())
	}
	p := startPlane(t, cfg)
	stream := watchUntilFresh(ctx, t, loadplanev1connect.NewSnapshotServiceClient(httpClient(t, nil, true), p.url(config.API)), len(kinds))
	_ = stream.Close()
	_, body, _ := p.get(httpClient(t, nil, false), config.API, "/v1/load_monitor/snapshot")
	for _, dialect := range []string{"push", "monitor", "loadstat", "poll"} {
		if !strings.Contains(body, `"dialect":"`+dialect+`"`) {
			t.Errorf("no worker is heard by %s: %s", dialect, body)
		}
	}
}

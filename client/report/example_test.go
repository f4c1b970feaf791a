package report_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/loadplane/loadplane/client/report"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/native"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// serve runs what stands for a plane on a loopback port until the context ends.
func serve(ctx context.Context) (address string, done chan struct{}, err error) {
	clock, quiet := store.NewClock(), slog.New(slog.DiscardHandler)
	st, err := store.New(store.Options{
		Lineage: "example", Epoch: 1, Clock: clock, StaleAfter: 3 * time.Second, Settle: 10 * time.Millisecond,
		ReportInterval: time.Second, Logger: quiet,
	})
	if err != nil {
		return "", nil, err
	}
	reg, err := registry.New(registry.Options{
		Store: st, Logger: quiet, ReportInterval: time.Second, StaleAfter: 3 * time.Second, Lease: 15 * time.Second,
		ReportPort: func() uint16 { return 0 },
	})
	if err != nil {
		return "", nil, err
	}
	service, err := native.New(native.Options{Registry: reg, Clock: clock, Logger: quiet})
	if err != nil {
		return "", nil, err
	}
	server, err := ingest.NewServer(ingest.ServerOptions{Logger: quiet})
	if err != nil {
		return "", nil, err
	}
	service.Register(server.Registrar())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	done = make(chan struct{}, 3)
	for _, part := range []func(context.Context) error{st.Run, reg.Run, func(ctx context.Context) error { return server.Run(ctx, listener) }} {
		go func() {
			_ = part(ctx)
			done <- struct{}{}
		}()
	}
	return "http://" + listener.Addr().String(), done, nil
}

// A process beside an engine reports it. What the engine does not say is left
// out: it is unknown to routers then, and not zero.
func ExampleReporter() {
	plane, stop := context.WithCancel(context.Background())
	defer stop()
	address, done, err := serve(plane)
	if err != nil {
		fmt.Println(err)
		return
	}

	sequence, made := uint64(0), make(chan struct{}, 100)
	sample := func(now time.Time) *pb.EngineReport {
		sequence++
		made <- struct{}{}
		running, time := int64(3), now.UnixMilli()
		return &pb.EngineReport{
			SourceInstanceId: "engine-started-at-noon", Sequence: sequence, Status: pb.Status_STATUS_HEALTHY,
			ReportTimeUnixMs: &time,
			Ranks:            []*pb.RankSample{{Load: &pb.RankLoad{DpRank: 0, NumRunningReqs: &running}, SnapshotTimeUnixMs: &time}},
		}
	}
	reporter, err := report.New(report.Options{
		Address:      address,
		Registration: &pb.RegisterRequest{Url: "http://127.0.0.1:8000", Models: []string{"llama"}, ReportIntervalMs: 20},
		Report:       sample,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- reporter.Run(ctx) }()

	for range 5 {
		<-made
	}
	status := reporter.Status()
	fmt.Println(status.WorkerID, "every", status.Interval)

	cancel() // gives the lease back: the worker is gone at once
	fmt.Println("stopped:", <-ran)
	stop()
	for range cap(done) {
		<-done
	}
	// Output:
	// http://127.0.0.1:8000 every 20ms
	// stopped: <nil>
}

package balance_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/balance"
	"github.com/loadplane/loadplane/client/pick"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// plane stands for a running service with two workers.
type plane struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
}

func (plane) WatchSnapshots(ctx context.Context, _ *pb.WatchSnapshotsRequest, s *connect.ServerStream[pb.WatchSnapshotsResponse]) error {
	worker := func(row uint32, host string, requests int64) *pb.Worker {
		waiting := int64(0)
		return &pb.Worker{
			Row: row, WorkerId: "http://" + host, Url: "http://" + host, Models: []string{"llama"}, ContentHash: uint64(row),
			Role: pb.Role_ROLE_REGULAR, Freshness: pb.Freshness_FRESHNESS_FRESH, ReportIntervalMs: 1000,
			Aggregate: &pb.Aggregate{NumRunningReqs: &requests, NumWaitingReqs: &waiting},
			Ranks:     []*pb.RankLoad{{DpRank: 0, NumRunningReqs: &requests, NumWaitingReqs: &waiting}},
		}
	}
	err := s.Send(&pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: 1}, Digest: 3,
		ServerId: "plane-1", ServerClockMs: 60_000, StaleAfterMs: 3000, HeartbeatIntervalMs: 1000,
		Liveness: &pb.Liveness{Workers: []*pb.WorkerLiveness{
			{Row: 1, ReceivedMs: 59_900, ValidUntilMs: 62_900}, {Row: 2, ReceivedMs: 59_950, ValidUntilMs: 62_950},
		}},
		Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{
			Workers: []*pb.Worker{worker(1, "10.0.0.1:30000", 40), worker(2, "10.0.0.2:30000", 3)},
			Pools:   []*pb.Pool{{Key: &pb.PoolKey{Model: "llama", Role: pb.Role_ROLE_REGULAR}}},
		}},
	})
	<-ctx.Done()
	return err
}

// follow runs a watcher of a plane until the function that it returns is called.
func follow() (watcher *client.Watcher, stop func()) {
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(plane{}))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{server.URL}})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- watcher.Run(ctx) }()
	_, first := watcher.View()
	<-first
	return watcher, func() {
		cancel()
		<-done
		server.Close()
	}
}

// A router that sends a request to the best DP rank, and counts it there until
// it is over.
func ExampleBalancer() {
	watcher, stop := follow()
	defer stop()

	balancer, err := balance.New(balance.Options{Watcher: watcher, Pick: pick.Options{PerRank: true}})
	if err != nil {
		fmt.Println(err)
		return
	}
	route, err := balancer.Pick(balance.Request{Model: "llama", PromptTokens: 1200})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer route.Done()

	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, route.URL+"/v1/chat/completions", http.NoBody)
	if err != nil {
		fmt.Println(err)
		return
	}
	if route.DPRank != "" {
		request.Header.Set(balance.RankHeader, route.DPRank)
	}
	fmt.Println(request.URL, request.Header)
	fmt.Println(route.Field, route.Score, balancer.Local(route.WorkerID).InFlight)
	// Output:
	// http://10.0.0.2:30000/v1/chat/completions map[X-Data-Parallel-Rank:[0]]
	// total_requests 3 1
}

// A router that knows some workers by itself, for the time before the first
// view and for models that no plane lists.
func ExampleOptions() {
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://127.0.0.1:7400"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	balancer, err := balance.New(balance.Options{Watcher: watcher, Static: []balance.Worker{{URL: "http://10.0.0.9:30000"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	route, err := balancer.Pick(balance.Request{Model: "llama"})
	if err != nil {
		fmt.Println(balance.ReasonOf(err))
		return
	}
	defer route.Done()
	fmt.Println(route.URL, route.Reason)
	// Output: http://10.0.0.9:30000 no_view
}

// A router that tries another worker where one refused the request.
func ExampleRoute_Failed() {
	watcher, stop := follow()
	defer stop()
	balancer, err := balance.New(balance.Options{Watcher: watcher, Pick: pick.Options{Policy: pick.LeastLoad}})
	if err != nil {
		fmt.Println(err)
		return
	}
	request := balance.Request{Model: "llama"}
	for {
		route, err := balancer.Pick(request)
		if err != nil {
			fmt.Println(balance.ReasonOf(err))
			return
		}
		fmt.Println("no answer from", route.URL)
		route.Failed()
		request.Avoid = append(request.Avoid, route.WorkerID)
	}
	// Output:
	// no answer from http://10.0.0.2:30000
	// no answer from http://10.0.0.1:30000
	// all_tried
}

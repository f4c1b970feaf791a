package client_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// plane stands for a running service: it has one busy worker and one that it
// never heard.
type plane struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
}

func (plane) WatchSnapshots(ctx context.Context, _ *loadplanev1.WatchSnapshotsRequest, s *connect.ServerStream[loadplanev1.WatchSnapshotsResponse]) error {
	requests := int64(12)
	busy := &loadplanev1.Worker{
		Row: 1, WorkerId: "http://10.0.0.1:30000", Url: "http://10.0.0.1:30000", Models: []string{"llama"},
		Role: loadplanev1.Role_ROLE_REGULAR, Freshness: loadplanev1.Freshness_FRESHNESS_FRESH, ContentHash: 1,
		Aggregate: &loadplanev1.Aggregate{TotalRequests: &requests},
	}
	silent := &loadplanev1.Worker{
		Row: 2, WorkerId: "http://10.0.0.2:30000", Url: "http://10.0.0.2:30000", Models: []string{"llama"},
		Role: loadplanev1.Role_ROLE_REGULAR, Freshness: loadplanev1.Freshness_FRESHNESS_MISSING, ContentHash: 2,
	}
	workers := uint32(2)
	full := &loadplanev1.WatchSnapshotsResponse{
		Cursor: &loadplanev1.Cursor{Lineage: "l", Epoch: 1, Version: 1}, Digest: 3,
		ServerId: "plane-1", ServerClockMs: 60_000, StaleAfterMs: 3000, HeartbeatIntervalMs: 1000,
		Liveness: &loadplanev1.Liveness{Workers: []*loadplanev1.WorkerLiveness{
			{Row: 1, SequenceId: 1, ReceivedMs: 59_900, ValidUntilMs: 62_900},
		}},
		Event: &loadplanev1.WatchSnapshotsResponse_Full{Full: &loadplanev1.Full{
			Workers: []*loadplanev1.Worker{busy, silent},
			Pools: []*loadplanev1.Pool{{
				Key:     &loadplanev1.PoolKey{Model: "llama", Role: loadplanev1.Role_ROLE_REGULAR},
				Workers: &workers,
			}},
		}},
	}
	if err := s.Send(full); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// start serves a plane on a loopback port.
func start() *httptest.Server {
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(plane{}))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	return server
}

// A router follows the plane in the background, and reads the view in force for
// every request. The view is never torn, and turns invalid by itself when the
// plane is gone.
func ExampleWatcher() {
	server := start()
	defer server.Close()

	watcher, err := client.NewWatcher(client.Options{Addresses: []string{server.URL}, ClientID: "router-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	_, stale := watcher.View()
	go func() { done <- watcher.Run(ctx) }()

	<-stale // the first view; a router need not wait for it
	view, _ := watcher.View()
	now := time.Now()
	for _, w := range view.Workers() {
		fmt.Println(w.GetUrl(), strings.TrimPrefix(view.Freshness(w, now).String(), "FRESHNESS_"))
		if view.Valid(w, now) {
			fmt.Println("  requests:", w.GetAggregate().GetTotalRequests())
		}
	}
	pool := view.Pool("llama", loadplanev1.Role_ROLE_REGULAR)
	fmt.Println("pool of", pool.GetWorkers())
	fmt.Println("valid in an hour:", view.CountValid(now.Add(time.Hour)))

	cancel()
	fmt.Println("stopped:", <-done)
	// Output:
	// http://10.0.0.1:30000 FRESH
	//   requests: 12
	// http://10.0.0.2:30000 MISSING
	// pool of 2
	// valid in an hour: 0
	// stopped: <nil>
}

// A router that precomputes something for every view waits for the channel to
// close. It skips views when it is slow; the stream never waits for it.
func ExampleWatcher_View() {
	rebuild := func(ctx context.Context, watcher *client.Watcher, build func(*client.View)) {
		for {
			view, stale := watcher.View()
			if view != nil {
				build(view)
			}
			select {
			case <-stale:
			case <-ctx.Done():
				return
			}
		}
	}
	_ = rebuild
}

// Several planes over mutual TLS, with a token that is read anew for every
// stream.
func ExampleOptions() {
	certificate, err := tls.LoadX509KeyPair("router.pem", "router.key")
	if err != nil {
		fmt.Println("no certificate:", os.IsNotExist(err))
	}
	options := client.Options{
		Addresses: []string{"https://plane-0.example:7400", "https://plane-1.example:7400"},
		TLS:       &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
		Token: func(context.Context) (string, error) {
			b, err := os.ReadFile("/var/run/secrets/loadplane/token")
			return strings.TrimSpace(string(b)), err
		},
		Filter: &loadplanev1.Filter{Models: []string{"llama"}},
		Detail: loadplanev1.Detail_DETAIL_WORKERS,
	}
	_, err = client.NewWatcher(options)
	fmt.Println(err)
	// Output:
	// no certificate: true
	// <nil>
}

// Status says what is wrong while there is no stream. Run never gives up.
func ExampleWatcher_Status() {
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://127.0.0.1:7400"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	status := watcher.Status()
	if !status.Connected() && status.LastCause == client.CauseRefused {
		fmt.Println("wrong token, or not a plane:", status.LastError)
	}
	fmt.Println(status.Connected(), status.Reconnects())
	// Output: false 0
}

// What a router sent to a worker after its newest
// sample was taken is not in its numbers yet.
func ExampleView_SampledAt() {
	maybeCounted := func(view *client.View, w *loadplanev1.Worker, sent time.Time) bool {
		sampled, ok := view.SampledAt(w)
		return ok && !sent.After(sampled)
	}
	_ = maybeCounted
}

// A program that has its own streams applies their messages by a Replica.
func ExampleReplica() {
	follow := func(ctx context.Context, httpClient *http.Client) error {
		service := loadplanev1connect.NewSnapshotServiceClient(httpClient, "http://127.0.0.1:7400")
		var replica client.Replica
		stream, err := service.WatchSnapshots(ctx, &loadplanev1.WatchSnapshotsRequest{Resume: replica.Resume()})
		if err != nil {
			return err
		}
		for stream.Receive() {
			view, err := replica.Apply(stream.Msg(), time.Now())
			if err != nil {
				return err // open the watch anew
			}
			if view == nil {
				continue // the first full comes in several messages
			}
			for _, w := range view.Workers() {
				if view.Valid(w, time.Now()) {
					fmt.Println(w.GetUrl(), w.GetAggregate().GetTotalRequests())
				}
			}
		}
		return stream.Err()
	}
	_ = follow
}

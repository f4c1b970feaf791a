package client_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/loadplane/loadplane/client"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// A router that follows the plane over one stream.
func ExampleReplica() {
	follow := func(ctx context.Context, httpClient *http.Client) error {
		plane := loadplanev1connect.NewSnapshotServiceClient(httpClient, "http://127.0.0.1:7400")
		var replica client.Replica
		stream, err := plane.WatchSnapshots(ctx, &loadplanev1.WatchSnapshotsRequest{Resume: replica.Resume()})
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

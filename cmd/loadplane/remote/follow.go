package remote

import (
	"context"

	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Server is the URL of the plane's API.
func (c *Client) Server() string { return c.flags.server }

// Follow returns a watcher of the workers of a filter, nil for all, that names
// itself to the plane. It reads the token anew for every stream. It dials
// nothing before it runs.
func (c *Client) Follow(filter *pb.Filter, name string) (*client.Watcher, error) {
	tlsConfig, err := c.flags.tlsConfig()
	if err != nil {
		return nil, err
	}
	w, err := client.NewWatcher(client.Options{
		Addresses: []string{c.base}, TLS: tlsConfig, Filter: filter, ClientID: name,
		Token: func(context.Context) (string, error) { return c.flags.token() },
	})
	if err != nil {
		return nil, Usagef("--server: %w", err)
	}
	return w, nil
}

// View returns the workers of a filter once, nil for all: the first message of
// a watch.
func (c *Client) View(ctx context.Context, filter *pb.Filter) (*pb.WatchSnapshotsResponse, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	answer, err := c.snapshots.GetSnapshot(ctx, &pb.GetSnapshotRequest{Filter: filter})
	if err != nil {
		return nil, c.explain(err)
	}
	return answer.GetSnapshot(), nil
}

// Checks returns what the plane explains of a worker. The error is a
// *connect.Error; its code is UNIMPLEMENTED from planes that cannot.
func (c *Client) Checks(ctx context.Context, worker string) (*pb.ExplainWorkerResponse, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	return c.workers.ExplainWorker(ctx, &pb.ExplainWorkerRequest{WorkerId: worker})
}

// Advise adds to an error of a call or a watch what to do about it.
func (c *Client) Advise(err error) error { return c.explain(err) }

package client

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/link"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

const (
	// firstMessage is how long a new stream may be silent.
	firstMessage = 5 * time.Second
	// The echoed heartbeat counts within these bounds; none counts as
	// defaultHeartbeat.
	defaultHeartbeat = time.Second
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = 30 * time.Second
	// maxMessage bounds one message, bytes. A plane cuts at 2 MiB; receipts, and
	// a worker that is larger, come on top.
	maxMessage = 64 << 20
)

// arrival is a message and when it came.
type arrival struct {
	*pb.WatchSnapshotsResponse
	at time.Time
}

// stream is one watch, read by a goroutine of its own.
type stream struct {
	opts    Options
	address string
	link    *link.Link
	resume  *pb.Cursor

	// arrivals has what came; it has no buffer, so that a stream is read as fast
	// as messages are applied.
	arrivals chan arrival
	// done closes when the goroutine is over: err is set and its slot is free by
	// then.
	done chan struct{}
	err  error
}

// receive hands messages over until the stream or ctx ends.
func (s *stream) receive(ctx context.Context) error {
	ctx, call := connect.NewClientContext(ctx)
	if s.opts.Token != nil {
		token, err := s.opts.Token(ctx)
		if err != nil {
			return fmt.Errorf("no token: %w", err)
		}
		call.RequestHeader().Set("Authorization", "Bearer "+token)
	}
	plane := loadplanev1connect.NewSnapshotServiceClient(s.link.Client(), s.address, connect.WithReadMaxBytes(maxMessage),
		// It would cost more than it saves.
		connect.WithAcceptCompression("gzip", nil, nil))
	watch, err := plane.WatchSnapshots(ctx, s.opts.request(s.resume))
	if err != nil {
		return err
	}
	defer func() { _ = watch.Close() }()
	for watch.Receive() {
		select {
		case s.arrivals <- arrival{watch.Msg(), time.Now()}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := watch.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// patience is how long a stream may be silent after m.
func patience(m *pb.WatchSnapshotsResponse) time.Duration {
	beat := time.Duration(m.GetHeartbeatIntervalMs()) * time.Millisecond
	if beat == 0 {
		beat = defaultHeartbeat
	}
	return min(max(beat, minHeartbeat), maxHeartbeat) * 5 / 2
}

package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Watch writes a line for every message of a watch, in one of the formats
// table and json. It returns nil when ctx ended it, else why it ended.
func (c *Client) Watch(ctx context.Context, w io.Writer, format string) error {
	stream, err := c.snapshots.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{ClientId: "loadplane watch"})
	if err != nil {
		return c.watchEnd(ctx, "", err)
	}
	defer func() { _ = stream.Close() }()
	v := view{workers: map[uint32]*pb.Worker{}}
	reason := ""
	for stream.Receive() {
		m := stream.Msg()
		reason = cmp.Or(m.GetGoAway().GetReason(), reason)
		if err := v.print(w, m, format); err != nil {
			return err
		}
	}
	return c.watchEnd(ctx, reason, stream.Err())
}

func (v *view) print(w io.Writer, m *pb.WatchSnapshotsResponse, format string) error {
	changed := v.apply(m)
	if format == "json" {
		line, err := compactJSON(m)
		if err != nil {
			return err
		}
		_, err = w.Write(append(line, '\n'))
		return err
	}
	_, err := fmt.Fprintln(w, watchLine(v, m, changed))
	return err
}

// watchEnd says why a watch ended; nil when the user ended it. reason is what
// the plane announced, if it did.
func (c *Client) watchEnd(ctx context.Context, reason string, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
	}
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("%s ended the watch: %s", c.flags.server, cmp.Or(Printable(reason, maxText), "no reason given"))
	case connect.CodeOf(err) == connect.CodeUnavailable && reason != "":
		return fmt.Errorf("%s ended the watch: %s", c.flags.server, Printable(reason, maxText))
	}
	return fmt.Errorf("the watch ended: %w", c.explain(err))
}

// view is what a watch has shown so far. It is for one goroutine.
type view struct {
	workers map[uint32]*pb.Worker
	// filling holds the first chunks of a full; nil between fulls.
	filling map[uint32]*pb.Worker
}

// apply takes a message in and returns how many workers it changed.
func (v *view) apply(m *pb.WatchSnapshotsResponse) int {
	if full := m.GetFull(); full != nil {
		if full.GetChunk() == 0 || v.filling == nil {
			v.filling = map[uint32]*pb.Worker{}
		}
		for _, w := range full.GetWorkers() {
			v.filling[w.GetRow()] = w
		}
		if full.GetChunk()+1 >= full.GetChunks() {
			v.workers, v.filling = v.filling, nil
		}
		return len(full.GetWorkers())
	}
	delta := m.GetDelta()
	for _, r := range delta.GetRemoved() {
		delete(v.workers, r.GetRow())
	}
	for _, w := range delta.GetWorkers() {
		v.workers[w.GetRow()] = w
	}
	return len(delta.GetRemoved()) + len(delta.GetWorkers())
}

func watchLine(v *view, m *pb.WatchSnapshotsResponse, changed int) string {
	t := tally{}
	for _, w := range v.workers {
		t[w.GetFreshness()]++
	}
	line := fmt.Sprintf("%s v%-6d %-9s %s changed=%d",
		time.UnixMilli(m.GetServerUnixMs()).Format("15:04:05.000"), m.GetCursor().GetVersion(), eventWord(m), t, changed)
	if m.GetWarming() {
		line += " warming"
	}
	return line
}

func eventWord(m *pb.WatchSnapshotsResponse) string {
	switch m.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		return "full"
	case *pb.WatchSnapshotsResponse_Delta:
		return "delta"
	case *pb.WatchSnapshotsResponse_Heartbeat:
		return "heartbeat"
	case *pb.WatchSnapshotsResponse_GoAway:
		return "go_away"
	}
	return "other"
}

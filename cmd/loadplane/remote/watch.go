package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/document"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// lineWidth is the most that a line of a watch takes, columns.
const lineWidth = 80

// maxNamed bounds the workers that a wide line names.
const maxNamed = 16

// Watch writes a line for every event of a watch, in one of the formats table
// and wide, or each message, as a line of json or a document of yaml. It returns
// nil when ctx ended it, else why it ended.
func (c *Client) Watch(ctx context.Context, w Screen, format string) error {
	stream, err := c.snapshots.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{ClientId: "loadplane watch"})
	if err != nil {
		return c.watchEnd(ctx, "", err)
	}
	defer func() { _ = stream.Close() }()
	f := follower{out: w, format: format}
	reason := ""
	for stream.Receive() {
		m := stream.Msg()
		reason = cmp.Or(m.GetGoAway().GetReason(), reason)
		if err := f.take(m, time.Now()); err != nil {
			return err
		}
	}
	return c.watchEnd(ctx, reason, stream.Err())
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
		return fmt.Errorf("%s ended the watch: %s", c.flags.server, cmp.Or(table.Printable(reason, maxText), "no reason given"))
	case connect.CodeOf(err) == connect.CodeUnavailable && reason != "":
		return fmt.Errorf("%s ended the watch: %s", c.flags.server, table.Printable(reason, maxText))
	}
	return fmt.Errorf("the watch ended: %w", c.explain(err))
}

// follower applies the messages of one watch and writes what they say. It is
// for one goroutine.
type follower struct {
	out     io.Writer
	format  string
	replica client.Replica
	// changed and removed count the workers of an event that is not whole yet.
	changed, removed int
	// named are those that a wide line names.
	named []string
}

// take writes a line for m: as JSON for every message, else once its event is
// whole. It fails where m does not continue what was shown.
func (f *follower) take(m *pb.WatchSnapshotsResponse, at time.Time) error {
	if err := f.message(m); err != nil {
		return err
	}
	view, err := f.replica.Apply(m, at)
	if err != nil {
		return fmt.Errorf("the watch cannot be followed: %w", err)
	}
	f.changed += len(m.GetFull().GetWorkers()) + len(m.GetDelta().GetWorkers())
	f.removed += len(m.GetDelta().GetRemoved())
	f.name(m.GetFull().GetWorkers())
	f.name(m.GetDelta().GetWorkers())
	if !lastChunk(m) {
		return nil
	}
	line := f.line(view, m)
	f.changed, f.removed, f.named = 0, 0, nil
	if f.forPrograms() {
		return nil
	}
	_, err = fmt.Fprintln(f.out, line)
	return err
}

func (f *follower) forPrograms() bool { return f.format == "json" || f.format == "yaml" }

// message writes m itself where programs read it.
func (f *follower) message(m *pb.WatchSnapshotsResponse) error {
	switch f.format {
	case "yaml":
		if _, err := io.WriteString(f.out, "---\n"); err != nil {
			return err
		}
		return document.Write(f.out, m, "yaml")
	case "json":
		line, err := document.Line(m)
		if err != nil {
			return err
		}
		_, err = f.out.Write(append(line, '\n'))
		return err
	}
	return nil
}

// name keeps the ids of changed workers for a wide line.
func (f *follower) name(workers []*pb.Worker) {
	for _, w := range workers[:min(len(workers), max(0, maxNamed-len(f.named)))] {
		f.named = append(f.named, table.Printable(w.GetWorkerId(), maxText))
	}
}

func lastChunk(m *pb.WatchSnapshotsResponse) bool {
	number := max(m.GetFull().GetChunk(), m.GetDelta().GetChunk())
	return number+1 >= max(m.GetFull().GetChunks(), m.GetDelta().GetChunks())
}

// line is what a whole event says, in a line of a terminal.
func (f *follower) line(v *client.View, m *pb.WatchSnapshotsResponse) string {
	line := fmt.Sprintf("%s v%-5d %-9s", time.UnixMilli(m.GetServerUnixMs()).Format("15:04:05.000"), v.Version(), client.EventName(m))
	if g := m.GetGoAway(); g != nil {
		line += fmt.Sprintf(" come back within %dms: %s", g.GetReconnectWithinMs(), table.Printable(g.GetReason(), maxText))
	} else {
		line += " " + count(v) + f.changes()
	}
	if v.Warming() {
		line += " warming"
	}
	if f.format == "wide" {
		return strings.TrimRight(line+" "+strings.Join(f.named, " "), " ")
	}
	if runes := []rune(line); len(runes) > lineWidth {
		return string(runes[:lineWidth-1]) + "…"
	}
	return line
}

// changes says how many workers the event brought and took.
func (f *follower) changes() string {
	text := ""
	if f.changed > 0 {
		text += fmt.Sprintf(" changed=%d", f.changed)
	}
	if f.removed > 0 {
		text += fmt.Sprintf(" removed=%d", f.removed)
	}
	return text
}

// count counts the workers of a view by freshness; of those that are not
// fresh only where there are some.
func count(v *client.View) string {
	t := tally{}
	for _, w := range v.Workers() {
		t[w.GetFreshness()]++
	}
	text := fmt.Sprintf("fresh=%d", t[pb.Freshness_FRESHNESS_FRESH])
	for _, f := range []pb.Freshness{pb.Freshness_FRESHNESS_STALE, pb.Freshness_FRESHNESS_MISSING, pb.Freshness_FRESHNESS_UNREACHABLE} {
		if t[f] > 0 {
			text += fmt.Sprintf(" %s=%d", freshnessWord(f), t[f])
		}
	}
	return text
}

package remote

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/document"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Snapshot writes the view once, in one of the formats table, wide, json and
// yaml.
func (c *Client) Snapshot(ctx context.Context, w Screen, format string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	answer, err := c.snapshots.GetSnapshot(ctx, &pb.GetSnapshotRequest{})
	if err != nil {
		return c.explain(err)
	}
	if format == "json" || format == "yaml" {
		return document.Write(w, answer, format)
	}
	s := answer.GetSnapshot()
	if _, err := fmt.Fprintln(w, headline(s)); err != nil {
		return err
	}
	columns, rows := snapshotTable(s, format == "wide")
	return table.Write(w, columns, rows)
}

// headline names the version and counts the workers.
func headline(s *pb.WatchSnapshotsResponse) string {
	t := tally{}
	for _, w := range s.GetFull().GetWorkers() {
		t[w.GetFreshness()]++
	}
	warming := ""
	if s.GetWarming() {
		warming = ", warming"
	}
	return fmt.Sprintf("version %d, %d workers: %s%s", s.GetCursor().GetVersion(), len(s.GetFull().GetWorkers()), t, warming)
}

// tally counts workers by freshness.
type tally map[pb.Freshness]int

// String returns the counts, the word before the number.
func (t tally) String() string {
	var parts []string
	for _, f := range []pb.Freshness{pb.Freshness_FRESHNESS_FRESH, pb.Freshness_FRESHNESS_STALE, pb.Freshness_FRESHNESS_MISSING, pb.Freshness_FRESHNESS_UNREACHABLE} {
		parts = append(parts, fmt.Sprintf("%s=%d", freshnessWord(f), t[f]))
	}
	return strings.Join(parts, " ")
}

func freshnessWord(f pb.Freshness) string {
	return strings.ToLower(strings.TrimPrefix(f.String(), "FRESHNESS_"))
}

func roleWord(r pb.Role) string {
	if r == pb.Role_ROLE_REGULAR {
		return "plain"
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// dialectWord returns the word of a dialect; "auto" while none is in force.
func dialectWord(d pb.Dialect) string {
	if d == pb.Dialect_DIALECT_UNSPECIFIED {
		return "auto"
	}
	return strings.ToLower(strings.TrimPrefix(d.String(), "DIALECT_"))
}

// snapshotTable returns a table that is 80 columns wide at most, or one with
// everything that fits in a line.
func snapshotTable(s *pb.WatchSnapshotsResponse, wide bool) ([]table.Column, [][]string) {
	columns := []table.Column{
		table.Left("WORKER", 26), table.Left("ROLE", 7), table.Left("STATE", 11), table.Right("RANKS", 5),
		table.Right("RUN", 5), table.Right("WAIT", 5), table.Right("KV", 5), table.Right("AGE", 6),
	}
	if wide {
		columns[0].Width = 0
		columns = append(columns, []table.Column{
			table.Right("USED", 5), table.Right("TOKENS", 6), table.Right("GEN/S", 8), table.Right("HOT", 4),
			table.Left("MODELS", 0), table.Left("ZONE", 0), table.Left("DIALECT", 0), table.Left("REASON", 0), table.Left("SOURCE", 0),
		}...)
	}
	ages := agesByRow(s)
	var rows [][]string
	for _, w := range s.GetFull().GetWorkers() {
		g := cmp.Or(w.GetAggregate(), &pb.Aggregate{})
		row := []string{
			strings.TrimPrefix(w.GetWorkerId(), "http://"), roleWord(w.GetRole()), freshnessWord(w.GetFreshness()),
			optional(g.RankCount, "%d"), short(g.NumRunningReqs), short(g.NumWaitingReqs),
			percent(g.WeightedTokenUsage), ages[w.GetRow()],
		}
		if wide {
			row = append(row, wideCells(w)...)
		}
		rows = append(rows, row)
	}
	return columns, rows
}

func wideCells(w *pb.Worker) []string {
	g := cmp.Or(w.GetAggregate(), &pb.Aggregate{})
	return []string{
		short(g.NumUsedTokens), short(g.MaxTotalNumTokens), optional(g.GenThroughput, "%.1f"), optional(g.HottestRank, "%d"),
		strings.Join(w.GetModels(), ","), w.GetZone(),
		dialectWord(w.GetDialect()),
		w.GetFreshnessReason(), w.GetSourceInstanceId(),
	}
}

// agesByRow returns the ages of the last reports on the server's clock.
func agesByRow(s *pb.WatchSnapshotsResponse) map[uint32]string {
	ages := map[uint32]string{}
	for _, l := range s.GetLiveness().GetWorkers() {
		now, then := s.GetServerClockMs(), l.GetReceivedMs()
		ages[l.GetRow()] = Age(max(now, then) - then)
	}
	return ages
}

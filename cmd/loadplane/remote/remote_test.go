package remote

import (
	"bytes"
	"math"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// extreme is a snapshot of the widest values and one worker without any.
func extreme() *pb.WatchSnapshotsResponse {
	big := proto.Int64(math.MaxInt64)
	return &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Version: math.MaxUint64}, Warming: true, ServerClockMs: math.MaxUint64,
		Liveness: &pb.Liveness{Workers: []*pb.WorkerLiveness{{Row: 1}}},
		Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: []*pb.Worker{
			{
				Row: 1, WorkerId: "http://" + strings.Repeat("ü", 200) + ":30000", Role: pb.Role_ROLE_PREFILL,
				Freshness: pb.Freshness_FRESHNESS_UNREACHABLE, FreshnessReason: "engine_unreachable",
				Aggregate: &pb.Aggregate{
					RankCount: proto.Uint32(4096), NumRunningReqs: big, NumWaitingReqs: big,
					WeightedTokenUsage: proto.Float64(4), NumUsedTokens: big, MaxTotalNumTokens: big,
				},
			},
			{Row: 2, WorkerId: "evil\x1b[31m\n\u202e", Freshness: pb.Freshness_FRESHNESS_MISSING},
		}}},
	}
}

func TestSnapshotTableIsNarrow(t *testing.T) {
	var b bytes.Buffer
	columns, rows := snapshotTable(extreme(), false)
	if err := writeTable(&b, columns, rows); err != nil {
		t.Fatal(err)
	}
	requireWidth(t, b.String())
	if strings.ContainsAny(b.String(), "\x1b\u202e") || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("control characters pass:\n%q", b.String())
	}
	if !strings.Contains(b.String(), "…") || !strings.Contains(b.String(), ":30000 prefill unreachable") {
		t.Errorf("the end of a long name is cut:\n%s", b.String())
	}
	last := strings.Fields(strings.Split(b.String(), "\n")[2])
	if got := strings.Join(last[2:], " "); got != "missing - - - - -" {
		t.Errorf("unknown numbers are shown as %q", got)
	}
}

func TestWorkersTableIsNarrow(t *testing.T) {
	list := &pb.ListWorkersResponse{Workers: []*pb.WorkerInfo{{
		Worker:       &pb.Worker{WorkerId: strings.Repeat("x", 300), Freshness: pb.Freshness_FRESHNESS_UNREACHABLE, FreshnessReason: strings.Repeat("r", 40)},
		DiscoveredBy: "kubernetes", Registration: strings.Repeat("s", 40), AgeMs: proto.Uint64(math.MaxUint64),
	}, {Worker: &pb.Worker{WorkerId: "quiet"}, LastRefusal: proto.String("retired")}}}
	var b bytes.Buffer
	columns, rows := workersTable(list, false)
	if err := writeTable(&b, columns, rows); err != nil {
		t.Fatal(err)
	}
	requireWidth(t, b.String())
	if !strings.Contains(b.String(), "retired") {
		t.Errorf("the last refusal is not shown:\n%s", b.String())
	}
}

func TestShortAndAge(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 9999: "9999", 10_000: "10k", 9_999_499: "9999k", 9_999_500: "10M", math.MaxInt64: "9223P"} {
		if got := short(&n); got != want || len(got) > 5 {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	if got := short(nil); got != "-" {
		t.Errorf("unknown: %s", got)
	}
	for ms, want := range map[uint64]string{0: "0ms", 9_999: "9999ms", 10_000: "10s", 599_999: "599s", 600_000: "10m", 36_000_000: "10h", math.MaxUint64: "99999h"} {
		if got := age(ms); got != want || len(got) > 6 {
			t.Errorf("%d: %s, want %s", ms, got, want)
		}
	}
}

func TestViewApplies(t *testing.T) {
	worker := func(row uint32, f pb.Freshness) *pb.Worker { return &pb.Worker{Row: row, Freshness: f} }
	full := func(chunk, chunks uint32, workers ...*pb.Worker) *pb.WatchSnapshotsResponse {
		return &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers, Chunk: chunk, Chunks: chunks}}}
	}
	fresh, stale := pb.Freshness_FRESHNESS_FRESH, pb.Freshness_FRESHNESS_STALE
	steps := []struct {
		name    string
		m       *pb.WatchSnapshotsResponse
		want    string
		changed string
	}{
		{"full", full(0, 0, worker(1, fresh), worker(2, fresh)), "fresh=2 stale=0", "changed=2"},
		{"delta", &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Delta{Delta: &pb.Delta{
			Removed: []*pb.RemovedWorker{{Row: 2}}, Workers: []*pb.Worker{worker(1, stale), worker(3, fresh)},
		}}}, "fresh=1 stale=1", "changed=3"},
		{"heartbeat", &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Heartbeat{}}, "fresh=1 stale=1", "changed=0"},
		{"first chunk shows nothing yet", full(0, 2, worker(1, fresh)), "fresh=1 stale=1", "changed=1"},
		{"last chunk commits", full(1, 2, worker(4, fresh)), "fresh=2 stale=0", "changed=1"},
		{"chunk without its first one", full(1, 2, worker(5, stale)), "fresh=0 stale=1", "changed=1"},
	}
	v := view{workers: map[uint32]*pb.Worker{}}
	for _, s := range steps {
		line := watchLine(&v, s.m, v.apply(s.m))
		if !strings.Contains(watchLine(&v, s.m, 0), s.want) || !strings.Contains(line, s.changed) {
			t.Errorf("%s: %s, want %s %s", s.name, line, s.want, s.changed)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x00b\u202e", 10)
	f.Add("ééééé", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = 4 + max(0, limit%1000)
		got := Printable(s, limit)
		if len(got) > limit || strings.ContainsAny(got, "\n\r\x1b\x00\u202e") {
			t.Fatalf("%q with %d: %q", s, limit, got)
		}
	})
}

// requireWidth fails for lines wider than a terminal.
func requireWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

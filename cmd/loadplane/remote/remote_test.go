package remote

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
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
	if err := table.Write(&b, columns, rows); err != nil {
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

// fleet is a list of the widest values, a worker with hardly any, and one that
// is polled.
func fleet() *pb.ListWorkersResponse {
	evil := "evil\x1b[31m\n\u202e"
	return &pb.ListWorkersResponse{ServerClockMs: 10_000, Workers: []*pb.WorkerInfo{
		{
			LeaseExpiresMs: proto.Uint64(math.MaxUint64), NextRegistrationMs: proto.Uint64(9_000),
			Worker:       &pb.Worker{WorkerId: strings.Repeat("x", 300), Freshness: pb.Freshness_FRESHNESS_UNREACHABLE, FreshnessReason: strings.Repeat("r", 40), Dialect: pb.Dialect_DIALECT_LOADSTAT},
			DiscoveredBy: "kubernetes", Registration: strings.Repeat("s", 40), AgeMs: proto.Uint64(math.MaxUint64),
			Engine: proto.String(strings.Repeat("e", 40)), EngineVersion: proto.String(evil), DialectWhy: proto.String(evil),
		},
		{Worker: &pb.Worker{WorkerId: "quiet"}, LastRefusal: proto.String("retired")},
		{
			Worker: &pb.Worker{WorkerId: "http://10.0.0.1:8000", Freshness: pb.Freshness_FRESHNESS_FRESH, Dialect: pb.Dialect_DIALECT_POLL},
			Engine: proto.String("vllm"), EngineVersion: proto.String("0.26.0"), AgeMs: proto.Uint64(120), PollIntervalMs: proto.Uint32(1500),
			DialectWhy: proto.String("push: absent (404)"), DiscoveredBy: "flag", Registration: "polling",
		},
	}}
}

func TestWorkersTableIsNarrow(t *testing.T) {
	b := written(t, fleet(), 0, false)
	requireWidth(t, b)
	lines := strings.Split(b, "\n")
	for i, want := range map[int]string{
		0: "WORKER ENGINE DIALECT STATE AGE TROUBLE", 2: "quiet - auto unspecified - retired",
		3: "10.0.0.1:8000 vllm 0.26.0 poll fresh 120ms -",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}

// A long engine loses the end of its version, not its kind.
func TestWorkersTableKeepsTheKindOfEngine(t *testing.T) {
	list := fleet()
	list.Workers[0].Engine, list.Workers[0].EngineVersion = proto.String("tensorrt-llm"), proto.String("1.3.0")
	for wide, want := range map[bool]string{false: " tensorrt-llm… loadstat ", true: " tensorrt-llm 1.3.0 loadstat "} {
		if got := written(t, list, 0, wide); !strings.Contains(got, want) {
			t.Errorf("wide %v: it lacks %q:\n%s", wide, want, got)
		}
	}
}

func TestWorkersTableShowsAllWhenWide(t *testing.T) {
	got := written(t, fleet(), 0, true)
	if strings.ContainsAny(got, "\x1b\u202e") || strings.Count(got, "\n") != 4 {
		t.Errorf("control characters pass:\n%q", got)
	}
	for _, want := range []string{"1500ms", "push: absent (404)", "polling", "kubernetes", strings.Repeat("e", 40)} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not shown:\n%s", want, got)
		}
	}
}

// TestWorkersTableShowsWhatIsDue tells how long a lease lives, by the server's
// clock, and nothing where that is not known.
func TestWorkersTableShowsWhatIsDue(t *testing.T) {
	info := &pb.WorkerInfo{
		Worker: &pb.Worker{WorkerId: "a", Dialect: pb.Dialect_DIALECT_NATIVE}, DiscoveredBy: "registration",
		NextRegistrationMs: proto.Uint64(14_000), LeaseExpiresMs: proto.Uint64(24_500),
	}
	for _, c := range []struct {
		now  uint64
		want string
	}{
		{10_000, "4000ms 14s"}, {20_000, "0ms 4500ms"}, {0, "- -"},
	} {
		list := &pb.ListWorkersResponse{Workers: []*pb.WorkerInfo{info}, ServerClockMs: c.now}
		if got := cell(list, "NEXT") + " " + cell(list, "LEASE"); got != c.want {
			t.Errorf("at %d ms: %q, want %q", c.now, got, c.want)
		}
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
		if got := Age(ms); got != want || len(got) > 6 {
			t.Errorf("%d: %s, want %s", ms, got, want)
		}
	}
}

// TestFollowerSaysWhatChanged feeds the messages of one watch.
func TestFollowerSaysWhatChanged(t *testing.T) {
	fresh, stale := pb.Freshness_FRESHNESS_FRESH, pb.Freshness_FRESHNESS_STALE
	worker := func(row uint32, f pb.Freshness) *pb.Worker {
		return &pb.Worker{Row: row, WorkerId: strings.Repeat("w", int(row)), Freshness: f}
	}
	at := func(version uint64, m *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
		m.Cursor = &pb.Cursor{Lineage: "l", Epoch: 1, Version: version}
		return m
	}
	full := func(chunk, chunks uint32, workers ...*pb.Worker) *pb.WatchSnapshotsResponse {
		return &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers, Chunk: chunk, Chunks: chunks}}}
	}
	delta := func(base uint64, removed uint32, workers ...*pb.Worker) *pb.WatchSnapshotsResponse {
		return &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Delta{Delta: &pb.Delta{
			BaseVersion: base, Removed: []*pb.RemovedWorker{{Row: removed}}, Workers: workers,
		}}}
	}
	beat := &pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_Heartbeat{Heartbeat: &pb.Heartbeat{}}}
	leave := &pb.WatchSnapshotsResponse{Warming: true, Event: &pb.WatchSnapshotsResponse_GoAway{GoAway: &pb.GoAway{
		ReconnectWithinMs: 2000, Reason: "draining: \x1b[31m" + strings.Repeat("because ", 30),
	}}}
	var b bytes.Buffer
	f := follower{out: &b}
	for _, s := range []struct {
		name string
		m    *pb.WatchSnapshotsResponse
		want string
	}{
		{"first chunk shows nothing yet", at(7, full(0, 2, worker(1, fresh))), ""},
		{"last chunk commits", at(7, full(1, 2, worker(2, fresh))), "v7     full      fresh=2 changed=2\n"},
		{"delta", at(9, delta(7, 2, worker(1, stale), worker(3, fresh))), "v9     delta     fresh=1 stale=1 changed=2 removed=1\n"},
		{"heartbeat", at(9, beat), "v9     heartbeat fresh=1 stale=1\n"},
		{"go_away", at(9, leave), "v9     go_away   come back within 2000ms: draining: ?[31mbec"},
	} {
		b.Reset()
		if err := f.take(s.m, time.Now()); err != nil {
			t.Fatal(s.name, err)
		}
		requireWidth(t, b.String())
		if got := b.String(); s.want == "" && got != "" || !strings.Contains(got, s.want) {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}
	if err := f.take(at(12, delta(11, 1)), time.Now()); !errors.Is(err, client.ErrGap) {
		t.Errorf("a delta that does not follow: %v", err)
	}
}

// TestWatchFormats has one event in each format.
func TestWatchFormats(t *testing.T) {
	for format, want := range map[string]string{
		"wide": "fresh=1 missing=1 changed=2 warming http://", "json": `"workerId":"evil\u001b[31m\n\u202e"`, "yaml": `workerId: "evil\e[31m\n\U0000202e"`,
	} {
		var b bytes.Buffer
		f := follower{out: &b, format: format}
		m := extreme()
		m.Cursor.Lineage = "l"
		m.GetFull().Workers[0].Freshness = pb.Freshness_FRESHNESS_FRESH
		for range 2 {
			if err := f.take(m, time.Now()); err != nil {
				t.Fatal(format, err)
			}
		}
		got := b.String()
		if !strings.Contains(got, want) || strings.ContainsAny(got, "\x1b\u202e") {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
		if lines, docs := strings.Count(got, "\n"), strings.Count(got, "---\n"); format != "yaml" && lines != 2 || format == "yaml" && docs != 2 {
			t.Errorf("%s: %d lines, %d documents", format, lines, docs)
		}
	}
}

// TestWideLineNamesSome names no more workers than a line can do with.
func TestWideLineNamesSome(t *testing.T) {
	f := follower{format: "wide"}
	var many []*pb.Worker
	for range 10 {
		many = append(many, &pb.Worker{WorkerId: "a"})
	}
	f.name(many)
	f.name(many)
	if len(f.named) != maxNamed {
		t.Errorf("%d are named", len(f.named))
	}
}

func TestWatchLineIsNarrow(t *testing.T) {
	var f follower
	m := extreme()
	m.Cursor.Lineage = "l"
	v, err := f.replica.Apply(m, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.changed, f.removed = math.MaxInt64, math.MaxInt64
	requireWidth(t, f.line(v, m))
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

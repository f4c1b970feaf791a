package sheet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/board"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// page returns the lines of a worker's page as text, as it is at began.
func page(t *testing.T, w *pb.Worker, heard bool, width int) string {
	t.Helper()
	w.Row = 1
	m := &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: 1}, ServerClockMs: 1500, ServerId: "s", StaleAfterMs: 3000, Liveness: &pb.Liveness{},
		Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: []*pb.Worker{w}}},
	}
	if heard {
		m.Liveness.Workers = []*pb.WorkerLiveness{{Row: 1, SequenceId: 1, ReceivedMs: 1000, ValidUntilMs: 4000}}
	}
	v, err := new(client.Replica).Apply(m, began)
	if err != nil {
		t.Fatal(err)
	}
	return join(Worker(v, board.RowOf(v, w, began), began, width))
}

func join(lines []paint.Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.Text() + "\n")
	}
	return b.String()
}

func requireAll(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in\n%s", p, text)
		}
	}
}

func TestWorker(t *testing.T) {
	w := &pb.Worker{
		WorkerId: "http://a:1", Role: pb.Role_ROLE_DECODE, Models: []string{"m", "n"}, Zone: new("eu"), Labels: map[string]string{"gpu": "H100"},
		Freshness: pb.Freshness_FRESHNESS_FRESH, Dialect: pb.Dialect_DIALECT_PUSH, SourceInstanceId: "i-1", ReportIntervalMs: 500, Partial: true, Flags: []string{"suspect"},
		Aggregate: &pb.Aggregate{
			NumRunningReqs: new(int64(5)), FreeTokens: new(int64(1000)), AvailableSlots: new(int64(3)), MaxRunningRequests: new(int64(8)),
			HottestRank: new(int32(1)), HottestRankReason: new("token_usage"), PrefillWaitSeconds: new(1.25),
		},
		Ranks: []*pb.RankLoad{
			{DpRank: 0, NumRunningReqs: new(int64(2)), TokenUsage: new(0.25), NumUsedTokens: new(int64(0))},
			{DpRank: 1, TokenUsage: new(1.0), DecodeTransferReqs: new(int64(7)), DecodeRetractedReqs: new(int64(0)), CacheHitRate: new(0.5)},
			{DpRank: 2},
		},
	}
	requireAll(t, page(t, w, true, 79),
		"worker http://a:1", "fresh  heard 0.5s ago, valid for 2.5s", "role decode", "dialect push", "interval 500ms", "models m,n", "zone eu", "instance i-1", "gpu=H100", "partial", "flag suspect",
		"run 5  wait -", "free tokens 1000", "free slots 3/8", "prefill wait 1.2s", "hottest dp1 by token_usage", "heat    2F?",
		"dp0        2     -  25% ██░░░░      0", "dp1        -     - 100% ██████", " 50% transfer 7\n", "dp2        -     -    -             -",
	)
}

func TestWorkerThatIsNotFresh(t *testing.T) {
	w := &pb.Worker{WorkerId: "w", Freshness: pb.Freshness_FRESHNESS_MISSING, FreshnessReason: "no_engine"}
	requireAll(t, page(t, w, false, 79), "missing (no_engine)  never heard", "models -", "zone -", "no ranks are known", "run -")
}

// More ranks than a line has room for go on in the next, tens apart.
func TestHeat(t *testing.T) {
	w := &pb.Worker{WorkerId: "w", Freshness: pb.Freshness_FRESHNESS_FRESH}
	for range 25 {
		w.Ranks = append(w.Ranks, &pb.RankLoad{TokenUsage: new(0.15)})
	}
	text := page(t, w, true, 30)
	requireAll(t, text, "heat    1111111111 1111111111\n        11111\n")
}

func TestChecks(t *testing.T) {
	answer := &Answer{At: began, Checks: &pb.ExplainWorkerResponse{
		Summary: "stale: look at it", ServerClockMs: 9000,
		Checks: []*pb.Check{
			{Name: "plane", Value: "ready", Limit: new("ready"), Verdict: pb.Verdict_VERDICT_OK},
			{Name: "age", Value: "9s", Limit: new("3s"), Reason: new("age"), Advice: new("restart it"), Verdict: pb.Verdict_VERDICT_FAIL},
			{Name: "skew", Value: "2s", Verdict: pb.Verdict_VERDICT_WARN},
			{Name: "engine", Value: "vllm", Verdict: pb.Verdict_VERDICT_INFO},
			{Name: "lease", Verdict: pb.Verdict_VERDICT_UNKNOWN},
		},
		Diagnostics: []*pb.Diagnostic{{AtMs: 4000, Event: "stale", Reason: new("age"), Count: 1}, {AtMs: 9999, Event: "bound", Detail: new("x\x1b[2J"), Count: 2}, {AtMs: 99_000, Event: "later"}},
	}}
	requireAll(t, join(Checks(answer, began.Add(2*time.Second), 79)),
		"CHECKS  asked 2.0s ago", "stale: look at it", "OK   plane          ready\n", "FAIL age            9s  (limit 3s)  [age]", "-> restart it", "WARN skew", "-    engine", "?    lease",
		" 5.0s ago  stale age", " 0.0s ago  2x bound  x?[2J", " 0.0s ago  later",
	)
	requireAll(t, join(Checks(nil, began, 79)), "no answer yet")
	requireAll(t, join(Checks(&Answer{Err: errors.New("gone\nfar")}, began, 79)), "could not be had: gone?far")
}

// The help fits a small terminal and has every key that sorts.
func TestHelp(t *testing.T) {
	text := join(Help())
	for line := range strings.Lines(text) {
		if paint.Width(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("too wide: %s", line)
		}
	}
	for _, f := range board.Sortable() {
		requireAll(t, text, f.Key+" "+f.Name)
	}
}

// Each verdict looks as it is.
func TestVerdictTone(t *testing.T) {
	for v, want := range map[pb.Verdict]paint.Tone{
		pb.Verdict_VERDICT_OK: paint.Good, pb.Verdict_VERDICT_INFO: paint.Plain, pb.Verdict_VERDICT_WARN: paint.Warn,
		pb.Verdict_VERDICT_FAIL: paint.Bad, pb.Verdict_VERDICT_UNKNOWN: paint.Dim, 99: paint.Dim,
	} {
		c := &pb.Check{Name: "age", Value: "9s", Verdict: v}
		if got := verdictTone(v); got != want {
			t.Errorf("%v has tone %v, want %v", v, got, want)
		}
		line := checkLine(c, 79)[0]
		if like := paint.Say(want, line.Text()).Paint(79); line.Paint(79) != like {
			t.Errorf("%v is painted %q, want %q", v, line.Paint(79), like)
		}
	}
}

// Every number stands in its own place.
func TestNumbersStandInTheirPlaces(t *testing.T) {
	w := &pb.Worker{
		WorkerId: "w", Freshness: pb.Freshness_FRESHNESS_FRESH, Labels: map[string]string{"d": "4", "b": "2", "a": "1", "c": "3"},
		Aggregate: &pb.Aggregate{
			NumRunningReqs: new(int64(1)), NumWaitingReqs: new(int64(2)), NumWaitingUncachedTokens: new(int64(3)), WeightedTokenUsage: new(0.04),
			MaxRankTokenUsage: new(0.05), FreeTokens: new(int64(6)), GenThroughput: new(7.0), PrefillThroughput: new(8.0), PrefillWaitSeconds: new(1e300),
			TokenUsageImbalance: new(9.0),
		},
		Ranks: []*pb.RankLoad{{
			NumRunningReqs: new(int64(1)), NumWaitingReqs: new(int64(2)), TokenUsage: new(0.03), NumUsedTokens: new(int64(4)), MaxTotalNumTokens: new(int64(5)),
			GenThroughput: new(6.0), PrefillThroughput: new(7.0), CacheHitRate: new(0.08), PrefillBootstrapReqs: new(int64(9)), PrefillInflightReqs: new(int64(10)),
			DecodePreallocReqs: new(int64(11)), DecodeTransferReqs: new(int64(12)), DecodeRetractedReqs: new(int64(13)),
		}},
	}
	text := page(t, w, true, 200)
	requireAll(t, text,
		"a=1  b=2  c=3  d=4", "run 1  wait 2  waiting tokens 3  KV 4%  max 5%  free tokens 6", "gen/s 7.0  prefill/s 8.0  prefill wait 9999d  imbalance x9.0",
		"boot 9 inflight 10 prealloc 11 transfer 12 retracted 13\n",
	)
	_, row, _ := strings.Cut(text, "dp0")
	bar := paint.Bar(new(0.03), board.BarWidth+40)
	if got := strings.Join(strings.Fields(row), " "); got != "1 2 3% "+bar+" 4 5 6.0 7.0 8% boot 9 inflight 10 prealloc 11 transfer 12 retracted 13" {
		t.Errorf("the rank is %q", got)
	}
}

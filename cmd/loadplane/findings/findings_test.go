package findings

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

func written(t *testing.T, res *pb.ExplainWorkerResponse) string {
	t.Helper()
	var b bytes.Buffer
	if err := Table(&b, res); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func answer() *pb.ExplainWorkerResponse {
	return &pb.ExplainWorkerResponse{
		Worker: &pb.WorkerInfo{Worker: &pb.Worker{
			WorkerId: "http://10.0.0.1:30000", Models: []string{"qwen3"}, Role: pb.Role_ROLE_REGULAR,
			Freshness: pb.Freshness_FRESHNESS_STALE, FreshnessReason: "age",
		}},
		Checks: []*pb.Check{
			{Name: "engine", Value: "vllm 0.26.0", Verdict: pb.Verdict_VERDICT_INFO},
			{
				Name: "registration", Value: "failing: connection refused", Verdict: pb.Verdict_VERDICT_FAIL,
				Reason: proto.String("connect_failed"), Advice: proto.String("start the engine"),
			},
			{Name: "clock_skew", Value: "not told", Limit: proto.String("within 1s"), Verdict: pb.Verdict_VERDICT_UNKNOWN},
			{Name: "last_report", Value: "5s ago", Limit: proto.String("below 3s"), Verdict: pb.Verdict_VERDICT_FAIL, Advice: proto.String("see the network")},
			{Name: "validity", Value: "ended", Verdict: pb.Verdict_VERDICT_FAIL, Advice: proto.String("see the network")},
			{Name: "ranks", Value: "2", Limit: proto.String("above 0"), Verdict: pb.Verdict_VERDICT_OK},
		},
		Diagnostics: []*pb.Diagnostic{
			{AtMs: 9_500, Event: "call_failed", Reason: proto.String("connect_failed"), Detail: proto.String("connection refused"), Count: 12_345},
			{AtMs: 1_000, Event: "fresh", Count: 1},
		},
		ServerClockMs: 10_000, Summary: "Stale, age; registration: failing.",
	}
}

func TestTable(t *testing.T) {
	const want = `worker   http://10.0.0.1:30000
state    stale (age)
serves   qwen3, role plain
summary  Stale, age; registration: failing.

     CHECK         SEEN
-    engine        vllm 0.26.0
FAIL registration  failing: connection refused
                   reason: connect_failed
                   -> start the engine
?    clock_skew    not told (limit: within 1s)
FAIL last_report   5s ago (limit: below 3s)
                   -> see the network
FAIL validity      ended
OK   ranks         2

   AGO TIMES  WHAT HAPPENED
 500ms x12k   call failed connect_failed: connection refused
9000ms        fresh
`
	if got := written(t, answer()); got != want {
		t.Errorf("it is\n%s\nwant\n%s", got, want)
	}
}

// TestTableIsNarrowAndHarmless writes the longest and the worst texts.
func TestTableIsNarrowAndHarmless(t *testing.T) {
	evil := strings.Repeat("evil\x1b[31m\n\u202e", 40) + strings.Repeat("ü", 300)
	res := answer()
	res.Summary, res.Worker.Worker.WorkerId, res.Worker.Worker.Models = evil, evil, []string{evil}
	res.Worker.Worker.FreshnessReason = evil
	for _, c := range res.Checks {
		c.Name, c.Value, c.Limit, c.Advice, c.Reason = evil, evil, &evil, proto.String(evil+c.GetName()), &evil
	}
	for range 100 {
		res.Diagnostics = append(res.Diagnostics, &pb.Diagnostic{AtMs: math.MaxUint64, Event: evil, Reason: &evil, Detail: &evil, Count: math.MaxUint32})
	}
	got := written(t, res)
	if strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("control characters pass:\n%q", got)
	}
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(got, "90 older with --output json\n") {
		t.Error("it does not say that there is more")
	}
}

// A happening of after the answer, as clocks may have it, is of now.
func TestHappeningsOfTheFutureAreOfNow(t *testing.T) {
	res := answer()
	res.Diagnostics[0].AtMs = res.ServerClockMs + 5_000
	if got := written(t, res); !strings.Contains(got, "\n   0ms x12k   call failed") {
		t.Errorf("it is\n%s", got)
	}
}

// The newest happenings are shown, and how many more there are.
func TestHappeningsAreFew(t *testing.T) {
	res := answer()
	for range maxShown {
		res.Diagnostics = append(res.Diagnostics, &pb.Diagnostic{Event: "older"})
	}
	if got := written(t, res); strings.Count(got, " older\n") != maxShown-2 || !strings.Contains(got, "\n2 older with") {
		t.Errorf("it is\n%s", got)
	}
}

// TestTableOfNothing shows what is unknown as a dash.
func TestTableOfNothing(t *testing.T) {
	const want = "worker   \nstate    unspecified\nserves   -, role unspecified\nsummary  -\n\n     CHECK         SEEN\n?                  -\n"
	if got := written(t, &pb.ExplainWorkerResponse{Checks: []*pb.Check{{}}}); got != want {
		t.Errorf("%q", got)
	}
}

func TestFailing(t *testing.T) {
	for v, want := range map[pb.Verdict]string{
		pb.Verdict_VERDICT_UNSPECIFIED: "? false", pb.Verdict_VERDICT_OK: "OK false", pb.Verdict_VERDICT_INFO: "- false",
		pb.Verdict_VERDICT_WARN: "WARN false", pb.Verdict_VERDICT_FAIL: "FAIL true", pb.Verdict_VERDICT_UNKNOWN: "? false", 99: "? false",
	} {
		if got := fmt.Sprint(Mark(v), " ", Failing(&pb.ExplainWorkerResponse{Checks: []*pb.Check{{Verdict: v}}})); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

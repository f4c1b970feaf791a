package remote

import (
	"bytes"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// written returns a table of workers as it is on a screen.
func written(t *testing.T, list *pb.ListWorkersResponse, columns int, wide bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := writeWorkers(Screen{&b, columns}, list, wide); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// cell returns what the wide table has of the first worker below a head.
func cell(list *pb.ListWorkersResponse, head string) string {
	t := workersTable(list, true)
	return t.Rows[0][t.Find(head)]
}

func one(info *pb.WorkerInfo) *pb.ListWorkersResponse {
	return &pb.ListWorkersResponse{Workers: []*pb.WorkerInfo{info}}
}

const (
	fresh       = pb.Freshness_FRESHNESS_FRESH
	stale       = pb.Freshness_FRESHNESS_STALE
	missing     = pb.Freshness_FRESHNESS_MISSING
	unreachable = pb.Freshness_FRESHNESS_UNREACHABLE
)

// TestTroubleIsTheCause: that a load is old follows from something, which is
// what is shown where it is known.
func TestTroubleIsTheCause(t *testing.T) {
	const why = "monitor: unsupported (GET /server_info: no load_reporter_port); push: connect_failed (GET /v1/start_reporting: refused); poll: unsupported (404)"
	for _, c := range []struct {
		name      string
		freshness pb.Freshness
		reason    string
		refusal   string
		err       string
		status    uint32
		want      string
	}{
		{"fresh", fresh, "", "malformed", "EOF", 500, ""},
		{"nothing known", stale, "age", "", "", 0, "age"},
		{"nothing known of a good answer", stale, "age", "", "", 200, "age"},
		{"refused reports", stale, "age", "message_too_large", "", 0, "message_too_large"},
		{"refused connections", stale, "age", "", "dial tcp 10.0.0.1:31000: connect: connection refused", 0, "connection refused"},
		{"the call failed after a refusal", stale, "age", "malformed", "dial tcp 10.0.0.1:31000: i/o timeout", 0, "i/o timeout"},
		{"error with its reason", stale, "age", "", "report_flood: more than 1000 frames came above the rate", 0, "report_flood"},
		{"refusal of one word", stale, "age", "retired", "retired: another instance took over", 0, "retired"},
		{"error of one word", stale, "age", "", "auth", 0, "auth"},
		{"error without parts", stale, "age", "", "more than 1000 frames came above the rate", 0, "more than 1000 frames came above the rate"},
		{"status", stale, "age", "", "the engine answered 503", 503, "HTTP 503"},
		{"status of gRPC", stale, "age", "", "rpc error: code = Unavailable desc = no such host", 0, "no such host"},
		{"no dialect works", stale, "age", "", why, 0, "connect_failed"},
		{"no dialect is there", stale, "age", "", "monitor: unsupported (a); poll: unsupported", 0, "unsupported"},
		{"more than old", stale, "suspended", "malformed", "EOF", 500, "suspended"},
		{"unreachable", unreachable, "engine_unreachable", "malformed", "EOF", 500, "engine_unreachable"},
		{"never heard", missing, "connect_failed", "malformed", "EOF", 500, "connect_failed"},
		{"without a reason", missing, "", "malformed", "", 0, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := &pb.WorkerInfo{Worker: &pb.Worker{WorkerId: "a", Freshness: c.freshness, FreshnessReason: c.reason}}
			if c.refusal != "" {
				info.LastRefusal = &c.refusal
			}
			if c.err != "" {
				info.RegistrationError = &c.err
			}
			if c.status != 0 {
				info.RegistrationHttpStatus = &c.status
			}
			if got := trouble(info); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestLongestReasonFits has the longest reason beside a worker of the usual
// length, and every column at its widest.
func TestLongestReasonFits(t *testing.T) {
	for id, shown := range map[string]string{"http://10.0.0.1:30000": "10.0.0.1:30000", "http://192.168.100.101:30000": "…68.100.101:30000"} {
		for _, reason := range []string{"engine_unreachable", "unreachable_with_ranks"} {
			got := written(t, one(&pb.WorkerInfo{
				Worker: &pb.Worker{WorkerId: id, Dialect: pb.Dialect_DIALECT_LOADSTAT, Freshness: unreachable, FreshnessReason: reason},
				Engine: proto.String("sglang"), EngineVersion: proto.String("0.5.18.post1"), AgeMs: proto.Uint64(599_999),
			}), 0, false)
			requireWidth(t, got)
			if !strings.HasSuffix(got, "  599s "+reason+"\n") && !strings.HasSuffix(got, " 599s "+reason+"\n") {
				t.Errorf("the reason is cut:\n%s", got)
			}
			if reason == "unreachable_with_ranks" && len(shown) > 16 && !strings.Contains(got, "…") {
				t.Errorf("nothing is cut:\n%s", got)
			}
		}
	}
}

// A text that does not fit loses its end.
func TestTroubleIsCutAtItsEnd(t *testing.T) {
	list := fleet()
	list.Workers[0].Worker.FreshnessReason = "more than 1000 frames came above the rate"
	got := written(t, list, 0, false)
	requireWidth(t, got)
	if !strings.Contains(got, " more than 1000 frames…\n") {
		t.Errorf("it is cut elsewhere:\n%s", got)
	}
}

// TestWideFits has terminals of several widths, and none.
func TestWideFits(t *testing.T) {
	list := fleet()
	list.Workers[0].RegistrationError = proto.String("refused: " + strings.Repeat("because ", 30))
	list.Workers[0].DialectWhy = proto.String("push: " + strings.Repeat("absent ", 40))
	for columns, want := range map[int][]string{
		0:   {"WHY", "ERROR", strings.Repeat("because ", 29), strings.Repeat("absent ", 39)},
		300: {"WHY", "ERROR", "PEER", "SKEW", "because b", "…\n"},
		220: {"ERROR", "PEER", "TROUBLE"},
		80:  {"TROUBLE", "ERROR", "80 columns have no room for WHY, SKEW, LEASE,", "--output json", "…because because because\n"},
	} {
		got := written(t, list, columns, true)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%d columns: it lacks %q:\n%s", columns, w, got)
			}
		}
		for line := range strings.Lines(got) {
			if n := len([]rune(line)) - 1; columns > 0 && n > columns {
				t.Errorf("%d columns: one line has %d:\n%s", columns, n, line)
			}
		}
	}
}

// TestWideKeepsItsOrder: what matters stands in front, the longest text last.
func TestWideKeepsItsOrder(t *testing.T) {
	head, _, _ := strings.Cut(written(t, fleet(), 0, true), "\n")
	want := "WORKER ENGINE DIALECT STATE AGE TROUBLE FROM DRAINS REGISTRATION HTTP INTERVAL NEXT LEASE PEER REFUSED SKEW ERROR WHY"
	if got := strings.Join(strings.Fields(head), " "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestInterval(t *testing.T) {
	for _, c := range []struct {
		name         string
		poll         *uint32
		report       uint32
		registration string
		want         string
	}{
		{"reports", nil, 1000, "registered", "1000ms"},
		{"polls that are stretched", proto.Uint32(2000), 1000, "polling", "2000ms"},
		{"nothing is asked for", nil, 1000, "off", "-"},
		{"not known", nil, 0, "pending", "-"},
	} {
		list := one(&pb.WorkerInfo{Worker: &pb.Worker{ReportIntervalMs: c.report}, PollIntervalMs: c.poll, Registration: c.registration})
		if got := cell(list, "INTERVAL"); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestErrorHasTheWordOfAStatus(t *testing.T) {
	for text, want := range map[string]string{
		"rpc error: code = Unavailable desc = connection error":                "Unavailable: connection error",
		"register: rpc error: code = Code(99) desc = odd":                      "register: Code(99): odd",
		"rpc error: code = Internal desc = rpc error: code = Aborted desc = x": "Internal: Aborted: x",
		"dial tcp: refused": "dial tcp: refused",
	} {
		if got := cell(one(&pb.WorkerInfo{RegistrationError: &text}), "ERROR"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// FuzzWorkersFit has texts of any kind on screens of any width.
func FuzzWorkersFit(f *testing.F) {
	f.Add("a", "push: absent", "dial: refused", 80)
	f.Add(strings.Repeat("ü", 90), "\x1b[31m\n", "rpc error: code = X desc = ", 120)
	f.Fuzz(func(t *testing.T, id, why, text string, columns int) {
		columns = 80 + max(0, columns%500)
		for _, wide := range []bool{false, true} {
			got := written(t, one(&pb.WorkerInfo{
				Worker: &pb.Worker{WorkerId: id, Freshness: stale, FreshnessReason: "age"}, DialectWhy: &why, RegistrationError: &text, Peer: &id,
			}), columns, wide)
			for line := range strings.Lines(got) {
				if n := len([]rune(line)) - 1; n > columns {
					t.Errorf("%d columns: a line has %d: %q", columns, n, line)
				}
			}
		}
	})
}

package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// vllm is what a polled engine gives.
func vllm() *probe.Report {
	ranks := make([]ingest.RankReport, 2)
	for i := range ranks {
		r := &ranks[i].Rank
		r.DPRank = int32(i)
		r.SetCount(store.NumRunningReqs, int64(27*i))
		r.SetCount(store.NumUsedTokens, 57_000)
		r.SetFloat(store.TokenUsage, 0.4375)
	}
	return &probe.Report{
		URL: "http://10.0.0.1:8000",
		Asked: []probe.Asked{
			{Path: "/server_info", Status: 404, Took: time.Millisecond, Reason: "unsupported"},
			{Path: "/v1/models", Status: 200, Bytes: 182, Took: 2 * time.Millisecond},
			{Path: "/v1/start_reporting", Status: 404, Reason: "unsupported"},
			{Path: "/metrics", Status: 200, Bytes: 65_831, Took: 12 * time.Second, Endpoint: "vllm /metrics"},
		},
		Facts:    registry.Facts{Family: "vllm", Version: "0.26.0", Models: []string{"a", "b"}},
		Complete: true,
		Offers: []registry.Offer{
			{Dialect: store.DialectPush, Verdict: registry.VerdictAbsent, Reason: "unsupported", Detail: "GET /v1/start_reporting: 404"},
			{Dialect: store.DialectPoll, Verdict: registry.VerdictOffered, Detail: "GET /metrics: vllm /metrics, 2 ranks"},
		},
		Endpoint: &sample.Endpoint{Name: "vllm /metrics"},
		Reading: &sample.Reading{
			Ranks: ranks,
			Matches: []sample.Match{
				{Field: store.NumRunningReqs, Name: "vllm:num_requests_running"},
				{Field: store.NumUsedTokens, Name: "vllm:kv_cache_usage_perc * max_total_num_tokens"},
				{Field: store.TokenUsage, Name: "vllm:kv_cache_usage_perc"},
			},
			Flags: store.FlagFrozenSeries, Asleep: "level 1", Unusable: map[store.Reason]int{"not_finite": 2}, Process: 1.5e9,
		},
		Unknown: []store.Field{store.NumWaitingReqs, store.GenThroughput},
		Rates:   true,
		Dialect: store.DialectPoll,
		Why:     "push: unsupported (GET /v1/start_reporting: 404); poll: offered (GET /metrics: vllm /metrics, 2 ranks)",
	}
}

const vllmTable = `url      http://10.0.0.1:8000
engine   vllm 0.26.0
models   a b
role     -
DP size  -
a rank   capacity - tokens, maximum - running requests
dialect  poll
why      push: unsupported (GET /v1/start_reporting: 404); poll: offered (GET
         /metrics: vllm /metrics, 2 ranks)

PAGE                STATUS BYTES TOOK RESULT
/server_info           404     -  1ms unsupported
/v1/models             200   182  2ms read
/v1/start_reporting    404     -  0ms unsupported
/metrics               200 65831  12s load

FIELD                       READ FROM
num_running_reqs            vllm:num_requests_running
num_used_tokens             vllm:kv_cache_usage_perc * max_total_num_tokens
token_usage                 vllm:kv_cache_usage_perc

page     vllm /metrics
unknown  num_waiting_reqs, gen_throughput
note     flags frozen_series
note     the engine sleeps: level 1
note     2 values cannot be used: not_finite

RANK RUN WAIT UNCACHED USED DEMAND TOKENS MAX  KV GEN/S HIT UTIL
   0   0    -        -  57k      -      -   - 44%     -   -    -
   1  27    -        -  57k      -      -   - 44%     -   -    -
`

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := Table(&b, vllm()); err != nil || b.String() != vllmTable {
		t.Errorf("error %v\n%s", err, b.String())
	}
	requireWidth(t, b.String())
}

// TestNotes has reports with and without what there is to note.
func TestNotes(t *testing.T) {
	once, named, both := vllm(), vllm(), vllm()
	once.Rates = false
	named.Facts.Models, named.Reading.Models = nil, []string{"m/one", "m/two"}
	both.Reading.Models = []string{"m/one"}
	pushed := vllm()
	pushed.Dialect = store.DialectPush
	onceKnown := vllm()
	onceKnown.Rates, onceKnown.Unknown = false, []store.Field{store.NumWaitingReqs}
	for name, c := range map[string]struct {
		report *probe.Report
		want   string
	}{
		"read once":                      {once, "rates of counters need two readings, and one was made"},
		"read once, and no rate unknown": {onceKnown, ""},
		"named on the page":              {named, "the engine itself names no model, the page names m/one, m/two"},
		"named by the engine":            {both, ""},
		"another dialect is used":        {pushed, "the values are those of the load page; push has its own"},
	} {
		t.Run(name, func(t *testing.T) {
			lines := notes(c.report)
			usual := len(oddities(c.report.Reading))
			if c.want == "" && len(lines) != usual || c.want != "" && (len(lines) != usual+1 || lines[0] != c.want) {
				t.Errorf("notes %q, want %q", lines, c.want)
			}
			var table, doc bytes.Buffer
			if err := errors.Join(Table(&table, c.report), JSON(&doc, c.report)); err != nil {
				t.Fatal(err)
			}
			if words := strings.Join(strings.Fields(table.String()), " "); !strings.Contains(words, c.want) || !strings.Contains(doc.String(), c.want) {
				t.Errorf("no %q in:\n%s\n%s", c.want, table.String(), doc.String())
			}
			requireWidth(t, table.String())
		})
	}
}

// TestWays has an engine that gives its load by itself in two ways.
func TestWays(t *testing.T) {
	r := vllm()
	r.Dialect, r.ReporterPort = store.DialectMonitor, 31000
	r.Facts.ReporterPort, r.Facts.LoadStat = 31000, registry.LoadStat{Port: 5559, Topic: "load", Ranks: 2}
	var table, doc, compact bytes.Buffer
	if err := errors.Join(Table(&table, r), JSON(&doc, r)); err != nil {
		t.Fatal(err)
	}
	if err := json.Compact(&compact, doc.Bytes()); err != nil {
		t.Fatal(err)
	}
	if want := "reporter port 31000\nsockets  ports 5559 to 5560, topic load\ndialect  monitor\n"; !strings.Contains(table.String(), want) {
		t.Errorf("it lacks %q:\n%s", want, table.String())
	}
	if want := `"reporter_port":31000,"loadstat":{"port":5559,"topic":"load","ranks":2}`; !strings.Contains(compact.String(), want) {
		t.Errorf("it lacks %s:\n%s", want, compact.String())
	}
	requireWidth(t, table.String())
}

// An engine that publishes its load need not name the topic.
func TestWaysWithoutATopic(t *testing.T) {
	r := vllm()
	r.Facts.LoadStat = registry.LoadStat{Port: 5559, Ranks: 1}
	var table, doc bytes.Buffer
	if err := errors.Join(Table(&table, r), JSON(&doc, r)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "sockets  port 5559\n") || strings.Contains(doc.String(), `"topic"`) {
		t.Errorf("a topic is shown:\n%s\n%s", table.String(), doc.String())
	}
}

// nothing is what an engine gives that cannot be reached.
func nothing() *probe.Report {
	return &probe.Report{
		URL:    "http://10.0.0.1:8000",
		Asked:  []probe.Asked{{Path: "/server_info", Reason: "unreachable", Detail: "no connection: refused"}},
		Offers: []registry.Offer{{Dialect: store.DialectPush, Reason: "unreachable", Detail: "no connection: refused"}},
		Why:    "push: unreachable (no connection: refused)",
	}
}

func TestTableOfNothing(t *testing.T) {
	var b bytes.Buffer
	if err := Table(&b, nothing()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"engine   -\n", "models   -\n", "dialect  none can be used\n", "why      push: unreachable (no connection: refused)\n",
		"note     some questions about the engine had no definite answer\n", "/server_info      -     -  0ms unreachable\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "RANK") || strings.Contains(b.String(), "FIELD") {
		t.Errorf("there is a load:\n%s", b.String())
	}
}

func TestPushIsShownAtItsPage(t *testing.T) {
	r := nothing()
	r.Asked = []probe.Asked{{Path: "/v1/start_reporting", Status: 405, Reason: "unsupported"}}
	var b bytes.Buffer
	if err := Table(&b, r); err != nil || !strings.Contains(b.String(), "405     -  0ms push\n") {
		t.Errorf("error %v\n%s", err, b.String())
	}
}

// hostile has the worst texts and the largest numbers everywhere.
func hostile() *probe.Report {
	evil := "e\x1b[31m\n\r\u202e\U000e0001\u0085" + strings.Repeat("ü", 5000)
	r := vllm()
	r.URL, r.Why, r.Facts.Version, r.Facts.Models = evil, evil, evil, []string{evil, evil}
	r.ReporterPort, r.Facts.LoadStat = 65535, registry.LoadStat{Host: evil, Port: 65535, Topic: evil, Ranks: 1}
	r.Facts.DPSize, r.Facts.CapacityTokens, r.Facts.MaxRunning = 1<<62, 1<<62, 1<<62
	r.Asked = append(r.Asked, probe.Asked{Path: evil, Status: 999, Bytes: 1 << 62, Took: 1 << 62, Reason: store.Reason(evil), Detail: evil})
	r.Offers[0].Detail = evil
	r.Reading.Matches = append(r.Reading.Matches, sample.Match{Field: store.PrefillThroughputWall, Name: evil})
	r.Reading.Asleep = evil
	r.Reading.Ranks = make([]ingest.RankReport, 4096)
	for i := range r.Reading.Ranks {
		rank := &r.Reading.Ranks[i].Rank
		rank.DPRank = int32(i)
		for f := range store.NumFields {
			if store.Fields[f].Float {
				rank.SetFloat(f, 4)
			} else {
				rank.SetCount(f, ingest.MaxCount)
			}
		}
		rank.SetFloat(store.GenThroughput, 1e12)
	}
	return r
}

func TestHostileTextStaysInItsLine(t *testing.T) {
	var b bytes.Buffer
	if err := Table(&b, hostile()); err != nil {
		t.Fatal(err)
	}
	requireWidth(t, b.String())
	if strings.ContainsAny(b.String(), "\x1b\r\u202e") {
		t.Errorf("control characters pass:\n%q", b.String())
	}
	if !strings.Contains(b.String(), "\n4064 more ranks with --output json\n") || strings.Count(b.String(), "\n") > 200 {
		t.Errorf("%d lines:\n%s", strings.Count(b.String(), "\n"), b.String())
	}
	b.Reset()
	if err := JSON(&b, hostile()); err != nil || strings.ContainsAny(b.String(), "\x1b\r\u202e") || !json.Valid(b.Bytes()) {
		t.Errorf("error %v, or control characters pass in JSON", err)
	}
	var doc reportDoc
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil || doc.Why != hostile().Why || len(doc.Ranks) != 4096 {
		t.Errorf("error %v, or JSON loses something", err)
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := JSON(&b, vllm()); err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, b.Bytes()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"url":"http://10.0.0.1:8000","dialect":"poll","why":"push: unsupported (GET`,
		`"engine":{"family":"vllm","version":"0.26.0","models":["a","b"]},"complete":true,`,
		`{"dialect":"push","verdict":"absent","reason":"unsupported","detail":"GET /v1/start_reporting: 404"}`,
		`{"path":"/metrics","status":200,"bytes":65831,"took_ms":12000,"endpoint":"vllm /metrics"}`,
		`"endpoint":"vllm /metrics","fields":[{"field":"num_running_reqs","name":"vllm:num_requests_running"},`,
		`"unknown":["num_waiting_reqs","gen_throughput"]`,
		`"ranks":[{"dp_rank":0,"num_running_reqs":0,"num_used_tokens":57000,"token_usage":0.4375},`,
		`"notes":["flags frozen_series","the engine sleeps: level 1","2 values cannot be used: not_finite"]`,
		`"process_start_seconds":1500000000`,
	} {
		if !strings.Contains(compact.String(), want) {
			t.Errorf("it lacks %s:\n%s", want, compact.String())
		}
	}
	b.Reset()
	if err := JSON(&b, nothing()); err != nil || strings.Contains(b.String(), `"dialect": ""`) || strings.Contains(b.String(), `"ranks"`) {
		t.Errorf("error %v:\n%s", err, b.String())
	}
}

// full takes so many writes and no more.
type full struct{ left int }

var errFull = errors.New("full")

func (f *full) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestErrorsOfWriting(t *testing.T) {
	writes := 0
	for ; ; writes++ {
		err := Table(&full{left: writes}, hostile())
		if err == nil {
			break
		}
		if !errors.Is(err, errFull) {
			t.Fatalf("after %d writes: %v", writes, err)
		}
	}
	if writes < 5 {
		t.Errorf("only %d writes", writes)
	}
	if err := JSON(&full{}, vllm()); !errors.Is(err, errFull) {
		t.Errorf("JSON: %v", err)
	}
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

package sample

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// short are the names of fields in the texts of tests.
var short = [store.NumFields]string{
	store.NumRunningReqs: "run", store.NumWaitingReqs: "wait", store.NumWaitingUncachedTokens: "waittok",
	store.NumUsedTokens: "used", store.NumTotalTokens: "total", store.MaxTotalNumTokens: "cap", store.MaxRunningRequests: "max",
	store.PrefillBootstrapReqs: "boot", store.PrefillInflightReqs: "inflight", store.DecodePreallocReqs: "prealloc",
	store.DecodeTransferReqs: "transfer", store.DecodeRetractedReqs: "retracted",
	store.TokenUsage: "usage", store.GenThroughput: "gen", store.CacheHitRate: "hit", store.Utilization: "util",
	store.PrefillThroughput: "prefill", store.PrefillThroughputWall: "wall",
}

// show writes a rank with what is known of it.
func show(r *ingest.RankReport) string {
	text := fmt.Sprintf("%d:", r.Rank.DPRank)
	for f := range store.NumFields {
		if v, ok := r.Rank.Count(f); ok && !store.Fields[f].Float {
			text += fmt.Sprintf(" %s=%d", short[f], v)
		}
		if v, ok := r.Rank.Float(f); ok && store.Fields[f].Float {
			text += fmt.Sprintf(" %s=%.6g", short[f], v)
		}
	}
	for _, c := range []struct {
		name string
		v    ingest.Int
	}{{"at", r.TimeUnixMs}, {"#uncached", r.PrefillUncachedTokens}, {"#busy", r.PrefillBusyUs}, {"#gen", r.GeneratedTokens}} {
		if c.v.Known {
			text += fmt.Sprintf(" %s=%d", c.name, c.v.Value)
		}
	}
	return text
}

// transcript writes a whole reading, or the reason of a refusal.
func transcript(r *Reading, refusal *registry.Refusal) string {
	if refusal != nil {
		return string(refusal.Reason)
	}
	var lines []string
	for i := range r.Ranks {
		lines = append(lines, show(&r.Ranks[i]))
	}
	head := ""
	if r.TimeUnixMs.Known {
		head += fmt.Sprintf(" at=%d", r.TimeUnixMs.Value)
	}
	if r.Process != 0 {
		head += fmt.Sprintf(" process=%.10g", r.Process)
	}
	if r.Restarted {
		head += " restarted"
	}
	if r.Asleep != "" {
		head += " asleep=" + r.Asleep
	}
	if len(r.Models) > 0 {
		head += " models=" + strings.Join(r.Models, ",")
	}
	for _, w := range r.Flags.Words() {
		head += " " + w
	}
	if len(r.Unusable) > 0 {
		head += fmt.Sprintf(" unusable=%v", r.Unusable)
	}
	if head != "" {
		lines = append(lines, "page:"+head)
	}
	return strings.Join(lines, "\n")
}

// endpoint returns the row of the table with a name.
func endpoint(t testing.TB, name string) *Endpoint {
	t.Helper()
	for _, e := range Endpoints() {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("no endpoint %q", name)
	return nil
}

// feed reads pages with one sampler, one each second.
type feed struct {
	t     testing.TB
	s     *Sampler
	hints Hints
	now   store.Instant
	gap   time.Duration
}

func newFeed(t testing.TB, endpointName string) *feed {
	return &feed{t: t, s: NewSampler(endpoint(t, endpointName)), now: 1e9, gap: time.Second}
}

// read reads a page and checks that its report is valid.
func (f *feed) read(page string) (*Reading, *registry.Refusal) {
	f.t.Helper()
	f.now = f.now.Add(f.gap)
	r, refusal := f.s.Read([]byte(page), f.now, f.hints)
	if refusal == nil {
		mustBeValid(f.t, r)
	} else if refusal.Message == "" || !refusal.Drop {
		f.t.Errorf("refusal %+v has no message or ends the stream", refusal)
	}
	return r, refusal
}

// text reads a page and returns its transcript.
func (f *feed) text(page string) string {
	f.t.Helper()
	return transcript(f.read(page))
}

// rank reads a page and returns one rank of it.
func (f *feed) rank(page string, i int) string {
	f.t.Helper()
	r, refusal := f.read(page)
	if refusal != nil || i >= len(r.Ranks) {
		f.t.Fatalf("page is read as %s", transcript(r, refusal))
	}
	return show(&r.Ranks[i])
}

// want compares a transcript.
func (f *feed) want(page, want string) {
	f.t.Helper()
	if got := f.text(page); got != want {
		f.t.Errorf("page is read as\n%s\nwant\n%s", got, want)
	}
}

// mustBeValid makes a reading into a report that has to pass.
func mustBeValid(t testing.TB, r *Reading) {
	t.Helper()
	report := ingest.Report{
		Source: "s", Sequence: 1, Status: int32(store.StatusHealthy), TimeUnixMs: r.TimeUnixMs, Ranks: r.Ranks,
	}
	load, refusal := ingest.Validate(&report, ingest.Rules{MaxRanks: ingest.HardMaxRanks})
	if refusal != nil {
		t.Fatalf("the report is refused: %s", refusal.Message)
	}
	for i := range load.Ranks {
		if load.Ranks[i].DPRank != r.Ranks[i].Rank.DPRank {
			t.Fatal("the ranks of a reading are not sorted")
		}
	}
}

// fixture returns a file of testdata.
func fixture(t testing.TB, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

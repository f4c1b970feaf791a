package main

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/api/picks"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// servePicks serves picks of one worker with two ranks that run 3 requests
// each.
func servePicks(t *testing.T) (url string) {
	t.Helper()
	clock := store.NewClock()
	st, err := store.New(store.Options{
		Lineage: "l", Epoch: 1, Clock: clock, StaleAfter: time.Hour, Settle: time.Millisecond, ReportInterval: time.Minute, Discovery: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- st.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	slot := st.NewSlot(&store.Worker{
		ID: "http://10.0.0.1:30000", URL: "http://10.0.0.1:30000", Origin: "10.0.0.1:30000", Role: store.RoleRegular,
		Models: []string{"qwen3"}, Dialect: store.DialectPush, Interval: time.Minute,
	})
	slot.Bind(store.Stream{Source: "s", Generation: 1})
	load := &store.Load{Source: "s", Sequence: 1, Status: store.StatusHealthy, ReportUnixMs: -1, Received: clock.Now()}
	for i := range int32(2) {
		r := store.Rank{DPRank: i}
		r.SetCount(store.NumRunningReqs, 3)
		r.SetCount(store.NumWaitingReqs, 0)
		load.Ranks = append(load.Ranks, r)
		load.Samples = append(load.Samples, store.Sample{TimeUnixMs: -1, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1})
	}
	slot.Offer(1, load)
	st.Apply(store.Discovery{Added: []*store.Slot{slot}, Synced: true})
	for state, stale := st.Current(); len(state.Entries) == 0 || state.Entries[0].Load == nil; state, stale = st.Current() {
		<-stale
	}
	p, err := picks.New(picks.Options{Snapshots: snapshot.New(st), UnknownParameter: "unknown_parameter", BadParameter: "bad_parameter"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return server.URL
}

func TestPick(t *testing.T) {
	server := servePicks(t)
	pick := func(args ...string) string {
		t.Helper()
		code, out, err := run(t, append([]string{"pick", "--server=" + server}, args...)...)
		if code != exitOK {
			t.Fatalf("%q: exit %d: %s", args, code, err)
		}
		requireWidth(t, out)
		return out
	}
	score := func(args ...string) float64 {
		t.Helper()
		var a struct {
			WorkerID string `json:"worker_id"`
			Score    float64
		}
		out := pick(append(args, "-o", "json", "--per=worker")...)
		if err := json.Unmarshal([]byte(out), &a); err != nil || a.WorkerID != "http://10.0.0.1:30000" {
			t.Fatalf("%v in %s", err, out)
		}
		return a.Score
	}
	if got := score("--no-credit"); got != 6 {
		t.Errorf("score %v, want 6", got)
	}
	if got := score("--model=qwen3", "--role=plain", "--policy=least-load", "--prompt-tokens=12"); got != 6 {
		t.Errorf("score %v, want 6: --no-credit has an effect", got)
	}
	if got := score("--no-credit"); got != 7 {
		t.Errorf("score %v, want 7", got)
	}
	out := pick("-n", "2")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "version ") || !strings.HasPrefix(lines[2], "http://10.0.0.1:30000") {
		t.Errorf("table:\n%s", out)
	}
}

func TestPickExitCodes(t *testing.T) {
	server := servePicks(t)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--model=other":               {exitFailure, "no_candidates: the pool has no worker that takes requests"},
		"--policy=random":             {exitUsage, `bad_parameter: policy "random" does not exist`},
		"-n 65":                       {exitUsage, `n must be 1 to 64, and is "65"`},
		"-n many":                     {exitUsage, "invalid argument"},
		"-o yaml":                     {exitUsage, `"yaml" is not one of table, json`},
		"worker":                      {exitUsage, "unknown command"},
		"--server=http://127.0.0.1:1": {exitFailure, "is loadplane serving there?"},
	} {
		code, out, err := run(t, append([]string{"pick", "--server=" + server}, strings.Fields(args)...)...)
		if code != want.code || !strings.Contains(err, want.text) {
			t.Errorf("%s: exit %d, want %d with %q\n%s%s", args, code, want.code, want.text, out, err)
		}
	}
}

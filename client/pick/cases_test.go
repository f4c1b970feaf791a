package pick

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/loadplane/loadplane/client/pick/credit"
)

func TestBug18NothingFresh(t *testing.T) {
	table := NewTable(equals(3, requests(2), as(Stale)), TableOptions{})
	if fresh, all := table.Workers(start); fresh != 0 || all != 3 {
		t.Errorf("%d of %d are fresh, want 0 of 3", fresh, all)
	}
	if c := mustPick(t, picker(t, Options{}), table, Request{}); c.Score != 0 || c.Field != FieldInFlight || c.Reason != ReasonFewFresh {
		t.Errorf("picked %+v, want by open requests", c)
	}
	if _, err := picker(t, Options{FailClosed: true}).Pick(table, Request{}); !errors.Is(err, ErrNoneFresh) {
		t.Errorf("error %v, want that none is fresh", err)
	}
	if fresh, all := NewTable(nil, TableOptions{}).Workers(start); fresh != 0 || all != 0 {
		t.Errorf("%d of %d workers of an empty table", fresh, all)
	}
}

func TestBug36PrefillQueuesCount(t *testing.T) {
	sending := candidate("sending", role(RolePrefill), requests(0), func(c *PolicyCandidate) { c.PrefillInflight = Count(12) })
	busy := candidate("busy", role(RolePrefill), requests(5))
	table := NewTable([]PolicyCandidate{sending, busy}, TableOptions{Role: RolePrefill})
	if c := mustPick(t, picker(t, Options{Policy: LeastLoad}), table, Request{}); c.WorkerID != "busy" || c.Score != 5 {
		t.Errorf("picked %+v, want the one that sends nothing", c)
	}
	cases := []struct {
		name   string
		change func(*PolicyCandidate)
		want   float64
	}{
		{"in flight beside waiting", func(c *PolicyCandidate) { c.PrefillInflight = Count(12) }, 3 + 7 + 12},
		{"queues that waiting has", func(c *PolicyCandidate) { c.PrefillBootstrap = Count(6) }, 3 + 7},
		{"queues that waiting has not", func(c *PolicyCandidate) {
			c.DecodePrealloc, c.DecodeTransfer, c.DecodeRetracted = Count(4), Count(5), Count(1)
		}, 3 + 10},
		{"the sum and in flight", func(c *PolicyCandidate) {
			c.Running, c.TotalRequests, c.PrefillInflight = Number{}, Count(9), Count(12)
		}, 9 + 12},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := ptr(candidate("a", func(c *PolicyCandidate) { c.Running, c.Waiting = Count(3), Count(7) }, c.change)).requests()
			if !ok || got != c.want {
				t.Errorf("%v requests, want %v", got, c.want)
			}
		})
	}
}

// TestBug36ThroughputIsNoIdleness has engines that differ in gen_throughput
// only.
func TestBug36ThroughputIsNoIdleness(t *testing.T) {
	const n = 20_000
	all := equals(10, requests(3), tokens(Count(1), Count(2), Count(9)), prefill(Count(1), Number{}))
	for i := range all {
		all[i].GenThroughput = Known(float64(i * 100))
	}
	for p := range Custom {
		equalShares(t, shares(t, picker(t, Options{Policy: p}), NewTable(all, TableOptions{}), n), 10, n)
	}
}

func ptr(c PolicyCandidate) *PolicyCandidate { return &c }

// TestBug37DecodeTokensCountOnce has a decode worker whose transfer queue is
// in its used tokens.
func TestBug37DecodeTokensCountOnce(t *testing.T) {
	decode := func(used, total Number) *PolicyCandidate {
		c := candidate("a", role(RoleDecode), tokens(used, total, Count(436_000)), prefill(Count(7000), Number{}))
		c.DecodeTransfer = Count(19)
		return &c
	}
	for _, c := range []struct {
		name string
		c    *PolicyCandidate
		want float64
	}{
		{"the demand is reported", decode(Count(90_000), Count(97_000)), 97_000},
		{"used alone is reported", decode(Count(90_000), Number{}), 90_000},
	} {
		if got, ok := c.c.demand(); !ok || got != c.want {
			t.Errorf("%s: %v tokens, want %v", c.name, got, c.want)
		}
		if got, ok := c.c.free(); !ok || got != 346_000 {
			t.Errorf("%s: %v free tokens, want 346000", c.name, got)
		}
	}
}

// TestBug37RealAnswer reads what a decode engine answered.
func TestBug37RealAnswer(t *testing.T) {
	dir := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if dir == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS is not set")
	}
	b, err := os.ReadFile(filepath.Join(dir, "loads_sglang_new_pd_decode.json"))
	if err != nil {
		t.Skip(err)
	}
	var answer struct {
		Loads []struct {
			Running  int64 `json:"num_running_reqs"`
			Waiting  int64 `json:"num_waiting_reqs"`
			Uncached int64 `json:"num_waiting_uncached_tokens"`
			Used     int64 `json:"num_used_tokens"`
			Total    int64 `json:"num_total_tokens"`
			Queues   struct {
				Transfer int64 `json:"decode_transfer_queue_reqs"`
			} `json:"disaggregation"`
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil || len(answer.Loads) == 0 {
		t.Fatalf("%d loads, error %v", len(answer.Loads), err)
	}
	x := answer.Loads[0]
	c := candidate("a", role(RoleDecode), tokens(Count(x.Used), Count(x.Total), Number{}), prefill(Count(x.Uncached), Number{}))
	c.Running, c.Waiting, c.DecodeTransfer = Count(x.Running), Count(x.Waiting), Count(x.Queues.Transfer)
	if got, _ := c.demand(); got != float64(x.Total) {
		t.Errorf("%v tokens, the engine says %d", got, x.Total)
	}
	if got, _ := c.requests(); got != float64(x.Running+x.Waiting) {
		t.Errorf("%v requests, the engine says %d", got, x.Running+x.Waiting)
	}
}

// TestBug38SentinelIsNotTheLeast has an engine that writes -1 for what it does
// not know.
func TestBug38SentinelIsNotTheLeast(t *testing.T) {
	all := []PolicyCandidate{candidate("a", requests(-1), tokens(Count(-1), Count(9), Count(-1))), candidate("b", requests(4), tokens(Count(1), Count(5), Count(10)))}
	for _, o := range []Options{{}, {Policy: LeastLoad}, {Policy: FreeTokens}} {
		if c := mustPick(t, picker(t, o), NewTable(all, TableOptions{}), Request{}); c.WorkerID != "b" || c.Field != FieldTokens || c.Score != 5 {
			t.Errorf("%s picked %+v, want b by its tokens", o.Policy, c)
		}
	}
}

// TestBug40OneCommonField has candidates that know different numbers.
func TestBug40OneCommonField(t *testing.T) {
	demand := func(n int64) func(*PolicyCandidate) { return tokens(Number{}, Count(n), Number{}) }
	later := func(c *PolicyCandidate) { c.ValidUntil = c.ValidUntil.Add(1) }
	cases := []struct {
		name  string
		all   []PolicyCandidate
		role  Role
		field Field
	}{
		{"all have both", []PolicyCandidate{candidate("a", requests(1), demand(5)), candidate("b", requests(2), demand(1))}, RoleAny, FieldRequests},
		{"one lacks requests", []PolicyCandidate{candidate("a", demand(5)), candidate("b", requests(2), demand(1)), candidate("c", requests(0), demand(9))}, RoleAny, FieldTokens},
		{"one lacks tokens", []PolicyCandidate{candidate("a", role(RolePrefill), requests(1)), candidate("b", role(RolePrefill), requests(2), demand(1))}, RolePrefill, FieldRequests},
		{"nothing is common", []PolicyCandidate{candidate("a", demand(5)), candidate("b", requests(2))}, RoleAny, FieldInFlight},
		{"nothing is known", []PolicyCandidate{candidate("a"), candidate("b")}, RoleAny, FieldInFlight},
		{"one that is not fresh lacks it", []PolicyCandidate{candidate("a", as(Stale)), candidate("b", requests(2)), candidate("c", requests(3))}, RoleAny, FieldRequests},
		{"one that drains lacks it", []PolicyCandidate{candidate("a", draining), candidate("b", requests(2))}, RoleAny, FieldRequests},
		{"one that lacks it lasts longer", []PolicyCandidate{candidate("a", demand(1), later), candidate("b", demand(1), requests(2))}, RoleAny, FieldTokens},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, o := range []Options{{}, {K: 16}, {Policy: LeastLoad}} {
				if o.Policy == LeastLoad && c.role == RolePrefill {
					continue // compares requests anyhow
				}
				got := mustPick(t, picker(t, o), NewTable(c.all, TableOptions{Role: c.role}), Request{})
				if got.Field != c.field || got.Fallback != (c.field == FieldInFlight) {
					t.Errorf("%s, K %d: picked %+v, want by %s", o.Policy, o.K, got, c.field)
				}
			}
		})
	}
}

// TestBug40AtPickTime has one candidate without requests, and the field
// follows which candidates are still fresh.
func TestBug40AtPickTime(t *testing.T) {
	short := candidate("short", tokens(Number{}, Count(0), Number{}), func(c *PolicyCandidate) { c.ValidUntil = start.Add(1) })
	both := candidate("both", tokens(Number{}, Count(3), Number{}), requests(3))
	table := NewTable([]PolicyCandidate{short, both}, TableOptions{})
	if c := mustPick(t, picker(t, Options{}), table, Request{}); c.WorkerID != "short" || c.Field != FieldTokens {
		t.Errorf("picked %+v, want by tokens", c)
	}
	if c := mustPick(t, picker(t, Options{Now: fixed(start.Add(1))}), table, Request{}); c.WorkerID != "both" || c.Field != FieldRequests {
		t.Errorf("picked %+v, want by requests", c)
	}
}

// TestBug40OwnScore has a score that knows only one of two candidates.
func TestBug40OwnScore(t *testing.T) {
	score := func(c *PolicyCandidate, _ credit.Local, _ Request) (float64, bool) { return c.requests() }
	for _, k := range []int{0, 16} {
		l := credit.NewLedger(credit.Options{Now: fixed(start)})
		table := NewTable([]PolicyCandidate{candidate("a", requests(0)), candidate("b")}, TableOptions{Ledger: l})
		l.Dispatch(credit.Target{WorkerID: "a", Rank: NoRank}, 0)
		c := mustPick(t, picker(t, Options{Policy: Custom, Score: score, K: k}), table, Request{})
		if c.WorkerID != "b" || c.Reason != ReasonNoCommonField {
			t.Errorf("K %d: picked %+v, want b by open requests", k, c)
		}
	}
}

// TestBug68OddValuesStay has a rank with a long queue that runs nothing.
func TestBug68OddValuesStay(t *testing.T) {
	stuck := candidate("a", rank(0), func(c *PolicyCandidate) { c.Running, c.Waiting = Count(0), Count(117) })
	over := candidate("a", rank(1), func(c *PolicyCandidate) { c.Running, c.Waiting, c.MaxRunning = Count(300), Count(0), Count(256) })
	p := picker(t, Options{Policy: LeastLoad, PerRank: true})
	table := NewTable([]PolicyCandidate{stuck, over}, TableOptions{})
	if c := mustPick(t, p, table, Request{}); c.Rank != 0 || c.Score != 117 {
		t.Errorf("picked %+v, want rank 0 at 117", c)
	}
	if c := mustPick(t, p, table, Request{Avoid: []credit.Target{target(stuck)}}); c.Rank != 1 || c.Score != 300 {
		t.Errorf("picked %+v, want rank 1 at 300", c)
	}
}

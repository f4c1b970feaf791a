package board

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// began is when the views of the tests arrive.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// viewOf returns a view of workers, each received 200 ms before it arrived and
// valid for 2.8 s more, and of pools.
func viewOf(t *testing.T, workers []*pb.Worker, pools ...*pb.Pool) *client.View {
	t.Helper()
	m := &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "0123456789abcdef", Epoch: 1, Version: 7}, ServerClockMs: 1200, StaleAfterMs: 3000, ServerId: "s",
		Liveness: &pb.Liveness{}, Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers, Pools: pools}},
	}
	slices.SortFunc(workers, func(a, b *pb.Worker) int { return strings.Compare(a.GetWorkerId(), b.GetWorkerId()) })
	for i, w := range workers {
		w.Row = uint32(i + 1)
		if w.GetFreshness() != pb.Freshness_FRESHNESS_MISSING {
			m.Liveness.Workers = append(m.Liveness.Workers, &pb.WorkerLiveness{Row: w.GetRow(), SequenceId: 1, ReceivedMs: 1000, ValidUntilMs: 4000})
		}
	}
	v, err := new(client.Replica).Apply(m, began)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// load is a fresh plain worker with a rank for each usage.
func load(id string, running int64, usages ...float64) *pb.Worker {
	w := &pb.Worker{
		WorkerId: "http://" + id, Role: pb.Role_ROLE_REGULAR, Models: []string{"m"}, Freshness: pb.Freshness_FRESHNESS_FRESH,
		Dialect: pb.Dialect_DIALECT_POLL, Status: pb.Status_STATUS_HEALTHY,
		Aggregate: &pb.Aggregate{NumRunningReqs: &running, NumWaitingReqs: new(int64(1)), RankCount: new(uint32(len(usages)))},
	}
	for i, u := range usages {
		w.Ranks = append(w.Ranks, &pb.RankLoad{DpRank: int32(i), TokenUsage: &u})
		w.Aggregate.WeightedTokenUsage = new(u)
		w.Aggregate.MaxRankTokenUsage = new(max(w.GetAggregate().GetMaxRankTokenUsage(), u))
	}
	return w
}

// names are those of the rows.
func names(b *Board) string {
	var out []string
	for _, r := range b.Rows {
		out = append(out, r.name())
	}
	return strings.Join(out, " ")
}

func by(t *testing.T, name string) Field {
	t.Helper()
	for _, f := range Sortable() {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no field %s", name)
	return Field{}
}

// fleet has workers that differ in all that can be sorted and filtered.
func fleet() []*pb.Worker {
	a, b, c, d, e := load("a:1", 3, 0.2, 0.9), load("b:1", 9, 0.95), load("c:1", 1), load("d:1", 4, 0.5), load("e:1", 0, 0.1)
	b.Role, b.GetAggregate().GenThroughput = pb.Role_ROLE_DECODE, new(10.0)
	c.Freshness, c.FreshnessReason, c.Aggregate = pb.Freshness_FRESHNESS_MISSING, "", nil
	d.Draining, d.Zone, d.Labels = true, new("eu-1"), map[string]string{"gpu": "H100"}
	e.Freshness, e.FreshnessReason, e.Flags = pb.Freshness_FRESHNESS_UNREACHABLE, "engine_unreachable", []string{"suspect"}
	return []*pb.Worker{a, b, c, d, e}
}

func TestOrder(t *testing.T) {
	v := viewOf(t, fleet())
	for _, c := range []struct {
		field   string
		reverse bool
		want    string
	}{
		{"usage", false, "b:1 a:1 d:1 e:1 c:1"},
		{"usage", true, "e:1 d:1 a:1 b:1 c:1"},
		{"max", false, "b:1 a:1 d:1 e:1 c:1"},
		{"name", false, "a:1 b:1 c:1 d:1 e:1"},
		{"name", true, "e:1 d:1 c:1 b:1 a:1"},
		{"running", false, "b:1 d:1 a:1 e:1 c:1"},
		{"waiting", false, "a:1 b:1 d:1 e:1 c:1"},
		{"ranks", false, "a:1 b:1 d:1 e:1 c:1"},
		{"state", false, "e:1 c:1 d:1 a:1 b:1"},
		{"role", false, "b:1 a:1 c:1 d:1 e:1"},
		{"throughput", false, "b:1 a:1 c:1 d:1 e:1"},
		{"age", true, "a:1 b:1 d:1 e:1 c:1"},
	} {
		t.Run(fmt.Sprint(c.field, c.reverse), func(t *testing.T) {
			if got := names(New(v, began, Choice{By: by(t, c.field), Reverse: c.reverse})); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	v := viewOf(t, fleet())
	for filter, want := range map[string]string{
		"": "a:1 b:1 c:1 d:1 e:1", "A:": "a:1", "decode": "b:1", "missing": "c:1", "draining": "d:1", "gpu=h100": "d:1", "EU-1 drain": "d:1",
		"engine_unreachable": "e:1", "suspect": "e:1", "poll plain": "a:1 c:1 d:1 e:1", "plain eu-1 fresh": "", "nothing of it": "",
	} {
		if got := names(New(v, began, Choice{By: by(t, "name"), Filter: FilterWords(filter)})); got != want {
			t.Errorf("%q lets through %q, want %q", filter, got, want)
		}
	}
}

// FuzzFilter: what a filter lets through matches each of its words alone too,
// and a worker matches its own name.
func FuzzFilter(f *testing.F) {
	f.Add("poll plain", "a:1")
	f.Add("\x1b[2J  \u202e", "\xff")
	f.Fuzz(func(t *testing.T, filter, id string) {
		r := Row{Worker: load(id, 1, 0.5), Load: &pb.Aggregate{}}
		words := FilterWords(filter)
		all := true
		for _, w := range words {
			all = all && r.matches([]string{w})
		}
		if got := r.matches(words); got != all {
			t.Errorf("%q matches %q: %v, by words %v", filter, id, got, all)
		}
		if !r.matches(FilterWords(id)) {
			t.Errorf("%q does not match itself", id)
		}
	})
}

// A view that gets no messages any more loses its fresh workers by itself.
func TestOld(t *testing.T) {
	pool := &pb.Pool{
		Key: &pb.PoolKey{Model: "m", Role: pb.Role_ROLE_REGULAR}, Fresh: new(uint32(2)), Expected: new(uint32(2)), Heard: new(uint32(2)),
		Aggregate: &pb.Aggregate{NumRunningReqs: new(int64(8))}, HottestWorkerId: new("http://a:1"), HottestRank: new(int32(1)), TokenUsageImbalance: new(1.5),
	}
	v := viewOf(t, []*pb.Worker{load("a:1", 3, 0.5), load("b:1", 5, 0.5)}, pool)
	for _, c := range []struct {
		name           string
		after          time.Duration
		totals, pools  string
		state, age, by string
	}{
		{"young", 0, "2 workers: 2 fresh 0 stale 0 missing 0 unreachable  fresh: run 8 wait 2", "m plain 2/2/2 100% 8 - - - x1.5 a:1 dp1", "fresh", "0.2s", ""},
		{"old", 2900 * time.Millisecond, "2 workers: 0 fresh 2 stale 0 missing 0 unreachable  fresh: run - wait -", "m plain 0/2/2 0% - - - - - -", "stale", "3.1s", "age"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := New(v, began.Add(c.after), Choice{By: by(t, "name")})
			if got := b.Totals().Text(); got != c.totals {
				t.Errorf("%q, want %q", got, c.totals)
			}
			if got := strings.Join(strings.Fields(b.PoolLines(80, 9)[1].Text()), " "); got != c.pools {
				t.Errorf("%q, want %q", got, c.pools)
			}
			if r := b.Rows[0]; r.State() != c.state || age(r) != c.age || r.Reason() != c.by {
				t.Errorf("%s, %s, %q", r.State(), age(r), r.Reason())
			}
		})
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	w := load("a:1", 1)
	w.Aggregate = &pb.Aggregate{NumRunningReqs: new(int64(0))}
	b := New(viewOf(t, []*pb.Worker{w, load("b:1", 2, 0.5)}), began, Choice{By: by(t, "name")})
	if got := b.Totals().Text(); !strings.HasSuffix(got, "run 2 wait -") {
		t.Errorf("a sum over an unknown number: %q", got)
	}
	text := strings.Join(strings.Fields(NewLayout(80, 0, b.Rows, b.Rows).Row(b.Rows[0]).Text()), " ")
	if text != "a:1 fresh plain - 0 - - - - 0.2s" {
		t.Errorf("%q", text)
	}
}

func TestPoolsThatDoNotFit(t *testing.T) {
	var pools []*pb.Pool
	for i := range 9 {
		pools = append(pools, &pb.Pool{Key: &pb.PoolKey{Model: fmt.Sprint("model-", i)}})
	}
	b := New(viewOf(t, nil, pools...), began, Choice{By: by(t, "name")})
	for most, want := range map[int]int{0: 0, 1: 0, 2: 2, 5: 5, 10: 10, 20: 10} {
		if got := b.PoolLines(80, most); len(got) != want {
			t.Errorf("%d lines where %d are had, want %d", len(got), most, want)
		}
	}
	if got := b.PoolLines(80, 5)[4].Text(); got != "and 6 more pools" {
		t.Errorf("%q", got)
	}
}

// Every width has lines that fit, with hostile names too, and says the state in
// letters.
func TestLayout(t *testing.T) {
	workers := append(fleet(), load("x\x1b[2J\u202e"+strings.Repeat("模", 500), 3, make([]float64, 200)...))
	workers[1].Zone, workers[1].Models = new("zone\nline"), []string{strings.Repeat("long", 99)}
	pool := &pb.Pool{Key: &pb.PoolKey{Model: "p\x1b[1m" + strings.Repeat("型", 99)}, HottestWorkerId: new("http://" + strings.Repeat("w", 300))}
	v := viewOf(t, workers, pool)
	b := New(v, began, Choice{By: by(t, "usage")})
	for width := 40; width <= 240; width++ {
		l := NewLayout(width, 1, b.Rows, b.Rows)
		lines := append(b.PoolLines(width, 9), l.Head(Choice{By: by(t, "usage")}))
		for _, r := range b.Rows {
			lines = append(lines, l.Row(r))
		}
		for i, line := range lines {
			text := line.Text()
			if strings.ContainsAny(text, "\x1b\n\u202e") {
				t.Fatalf("%d columns, line %d: %q", width, i, text)
			}
			if most := width - 1; i > 1 && ansi.StringWidth(text) > most {
				t.Fatalf("%d columns, line %d has %d: %s", width, i, ansi.StringWidth(text), text)
			}
			if ansi.StringWidth(ansi.Strip(line.Paint(width))) > width {
				t.Fatalf("%d columns, line %d is painted wider", width, i)
			}
		}
		if l.strip > 0 != (width >= 150) && l.strip > 0 {
			t.Errorf("a strip in %d columns", width)
		}
	}
	wide := NewLayout(240, 1, b.Rows[:2], b.Rows)
	if text := wide.Row(b.Rows[1]).Text(); !strings.HasSuffix(text, " 29") {
		t.Errorf("no strip of tenths: %s", text)
	}
}

func TestStrip(t *testing.T) {
	usages := make([]float64, 20)
	usages[1], usages[2] = 0.55, 1
	r := Row{Worker: load("a:1", 1, usages...), Freshness: pb.Freshness_FRESHNESS_FRESH}
	r.Ranks[3].TokenUsage = nil
	for width, want := range map[int]string{20: "05F?0000000000000000", 10: "05F?00 +14", 64: "05F?0000000000000000"} {
		if got := Strip(r, width).Text(); got != want {
			t.Errorf("%d cells: %q, want %q", width, got, want)
		}
	}
}

func TestFieldsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Sortable() {
		if seen[f.Name] || seen[f.Key] || f.Key < "A" || f.Key > "Z" {
			t.Errorf("%s or its key %s is there twice, or no capital letter", f.Name, f.Key)
		}
		seen[f.Name], seen[f.Key] = true, true
	}
}

// What is to be noticed looks so, and what is not fresh looks faint.
func TestTones(t *testing.T) {
	row := func(f pb.Freshness, draining bool) Row {
		r := Row{Worker: load("a:1", 1, 0.1, 0.95), Load: &pb.Aggregate{WeightedTokenUsage: new(0.1), MaxRankTokenUsage: new(0.95)}, Freshness: f}
		r.Draining = draining
		return r
	}
	for _, c := range []struct {
		freshness pb.Freshness
		draining  bool
		want      paint.Tone
	}{
		{pb.Freshness_FRESHNESS_FRESH, false, paint.Good}, {pb.Freshness_FRESHNESS_FRESH, true, paint.Warn}, {pb.Freshness_FRESHNESS_STALE, false, paint.Warn},
		{pb.Freshness_FRESHNESS_MISSING, false, paint.Warn}, {pb.Freshness_FRESHNESS_UNREACHABLE, false, paint.Bad},
	} {
		r := row(c.freshness, c.draining)
		if got := r.Tone(); got != c.want {
			t.Errorf("%v, draining %v: tone %v, want %v", c.freshness, c.draining, got, c.want)
		}
		digits, name := paint.Good, paint.Plain
		if c.freshness != pb.Freshness_FRESHNESS_FRESH {
			digits, name = paint.Dim, paint.Dim
		}
		if got, want := Strip(r, 9).Paint(9), paint.Say(digits, "1").Paint(9); !strings.HasPrefix(got, want) {
			t.Errorf("%v: a strip of %q, want %q first", c.freshness, got, want)
		}
		line := NewLayout(80, 0, []Row{r}, []Row{r}).Row(r).Paint(80)
		if want := paint.Say(name, paint.Fit("a:1", 3, paint.Left)).Paint(3); !strings.HasPrefix(line, strings.TrimSuffix(want, "\x1b[m")) {
			t.Errorf("%v: a row of %q, want %q first", c.freshness, line, want)
		}
		if fullest := paint.Say(paint.Bad, " 95%").Paint(4); strings.Contains(line, fullest) != (c.freshness == pb.Freshness_FRESHNESS_FRESH) {
			t.Errorf("%v: the fullest rank looks wrong: %q", c.freshness, line)
		}
	}
	for fresh, want := range map[int]paint.Tone{0: paint.Bad, 1: paint.Warn, 3: paint.Warn, 4: paint.Good} {
		if got := (Pool{&pb.Pool{Expected: new(uint32(4))}, &pb.Aggregate{}, fresh}).tone(); got != want {
			t.Errorf("%d of 4 fresh: tone %v, want %v", fresh, got, want)
		}
	}
}

// The arrow says which way is sorted.
func TestArrow(t *testing.T) {
	for _, c := range []struct {
		field   string
		reverse bool
		want    string
	}{{"name", false, "WORKER↑"}, {"name", true, "WORKER↓"}, {"running", false, "RUN↓"}, {"running", true, "RUN↑"}} {
		choice := Choice{By: by(t, c.field), Reverse: c.reverse}
		if head := NewLayout(80, 0, nil, nil).Head(choice).Text(); !strings.Contains(head, c.want) {
			t.Errorf("%s, reversed %v: %q", c.field, c.reverse, head)
		}
	}
}

// A pool counts the fresh workers of its own role and model, and a worker
// without a model is in the pool without one.
func TestPoolsCountTheirOwn(t *testing.T) {
	key := func(model string, r pb.Role) *pb.Pool {
		return &pb.Pool{Key: &pb.PoolKey{Model: model, Role: r}, Expected: new(uint32(1))}
	}
	a, b, c := load("a:1", 1, 0.1), load("b:1", 2, 0.1), load("c:1", 3, 0.1)
	a.Models, b.Models, c.Models = []string{"m"}, []string{"m"}, nil
	b.Role = pb.Role_ROLE_DECODE
	board := New(viewOf(t, []*pb.Worker{a, b, c}, key("m", pb.Role_ROLE_REGULAR), key("m", pb.Role_ROLE_DECODE), key("", pb.Role_ROLE_REGULAR), key("n", pb.Role_ROLE_DECODE)), began, Choice{By: by(t, "name")})
	var got []int
	for _, p := range board.Pools {
		got = append(got, p.fresh)
	}
	if fmt.Sprint(got) != "[1 1 1 0]" {
		t.Errorf("fresh %v", got)
	}
}

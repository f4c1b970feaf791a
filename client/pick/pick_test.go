package pick

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func fixed(at time.Time) func() time.Time { return func() time.Time { return at } }

// seeded is a source of random bits that is the same in every run.
func seeded(n uint64) func() uint64 { return rand.New(rand.NewPCG(n, 7)).Uint64 }

func picker(t testing.TB, o Options) *Picker {
	t.Helper()
	if o.Now == nil {
		o.Now = fixed(start)
	}
	if o.Rand == nil {
		o.Rand = seeded(1)
	}
	p, err := NewPicker(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// candidate is one that is fresh for 3 s, with changes.
func candidate(id string, change ...func(*PolicyCandidate)) PolicyCandidate {
	c := usable(id, start.Add(3*time.Second))
	for _, f := range change {
		f(&c)
	}
	return c
}

func requests(n int64) func(*PolicyCandidate) {
	return func(c *PolicyCandidate) { c.Running, c.Waiting = Count(n), Count(0) }
}

func as(f Freshness) func(*PolicyCandidate) { return func(c *PolicyCandidate) { c.Freshness = f } }
func role(r Role) func(*PolicyCandidate)    { return func(c *PolicyCandidate) { c.Role = r } }
func rank(n int32) func(*PolicyCandidate)   { return func(c *PolicyCandidate) { c.Rank = n } }
func draining(c *PolicyCandidate)           { c.Draining = true }

func tokens(used, total, capacity Number) func(*PolicyCandidate) {
	return func(c *PolicyCandidate) { c.UsedTokens, c.TotalTokens, c.Capacity = used, total, capacity }
}

func prefill(waiting, throughput Number) func(*PolicyCandidate) {
	return func(c *PolicyCandidate) { c.WaitingUncachedTokens, c.PrefillThroughput = waiting, throughput }
}

func mustPick(t testing.TB, p *Picker, table *Table, r Request) Choice {
	t.Helper()
	c, err := p.Pick(table, r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPolicies(t *testing.T) {
	none := Number{}
	full := func(c *PolicyCandidate) { c.MaxRunning = Count(10) }
	cases := []struct {
		name       string
		o          Options
		role       Role
		candidates []PolicyCandidate
		request    Request
		id         string
		field      Field
		score      float64
	}{
		{
			"least load by requests", Options{Policy: LeastLoad}, RoleAny,
			[]PolicyCandidate{candidate("a", requests(5)), candidate("b", requests(3)), candidate("c", requests(9))},
			Request{}, "b", FieldRequests, 3,
		},
		{
			"only the sum is reported", Options{Policy: LeastLoad}, RoleAny,
			[]PolicyCandidate{candidate("a", requests(5)), candidate("b", func(c *PolicyCandidate) { c.TotalRequests = Count(4) })},
			Request{}, "b", FieldRequests, 4,
		},
		{
			"least load without requests", Options{Policy: LeastLoad}, RoleAny,
			[]PolicyCandidate{candidate("a", tokens(Count(5), Count(70), none)), candidate("b", tokens(Count(50), Count(60), none))},
			Request{}, "b", FieldTokens, 60,
		},
		{
			"power of all of a plain pool", Options{K: 2}, RolePlain,
			[]PolicyCandidate{candidate("a", requests(5), tokens(Count(1), Count(1), none)), candidate("b", requests(3), tokens(Count(9), Count(9), none))},
			Request{}, "b", FieldRequests, 3,
		},
		{
			"power of all of a prefill pool", Options{K: 2}, RolePrefill,
			[]PolicyCandidate{
				candidate("a", role(RolePrefill), requests(5), tokens(Count(1), Count(1), none)),
				candidate("b", role(RolePrefill), requests(3), tokens(Count(9), Count(9), none)),
			},
			Request{}, "a", FieldTokens, 1,
		},
		{
			"demand is used and waiting where it is not reported", Options{}, RolePrefill,
			[]PolicyCandidate{
				candidate("a", role(RolePrefill), tokens(Count(100), none, none), prefill(Count(50), none)),
				candidate("b", role(RolePrefill), tokens(Count(120), none, none), prefill(Count(10), none)),
			},
			Request{}, "b", FieldTokens, 130,
		},
		{
			"free tokens", Options{Policy: FreeTokens}, RoleAny,
			[]PolicyCandidate{candidate("a", tokens(Count(10), none, Count(100))), candidate("b", tokens(Count(900), none, Count(1000)))},
			Request{}, "b", FieldFree, 100,
		},
		{
			"free tokens may be below zero", Options{Policy: FreeTokens}, RoleAny,
			[]PolicyCandidate{candidate("a", tokens(Count(120), none, Count(100))), candidate("b", tokens(Count(1100), none, Count(1000)))},
			Request{}, "a", FieldFree, -20,
		},
		{
			"free tokens without capacity", Options{Policy: FreeTokens}, RoleAny,
			[]PolicyCandidate{candidate("a", tokens(Count(10), Count(30), Count(100))), candidate("b", tokens(Count(9), Count(40), none))},
			Request{}, "a", FieldTokens, 30,
		},
		{
			"wait for prefill counts the own prompt", Options{Policy: ExpectedWait}, RoleAny,
			[]PolicyCandidate{candidate("a", prefill(Count(0), Known(100))), candidate("b", prefill(Count(1000), Known(2000)))},
			Request{PromptTokens: 1000}, "b", FieldPrefillWait, 1,
		},
		{
			"wait for prefill alone", Options{Policy: ExpectedWait}, RoleAny,
			[]PolicyCandidate{candidate("a", prefill(Count(0), Known(100))), candidate("b", prefill(Count(1000), Known(2000)))},
			Request{}, "a", FieldPrefillWait, 0,
		},
		{
			"wait for a slot", Options{Policy: ExpectedWait, ServiceTime: 20 * time.Second}, RoleAny,
			[]PolicyCandidate{
				candidate("a", prefill(Count(0), Known(100)), requests(12), full),
				candidate("b", prefill(Count(100), Known(100)), requests(10), full),
			},
			Request{}, "b", FieldWait, 1,
		},
		{
			"free slots are no wait below zero", Options{Policy: ExpectedWait}, RoleAny,
			[]PolicyCandidate{
				candidate("a", prefill(Count(0), Known(100)), requests(9), full),
				candidate("b", prefill(Count(10), Known(100)), requests(0), full),
			},
			Request{}, "a", FieldWait, 0,
		},
		{
			"a throughput of zero says nothing", Options{Policy: ExpectedWait}, RoleAny,
			[]PolicyCandidate{candidate("a", prefill(Count(5), Known(0))), candidate("b", prefill(Count(4), Known(10)))},
			Request{}, "b", FieldUncached, 4,
		},
		{
			"a decode pool waits for no prefill", Options{Policy: ExpectedWait}, RoleDecode,
			[]PolicyCandidate{
				candidate("a", role(RoleDecode), prefill(Count(0), Known(10)), requests(7)),
				candidate("b", role(RoleDecode), prefill(Count(0), Known(10)), requests(6)),
			},
			Request{}, "b", FieldRequests, 6,
		},
		{
			"own score", Options{Policy: Custom, Score: byRank}, RoleAny,
			[]PolicyCandidate{candidate("a"), candidate("bb"), candidate("ccc")},
			Request{PromptTokens: 2}, "bb", FieldScore, 0,
		},
		{
			"own score of those drawn", Options{Policy: Custom, K: 16, Score: byRank}, RoleAny,
			[]PolicyCandidate{candidate("a"), candidate("bb"), candidate("ccc")},
			Request{PromptTokens: 2}, "bb", FieldScore, 0,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := mustPick(t, picker(t, c.o), NewTable(c.candidates, TableOptions{Role: c.role}), c.request)
			if got.WorkerID != c.id || got.Field != c.field || got.Score != c.score || got.Fallback || got.Reason != "" {
				t.Errorf("picked %+v, want %s by %s at %v", got, c.id, c.field, c.score)
			}
			if got.URL != c.id || got.Rank != NoRank || got.Policy != c.o.Policy {
				t.Errorf("picked %+v of another policy, URL or rank", got)
			}
		})
	}
}

// byRank likes an id that is as long as the prompt.
func byRank(c *PolicyCandidate, _ credit.Local, r Request) (float64, bool) {
	return math.Abs(float64(len(c.WorkerID)) - float64(r.PromptTokens)), true
}

// TestCreditCounts dispatches to the least loaded candidate until another is.
func TestCreditCounts(t *testing.T) {
	two := func(a, b func(*PolicyCandidate)) []PolicyCandidate {
		return []PolicyCandidate{candidate("a", a), candidate("b", b)}
	}
	slots := func(n int64) func(*PolicyCandidate) {
		return func(c *PolicyCandidate) {
			requests(n)(c)
			prefill(Count(0), Known(100))(c)
			c.MaxRunning = Count(10)
		}
	}
	cases := []struct {
		name       string
		o          Options
		candidates []PolicyCandidate
		first      int // dispatches that "a" gets before "b" is better
	}{
		{"requests", Options{Policy: LeastLoad}, two(requests(0), requests(3)), 4},
		{"free tokens", Options{Policy: FreeTokens}, two(tokens(Count(0), Number{}, Count(5050)), tokens(Count(0), Number{}, Count(2000))), 4},
		{"tokens", Options{Policy: FreeTokens}, two(tokens(Number{}, Count(0), Number{}), tokens(Number{}, Count(1500), Number{})), 2},
		{"uncached tokens", Options{Policy: ExpectedWait}, two(prefill(Count(0), Number{}), prefill(Count(2500), Number{})), 3},
		{"wait for prefill", Options{Policy: ExpectedWait}, two(prefill(Count(0), Known(100)), prefill(Count(350), Known(10))), 4},
		{"wait for a slot", Options{Policy: ExpectedWait, ServiceTime: 1000 * time.Second}, two(slots(8), slots(12)), 5},
		{"own score", Options{Policy: Custom, Score: func(c *PolicyCandidate, l credit.Local, _ Request) (float64, bool) {
			v, ok := c.Running.Value()
			return v + float64(l.Credit), ok
		}}, two(requests(0), requests(3)), 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := credit.NewLedger(credit.Options{Now: fixed(start)})
			table := NewTable(c.candidates, TableOptions{Ledger: l})
			p := picker(t, c.o)
			n := 0
			for ; n < 100; n++ {
				choice := mustPick(t, p, table, Request{})
				if choice.WorkerID == "b" {
					break
				}
				l.Dispatch(choice.Target, 1000)
			}
			// A tie may go to either.
			if n != c.first && n != c.first-1 {
				t.Errorf("b was better after %d dispatches to a, want %d", n, c.first)
			}
		})
	}
}

func TestFreshness(t *testing.T) {
	const s = time.Second
	usableUntil := func(d time.Duration) func(*PolicyCandidate) {
		return func(c *PolicyCandidate) { c.ValidUntil = start.Add(d) }
	}
	unreachable := func(d time.Duration) func(*PolicyCandidate) {
		return func(c *PolicyCandidate) { c.Freshness, c.ValidUntil = Unreachable, start.Add(d) }
	}
	forever := func(c *PolicyCandidate) { c.Freshness, c.ValidUntil = Unreachable, time.Time{} }
	cases := []struct {
		name       string
		candidates []PolicyCandidate
		at         time.Duration
		open       string // what fail-open may pick, in order; else the error
		reason     Reason
		closed     string
		err        error // of fail-closed
	}{
		{"all fresh", []PolicyCandidate{candidate("a"), candidate("b")}, 0, "ab", "", "ab", nil},
		{"half fresh", []PolicyCandidate{candidate("a"), candidate("b", as(Stale))}, 0, "a", "", "a", nil},
		{"below half", []PolicyCandidate{candidate("a"), candidate("b", as(Stale)), candidate("c", as(Missing))}, 0, "abc", ReasonFewFresh, "a", nil},
		{"zero freshness is missing", []PolicyCandidate{candidate("a", as(0))}, 0, "a", ReasonFewFresh, "", ErrNoneFresh},
		{"unreachable counts and is not picked", []PolicyCandidate{candidate("a"), candidate("b", forever), candidate("c", unreachable(3*s))}, 0, "a", ReasonFewFresh, "a", nil},
		{"draining does not count", []PolicyCandidate{candidate("a"), candidate("b", draining), candidate("c", draining, as(Stale)), candidate("d", draining, forever)}, 0, "a", "", "a", nil},
		{"until its very end", []PolicyCandidate{candidate("a", usableUntil(3*s))}, 3*s - 1, "a", "", "a", nil},
		{"from its end on", []PolicyCandidate{candidate("a", usableUntil(3*s))}, 3 * s, "a", ReasonFewFresh, "", ErrNoneFresh},
		{"one by one", []PolicyCandidate{candidate("a", usableUntil(2*s)), candidate("b", usableUntil(4*s)), candidate("c", usableUntil(3*s))}, 2 * s, "bc", "", "bc", nil},
		{"too many ended", []PolicyCandidate{candidate("a", usableUntil(2*s)), candidate("b", usableUntil(4*s)), candidate("c", usableUntil(3*s))}, 3 * s, "abc", ReasonFewFresh, "b", nil},
		{"no end is the past", []PolicyCandidate{candidate("a", func(c *PolicyCandidate) { c.ValidUntil = time.Time{} })}, 0, "a", ReasonFewFresh, "", ErrNoneFresh},
		{"unreachable turns stale", []PolicyCandidate{candidate("a", unreachable(s)), candidate("b", unreachable(2*s)), candidate("c", forever)}, s, "a", ReasonFewFresh, "", ErrNoneFresh},
		{"all unreachable", []PolicyCandidate{candidate("a", unreachable(s)), candidate("b", forever)}, 0, "", ReasonNoneReachable, "", ErrNoneFresh},
		{"all draining", []PolicyCandidate{candidate("a", draining)}, 0, "", ReasonNoCandidates, "", ErrNoCandidates},
		{"nothing", nil, 0, "", ReasonNoCandidates, "", ErrNoCandidates},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			now := fixed(start.Add(c.at))
			table := NewTable(c.candidates, TableOptions{})
			for _, o := range []Options{{}, {Policy: LeastLoad}, {Policy: Custom, Score: byRank}} {
				o.Now = now
				got, reason, _ := everything(t, picker(t, o), table)
				if got != c.open || reason != c.reason {
					t.Errorf("open, %s: picked of %q for %q, want %q for %q", o.Policy, got, reason, c.open, c.reason)
				}
				o.FailClosed = true
				got, _, err := everything(t, picker(t, o), table)
				if got != c.closed || !errors.Is(err, c.err) {
					t.Errorf("closed, %s: picked of %q, error %v, want %q, %v", o.Policy, got, err, c.closed, c.err)
				}
			}
		})
	}
}

// everything picks until all that can be picked was, and returns it in order
// with the reason; where the policy has no field in common, that is no reason.
func everything(t *testing.T, p *Picker, table *Table) (ids string, reason Reason, err error) {
	t.Helper()
	var avoid []credit.Target
	for {
		c, err := p.Pick(table, Request{Avoid: avoid})
		if errors.Is(err, ErrAllTried) {
			break
		}
		var refusal *Error
		if errors.As(err, &refusal) {
			return "", refusal.Reason, err
		}
		if c.Fallback != (c.Reason != "") || c.Fallback != (c.Field == FieldInFlight) {
			t.Errorf("%+v contradicts itself", c)
		}
		if c.Reason != ReasonNoCommonField {
			reason = c.Reason
		}
		avoid = append(avoid, credit.Target{WorkerID: c.WorkerID, Rank: NoRank})
	}
	for id := byte('a'); id <= 'z'; id++ {
		for _, x := range avoid {
			if x.WorkerID == string(id) {
				ids += x.WorkerID
			}
		}
	}
	return ids, reason, nil
}

func TestReasonsAreProvoked(t *testing.T) {
	stale := candidate("a", as(Stale))
	cases := map[Reason]struct {
		candidates []PolicyCandidate
		o          Options
		r          Request
		err        *Error
	}{
		ReasonFewFresh:      {candidates: []PolicyCandidate{stale}},
		ReasonNoCommonField: {candidates: []PolicyCandidate{candidate("a")}},
		ReasonNoCandidates:  {err: ErrNoCandidates},
		ReasonNoneReachable: {candidates: []PolicyCandidate{candidate("a", as(Unreachable))}, err: ErrNoneReachable},
		ReasonNoneFresh:     {candidates: []PolicyCandidate{stale}, o: Options{FailClosed: true}, err: ErrNoneFresh},
		ReasonAllTried:      {candidates: []PolicyCandidate{candidate("a")}, r: Request{Avoid: []credit.Target{{WorkerID: "a", Rank: NoRank}}}, err: ErrAllTried},
	}
	for reason, c := range cases {
		t.Run(string(reason), func(t *testing.T) {
			got, err := picker(t, c.o).Pick(NewTable(c.candidates, TableOptions{}), c.r)
			if c.err == nil {
				if err != nil || got.Reason != reason {
					t.Errorf("picked %+v, error %v", got, err)
				}
				return
			}
			if !errors.Is(err, c.err) || c.err.Reason != reason || err.Error() == "" || got != (Choice{}) {
				t.Errorf("picked %+v, error %v, want %v for %s", got, err, c.err, reason)
			}
		})
	}
}

func TestAvoid(t *testing.T) {
	all := []PolicyCandidate{
		candidate("a", requests(0)), candidate("a", rank(0), requests(0)), candidate("a", rank(1), requests(0)),
		candidate("b", requests(9)), candidate("b", rank(0), requests(8)), candidate("b", rank(1), requests(9)),
	}
	table := NewTable(all, TableOptions{})
	for _, o := range []Options{
		{PerRank: true, Policy: LeastLoad},
		{PerRank: true},
		{PerRank: true, K: 16},
		{PerRank: true, Policy: Custom, Score: func(c *PolicyCandidate, _ credit.Local, _ Request) (float64, bool) { return c.requests() }},
	} {
		p := picker(t, o)
		for range 50 {
			r := Request{Avoid: []credit.Target{{WorkerID: "a", Rank: 1}, {WorkerID: "a", Rank: 0}, {WorkerID: "b", Rank: 1}}}
			if c := mustPick(t, p, table, r); c.WorkerID != "b" || c.Rank != 0 {
				t.Fatalf("%s picked %s %d", o.Policy, c.WorkerID, c.Rank)
			}
			r.Avoid = []credit.Target{{WorkerID: "b", Rank: NoRank}, {WorkerID: "a", Rank: 0}}
			if c := mustPick(t, p, table, r); c.WorkerID != "a" || c.Rank != 1 {
				t.Fatalf("%s picked %s %d", o.Policy, c.WorkerID, c.Rank)
			}
			r.Avoid = []credit.Target{{WorkerID: "b", Rank: NoRank}, {WorkerID: "a", Rank: NoRank}}
			if c, err := p.Pick(table, r); !errors.Is(err, ErrAllTried) {
				t.Fatalf("%s picked %+v", o.Policy, c)
			}
		}
	}
}

// size returns how many candidates a table has.
func size(t *Table, perRank bool) int {
	s := t.part(perRank)
	return s.end(len(s.spans))
}

// A prefill throughput of next to nothing would make waits that are no
// numbers: it is not known.
func TestNextToNoThroughput(t *testing.T) {
	for throughput, want := range map[float64]Field{0: FieldUncached, 1e-310: FieldUncached, 9e-10: FieldUncached, 1e-9: FieldPrefillWait, 1: FieldPrefillWait} {
		table := NewTable([]PolicyCandidate{candidate("a", prefill(Count(0), Known(throughput))), candidate("b", prefill(Count(0), Known(throughput)))}, TableOptions{})
		c := mustPick(t, picker(t, Options{Policy: ExpectedWait}), table, Request{})
		if c.Field != want || math.IsNaN(c.Score) || math.IsInf(c.Score, 0) {
			t.Errorf("%v tokens/s: by %v, score %v, want %v", throughput, c.Field, c.Score, want)
		}
	}
}

// TestRanksAndWorkers picks from both parts of one table.
func TestRanksAndWorkers(t *testing.T) {
	all := []PolicyCandidate{
		candidate("a", requests(3)), candidate("a", rank(0), requests(3)), candidate("a", rank(5), requests(0)),
		candidate("b", requests(1)),
		candidate("c", draining, requests(0)), candidate("c", draining, rank(0), requests(0)),
	}
	table := NewTable(all, TableOptions{})
	if w, r := size(table, false), size(table, true); w != 2 || r != 3 {
		t.Errorf("%d workers and %d ranks, want 2 and 3", w, r)
	}
	if c := mustPick(t, picker(t, Options{Policy: LeastLoad}), table, Request{}); c.WorkerID != "b" || c.Rank != NoRank {
		t.Errorf("picked %+v, want worker b", c)
	}
	ranks := picker(t, Options{Policy: LeastLoad, PerRank: true})
	if c := mustPick(t, ranks, table, Request{}); c.WorkerID != "a" || c.Rank != 5 {
		t.Errorf("picked %+v, want rank 5 of a", c)
	}
	// A worker that has no ranks stands for itself.
	if c := mustPick(t, ranks, table, Request{Avoid: []credit.Target{{WorkerID: "a", Rank: 5}}}); c.WorkerID != "b" || c.Rank != NoRank {
		t.Errorf("picked %+v, want worker b", c)
	}
}

// TestSharesOfWorkers counts workers, not ranks, for the share that is fresh.
func TestSharesOfWorkers(t *testing.T) {
	all := []PolicyCandidate{candidate("a", requests(1))}
	for r := range int32(8) {
		all = append(all, candidate("a", rank(r), requests(1)))
	}
	all = append(all, candidate("b", as(Missing)), candidate("c", as(Missing)))
	table := NewTable(all, TableOptions{})
	if fresh, of := table.Workers(start); fresh != 1 || of != 3 {
		t.Errorf("%d of %d workers are fresh, want 1 of 3", fresh, of)
	}
	if c := mustPick(t, picker(t, Options{PerRank: true}), table, Request{}); c.Reason != ReasonFewFresh {
		t.Errorf("picked %+v, want a fallback", c)
	}
	p := picker(t, Options{PerRank: true, MinFresh: 0.3})
	if c := mustPick(t, p, table, Request{}); c.Reason != "" || c.Field != FieldRequests {
		t.Errorf("picked %+v, want by requests", c)
	}
}

func TestPools(t *testing.T) {
	models := func(names ...string) func(*PolicyCandidate) {
		return func(c *PolicyCandidate) { c.Models = names }
	}
	all := []PolicyCandidate{
		candidate("a", role(RolePrefill), models("x", "y"), requests(1)),
		candidate("b", role(RoleDecode), models("x"), requests(1)),
		candidate("c", role(RolePlain), requests(1)),
	}
	for _, c := range []struct {
		o    TableOptions
		want int
	}{
		{TableOptions{}, 3},
		{TableOptions{Model: "x"}, 2},
		{TableOptions{Model: "y"}, 1},
		{TableOptions{Role: RoleDecode}, 1},
		{TableOptions{Model: "y", Role: RoleDecode}, 0},
		{TableOptions{Model: "z"}, 0},
	} {
		if got := size(NewTable(all, c.o), false); got != c.want {
			t.Errorf("%+v: %d workers, want %d", c.o, got, c.want)
		}
	}
	p := picker(t, Options{})
	x := NewTable(all, TableOptions{Model: "x", Role: RolePrefill})
	pair, err := p.PickPair(x, NewTable(all, TableOptions{Model: "x", Role: RoleDecode}), Request{})
	if err != nil || pair.Prefill.WorkerID != "a" || pair.Decode.WorkerID != "b" {
		t.Errorf("pair %+v, error %v", pair, err)
	}
	none := NewTable(nil, TableOptions{})
	for want, tables := range map[string][2]*Table{"prefill: ": {none, x}, "decode: ": {x, none}} {
		_, err := p.PickPair(tables[0], tables[1], Request{})
		if !errors.Is(err, ErrNoCandidates) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want of %s", err, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"Policy":      {Policy: numPolicies},
		"K":           {K: MaxK + 1},
		"K -1":        {K: -1},
		"K 2":         {Policy: LeastLoad, K: 2},
		"Score":       {Score: byRank},
		"custom":      {Policy: Custom},
		"MinFresh":    {MinFresh: 1.1},
		"MinFresh -1": {MinFresh: -1},
		"MinFresh Na": {MinFresh: math.NaN()},
		"ServiceTime": {ServiceTime: -1},
	} {
		if p, err := NewPicker(o); p != nil || !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for p := range numPolicies {
		got, err := ParsePolicy(p.String())
		if p == Custom {
			if err == nil {
				t.Error("custom was parsed")
			}
			continue
		}
		if err != nil || got != p {
			t.Errorf("%s parses to %v, %v", p, got, err)
		}
		seen[p.String()] = true
	}
	for f := range numFields {
		seen[f.String()] = true
	}
	if len(seen) != int(numPolicies)-1+int(numFields) || seen[""] {
		t.Errorf("names are missing or stand twice: %v", seen)
	}
	if got := Policy(77).String() + Field(78).String(); got != "7778" {
		t.Errorf("unknown values are %q", got)
	}
}

func FuzzParsePolicy(f *testing.F) {
	for p := range numPolicies {
		f.Add(p.String())
	}
	f.Add("Power-Of-K")
	f.Fuzz(func(t *testing.T, name string) {
		p, err := ParsePolicy(name)
		if (err == nil) != (p.String() == name && p != Custom) {
			t.Errorf("%q parses to %s, %v", name, p, err)
		}
	})
}

func FuzzNumber(f *testing.F) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -1, math.NaN(), math.Inf(1), math.MaxFloat64, 5e-324} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		got, ok := Known(v).Value()
		want := v >= 0 && v <= math.MaxFloat64
		if ok != want || ok && (got != v || math.Signbit(got)) || !ok && got != 0 {
			t.Errorf("%v gives %v, %v", v, got, ok)
		}
	})
}

func TestZeroNumberIsUnknown(t *testing.T) {
	if _, ok := (Number{}).Value(); ok {
		t.Error("the zero Number is known")
	}
	if v, ok := Count(0).Value(); v != 0 || !ok {
		t.Error("a count of zero is not known")
	}
	if _, ok := Count(-1).Value(); ok {
		t.Error("a count of -1 is known")
	}
}

// TestPickAllocatesNothing picks with every policy, from fresh candidates, by
// fallback and past what was tried.
func TestPickAllocatesNothing(t *testing.T) {
	all, _ := fleet(20, 4, start)
	policies := []Options{{}, {K: 16}, {Policy: LeastLoad}, {Policy: FreeTokens}, {Policy: ExpectedWait}, {Policy: Custom, Score: byRank}, {Policy: Custom, Score: byRank, K: 3}}
	for _, o := range policies {
		for _, at := range []time.Duration{0, time.Hour} {
			for _, perRank := range []bool{false, true} {
				o.PerRank, o.Now = perRank, fixed(start.Add(at))
				p, table := picker(t, o), NewTable(all, TableOptions{})
				r := Request{Avoid: []credit.Target{target(all[0])}}
				for _, r := range []Request{{}, r} {
					n := testing.AllocsPerRun(100, func() { mustPick(t, p, table, r) })
					if n != 0 {
						t.Errorf("%s, by rank %v, after %v: %v allocations", o.Policy, perRank, at, n)
					}
				}
			}
		}
	}
}

// TestViewThatGetsNoMore picks from one table while time passes: fresh, then
// by this process's own requests.
func TestViewThatGetsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := NewPicker(Options{Policy: LeastLoad})
		if err != nil {
			t.Fatal(err)
		}
		until := time.Now().Add(3 * time.Second)
		a, b := usable("a", until), usable("b", until)
		requests(0)(&a)
		requests(50)(&b)
		l := credit.NewLedger(credit.Options{})
		table := NewTable([]PolicyCandidate{a, b}, TableOptions{Ledger: l})
		first := mustPick(t, p, table, Request{})
		if first.WorkerID != "a" || first.Fallback {
			t.Errorf("picked %+v, want a", first)
		}
		l.Dispatch(first.Target, 0)
		<-time.After(3 * time.Second)
		if c := mustPick(t, p, table, Request{}); c.WorkerID != "b" || !c.Fallback || c.Score != 0 {
			t.Errorf("picked %+v, want b, where nothing is open", c)
		}
	})
}

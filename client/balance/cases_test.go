package balance

import (
	"errors"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// Another engine under the name of the last one: what was sent to the last is
// no load of the new, though those requests are open until they end.
func TestBug16AnotherEngineOfThatName(t *testing.T) {
	changes := map[string]func(*entry){
		"new row":      func(e *entry) { e.Row = 7 },
		"new instance": func(e *entry) { e.SourceInstanceId = "2" },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.show(worker("a", 0))
			r := b.pick(Request{PromptTokens: 100})
			b.show(worker("a", 0, change))
			if next := b.pick(Request{}); next.Score != 0 {
				t.Errorf("the new engine counts as having %v requests", next.Score)
			}
			if l := b.Local("a"); l.InFlight != 2 || l.Credit != 1 || l.Tokens != 0 {
				t.Errorf("%+v, want both open and one credit", l)
			}
			r.Done()
			if l := b.Local("a"); l.InFlight != 1 || l.Credit != 1 {
				t.Errorf("%+v after the end of the first", l)
			}
		})
	}
}

func TestBug18NothingFresh(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 1, as(stale, "no_report")), worker("b", 50, as(stale, "no_report")))
	seen := map[string]int{}
	for range 10 {
		r := b.pick(Request{})
		if !r.Fallback || r.Reason != pick.ReasonFewFresh || r.Field != pick.FieldInFlight {
			t.Fatalf("picked %+v", r)
		}
		seen[r.WorkerID]++
	}
	if seen["a"] != 5 || seen["b"] != 5 {
		t.Errorf("picked %v, want by open requests", seen)
	}
	closed := newBench(t, func(o *Options) { o.Pick.FailClosed = true })
	closed.show(worker("a", 1, as(stale, "no_report")))
	if _, err := closed.Pick(Request{}); !errors.Is(err, pick.ErrNoneFresh) {
		t.Errorf("fail closed: %v", err)
	}
}

// Before the first reports, and among equals, no rank is favoured for its
// number.
func TestBug28RankZeroIsNotFavoured(t *testing.T) {
	cases := []struct {
		name string
		all  []entry
	}{
		{"never reported", []entry{worker("a", 0, as(missing, "no_report")), worker("b", 0, as(missing, "no_report"))}},
		{"all idle", []entry{worker("a", 0, ranked(4)), worker("b", 0, ranked(4))}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, func(o *Options) { o.Pick.PerRank = true })
			b.show(c.all...)
			seen := map[string]int{}
			for range 400 {
				r := b.pick(Request{})
				seen[r.WorkerID+"/"+r.DPRank]++
				r.Done() // so that only the tie decides
			}
			want := 2 * max(1, len(c.all[0].Ranks))
			for target, n := range seen {
				if n > 2*400/want {
					t.Errorf("%d of 400 went to %s", n, target)
				}
			}
			if len(seen) != want {
				t.Errorf("%d targets, want %d", len(seen), want)
			}
		})
	}
}

// An engine that does not tell its ranks apart is picked as a whole: its one
// rank stands for all of them, and is not rank 0.
func TestBug07UnknownRanksAreNotPicked(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Pick.PerRank = true })
	b.show(worker("a", 0, ranked(1), func(e *entry) { e.Flags = []string{"ranks_unknown"} }), worker("b", 0, ranked(2)))
	seen := map[string]int{}
	for range 30 {
		r := b.pick(Request{})
		if seen[r.WorkerID+"/"+r.DPRank]++; r.WorkerID == "a" && (r.DPRank != "" || r.Rank != pick.NoRank) {
			t.Fatalf("bug 28: rank %d, header %q", r.Rank, r.DPRank)
		}
	}
	if len(seen) != 3 || seen["a/"] != 10 || seen["b/0"] != 10 || seen["b/1"] != 10 {
		t.Errorf("picked %v, want a as one and both ranks of b", seen)
	}
}

// One engine tells requests, the other tokens: they are not compared.
func TestBug40OneCommonField(t *testing.T) {
	tokens := func(e *entry) { e.Aggregate = &pb.Aggregate{NumTotalTokens: proto.Int64(3)} }
	b := newBench(t)
	b.show(worker("a", 900), worker("b", 0, tokens))
	seen := map[string]int{}
	for range 10 {
		r := b.pick(Request{})
		if !r.Fallback || r.Reason != pick.ReasonNoCommonField || r.Field != pick.FieldInFlight {
			t.Fatalf("picked %+v", r)
		}
		seen[r.WorkerID]++
	}
	if seen["a"] != 5 {
		t.Errorf("picked %v, want by open requests", seen)
	}
	b.show(worker("a", 900, func(e *entry) { e.Aggregate.NumTotalTokens = proto.Int64(4) }), worker("b", 0, tokens))
	if r := b.pick(Request{}); r.Fallback || r.Field != pick.FieldTokens || r.WorkerID != "b" {
		t.Errorf("with a common field: %+v", r)
	}
}

// While one goroutine takes a view over, others pick; a worker that is gone
// does not come back.
func TestBug63OneSlowViewHoldsNobodyUp(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 0), worker("b", 5))
	b.pick(Request{}).Done()
	b.renewing.Lock() // somebody is at it, for long
	b.show(worker("b", 5), worker("c", 9))
	if r := b.pick(Request{}); r.Version != 1 {
		t.Errorf("picked by view %d, want the one before", r.Version)
	}
	b.renewing.Unlock()
	for range 20 {
		if r := b.pick(Request{}); r.Version != 2 || r.WorkerID == "a" {
			t.Fatalf("picked %s by view %d", r.WorkerID, r.Version)
		}
	}
}

// A report covers what was sent an interval before it, unless its samples are
// older than that, or it has none.
func TestCredit(t *testing.T) {
	report := func(change ...func(*entry)) entry { return worker("a", 0, change...) }
	poll := func(e *entry) { e.Dialect = pb.Dialect_DIALECT_POLL }
	sampled := func(d time.Duration) func(*entry) { return func(e *entry) { e.sampled = d } }
	cases := []struct {
		name  string
		after time.Duration
		then  entry
		want  int64
	}{
		{"within the interval", 900 * time.Millisecond, report(), 1},
		{"after it", 1100 * time.Millisecond, report(), 0},
		{"received before", 1100 * time.Millisecond, report(ago(200 * time.Millisecond)), 1},
		{"an interval that is not known", 1100 * time.Millisecond, report(func(e *entry) { e.ReportIntervalMs = 0 }), 0},
		{"polled", 1900 * time.Millisecond, report(poll), 1},
		{"polled twice", 2100 * time.Millisecond, report(poll), 0},
		{"sampled lately", 1100 * time.Millisecond, report(sampled(50 * time.Millisecond)), 0},
		{"sampled before", 2100 * time.Millisecond, report(sampled(2200 * time.Millisecond)), 1},
		{"sampled since", 2100 * time.Millisecond, report(sampled(2000 * time.Millisecond)), 0},
		{"polled and sampled before", 3000 * time.Millisecond, report(poll, sampled(3100*time.Millisecond)), 1},
		{"the engine calls it old", 2100 * time.Millisecond, report(as(stale, "engine"), func(e *entry) { e.Status = pb.Status_STATUS_STALE }), 1},
		{"without load", 2100 * time.Millisecond, report(as(pb.Freshness_FRESHNESS_UNREACHABLE, "engine"), func(e *entry) { e.Aggregate = nil }), 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.show(report())
			b.pick(Request{})
			b.clock.set(c.after)
			b.show(c.then)
			b.newest()
			if got := b.Local("a"); got.Credit != c.want || got.InFlight != 1 {
				t.Errorf("%+v, want a credit of %d", got, c.want)
			}
		})
	}
}

// Every number reaches the candidate it belongs to, and what is unknown stays
// unknown.
func TestCandidates(t *testing.T) {
	b := newBench(t)
	n := proto.Int64
	b.show(
		worker("a", 0, func(e *entry) {
			e.Aggregate = &pb.Aggregate{
				NumRunningReqs: n(1), NumWaitingReqs: n(2), TotalRequests: n(3), NumWaitingUncachedTokens: n(4), NumUsedTokens: n(5),
				NumTotalTokens: n(6), MaxTotalNumTokens: n(7), MaxRunningRequests: n(8), PrefillThroughput: proto.Float64(9), GenThroughput: proto.Float64(10),
			}
			for i := range int64(2) {
				e.Ranks = append(e.Ranks, &pb.RankLoad{
					DpRank: int32(i), NumRunningReqs: n(11), NumWaitingReqs: n(12), NumWaitingUncachedTokens: n(13), NumUsedTokens: n(14),
					NumTotalTokens: n(15), MaxTotalNumTokens: n(16), MaxRunningRequests: n(17), PrefillThroughput: proto.Float64(18), GenThroughput: proto.Float64(19),
					CacheHitRate: proto.Float64(0.5), PrefillBootstrapReqs: n(20), PrefillInflightReqs: n(21), DecodePreallocReqs: n(22), DecodeTransferReqs: n(23),
				})
			}
			e.Ranks[0].DecodeRetractedReqs = n(24) // and not of the other
		}),
		worker("b", 0, as(missing, "no_report")))
	v, _ := b.held.View()
	all := candidates(v, key{model, pick.RolePlain}, true)
	if len(all) != 4 {
		t.Fatalf("%d candidates", len(all))
	}
	common := pick.PolicyCandidate{
		WorkerID: "a", URL: "http://a", Role: pick.RolePlain, Freshness: pick.Usable,
		ValidUntil: now.Add(staleAfter), Received: now,
	}
	whole := common
	whole.Rank = pick.NoRank
	whole.Running, whole.Waiting, whole.TotalRequests, whole.WaitingUncachedTokens = pick.Count(1), pick.Count(2), pick.Count(3), pick.Count(4)
	whole.UsedTokens, whole.TotalTokens, whole.Capacity, whole.MaxRunning = pick.Count(5), pick.Count(6), pick.Count(7), pick.Count(8)
	whole.PrefillThroughput, whole.GenThroughput = pick.Known(9), pick.Known(10)
	whole.PrefillBootstrap, whole.PrefillInflight, whole.DecodePrealloc, whole.DecodeTransfer = pick.Count(40), pick.Count(42), pick.Count(44), pick.Count(46)
	second := common
	second.Rank = 1
	second.Running, second.Waiting, second.WaitingUncachedTokens = pick.Count(11), pick.Count(12), pick.Count(13)
	second.UsedTokens, second.TotalTokens, second.Capacity, second.MaxRunning = pick.Count(14), pick.Count(15), pick.Count(16), pick.Count(17)
	second.PrefillThroughput, second.GenThroughput, second.CacheHitRate = pick.Known(18), pick.Known(19), pick.Known(0.5)
	second.PrefillBootstrap, second.PrefillInflight, second.DecodePrealloc, second.DecodeTransfer = pick.Count(20), pick.Count(21), pick.Count(22), pick.Count(23)
	unheard := pick.PolicyCandidate{WorkerID: "b", URL: "http://b", Rank: pick.NoRank, Role: pick.RolePlain, Freshness: pick.Missing}
	for i, want := range map[int]pick.PolicyCandidate{0: whole, 2: second, 3: unheard} {
		got := all[i]
		if len(got.Models) != 1 || !got.ValidUntil.Equal(want.ValidUntil) || !got.Received.Equal(want.Received) {
			t.Errorf("%d: models %v, valid until %v, received %v", i, got.Models, got.ValidUntil, got.Received)
		}
		got.Models, got.ValidUntil, got.Received = nil, want.ValidUntil, want.Received
		if !same(got, want) {
			t.Errorf("%d: %+v, want %+v", i, got, want)
		}
	}
	if r := (credit.Receipt{}); receipt(v, v.Worker("b")).At != r.At {
		t.Error("a worker that was never heard has a receipt")
	}
}

// same compares all but the models.
func same(a, b pick.PolicyCandidate) bool {
	a.Models, b.Models = nil, nil
	return a.WorkerID == b.WorkerID && a.URL == b.URL && a.Rank == b.Rank && a.Role == b.Role && a.Freshness == b.Freshness && a.Draining == b.Draining &&
		numbers(a) == numbers(b)
}

func numbers(c pick.PolicyCandidate) [16]pick.Number {
	return [16]pick.Number{
		c.Running, c.Waiting, c.TotalRequests, c.WaitingUncachedTokens, c.UsedTokens, c.Capacity, c.TotalTokens, c.MaxRunning,
		c.PrefillThroughput, c.GenThroughput, c.CacheHitRate,
		c.PrefillBootstrap, c.DecodePrealloc, c.DecodeTransfer, c.DecodeRetracted, c.PrefillInflight,
	}
}

package picks

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// views returns the newest view.
func (p *plane) views() *snapshot.View {
	v, _ := p.opts.Snapshots.Current()
	return v
}

// credited is a worker as the ledger names it.
func credited(id string) credit.Target { return credit.Target{WorkerID: id, Rank: credit.NoRank} }

// TestCandidates holds every number of a report to where the policies find it.
func TestCandidates(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:1", func(w *store.Worker) { w.Role, w.Draining = store.RoleDecode, true }))
		l := p.load("a:1", 0, 2)
		for i := range l.Ranks {
			r := &store.Rank{DPRank: int32(i)}
			for f, info := range store.Fields {
				if !info.Float {
					r.SetCount(store.Field(f), int64(100*(f+1)+i))
				}
			}
			r.SetCount(store.MaxTotalNumTokens, 10_000)
			r.SetCount(store.MaxRunningRequests, 500)
			r.SetFloat(store.PrefillThroughput, 2000)
			l.Ranks[i] = *r
		}
		p.slots["a:1"].Offer(1, l)
		p.commit()
		got := p.candidates(p.views(), key{"qwen3", pick.RoleDecode, true})
		until := p.time(l.Received).Add(staleAfter)
		c := func(rank int32, n func(f store.Field) pick.Number) pick.PolicyCandidate {
			return pick.PolicyCandidate{
				WorkerID: "a:1", URL: "http://a:1", Rank: rank, Role: pick.RoleDecode, Models: []string{"qwen3"}, Draining: true,
				Freshness: pick.Usable, ValidUntil: until,
				Running: n(store.NumRunningReqs), Waiting: n(store.NumWaitingReqs),
				WaitingUncachedTokens: n(store.NumWaitingUncachedTokens), UsedTokens: n(store.NumUsedTokens), TotalTokens: n(store.NumTotalTokens),
				Capacity: pick.Count(10_000), MaxRunning: pick.Count(500), PrefillThroughput: pick.Known(2000),
				PrefillBootstrap: n(store.PrefillBootstrapReqs), PrefillInflight: n(store.PrefillInflightReqs),
				DecodePrealloc: n(store.DecodePreallocReqs), DecodeTransfer: n(store.DecodeTransferReqs), DecodeRetracted: n(store.DecodeRetractedReqs),
			}
		}
		first := c(0, func(f store.Field) pick.Number { return pick.Count(100 * int64(f+1)) })
		second := c(1, func(f store.Field) pick.Number { return pick.Count(100*int64(f+1) + 1) })
		both := c(pick.NoRank, func(f store.Field) pick.Number { return pick.Count(200*int64(f+1) + 1) })
		both.Capacity, both.MaxRunning, both.PrefillThroughput = pick.Count(20_000), pick.Count(1000), pick.Known(4000)
		both.TotalRequests = pick.Count(602)
		if want := []pick.PolicyCandidate{both, first, second}; !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	})
}

// TestUnknownIsNotZero gives a rank that lacks what another has.
func TestUnknownIsNotZero(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:1"))
		l := p.load("a:1", 3, 2)
		l.Ranks[0].SetCount(store.DecodeTransferReqs, 4)
		l.Ranks[1] = store.Rank{DPRank: 1}
		l.Ranks[1].SetCount(store.NumUsedTokens, 9)
		p.slots["a:1"].Offer(1, l)
		p.commit()
		all := p.candidates(p.views(), key{perRank: true})
		whole, second := all[0], all[2]
		for name, n := range map[string]pick.Number{
			"running of the worker": whole.Running, "transfer queue of the worker": whole.DecodeTransfer, "total of the worker": whole.TotalRequests,
			"running of the rank": second.Running, "transfer queue of the rank": second.DecodeTransfer, "throughput of the rank": second.PrefillThroughput,
		} {
			if v, ok := n.Value(); ok {
				t.Errorf("%s is %v", name, v)
			}
		}
		if v, _ := whole.UsedTokens.Value(); v != 309 {
			t.Errorf("used tokens %v, want 309", v)
		}
	})
}

func TestFreshnessOfCandidates(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:missing"), worker("b:stale"))
		p.report("b:stale", 1, 1)
		p.after(staleAfter)
		p.fleet(1, 1, worker("c:fresh"))
		p.add(worker("d:unreachable"))
		l := p.load("d:unreachable", 0, 0)
		l.Status = store.StatusUnreachable
		p.slots["d:unreachable"].Offer(1, l)
		p.commit()
		var got []pick.Freshness
		for _, c := range p.candidates(p.views(), key{}) {
			got = append(got, c.Freshness)
			if heard := c.Freshness != pick.Missing; heard == c.ValidUntil.IsZero() {
				t.Errorf("%s is valid until %v", c.WorkerID, c.ValidUntil)
			}
		}
		if want := []pick.Freshness{pick.Missing, pick.Stale, pick.Usable, pick.Unreachable}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// TestThroughputOfNextToNothing is not what a wait can be told from.
func TestThroughputOfNextToNothing(t *testing.T) {
	inBubble(t, func(p *plane) {
		p.add(worker("a:1"))
		l := p.load("a:1", 1, 1)
		l.Ranks[0].SetCount(store.NumWaitingUncachedTokens, 1<<50)
		l.Ranks[0].SetFloat(store.PrefillThroughput, math.SmallestNonzeroFloat64)
		p.slots["a:1"].Offer(1, l)
		p.commit()
		if r := p.got("policy=expected-wait"); r.Score == nil || *r.Score != 1<<50 || r.Field != "waiting_uncached_tokens" {
			t.Errorf("got %s", r.Body)
		}
		for _, score := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} { // no JSON has them
			if a := p.answer(p.last.Load(), pick.Choice{Score: score}); a.Score != nil {
				t.Errorf("%v is answered as %v", score, *a.Score)
			}
		}
	})
}

// TestPolicies gives three workers of which each policy prefers another.
func TestPolicies(t *testing.T) {
	inBubble(t, func(p *plane) {
		for id, n := range map[string]struct{ running, used, uncached int64 }{
			"least-load": {1, 900, 5000}, "free-tokens": {9, 100, 5000}, "expected-wait": {9, 900, 1},
		} {
			p.add(worker(id))
			l := p.load(id, n.running, 1)
			l.Ranks[0].SetCount(store.NumUsedTokens, n.used)
			l.Ranks[0].SetCount(store.NumWaitingUncachedTokens, n.uncached)
			l.Ranks[0].SetFloat(store.PrefillThroughput, 1000)
			p.slots[id].Offer(1, l)
		}
		p.after(20 * time.Millisecond)
		for policy, field := range map[string]string{"least-load": "total_requests", "free-tokens": "free_tokens", "expected-wait": "wait_seconds"} {
			if r := p.got("credit=0&policy=" + policy); r.WorkerID != policy || r.Field != field || r.Policy != policy {
				t.Errorf("%s: %s", policy, r.Body)
			}
		}
	})
}

package balance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

func TestPickTakesTheLeastLoaded(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 9), worker("b", 2), worker("c", 5))
	b.clock.set(400 * time.Millisecond)
	r := b.pick(Request{})
	if r.WorkerID != "b" || r.URL != "http://b" || r.Field != pick.FieldRequests || r.Score != 2 || r.Fallback || r.DPRank != "" || r.Rank != pick.NoRank {
		t.Errorf("picked %+v", r)
	}
	if r.Lineage != "l" || r.Epoch != 1 || r.Version != 1 || r.Age != 400*time.Millisecond {
		t.Errorf("by view %s/%d/%d of %v ago", r.Lineage, r.Epoch, r.Version, r.Age)
	}
	for range 3 { // what was dispatched counts on top
		b.pick(Request{})
	}
	if r := b.pick(Request{Avoid: []string{"b"}}); r.WorkerID != "c" {
		t.Errorf("picked %s, want the best that was not tried", r.WorkerID)
	}
	if _, err := b.Pick(Request{Avoid: []string{"a", "b", "c"}}); !errors.Is(err, pick.ErrAllTried) || ReasonOf(err) != pick.ReasonAllTried {
		t.Errorf("error %v, want that all were tried", err)
	}
}

func TestDoneCountsOnce(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 0))
	one, two := b.pick(Request{}), b.pick(Request{PromptTokens: 70})
	if l := b.Local("a"); l != (credit.Local{InFlight: 2, Credit: 2, Tokens: 70}) {
		t.Errorf("with two requests open: %+v", l)
	}
	one.Done()
	one.Done()
	one.Failed()
	if l := b.Local("a"); l != (credit.Local{InFlight: 1, Credit: 1, Tokens: 70}) {
		t.Errorf("with one request open: %+v", l)
	}
	two.Done()
	if l := b.Local("a"); l != (credit.Local{}) {
		t.Errorf("with none open: %+v", l)
	}
}

func TestRanksAreHeaderValues(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Pick.PerRank = true })
	b.show(worker("a", 0, ranked(3)), worker("b", 5))
	seen := map[string]int{}
	for range 3 {
		r := b.pick(Request{})
		seen[r.WorkerID+"/"+r.DPRank]++
	}
	if len(seen) != 3 || seen["a/0"] != 1 || seen["a/1"] != 1 || seen["a/2"] != 1 {
		t.Errorf("picked %v, want every rank of a once", seen)
	}
	if r := b.pick(Request{Avoid: []string{"a"}}); r.WorkerID != "b" || r.DPRank != "" {
		t.Errorf("a worker without ranks: %s/%q", r.WorkerID, r.DPRank)
	}
}

func TestWithoutAView(t *testing.T) {
	b := newBench(t)
	if r, err := b.Pick(Request{}); r != nil || !errors.Is(err, ErrNoView) || ReasonOf(err) != ReasonNoView {
		t.Errorf("%v, %v", r, err)
	}
	if _, _, err := b.PickPair(Request{}); !errors.Is(err, ErrNoView) || ReasonOf(err) != ReasonNoView {
		t.Errorf("pair: %v", err)
	}
	b.show(worker("a", 0))
	b.pick(Request{})
}

func TestUnknownPools(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 0), worker("p", 0, role(pb.Role_ROLE_PREFILL)))
	for _, r := range []Request{{Model: "other"}, {Role: pick.RoleDecode}} {
		if _, err := b.Pick(r); !errors.Is(err, ErrUnknownPool) || ReasonOf(err) != ReasonUnknownPool {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, _, err := b.PickPair(Request{}); !errors.Is(err, ErrUnknownPool) || b.inFlight("p") != 0 {
		t.Errorf("pair without decode: %v, and %d open at prefill", err, b.inFlight("p"))
	}
	for i := range 1000 {
		_, _ = b.Pick(Request{Model: fmt.Sprint(i)})
	}
	if p := b.newest(); len(p.tables) > 1 || len(p.fallbacks) > 0 {
		t.Errorf("names of requests left %d tables", len(p.tables)+len(p.fallbacks))
	}
	if ReasonOf(errors.New("other")) != "" {
		t.Error("a reason of an error that has none")
	}
}

// A request without a role goes to the only one that there is; with several,
// none of them plain, it names no pool.
func TestTheOnlyRole(t *testing.T) {
	of := func(id, m string, r pb.Role) entry {
		return worker(id, 0, role(r), func(e *entry) { e.Models = []string{m} })
	}
	b := newBench(t, func(o *Options) { o.Model = "" })
	b.show(of("p", "one", pb.Role_ROLE_PREFILL), of("d", "two", pb.Role_ROLE_DECODE),
		of("x", "both", pb.Role_ROLE_PREFILL), of("y", "both", pb.Role_ROLE_DECODE),
		of("u", "all", pb.Role_ROLE_PREFILL), of("v", "all", pb.Role_ROLE_REGULAR))
	for m, want := range map[string]string{"one": "p", "two": "d", "both": "", "all": "v", "none": "", "": "v"} {
		r, err := b.Pick(Request{Model: m})
		if want == "" {
			if !errors.Is(err, ErrUnknownPool) {
				t.Errorf("%q: %v, %v", m, r, err)
			}
			continue
		}
		if err != nil || r.WorkerID != want {
			t.Errorf("%q: %v, %v, want %s", m, r, err, want)
		}
	}
	b.show(of("d", "two", pb.Role_ROLE_DECODE))
	if r := b.pick(Request{}); r.WorkerID != "d" {
		t.Errorf("any model went to %s", r.WorkerID)
	}
	if _, err := b.Pick(Request{Role: pick.RolePlain}); !errors.Is(err, ErrUnknownPool) {
		t.Errorf("a role that was asked for: %v", err)
	}
	fixed := newBench(t, func(o *Options) { o.Role = pick.RolePlain })
	fixed.show(worker("d", 0, role(pb.Role_ROLE_DECODE)))
	if _, err := fixed.Pick(Request{}); !errors.Is(err, ErrUnknownPool) {
		t.Errorf("a role of the options: %v", err)
	}
}

func TestStaticWorkers(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.Static = []Worker{{URL: "http://x"}, {ID: "a", URL: "http://a", Model: model}, {URL: "http://d", Role: pick.RoleDecode}}
	})
	for range 4 {
		if r := b.pick(Request{}); !r.Fallback || r.Reason != ReasonNoView || r.Field != pick.FieldInFlight || r.Version != 0 {
			t.Fatalf("before the first view: %+v", r)
		}
	}
	if a, x := b.inFlight("a"), b.inFlight("http://x"); a != 2 || x != 2 {
		t.Errorf("%d and %d open, want two each", a, x)
	}
	if r := b.pick(Request{Model: "other"}); r.WorkerID != "http://x" {
		t.Errorf("another model went to %s", r.WorkerID)
	}
	if r := b.pick(Request{Role: pick.RoleDecode}); r.WorkerID != "http://d" {
		t.Errorf("decode went to %s", r.WorkerID)
	}

	b.show(worker("a", 0), worker("b", 9))
	if r := b.pick(Request{}); r.Fallback || r.WorkerID != "a" || b.inFlight("a") != 3 {
		t.Errorf("by the view: %+v, %d open", r, b.inFlight("a"))
	}
	if r := b.pick(Request{Model: "other"}); r.WorkerID != "http://x" || r.Reason != ReasonUnknownPool || r.Version != 1 {
		t.Errorf("a model that the view does not have: %+v", r)
	}
	for i := range 1000 {
		b.pick(Request{Model: fmt.Sprint(i)})
	}
	if p := b.newest(); len(p.tables) != 1 || len(p.fallbacks) != 1 {
		t.Errorf("names of requests left %d tables", len(p.tables)+len(p.fallbacks))
	}
	b.show(worker("a", 0, func(e *entry) { e.Draining = true }))
	if _, err := b.Pick(Request{}); !errors.Is(err, pick.ErrNoCandidates) {
		t.Errorf("a pool that drains: %v", err)
	}
}

func TestPairIsOfOneView(t *testing.T) {
	b := newBench(t)
	b.show(worker("p1", 7, role(pb.Role_ROLE_PREFILL)), worker("p2", 1, role(pb.Role_ROLE_PREFILL)),
		worker("d1", 0, role(pb.Role_ROLE_DECODE)), worker("plain", 0))
	p, d, err := b.PickPair(Request{PromptTokens: 10})
	if err != nil {
		t.Fatal(err)
	}
	if p.WorkerID != "p2" || d.WorkerID != "d1" || p.Version != d.Version {
		t.Errorf("picked %+v and %+v", p, d)
	}
	if b.inFlight("p2") != 1 || b.inFlight("d1") != 1 {
		t.Error("not counted at both")
	}
	p.Done()
	if b.inFlight("p2") != 0 || b.inFlight("d1") != 1 {
		t.Error("one is done with the other")
	}
}

func TestWhatIsNoEngineIsLeftOut(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 50), worker("dup", 0, as(missing, "duplicate_origin")), worker("none", 0, as(missing, "no_engine")),
		worker("new", 0, as(missing, "no_report")))
	b.clock.set(time.Hour)
	seen := map[string]bool{}
	for range 20 {
		seen[b.pick(Request{}).WorkerID] = true
	}
	if len(seen) != 2 || !seen["a"] || !seen["new"] {
		t.Errorf("picked %v", seen)
	}
	if b.ledger.Len() != 2 {
		t.Errorf("books of %d workers", b.ledger.Len())
	}
}

func TestScoreIsPassedThrough(t *testing.T) {
	b := newBench(t, func(o *Options) {
		o.Pick.Policy = pick.Custom
		o.Pick.Score = func(c *pick.PolicyCandidate, l credit.Local, r pick.Request) (float64, bool) {
			running, ok := c.Running.Value()
			return 100 - running + 10*float64(l.InFlight) + float64(r.PromptTokens), ok
		}
	})
	b.show(worker("a", 3), worker("b", 9))
	if r := b.pick(Request{PromptTokens: 5}); r.WorkerID != "b" || r.Field != pick.FieldScore || r.Score != 96 {
		t.Errorf("picked %+v", r)
	}
	if r := b.pick(Request{}); r.WorkerID != "a" {
		t.Errorf("picked %s, want the one without open requests", r.WorkerID)
	}
}

func TestFailedWorkersCoolDown(t *testing.T) {
	b := newBench(t)
	b.show(worker("a", 0), worker("b", 5))
	b.pick(Request{}).Failed()
	if r := b.pick(Request{}); r.WorkerID != "b" || b.inFlight("a") != 0 {
		t.Errorf("picked %s after a failed, with %d open there", r.WorkerID, b.inFlight("a"))
	}
	if r := b.pick(Request{Avoid: []string{"b"}}); r.WorkerID != "a" {
		t.Errorf("picked %s, want the one that failed where no other is left", r.WorkerID)
	}
	b.clock.set(DefaultCooldown)
	if r := b.pick(Request{}); r.WorkerID != "a" || len(b.failures.until) != 0 {
		t.Errorf("picked %s a while after, %v are known as failed", r.WorkerID, b.failures.until)
	}

	never := newBench(t, func(o *Options) { o.Cooldown = -1 })
	never.show(worker("a", 0), worker("b", 5))
	never.pick(Request{}).Failed()
	if r := never.pick(Request{}); r.WorkerID != "a" {
		t.Errorf("picked %s without a cooldown", r.WorkerID)
	}
}

func TestLost(t *testing.T) {
	silent := ago(staleAfter - time.Second) // for another second
	cases := []struct {
		name string
		// then is the view after two seconds; nil for none.
		then []entry
		want bool
	}{
		{"heard again", []entry{worker("a", 0), worker("b", 9)}, false},
		{"silent", []entry{worker("a", 0, as(stale, "no_report"), ago(staleAfter+time.Second)), worker("b", 9)}, true},
		{"silent and not judged yet", []entry{worker("a", 0, ago(staleAfter+time.Second)), worker("b", 9)}, true},
		{"doubted but heard", []entry{worker("a", 0, as(stale, "zero_capacity")), worker("b", 9)}, false},
		{"most are silent", []entry{worker("a", 0, ago(4*time.Second)), worker("b", 9, ago(4*time.Second)), worker("c", 9)}, false},
		{"removed", []entry{worker("b", 9)}, false},
		{"never heard", []entry{worker("a", 0, as(missing, "no_report")), worker("b", 9)}, false},
		{"the plane is gone", nil, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.show(worker("a", 0, silent), worker("b", 9))
			r := b.pick(Request{})
			if r.WorkerID != "a" || r.Lost() {
				t.Fatalf("picked %s, lost at once: %t", r.WorkerID, r.Lost())
			}
			b.clock.set(2 * time.Second)
			if c.then != nil {
				b.show(c.then...)
			}
			if got := r.Lost(); got != c.want {
				t.Errorf("lost: %t, want %t", got, c.want)
			}
		})
	}
	b := newBench(t, func(o *Options) { o.Static = []Worker{{URL: "http://a"}} })
	if b.pick(Request{}).Lost() {
		t.Error("a static worker is lost before the first view")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Options)
		want   error
	}{
		{"no watcher", func(o *Options) { o.Watcher = nil }, ErrOption},
		{"static without a URL", func(o *Options) { o.Static = []Worker{{ID: "a"}} }, ErrOption},
		{"static and fail closed", func(o *Options) { o.Static, o.Pick.FailClosed = []Worker{{URL: "http://a"}}, true }, ErrOption},
		{"score without custom", func(o *Options) {
			o.Pick.Score = func(*pick.PolicyCandidate, credit.Local, pick.Request) (float64, bool) { return 0, true }
		}, pick.ErrOption},
		{"fine", func(*Options) {}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := Options{Watcher: &held{}}
			c.change(&o)
			if _, err := New(o); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

// Goroutines pick and end while views go by: none of them steps back to an
// older view, and in the end nothing is open.
func TestManyGoroutines(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Pick.PerRank = true })
	b.show(worker("a", 0, ranked(2)), worker("b", 0, ranked(2)))
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			last := uint64(0)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r, err := b.Pick(Request{PromptTokens: 5})
				if err != nil {
					t.Error(err)
					return
				}
				if r.Version < last {
					t.Errorf("view %d after %d", r.Version, last)
				}
				last = r.Version
				if r.Lost() {
					t.Error("lost")
				}
				if n%5 == 0 {
					r.Failed()
				}
				r.Done()
			}
		})
	}
	for i := range 200 {
		b.show(worker("a", int64(i%7), ranked(2)), worker("b", int64(i%5), ranked(1+i%3)))
	}
	close(stop)
	group.Wait()
	for _, id := range []string{"a", "b"} {
		if l := b.Local(id); l != (credit.Local{}) {
			t.Errorf("%s: %+v", id, l)
		}
	}
}

// Random begins, ends, restarts, removals and re-registrations: what is open is
// what the router has open, and credit is never above it nor below zero.
func TestBug21OpenRequestsAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 1))
	b := newBench(t, func(o *Options) { o.Pick.Policy = pick.PowerOfK })
	open := map[string][]*Route{}
	row, instance := map[string]uint32{}, map[string]int{}
	ids := []string{"a", "b", "c", "d"}
	nextRow := uint32(0)
	show := func() {
		var all []entry
		for _, id := range ids {
			if row[id] == 0 && rng.IntN(2) == 0 {
				nextRow++
				row[id] = nextRow
			}
			if row[id] > 0 {
				all = append(all, worker(id, int64(len(open[id])), ago(time.Duration(rng.IntN(900))*time.Millisecond), func(e *entry) {
					e.Row, e.SourceInstanceId = row[id], fmt.Sprint(instance[id])
				}))
			}
		}
		b.show(all...)
	}
	show()
	for step := range 5000 {
		b.clock.Add(int64(rng.IntN(100)) * int64(time.Millisecond))
		id := ids[rng.IntN(len(ids))]
		switch n := rng.IntN(20); {
		case n < 9:
			if r, err := b.Pick(Request{PromptTokens: int64(rng.IntN(100))}); err == nil {
				open[r.WorkerID] = append(open[r.WorkerID], r)
			}
		case n < 17 && len(open[id]) > 0:
			r := open[id][0]
			open[id] = open[id][1:]
			r.Done()
			if n == 9 {
				r.Done()
			}
		case n == 17:
			instance[id]++
			show()
		case n == 18:
			row[id] = 0
			show()
		default:
			show()
		}
		for _, id := range ids {
			l := b.Local(id)
			if l.InFlight != int64(len(open[id])) || l.Credit < 0 || l.Credit > l.InFlight || l.Tokens < 0 {
				t.Fatalf("step %d: %s has %d open: %+v", step, id, len(open[id]), l)
			}
		}
	}
}

package api_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/proto"
)

func workerOf(id string, models ...string) *store.Worker {
	w := newWorker(id)
	w.Models = models
	return w
}

func ofModel(names ...string) *pb.Filter { return &pb.Filter{Models: names} }

// onlyHeartbeats wants n heartbeats and nothing else.
func (s *stream) onlyHeartbeats(n int) {
	s.p.Helper()
	for range n {
		s.heartbeat()
	}
}

func viewIDs(v *client.View) string {
	var ids []string
	for _, w := range v.Workers() {
		ids = append(ids, w.GetWorkerId())
	}
	return strings.Join(ids, " ")
}

// TestBug54FilterThatMatchesNothing gets one empty full and then silence; a
// watch of another filter has its workers at once.
func TestBug54FilterThatMatchesNothing(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(workerOf("a:1", "m"))
		p.report("a:1", 1, 1, 1)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("none")})
		m := s.full()
		if len(m.GetFull().GetWorkers())+len(m.GetFull().GetPools())+len(m.GetLiveness().GetWorkers()) != 0 || m.GetDigest() != 0 || m.GetCursor().GetFilterHash() == 0 {
			p.Errorf("got %v", m)
		}
		for n := range uint64(3) {
			p.report("a:1", n+2, int64(n+2), 1)
			s.onlyHeartbeats(1)
		}
		other := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
		if other.full(); viewIDs(other.view()) != "a:1" || len(other.view().Pools()) != 1 {
			p.Errorf("the other filter has %s", viewIDs(other.view()))
		}
	})
}

// TestBug55ChangeOfModelIsARemoval moves a worker from model a to model b and
// back.
func TestBug55ChangeOfModelIsARemoval(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(workerOf("x:1", "a"), workerOf("y:1", "b"))
		p.report("x:1", 1, 1, 1)
		p.report("y:1", 1, 1, 1)
		p.after(settle)
		a := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("a")})
		b := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("b")})
		a.full()
		b.full()
		p.change(workerOf("x:1", "b"))
		d := a.delta().GetDelta()
		if len(d.GetRemoved()) != 1 || d.GetRemoved()[0].GetWorkerId() != "x:1" || len(d.GetRemovedPools()) != 1 || viewIDs(a.view()) != "" {
			p.Errorf("the watch of a: %v", d)
		}
		m := b.delta()
		if d := m.GetDelta(); len(d.GetRemoved()) != 0 || len(d.GetWorkers()) != 1 || viewIDs(b.view()) != "x:1 y:1" {
			p.Errorf("the watch of b: %v", d)
		}
		if w := b.view().Worker("x:1"); !b.view().Valid(w, time.Now()) {
			p.Errorf("the worker that entered has no receipt: %v", m.GetLiveness())
		}
		p.change(workerOf("x:1", "a"))
		if a.delta(); viewIDs(a.view()) != "x:1" || !a.view().Valid(a.view().Worker("x:1"), time.Now()) {
			p.Errorf("back in a: %s", viewIDs(a.view()))
		}
		if b.delta(); viewIDs(b.view()) != "y:1" {
			p.Errorf("left in b: %s", viewIDs(b.view()))
		}
	})
}

// TestBug56ChangesOfOthersSendNothing changes a worker ten times a second
// among many, for longer than what left is remembered.
func TestBug56ChangesOfOthersSendNothing(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		for i := range 200 {
			p.add(workerOf(fmt.Sprintf("w%03d:1", i), "m"))
		}
		p.add(workerOf("quiet:1", "other"))
		p.report("quiet:1", 1, 1, 1)
		p.after(11 * time.Second) // the warming ends
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("other")})
		version := s.full().GetCursor().GetVersion()
		sum := func() float64 {
			return p.metric("loadplane_api_fulls_encoded_total", "") + p.metric("loadplane_api_deltas_encoded_total", "")
		}
		encoded := sum()
		for second := range uint64(70) {
			for n := range uint64(10) {
				p.report("w000:1", 10*second+n+1, int64(n), 1)
				if n == 5 {
					p.remove("w001:1")
					p.add(workerOf("w001:1", "m"))
				}
				p.after(100 * time.Millisecond)
			}
			if m := s.heartbeat(); m.GetCursor().GetVersion() != version {
				p.Fatalf("version %d after %d", m.GetCursor().GetVersion(), version)
			}
		}
		if got := sum(); got != encoded {
			p.Errorf("%v events were encoded for nobody", got-encoded)
		}
		p.report("quiet:1", 2, 7, 1)
		if d := s.delta().GetDelta(); d.GetBaseVersion() != version || len(d.GetWorkers()) != 1 {
			p.Errorf("got %v", d)
		}
	})
}

// TestBug62WorkerThatWasJustRemoved is answered at once with its absence.
func TestBug62WorkerThatWasJustRemoved(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(workerOf("a:1", "m"), workerOf("b:1", "m"))
		p.after(settle)
		p.remove("a:1")
		p.after(settle)
		begin := time.Now()
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: &pb.Filter{WorkerIds: []string{"a:1"}}})
		if m := s.full(); len(m.GetFull().GetWorkers()) != 0 || time.Since(begin) != 0 {
			p.Errorf("after %v: %v", time.Since(begin), m)
		}
		s.heartbeat()
	})
}

// TestBug73FirstEngineArrivesAsAnEvent opens watches while there is none.
func TestBug73FirstEngineArrivesAsAnEvent(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		all := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		one := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
		other := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("n")})
		for _, s := range []*stream{all, one, other} {
			if s.full(); viewIDs(s.view()) != "" {
				p.Errorf("workers before any was discovered: %s", viewIDs(s.view()))
			}
		}
		p.add(workerOf("a:1", "m"))
		for _, s := range []*stream{all, one} {
			if s.delta(); viewIDs(s.view()) != "a:1" || len(s.view().Pools()) != 1 {
				p.Errorf("after the first was discovered: %s", viewIDs(s.view()))
			}
		}
		other.heartbeat()
	})
}

// TestResumeOfAFilter comes back with a cursor of the filter, and of another.
func TestResumeOfAFilter(t *testing.T) {
	const forgotten = "others left long ago"
	for _, c := range []struct {
		name    string
		filter  *pb.Filter
		between func(p *plane)
		want    string
		ids     string
	}{
		{"nothing changed", ofModel("m"), func(*plane) {}, "heartbeat", "a:1 b:1"},
		{"others changed", ofModel("m"), func(p *plane) { p.report("c:1", 2, 9, 1) }, "heartbeat", "a:1 b:1"},
		{"the same filter in another order", ofModel("m", "m"), func(*plane) {}, "heartbeat", "a:1 b:1"},
		{"a worker changed", ofModel("m"), func(p *plane) { p.report("a:1", 2, 9, 1) }, "delta", "a:1 b:1"},
		{"a worker left", ofModel("m"), func(p *plane) { p.remove("a:1") }, "delta", "b:1"},
		{"a worker left the filter", ofModel("m"), func(p *plane) { p.change(workerOf("a:1", "n")) }, "delta", "b:1"},
		{"a worker entered", ofModel("m"), func(p *plane) { p.change(workerOf("c:1", "m")) }, "delta", "a:1 b:1 c:1"},
		{forgotten, ofModel("m"), func(p *plane) {
			p.remove("c:1")
			for seq := range uint64(70) {
				p.after(time.Second)
				p.report("a:1", seq+2, 1, 1) // equal
				p.report("b:1", seq+2, 1, 1)
			}
			p.add(workerOf("d:1", "n"))
		}, "heartbeat", "a:1 b:1"},
		{"another filter", ofModel("n"), func(*plane) {}, "full", "c:1"},
		{"no filter", nil, func(*plane) {}, "full", "a:1 b:1 c:1"},
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, others watch: %t", c.name, busy), func(t *testing.T) {
				inBubble(t, nil, func(p *plane) {
					p.add(workerOf("a:1", "m"), workerOf("b:1", "m"), workerOf("c:1", "n"))
					for _, id := range []string{"a:1", "b:1", "c:1"} {
						p.report(id, 1, 1, 1)
					}
					p.after(settle)
					if busy {
						p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")}).full()
					}
					s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
					s.full()
					s.end()
					c.between(p)
					p.after(settle)
					again := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: c.filter, Resume: s.replica.Resume()})
					if c.want != "full" {
						again.replica = s.replica
					}
					m := again.next()
					want := c.want
					if c.name == forgotten && !busy { // nobody kept what others left
						want = "full"
					}
					if got := client.EventName(m); got != want || viewIDs(again.view()) != c.ids {
						p.Errorf("a %s with %q, want a %s with %q", got, viewIDs(again.view()), want, c.ids)
					}
					if n := len(m.GetLiveness().GetWorkers()); n != len(again.view().Workers()) {
						p.Errorf("the first message has %d receipts", n)
					}
				})
			})
		}
	}
}

// TestResumeBelowTheHorizonOfAFilter comes back to a filter that others watch
// all along, after what left it was forgotten.
func TestResumeBelowTheHorizonOfAFilter(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		want  string
	}{"in time": {50 * time.Second, "delta"}, "too late": {62 * time.Second, "full"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.add(workerOf("a:1", "m"), workerOf("b:1", "m"))
				p.after(settle)
				stays := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
				stays.full()
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
				s.full()
				s.end()
				p.remove("b:1")
				for begin := time.Now(); time.Since(begin) < c.after; {
					stays.next()
				}
				p.report("a:1", 1, 1, 1)
				p.after(settle)
				again := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m"), Resume: s.replica.Resume()})
				again.replica = s.replica
				if got := client.EventName(again.next()); got != c.want || viewIDs(again.view()) != "a:1" {
					p.Errorf("a %s with %s, want a %s", got, viewIDs(again.view()), c.want)
				}
			})
		})
	}
}

// TestResumeAtAVersionThatNamesTheSame comes back with a version above that of
// the filter's last change, which another feed of the filter may have told.
func TestResumeAtAVersionThatNamesTheSame(t *testing.T) {
	for _, c := range []struct {
		name  string
		above int64 // the newest version of the store
		want  string
	}{{"older", -1, "heartbeat"}, {"the newest", 0, "heartbeat"}, {"not yet there", 1, "full"}} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.steadyPair()
				cursor := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")}).full().GetCursor()
				for n := range uint64(3) {
					p.report("b:1", n+2, int64(n+2), 1)
					p.after(settle)
				}
				cursor = proto.CloneOf(cursor)
				cursor.Version = uint64(int64(p.version()) + c.above)
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m"), Resume: cursor})
				if !s.Receive() {
					p.Fatal(s.Err())
				}
				if got := client.EventName(s.Msg()); got != c.want || len(s.Msg().GetLiveness().GetWorkers()) != 1 {
					p.Fatalf("a %s, want a %s", got, c.want)
				}
				if c.want == "full" {
					return
				}
				for range 2 {
					if !proto.Equal(s.Msg().GetCursor(), cursor) {
						p.Errorf("a heartbeat of %v, held is %v", s.Msg().GetCursor(), cursor)
					}
					p.report("b:1", 10, 9, 1)
					s.Receive()
				}
				p.report("a:1", 10, 9, 1)
				if s.Receive(); s.Msg().GetDelta().GetBaseVersion() != cursor.GetVersion() {
					p.Errorf("then %v", s.Msg())
				}
			})
		})
	}
}

// TestDetailOfWorkers leaves out the ranks and nothing else.
func TestDetailOfWorkers(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyInBubble()
		whole, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
		if err != nil {
			p.Fatal(err)
		}
		brief, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{Detail: pb.Detail_DETAIL_WORKERS})
		if err != nil {
			p.Fatal(err)
		}
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Detail: pb.Detail_DETAIL_WORKERS, Filter: ofModel("qwen3")})
		first := s.full()
		for i, want := range whole.GetSnapshot().GetFull().GetWorkers() {
			if len(want.GetRanks()) == 0 {
				p.Fatal("no ranks at full detail")
			}
			for _, got := range []*pb.Worker{brief.GetSnapshot().GetFull().GetWorkers()[i], first.GetFull().GetWorkers()[i]} {
				if len(got.GetRanks()) != 0 || got.GetContentHash() != want.GetContentHash() || got.GetAggregate().String() != want.GetAggregate().String() || got.GetUrl() != want.GetUrl() {
					p.Errorf("got %v", got)
				}
			}
		}
		p.report("a:30000", 9, 9, 2)
		if w := s.delta().GetDelta().GetWorkers(); len(w) != 1 || len(w[0].GetRanks()) != 0 || w[0].GetAggregate().GetNumRunningReqs() != 18 {
			p.Errorf("a change: %v", w)
		}
	})
}

// TestWatchersOfAFilterShareBytes counts what is encoded for watchers of two
// filters at two details.
func TestWatchersOfAFilterShareBytes(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(workerOf("a:1", "m", "n"))
		p.after(settle)
		var all []*stream
		for _, detail := range []pb.Detail{pb.Detail_DETAIL_RANKS, pb.Detail_DETAIL_WORKERS} {
			for _, f := range []*pb.Filter{ofModel("m", "x"), ofModel("x", "m"), ofModel("n")} {
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: f, Detail: detail})
				s.full()
				all = append(all, s)
			}
		}
		if got := p.metric("loadplane_api_filters", ""); got != 2 {
			p.Errorf("%v filters are in use, want 2", got)
		}
		for n := range uint64(5) {
			p.report("a:1", n+1, int64(n+1), 1)
			for _, s := range all {
				s.delta()
			}
		}
		if f, d := p.metric("loadplane_api_fulls_encoded_total", ""), p.metric("loadplane_api_deltas_encoded_total", ""); f != 5 || d != 20 {
			// The first reader of a filter gets a full that is not kept.
			p.Errorf("%v fulls and %v deltas were encoded, want 5 and 20", f, d)
		}
		for _, s := range all {
			s.end()
		}
		p.after(settle)
		if got := p.metric("loadplane_api_filters", ""); got != 0 {
			p.Errorf("%v filters are in use after the end", got)
		}
	})
}

func TestBadFiltersAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		req          *pb.WatchSnapshotsRequest
	}{
		{"empty model", "bad_filter", &pb.WatchSnapshotsRequest{Filter: ofModel("")}},
		{"unknown detail", "bad_parameter", &pb.WatchSnapshotsRequest{Detail: 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				s := p.watch(p.snapshots(), c.req)
				if s.Receive() {
					p.Fatal("served")
				}
				wantCode(p, s.Err(), connect.CodeInvalidArgument)
				if !strings.Contains(s.Err().Error(), c.reason) {
					p.Errorf("the error does not name the reason: %v", s.Err())
				}
				_, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{Filter: c.req.GetFilter(), Detail: c.req.GetDetail()})
				wantCode(p, err, connect.CodeInvalidArgument)
				if got := p.metric("loadplane_api_snapshot_requests_total", "4xx"); got != 1 {
					p.Errorf("counted %v", got)
				}
				if got := p.metric("loadplane_api_refused_total", c.reason); got != 2 {
					p.Errorf("counted %v refusals", got)
				}
			})
		})
	}
}

// TestJSONOfAFilter asks for parts of the view by URL.
func TestJSONOfAFilter(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		a, b, c := workerOf("a:1", "m"), workerOf("b:1", "m", "n"), workerOf("c:1", "n")
		a.Zone, b.Role, c.Labels = "eu", store.RolePrefill, map[string]string{"tier": "gold"}
		p.add(a, b, c)
		for _, id := range []string{"a:1", "b:1", "c:1"} {
			p.report(id, 1, 1, 2)
		}
		p.after(settle)
		for query, want := range map[string]string{
			"":                               "a:1 b:1 c:1",
			"?model=m":                       "a:1 b:1",
			"?model=m&model=n&zone=eu":       "a:1",
			"?role=prefill":                  "b:1",
			"?role=prefill&role=plain":       "a:1 b:1 c:1",
			"?worker=c:1&worker=zz":          "c:1",
			"?label.tier=gold":               "c:1",
			"?label.tier=tin":                "",
			"?model=n&shape=upstream":        "b:1 c:1",
			"?model=n&detail=ranks&wait=10s": "b:1 c:1",
		} {
			m := decode(p, p.get(query).body)
			if got := lineIDs(m); got != want {
				p.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		brief := decode(p, p.get("?detail=workers").body)["workers"].([]any)[0].(map[string]any)
		if ranks, there := brief["ranks"]; ranks != nil || !there || brief["aggregate"].(map[string]any)["rank_count"] != 2.0 {
			p.Errorf("a worker without its ranks: %v", brief)
		}
		if body := p.get("?detail=workers&shape=upstream").body; !strings.Contains(body, `"ranks":[]`) {
			p.Errorf("the upstream shape without ranks: %s", body)
		}
	})
}

func lineIDs(m map[string]any) string {
	var ids []string
	for _, w := range m["workers"].([]any) {
		ids = append(ids, w.(map[string]any)["worker_id"].(string))
	}
	return strings.Join(ids, " ")
}

// TestLinesOfAFilter follows a filter line by line.
func TestLinesOfAFilter(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(workerOf("a:1", "m"), workerOf("b:1", "n"))
		p.report("a:1", 1, 1, 2)
		p.report("b:1", 1, 1, 2)
		p.after(settle)
		l := p.linesOf(p.client(false), "?model=m&detail=workers&heartbeat_ms=500&min_interval_ms=200")
		full := l.next("full")
		if got := lineIDs(full); got != "a:1" || full["workers"].([]any)[0].(map[string]any)["ranks"] != nil || full["min_interval_ms"] != 200.0 {
			p.Errorf("full: %v", full)
		}
		begin := time.Now()
		p.report("b:1", 2, 5, 2)
		l.next("heartbeat")
		if got := time.Since(begin); got != 500*time.Millisecond {
			p.Errorf("a heartbeat after %v", got)
		}
		p.change(workerOf("b:1", "m"))
		d := l.next("delta")
		if lineIDs(d) != "b:1" || d["base_version"] != full["version"] {
			p.Errorf("entered: %v", d)
		}
		p.remove("a:1")
		if d := l.next("delta"); fmt.Sprint(d["removed"]) != "[a:1]" || lineIDs(d) != "" {
			p.Errorf("removed: %v", d)
		}
		for query, reason := range map[string]string{
			"?wait=1s": "unknown_parameter", "?model=": "bad_filter", "?heartbeat_ms=x": "bad_parameter",
		} {
			a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/watch"+query)
			if a.StatusCode != http.StatusBadRequest || decode(p, a.body)["reason"] != reason {
				p.Errorf("%s: %d %s", query, a.StatusCode, a.body)
			}
		}
	})
}

// TestBug57QuietPlaneKeepsNothingOfWatches opens and leaves watches and held
// requests of many filters while nothing changes.
func TestBug57QuietPlaneKeepsNothingOfWatches(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		p.after(11 * time.Second)
		c := p.snapshots()
		p.watch(c, &pb.WatchSnapshotsRequest{}).full()
		p.after(time.Second)
		before := runtime.NumGoroutine()
		for n := range 2000 / raceShare {
			ctx, stop := context.WithCancel(p.Context())
			s, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{Filter: ofModel("m", fmt.Sprint(n)), MinIntervalMs: uint32(n % 900)})
			if err != nil {
				p.Fatal(err)
			}
			if n%3 > 0 && !s.Receive() {
				p.Fatal(s.Err())
			}
			stop()
			_ = s.Close()
		}
		p.after(time.Second)
		if got := runtime.NumGoroutine(); got > before+2 {
			p.Errorf("%d goroutines, %d before", got, before)
		}
		if watchers, filters := p.metric("loadplane_api_watchers", ""), p.metric("loadplane_api_filters", ""); watchers != 1 || filters != 0 {
			p.Errorf("%v watches are open, %v filters in use", watchers, filters)
		}
	})
}

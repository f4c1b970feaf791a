package soak

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/e2e/history"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	routerpb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	oneID   = "http://127.1.0.1:1"
	oneAddr = "127.1.0.1:1"
)

// one is a plane with one worker and a stream for it, in a bubble.
type one struct {
	*plane
	t        *testing.T
	stream   grpc.ClientStreamingClient[routerpb.LoadReport, emptypb.Empty]
	sequence uint64
}

func withOne(t *testing.T, body func(o *one)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		p := startPlane(t, n, "one", []string{oneID}, neverSlept)
		cc, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				return n.dial("engine", netip.MustParseAddrPort(oneAddr), "ingest", nil)
			}))
		p.must(err)
		stream, err := routerpb.NewLoadMonitorServiceClient(cc).Report(t.Context())
		p.must(err)
		body(&one{plane: p, t: t, stream: stream})
		p.must(cc.Close())
		p.stop()
	})
}

// send sends a report with the engine's clock at two values.
func (o *one) send(value, report, sample int64) {
	o.t.Helper()
	o.sequence++
	o.must(o.stream.Send(&routerpb.LoadReport{
		SourceInstanceId: "s", SequenceId: o.sequence, ReportTimeUnixMs: report,
		Status: routerpb.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &routerpb.Worker{WorkerAddr: oneID, WorkerType: routerpb.WorkerType_WORKER_TYPE_REGULAR},
		Ranks:  []*routerpb.RankLoad{{SnapshotTimeUnixMs: sample, NumTotalTokens: value, MaxTotalNumTokens: 9, MaxRunningRequests: 9}},
	}))
	pass(settle)
}

func (o *one) state() (*store.State, *store.Entry, *store.Live) {
	st, _ := o.store.Current()
	return st, st.Entries[0], st.Live[0]
}

// page reads the view as JSON.
func (p *plane) page() map[string]any {
	p.t.Helper()
	rec := httptest.NewRecorder()
	p.server.Handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/load_monitor/snapshot", nil))
	body, err := io.ReadAll(rec.Result().Body)
	p.must(err)
	var page map[string]any
	if err := json.Unmarshal(body, &page); err != nil {
		p.t.Fatalf("%v in %s", err, body)
	}
	return page
}

// boundaries are 40 readings of an engine's clock, Unix milliseconds.
func boundaries() []int64 {
	times := []int64{math.MinInt64, math.MinInt64 + 1, -1 << 53, -1 << 32, -1000, -1, 0, 1, 999, 1000, math.MaxInt64 - 1, math.MaxInt64}
	for _, bits := range []int{31, 32, 40, 41, 42, 52, 53, 54, 62} {
		times = append(times, 1<<bits-1, 1<<bits, 1<<bits+1)
	}
	return append(times, time.Date(2262, 4, 11, 23, 47, 17, 0, time.UTC).UnixMilli())
}

// T-01: whatever an engine's clock says, nothing but diagnostics changes.
func TestEngineTimes(t *testing.T) {
	times := boundaries()
	if len(times) != 40 {
		t.Fatalf("%d values", len(times))
	}
	withOne(t, func(o *one) {
		o.send(1, 1, 1)
		before, _, _ := o.state()
		accepted := uint64(1)
		for _, report := range times {
			for _, sample := range times {
				o.send(1, report, sample)
				st, e, live := o.state()
				if report >= 0 && sample >= 0 {
					accepted = o.sequence
					if live.ReportUnixMs != report || live.OldestSampleUnixMs != sample {
						t.Fatalf("times %d and %d are shown as %d and %d", report, sample, live.ReportUnixMs, live.OldestSampleUnixMs)
					}
				}
				if st.Content != before.Content || e.Freshness != store.Fresh || live.Sequence != accepted {
					t.Fatalf("times %d and %d: version %d, %v, sequence %d; want version %d and sequence %d",
						report, sample, st.Version, e.Freshness, live.Sequence, before.Version, accepted)
				}
				if o.sequence%9 == 0 { // a good one, before too many are refused in a row
					o.send(1, 1, 1)
					accepted = o.sequence
				}
			}
			o.page()
		}
		o.agesAtTheEdge()
	})
}

// agesAtTheEdge lets the worker go stale, at the age that its receipt says.
func (o *one) agesAtTheEdge() {
	o.t.Helper()
	_, _, live := o.state()
	edge := o.base.Add(-1).Add(time.Duration(live.Received)).Add(staleAfter)
	pass(time.Until(edge) - time.Nanosecond)
	if _, e, _ := o.state(); e.Freshness != store.Fresh {
		o.t.Errorf("%v before its report is %v old", e.Freshness, staleAfter)
	}
	pass(time.Nanosecond)
	if _, e, _ := o.state(); e.Freshness != store.Stale || e.Reason != store.ReasonAge {
		o.t.Errorf("%v (%s) once its report is %v old", e.Freshness, e.Reason, staleAfter)
	}
}

// T-02: an engine's clock that is years off, and another way off each time.
func TestEngineSkews(t *testing.T) {
	withOne(t, func(o *one) {
		rng := rand.New(rand.NewPCG(2, 2))
		const decade = 10 * 365 * 24 * time.Hour
		for i := range 1000 {
			skew := time.Duration(rng.Int64N(int64(2*decade))) - decade
			at := time.Now().Add(skew).UnixMilli()
			before, _, _ := o.state()
			o.send(int64(i+1), at, at-rng.Int64N(5000))
			st, e, live := o.state()
			if st.Version != before.Version+1 || e.Freshness != store.Fresh || live.Sequence != o.sequence {
				t.Fatalf("skew %v: version %d after %d, %v, sequence %d of %d", skew, st.Version, before.Version, e.Freshness, live.Sequence, o.sequence)
			}
			if got := live.ReportUnixMs - live.ReceivedUnixMs; got != skew.Milliseconds() && got != skew.Milliseconds()-1 && got != skew.Milliseconds()+1 {
				t.Fatalf("skew %v is shown as %d ms", skew, got)
			}
			pass(time.Duration(rng.Int64N(int64(staleAfter - 2*settle))))
		}
		o.agesAtTheEdge()
	})
}

// T-03: the plane's wall clock is for display. Here it reads anything at each
// receipt, as it does when it is set, and the judgement stays exact.
func TestWallClockSteps(t *testing.T) {
	hour := time.Hour.Milliseconds()
	for _, step := range []int64{-hour, hour, -1000, 1000, math.MinInt64, math.MaxInt64, 0} {
		synctest.Test(t, func(t *testing.T) {
			p := startPlane(t, newNetwork(), "steps", nil, neverSlept)
			defer p.stop()
			slot := p.store.NewSlot(&store.Worker{
				ID: "w", URL: oneID, Origin: oneAddr, Role: store.RoleRegular, Dialect: store.DialectPush, Interval: interval, DiscoveredBy: "flag",
			})
			p.store.Apply(store.Discovery{Added: []*store.Slot{slot}, Synced: true})
			slot.Bind(store.Stream{Source: "s", Generation: 1})
			o := &one{plane: p, t: t}
			var version uint64
			for n := range 10 {
				load := &store.Load{
					Source: "s", Sequence: uint64(n + 1), Status: store.StatusHealthy, Ranks: []store.Rank{{}},
					Samples: []store.Sample{{TimeUnixMs: -1}}, Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
				}
				if load.ReceivedUnixMs = step; step > -10*hour && step < 10*hour {
					load.ReceivedUnixMs = time.Now().UnixMilli() + int64(n%2)*step
				}
				slot.Offer(1, load)
				pass(settle)
				st, e, live := o.state()
				if n == 0 {
					version = st.Version
				}
				if st.Version != version || e.Freshness != store.Fresh || live.ValidUntil != live.Received.Add(staleAfter) {
					t.Errorf("step %d: version %d after %d, %v, valid for %v", step, st.Version, version, e.Freshness, live.ValidUntil.Sub(live.Received))
				}
				pass(interval)
			}
			p.page()
			o.agesAtTheEdge()
		})
	}
}

// T-04: after the machine slept, the first thing that anybody is told is that
// every worker is stale, and each comes back with its next report.
func TestSleepOfTheMachine(t *testing.T) {
	for _, sleep := range []time.Duration{10 * time.Second, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			var slept atomic.Int64
			s := newSetting(t, scale{engines: 20, ranks: 2}, history.NewRecorder(io.Discard))
			s.bases.Store("slept", time.Now())
			s.plane = startPlane(t, s.net, "slept", s.flags, func() time.Duration { return time.Duration(slept.Load()) })
			ctx, cancel := context.WithCancel(context.Background())
			var runs sync.WaitGroup
			for _, e := range s.engines {
				runs.Go(func() { e.run(ctx) })
			}
			w := s.watchers[0]
			runs.Go(func() { w.run(ctx) })
			pass(5*time.Second + 10*settle) // between two reports
			before := w.view()
			if got := before.CountValid(time.Now()); got != len(s.engines) {
				t.Fatalf("%d valid workers at first", got)
			}
			slept.Add(int64(sleep))
			next := after(w, before)
			for _, worker := range next.Workers() {
				if worker.GetFreshness() != pb.Freshness_FRESHNESS_STALE || worker.GetFreshnessReason() != string(store.ReasonSuspended) {
					t.Errorf("%s is %v (%s) in the first view after the sleep", worker.GetWorkerId(), worker.GetFreshness(), worker.GetFreshnessReason())
				}
			}
			if next.Version() != before.Version()+1 {
				t.Errorf("the sleep made version %d of %d", next.Version(), before.Version())
			}
			pass(3 * interval)
			if got := w.view().CountValid(time.Now()); got != len(s.engines) {
				t.Errorf("%d workers are valid three intervals after the sleep", got)
			}
			cancel()
			runs.Wait()
			s.plane.stop()
		})
	}
}

// after returns the first view of another version.
func after(w *watcher, v *client.View) *client.View {
	for range 1000 {
		if next := w.view(); next.Version() != v.Version() {
			return next
		}
		pass(time.Millisecond)
	}
	return v
}

// T-05: the formats of time hold beyond 32 bits of seconds, and up to the last
// minutes of 64 bits of nanoseconds.
func TestYears(t *testing.T) {
	for name, start := range map[string]time.Time{
		"end of 32 bits": time.Date(2038, 1, 19, 3, 14, 4, 0, time.UTC),
		"leap second":    time.Date(2028, 12, 31, 23, 59, 57, 0, time.UTC),
		"leap day":       time.Date(2096, 2, 29, 23, 59, 57, 0, time.UTC),
		"end of 64 bits": time.Date(2262, 4, 11, 23, 40, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				<-time.After(time.Until(start))
				s := newSetting(t, scale{engines: 4, ranks: 2}, history.NewRecorder(io.Discard))
				s.start()
				ctx, cancel := context.WithCancel(context.Background())
				var runs sync.WaitGroup
				for _, e := range s.engines {
					runs.Go(func() { e.run(ctx) })
				}
				for _, w := range s.watchers {
					runs.Go(func() { w.run(ctx) })
				}
				for range 8 {
					pass(time.Second)
					checkTimes(s)
				}
				s.agree(0)
				cancel()
				runs.Wait()
				s.plane.stop()
			})
		})
	}
}

// checkTimes reads the times of the JSON page.
func checkTimes(s *setting) {
	s.t.Helper()
	page := s.plane.page()
	near(s, page, "captured_at", 0)
	near(s, page, "published_at", 0)
	workers, ok := page["workers"].([]any)
	if !ok || len(workers) != len(s.engines) {
		s.t.Fatalf("the page has the workers %v", page["workers"])
	}
	for _, w := range workers {
		worker, ok := w.(map[string]any)
		if !ok {
			s.t.Fatalf("a worker is %T", w)
		}
		near(s, worker, "received_at", 0)
		near(s, worker, "expires_at", staleAfter)
	}
}

// near checks that a time is that of now and ahead, two seconds old at most.
func near(s *setting, object map[string]any, key string, ahead time.Duration) {
	s.t.Helper()
	text, _ := object[key].(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	if age := time.Since(at.Add(-ahead)); err != nil || age < 0 || age > 2*time.Second {
		s.t.Errorf("%s is %q at %v", key, text, time.Now())
	}
}

package api_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

func TestEqualReportsMoveLivenessOnly(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"), newWorker("b:30000"))
		p.report("a:30000", 1, 3, 2)
		p.report("b:30000", 1, 3, 2)
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		full := s.full()
		version := full.GetCursor().GetVersion()
		if n := len(full.GetLiveness().GetWorkers()); n != 2 {
			p.Fatalf("%d receipts in the first message, want 2", n)
		}
		p.report("a:30000", 5, 3, 2)
		beat := s.heartbeat()
		if beat.GetCursor().GetVersion() != version || beat.GetDigest() != full.GetDigest() {
			p.Errorf("an equal report moved the view: %v", beat.GetCursor())
		}
		moved := beat.GetLiveness().GetWorkers()
		if len(moved) != 1 || moved[0].GetSequenceId() != 5 || moved[0].GetRow() != p.slots["a:30000"].Row() {
			p.Errorf("receipts: %v", moved)
		}
		if again := s.heartbeat().GetLiveness().GetWorkers(); len(again) != 0 {
			p.Errorf("receipts sent twice: %v", again)
		}
		p.report("a:30000", 6, 4, 2)
		next := s.delta()
		if moved := next.GetLiveness().GetWorkers(); len(moved) != 1 || moved[0].GetSequenceId() != 6 || next.GetCursor().GetVersion() != version+1 {
			p.Errorf("a delta has other receipts than what moved: %v", next)
		}
		if d := next.GetDelta(); d.GetBaseVersion() != version || len(d.GetWorkers()) != 1 || len(d.GetPools()) != 1 || len(d.GetRemoved()) != 0 {
			p.Errorf("a delta of more than changed: %v", d)
		}
	})
}

func TestHeartbeatInterval(t *testing.T) {
	for _, c := range []struct {
		name         string
		asked, grant uint32
	}{
		{"default", 0, 1000},
		{"as asked", 400, 400},
		{"too short", 1, 100},
		{"longer than a third of the stale time", 60_000, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.add(newWorker("a:30000"))
				p.after(settle)
				s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{HeartbeatIntervalMs: c.asked})
				if got := s.full().GetHeartbeatIntervalMs(); got != c.grant {
					p.Errorf("granted %d, want %d", got, c.grant)
				}
				begin := time.Now()
				for n := range 3 {
					m := s.heartbeat()
					want := time.Duration((n+1)*int(c.grant)) * time.Millisecond
					if got := time.Since(begin); got != want {
						p.Errorf("heartbeat %d after %v, want %v", n, got, want)
					}
					if m.GetMinIntervalMs() != 0 || m.GetHeartbeatIntervalMs() != c.grant {
						p.Errorf("echo: %v", m)
					}
				}
			})
		})
	}
}

func TestDataRestartsTheHeartbeat(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		p.after(900 * time.Millisecond)
		p.report("a:30000", 1, 1, 1)
		s.delta()
		begin := time.Now()
		s.heartbeat()
		if got := time.Since(begin); got != time.Second {
			p.Errorf("heartbeat %v after data, want 1s", got)
		}
	})
}

func TestHeartbeatAboveTheWriteTimeout(t *testing.T) {
	slow := func(s *setup) { s.store.StaleAfter, s.api.Heartbeat = time.Minute, 20*time.Second }
	for _, http2 := range []bool{false, true} {
		inBubble(t, slow, func(p *plane) {
			p.add(newWorker("a:30000"))
			p.report("a:30000", 1, 1, 1)
			p.after(settle)
			l := p.lines(p.client(http2))
			l.next("full")
			l.next("heartbeat")
			l.next("heartbeat")
		})
	}
}

func TestExpiryReachesWatchers(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.after(settle)
		s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		s.full()
		p.report("a:30000", 1, 1, 1)
		begin := time.Now()
		for {
			s.next()
			if s.view().Worker("a:30000").GetFreshness() == pb.Freshness_FRESHNESS_STALE {
				if got := time.Since(begin); got != staleAfter {
					p.Errorf("stale after %v, want %v", got, staleAfter)
				}
				return
			}
		}
	})
}

// TestStalledReaderIsCut opens two watches on one connection and stops
// reading one of them.
func TestStalledReaderIsCut(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		c := p.snapshots()
		live := p.watch(c, &pb.WatchSnapshotsRequest{})
		stalled := p.watch(c, &pb.WatchSnapshotsRequest{})
		live.full()
		stalled.full()
		begin := time.Now()
		for n := uint64(2); p.metric("loadplane_api_sends_failed_total", "deadline") == 0; n++ {
			if time.Since(begin) > 20*time.Second {
				p.Fatal("the stalled reader was not cut")
			}
			p.report("a:30000", n, int64(n), 512)
			for live.next().GetDelta() == nil {
			}
			p.after(100 * time.Millisecond)
		}
		if got := time.Since(begin); got < 5*time.Second {
			p.Errorf("cut after %v, before the write timeout", got)
		}
		live.next()
		if got := p.metric("loadplane_api_watchers", ""); got != 1 {
			p.Errorf("%v watches are open, want 1", got)
		}
		for stalled.Receive() {
		}
		if stalled.Err() == nil {
			p.Error("the stalled stream ended without an error")
		}
	})
}

func TestStalledLinesAreCut(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
		conn, err := p.dial(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "GET /v1/load_monitor/watch HTTP/1.1\r\nHost: plane\r\n\r\n"); err != nil {
			p.Fatal(err)
		}
		p.after(4900 * time.Millisecond)
		if got := p.metric("loadplane_api_watchers", ""); got != 1 {
			p.Fatalf("%v watches are open, want 1", got)
		}
		p.after(200 * time.Millisecond)
		if got := p.metric("loadplane_api_watchers", ""); got != 0 {
			p.Errorf("%v watches are open after the write timeout", got)
		}
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 1, 1)
		p.after(settle)
		connected := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		byGRPC := p.watch(p.snapshots(connect.WithGRPC()), &pb.WatchSnapshotsRequest{})
		l := p.lines(p.client(false))
		connected.full()
		byGRPC.full()
		l.next("full")

		p.api.Drain("the plane restarts")
		p.api.Drain("again")
		for _, s := range []*stream{connected, byGRPC} {
			m := s.next()
			if m.GetGoAway().GetReason() != "draining: the plane restarts" || m.GetGoAway().GetReconnectWithinMs() == 0 {
				p.Errorf("got %v, want a go_away", m)
			}
			if s.Receive() {
				p.Error("a message after go_away")
			}
			wantCode(p, s.Err(), connect.CodeUnavailable)
			if !strings.Contains(s.Err().Error(), "draining: the plane restarts") {
				p.Error("the error does not say why:", s.Err())
			}
		}
		if m := l.next("go_away"); m["reason"] != "draining: the plane restarts" || m["reconnect_within_ms"] != 2000.0 {
			p.Errorf("last line: %v", m)
		}
		if l.scanner.Scan() || l.scanner.Err() != nil {
			p.Errorf("the lines did not end: %v", l.scanner.Err())
		}
		refused := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{})
		if refused.Receive() {
			p.Error("a draining plane took a watch")
		}
		wantCode(p, refused.Err(), connect.CodeUnavailable)
		if a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/watch"); a.StatusCode != http.StatusServiceUnavailable {
			p.Errorf("status %d: %s", a.StatusCode, a.body)
		}
		if a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot"); a.StatusCode != http.StatusOK {
			p.Errorf("a draining plane refuses snapshots: %d", a.StatusCode)
		}
		if a := p.ops("/readyz"); a.StatusCode != http.StatusServiceUnavailable || !strings.HasPrefix(a.body, `{"ready":false,"failed":["draining"],`) {
			p.Errorf("readyz: %d %s", a.StatusCode, a.body)
		}
	})
}

func TestLimitsOfWatches(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*setup)
		reason store.Reason
		// other says that a second connection still has room.
		other bool
	}{
		{"all", func(s *setup) { s.api.MaxWatchers = 2 }, "too_many_watchers", false},
		{"one connection", func(s *setup) { s.api.MaxWatchesPerConnection = 2 }, "too_many_watches_per_connection", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, c.change, func(p *plane) {
				client := p.snapshots()
				first := p.watch(client, &pb.WatchSnapshotsRequest{})
				first.full()
				p.watch(client, &pb.WatchSnapshotsRequest{}).full()
				third := p.watch(client, &pb.WatchSnapshotsRequest{})
				if third.Receive() {
					p.Fatal("the third watch was taken")
				}
				wantCode(p, third.Err(), connect.CodeResourceExhausted)
				wantRetryInfo(p, third.Err())
				if got := p.metric("loadplane_api_refused_total", string(c.reason)); got != 1 {
					p.Errorf("counted %v refusals, want 1", got)
				}
				if other := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}); other.Receive() != c.other {
					p.Errorf("second connection: %v, want room: %t", other.Err(), c.other)
				}
				first.end()
				synctest.Wait()
				p.watch(client, &pb.WatchSnapshotsRequest{}).full()
			})
		})
	}
}

func wantRetryInfo(p *plane, err error) {
	p.Helper()
	if got := retryDelay(p, err); got != time.Second {
		p.Errorf("to wait %v, want 1s", got)
	}
}

func TestLimitOfLines(t *testing.T) {
	inBubble(t, func(s *setup) { s.api.MaxWatchers = 1 }, func(p *plane) {
		p.lines(p.client(false)).next("full")
		a := p.do(p.client(false), http.MethodGet, "/v1/load_monitor/watch")
		if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" ||
			decode(p, a.body)["reason"] != "too_many_watchers" {
			p.Errorf("status %d, Retry-After %q: %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
		}
	})
}

func TestLines(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 3, 2)
		p.after(settle)
		l := p.lines(p.client(false))
		full := l.next("full")
		for _, key := range []string{"lineage", "epoch", "version", "warming", "server_time", "liveness", "workers", "pools"} {
			if _, ok := full[key]; !ok {
				p.Errorf("a full line lacks %s", key)
			}
		}
		p.report("a:30000", 2, 3, 2)
		beat := l.next("heartbeat")
		receipts := beat["liveness"].([]any)
		if len(receipts) != 1 || beat["version"] != full["version"] || beat["workers"] != nil {
			p.Fatalf("heartbeat: %v", beat)
		}
		r := receipts[0].(map[string]any)
		if r["worker_id"] != "a:30000" || r["sequence_id"] != 2.0 || r["age_ms"] != 1000.0 || r["valid_for_ms"] != 2000.0 {
			p.Errorf("receipt: %v", r)
		}
	})
}

func TestHealth(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		c := grpchealth.NewClient(p.client(true), p.url, connect.WithGRPC())
		check := func(service string) grpchealth.Status {
			res, err := c.Check(p.Context(), &grpchealth.CheckRequest{Service: service})
			if err != nil {
				p.Fatal(err)
			}
			return res.Status
		}
		if got := check(""); got != grpchealth.StatusNotServing {
			p.Error("a warming plane serves:", got)
		}
		ctx, stop := context.WithCancel(p.Context())
		events := c.Watch(ctx, &grpchealth.CheckRequest{Service: "loadplane.v1.SnapshotService"})
		want := func(status grpchealth.Status) {
			p.Helper()
			if e := <-events; e.Err != nil || e.Response.Status != status {
				p.Fatalf("got %v, want %v", e, status)
			}
		}
		want(grpchealth.StatusNotServing)
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 1, 1)
		want(grpchealth.StatusServing)
		if got := p.metric("loadplane_api_watchers", ""); got != 1 {
			p.Errorf("%v watches are counted, want that of the health", got)
		}
		if got := check("loadplane.v1.WorkerService"); got != grpchealth.StatusServing {
			p.Error("the worker service does not serve:", got)
		}
		_, err := c.Check(p.Context(), &grpchealth.CheckRequest{Service: "other"})
		wantCode(p, err, connect.CodeNotFound)
		p.after(time.Minute) // no deadline of the server ends a silent stream
		p.api.Drain("")
		want(grpchealth.StatusNotServing)
		stop()
		synctest.Wait()
		if got := p.metric("loadplane_api_watchers", ""); got != 0 {
			p.Errorf("%v watches are counted after the end", got)
		}
	})
}

// TestHeartbeatAtTheEdgeIsNoHeartbeat has the heartbeats of some watches fall
// due with an expiry: all of them get the expiry.
func TestHeartbeatAtTheEdgeIsNoHeartbeat(t *testing.T) {
	const beats = 5
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 1, 1)
		p.after(settle)
		every := (staleAfter - settle) / beats
		var watches []*stream
		for range 16 {
			s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{HeartbeatIntervalMs: uint32(every.Milliseconds())})
			s.full()
			watches = append(watches, s)
		}
		for range beats - 1 {
			for _, s := range watches {
				s.heartbeat()
			}
		}
		for _, s := range watches {
			changed := s.next().GetDelta().GetWorkers()
			if len(changed) != 1 || changed[0].GetFreshness() != pb.Freshness_FRESHNESS_STALE {
				p.Errorf("served past its time: %v", changed)
			}
		}
	})
}

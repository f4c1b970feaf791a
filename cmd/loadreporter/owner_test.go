package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim"
)

const interval = 100 * time.Millisecond

// takeoverBound is for a loaded machine; else it takes a few milliseconds.
const takeoverBound = time.Second

// pair starts two processes for one engine: the owner, and one that stands by.
func pair(t *testing.T, args ...string) (owner, standby *process) {
	t.Helper()
	args = append(args, "--state-dir="+t.TempDir())
	owner = start(t, args...)
	until(t, "an owner", func() bool { return owner.status().Role == "owner" })
	standby = start(t, args...)
	until(t, "a standby beside an owner that answers", func() bool {
		code, _ := standby.get("/readyz")
		return code == 200 && standby.status().Role == "standby"
	})
	return owner, standby
}

func TestStandbyTakesOverWhenTheOwnerIsKilled(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 4)
	a, b := newRouter(t), newRouter(t)
	owner, standby := pair(t, "--engine="+e.Info().URL)
	// One router asks the owner, one the standby.
	for p, r := range map[*process]*router{owner: a, standby: b} {
		if code, body := p.ask(r, interval, time.Minute); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	a.await(t, 0, "a healthy report", healthy)
	b.await(t, 0, "a healthy report", healthy)
	until(t, "the standby knows both routers", func() bool { return len(standby.status().Takeover) == 2 })
	if streams, _, _ := b.counts(); streams != 1 {
		t.Errorf("%d streams to one router", streams)
	}
	owner.kill()
	// A report of a time after that is of the next owner.
	_, _, before := a.counts()
	killed := time.Now()
	next := a.await(t, before, "a report of the next owner", func(m *pb.LoadReport) bool {
		return m.GetReportTimeUnixMs() > killed.UnixMilli()
	})
	gap := time.Since(killed)
	t.Logf("the next owner reported %v after the last one was killed", gap)
	if gap > takeoverBound {
		t.Errorf("the next owner reported %v after the last one was killed, want %v at most", gap, takeoverBound)
	}
	if !healthy(next) || len(next.GetRanks()) != 4 || next.GetWorker().GetWorkerAddr() != e.Info().URL {
		t.Errorf("its first report is %v", next)
	}
	until(t, "both routers have a stream", func() bool {
		_, liveA, _ := a.counts()
		_, liveB, _ := b.counts()
		return liveA == 1 && liveB == 1
	})
	if s := standby.status(); s.Role != "owner" || len(s.Node.Targets) != 2 {
		t.Errorf("status %+v", s)
	}
	if _, page := standby.get("/metrics"); !strings.Contains(page, "\nloadreporter_takeovers_total 1\n") || !strings.Contains(page, "\nloadreporter_owner 1\n") {
		t.Error("the takeover is not counted")
	}
	third := start(t, standby.cmd.Args[1:]...)
	until(t, "another standby", func() bool { code, _ := third.get("/readyz"); return code == 200 && third.status().Role == "standby" })
}

// A plane that asked the owner alone must not lose the worker with it: nobody
// will ask the next owner, which listens elsewhere.
func TestPlaneThatAskedTheOwnerKeepsTheWorker(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 2)
	owner, standby := pair(t, "--engine="+e.Info().URL, "--stale-after=1s")
	_, port, _ := strings.Cut(strings.TrimPrefix(owner.url, "http://"), ":")
	api, _ := plane(t, e.Info().URL+",dialect=push,interval=100ms,reporter_port="+port)
	fresh := func() bool { all := workers(t, api); return len(all) == 1 && all[0].Freshness == "fresh" }
	until(t, "one fresh worker", fresh)
	until(t, "the standby knows the plane", func() bool { return len(standby.status().Takeover) == 1 })
	owner.kill()
	reports := func() float64 { return standby.metric("loadreporter_push_reports_total") }
	until(t, "the next owner goes on reporting", func() bool { return standby.status().Role == "owner" && reports() >= 10 })
	until(t, "one fresh worker again", fresh)

	// The engine of a later life is the same worker. One that was gone for longer
	// than the age of stale load is taken for another.
	e.SetFault(sim.Fault{Kind: sim.FaultDown})
	<-time.After(2 * time.Second)
	e.Restart()
	e.ClearFault(sim.FaultDown)
	until(t, "another stream", func() bool { return standby.metric(`loadreporter_push_streams_ended_total{then="reopened"}`) > 0 })
	n := reports()
	until(t, "reports of the engine's next life", func() bool { return reports() > n+5 })
	until(t, "one fresh worker after the restart", fresh)
	if n := standby.metric(`loadreporter_push_streams_ended_total{then="rejected"}`); n != 0 {
		t.Errorf("%v streams were rejected", n)
	}
}

func TestOwnerThatIsStoppedKeepsTheSeat(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 2)
	r := newRouter(t)
	owner, standby := pair(t, "--engine="+e.Info().URL)
	owner.stop()
	code, body := standby.ask(r, interval, time.Minute)
	if code != 503 || !strings.Contains(body, "does not answer") || !strings.Contains(body, `"code":503`) {
		t.Errorf("%d %s from a standby whose owner is stopped", code, body)
	}
	until(t, "the standby is not ready", func() bool { code, _ := standby.get("/readyz"); return code == 503 })
	if code, body := standby.do("POST", "/refresh", ""); code != 503 {
		t.Errorf("%d %s to a hint", code, body)
	}
	if s := standby.status(); s.Role != "standby" {
		t.Errorf("the standby is %s", s.Role)
	}
	owner.signal(syscall.SIGCONT)
	until(t, "the standby forwards again", func() bool { code, _ := standby.ask(r, interval, time.Minute); return code == 200 })
	r.await(t, 0, "a healthy report", healthy)

	// One that is killed while it is stopped gives the seat up.
	owner.stop()
	owner.kill()
	until(t, "the standby owns", func() bool { return standby.status().Role == "owner" })
}

func TestOwnerThatLeavesIsFollowed(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	r := newRouter(t)
	owner, standby := pair(t, "--engine="+e.Info().URL)
	if code, body := standby.ask(r, interval, time.Minute); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	r.await(t, 0, "a healthy report", healthy)
	owner.signal(syscall.SIGTERM)
	if err := owner.wait(); err != nil {
		t.Errorf("the owner ended with %v", err)
	}
	until(t, "the standby owns and reports", func() bool {
		streams, live, _ := r.counts()
		return standby.status().Role == "owner" && streams == 2 && live == 1
	})
}

func TestStandbyForwardsRefusalsAndHints(t *testing.T) {
	e := engine(t, sim.KindVLLM, 1)
	owner, standby := pair(t, "--engine="+e.Info().URL)
	until(t, "a sample", func() bool { return owner.status().Node.Sample.Status == "healthy" })
	code, body := standby.ask(newRouter(t), interval, time.Minute)
	if code != 501 || !strings.Contains(body, "use native") {
		t.Errorf("%d %s", code, body)
	}
	for range 20 {
		if code, body := standby.do("POST", "/refresh", `{"reason":"completion","count":2}`); code != 202 {
			t.Fatalf("%d %s", code, body)
		}
	}
	until(t, "the owner counts 40 requests", func() bool {
		_, page := owner.get("/metrics")
		return strings.Contains(page, "\nloadreporter_hinted_requests_total 40\n")
	})
}

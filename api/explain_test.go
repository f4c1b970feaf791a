package api_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
)

func (p *plane) explain(worker string) (*pb.ExplainWorkerResponse, error) {
	c := loadplanev1connect.NewWorkerServiceClient(p.client(true), p.url)
	return c.ExplainWorker(p.Context(), &pb.ExplainWorkerRequest{WorkerId: worker})
}

// verdictOf returns the verdict of a check.
func verdictOf(res *pb.ExplainWorkerResponse, name string) pb.Verdict {
	for _, c := range res.GetChecks() {
		if c.GetName() == name {
			return c.GetVerdict()
		}
	}
	return pb.Verdict_VERDICT_UNSPECIFIED
}

// TestExplainWorker follows a worker that is heard and then is not.
func TestExplainWorker(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		load := p.newLoad("a:1", 7, 3, 2)
		for i := range load.Samples {
			load.Samples[i].TimeUnixMs = load.ReportUnixMs
		}
		p.slots["a:1"].Offer(1, load)
		p.after(settle)
		for _, name := range []string{"a:1", "http://a:1", "http://A:1/"} {
			res, err := p.explain(name)
			if err != nil {
				p.Fatal(err)
			}
			w := res.GetWorker()
			if w.GetWorker().GetWorkerId() != "a:1" || len(w.GetWorker().GetRanks()) != 2 || w.GetPeer() != "127.0.0.1:9" {
				p.Errorf("%s is %v", name, w)
			}
			if res.GetSummary() != "Nothing is wrong: fresh." || res.GetServerClockMs() == 0 {
				p.Errorf("%s at %d", res.GetSummary(), res.GetServerClockMs())
			}
		}
		p.after(staleAfter)
		res, err := p.explain("a:1")
		if err != nil {
			p.Fatal(err)
		}
		if got := verdictOf(res, "last_report"); got != pb.Verdict_VERDICT_FAIL || !strings.HasPrefix(res.GetSummary(), "Stale, age; ") {
			p.Errorf("a silent worker has %v: %s", got, res.GetSummary())
		}
		var events []string
		for _, d := range res.GetDiagnostics() {
			events = append(events, d.GetEvent())
		}
		if got := strings.Join(events, " "); got != "stale fresh bound discovered" {
			p.Errorf("it tells of %s", got)
		}
	})
}

// TestExplainWorkerSeesAnOverdueExpiry asks at the edge, before the commit.
func TestExplainWorkerSeesAnOverdueExpiry(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		p.report("a:1", 7, 3, 1)
		p.after(settle)
		p.stopStore()
		<-time.After(staleAfter)
		res, err := p.explain("a:1")
		if err != nil || verdictOf(res, "freshness") != pb.Verdict_VERDICT_FAIL {
			p.Errorf("%v, %v", res.GetSummary(), err)
		}
	})
}

// TestExplainWorkerKnowsThePlane tells of a plane that warms up, and of a source
// of the worker that fails.
func TestExplainWorkerKnowsThePlane(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		want := func(name string, v pb.Verdict) {
			p.Helper()
			res, err := p.explain("a:1")
			if err != nil {
				p.Fatal(err)
			}
			if got := verdictOf(res, name); got != v {
				p.Errorf("%s is %v, want %v: %s", name, got, v, res.GetSummary())
			}
		}
		want("plane", pb.Verdict_VERDICT_WARN)
		p.report("a:1", 7, 3, 1)
		p.after(settle)
		want("plane", pb.Verdict_VERDICT_OK)
		want("last_report", pb.Verdict_VERDICT_OK)
		want("stream", pb.Verdict_VERDICT_OK)
		want("discovered_by", pb.Verdict_VERDICT_OK)
		p.store.NoteSources([]store.SourceStatus{{Name: "flag", Synced: true, Error: "gone"}})
		want("discovered_by", pb.Verdict_VERDICT_WARN)
	})
}

func TestExplainWorkerRefuses(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		a, b := newWorker("a:1"), newWorker("b:1")
		b.Origin, b.Duplicate = a.Origin, true
		p.add(a, b)
		p.after(settle)
		for name, want := range map[string]string{
			"":                        "invalid_argument: worker_id: give the id or the base URL of a worker",
			strings.Repeat("x", 1025): "invalid_argument: worker_id: give the id or the base URL of a worker",
			strings.Repeat("x", 1024): `not_found: no worker "` + strings.Repeat("x", 1024) + `" among 2`,
			"nobody":                  `not_found: no worker "nobody" among 2`,
			"http://a:1":              `not_found: several workers have the address "http://a:1": "a:1", "b:1"; name one by its id`,
		} {
			if _, err := p.explain(name); err == nil || err.Error() != want {
				p.Errorf("%q: %v, want %s", name, err, want)
			}
		}
		if n := p.metric("loadplane_api_refused_total", "bad_parameter"); n != 2 {
			p.Errorf("%v bad requests are counted", n)
		}
	})
}

// TestExplainWorkerIsAGet can be asked without side effects.
func TestExplainWorkerIsAGet(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		c := loadplanev1connect.NewWorkerServiceClient(p.client(true), p.url, connect.WithHTTPGet(), connect.WithProtoJSON())
		res, err := c.ExplainWorker(p.Context(), &pb.ExplainWorkerRequest{WorkerId: "a:1"})
		if err != nil || verdictOf(res, "last_report") == pb.Verdict_VERDICT_UNSPECIFIED {
			p.Errorf("%v, %v", res, err)
		}
	})
}

// TestListWorkersLeavesRanksOut sends them only where one worker is asked for.
func TestListWorkersLeavesRanksOut(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		p.report("a:1", 7, 3, 2)
		p.after(settle)
		c := loadplanev1connect.NewWorkerServiceClient(p.client(true), p.url)
		list, err := c.ListWorkers(p.Context(), &pb.ListWorkersRequest{})
		if err != nil || len(list.GetWorkers()) != 1 || list.GetWorkers()[0].GetWorker().GetRanks() != nil {
			p.Errorf("%v, %v", list, err)
		}
	})
}

// TestExplainWorkerOfHostileText answers whatever an engine says of itself.
func TestExplainWorkerOfHostileText(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		slot := p.slots["a:1"]
		slot.Happen(store.EventRefused, "retired", strings.Repeat("\u202e\x1b[31m", 1000))
		p.after(settle)
		res, err := p.explain("a:1")
		if err != nil || len(res.GetDiagnostics()[0].GetDetail()) > 160 {
			p.Errorf("%v, %v", res, err)
		}
	})
}

package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/api"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// TestEveryReason provokes each declared reason and finds it counted, or, for
// the checks of readiness, listed.
func TestEveryReason(t *testing.T) {
	one := func(s *setup) {
		s.api.MaxWatchers, s.api.MaxWatchesPerConnection, s.api.MaxHeld, s.api.MaxAnswers = 2, 1, 1, 1
	}
	twoWatches := func(p *plane, second func() *stream) {
		first := p.snapshots()
		p.watch(first, &pb.WatchSnapshotsRequest{}).full()
		if second != nil {
			second().full()
			first = p.snapshots()
		}
		p.watch(first, &pb.WatchSnapshotsRequest{}).Receive()
	}
	const refused, failed, ready = "loadplane_api_refused_total", "loadplane_api_sends_failed_total", ""
	provoked := map[store.Reason]struct {
		seenIn  string
		provoke func(p *plane)
	}{
		api.ReasonTooManyWatchesPerConnection: {refused, func(p *plane) { twoWatches(p, nil) }},
		api.ReasonTooManyWatchers: {refused, func(p *plane) {
			twoWatches(p, func() *stream { return p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}) })
		}},
		api.ReasonWatchRate: {refused, func(p *plane) {
			p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}).full()
			p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}).Receive()
		}},
		api.ReasonDraining: {refused, func(p *plane) {
			p.api.Drain("")
			p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}).Receive()
		}},
		api.ReasonSlowClient: {refused, func(p *plane) {
			for range 4 {
				p.cutOff("router-1")
			}
			p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: "router-1"}).Receive()
		}},
		api.ReasonTooManyHeld: {refused, func(p *plane) {
			p.add(newWorker("a:30000"))
			p.report("a:30000", 1, 1, 1)
			p.after(settle)
			tag := p.get("").Header.Get("ETag")
			first := p.getLater("?wait=1s", tag)
			synctest.Wait()
			p.get("?wait=1s", tag)
			<-first
		}},
		api.ReasonTooManyAnswers: {refused, func(p *plane) {
			p.large(4)
			slow, later := p.ask(getJSON), p.getLater("")
			p.after(4 * time.Second)
			if _, err := io.ReadFull(slow, make([]byte, 80<<10)); err != nil {
				p.Fatal(err)
			}
			<-later
		}},
		api.ReasonBadFilter:        {refused, func(p *plane) { p.get("?model=") }},
		api.ReasonBadParameter:     {refused, func(p *plane) { p.get("?wait=soon") }},
		api.ReasonUnknownParameter: {refused, func(p *plane) { p.get("?x=1") }},
		api.ReasonDeadline:         {failed, func(p *plane) { p.stall(6*time.Second, false) }},
		api.ReasonClient:           {failed, func(p *plane) { p.stall(time.Second, true) }},
		api.ReasonWarming:          {ready, func(*plane) {}},
		api.ReasonStoreStalled: {ready, func(p *plane) {
			p.stopStore()
			p.after(5 * time.Second)
		}},
	}
	for _, reason := range declared(t) {
		c, ok := provoked[reason]
		if !ok {
			t.Errorf("nothing provokes %s", reason)
			continue
		}
		t.Run(string(reason), func(t *testing.T) {
			run, change := inBubble, one
			if reason == api.ReasonWatchRate { // of peers that have an address
				run, change = onLoopback, func(s *setup) {
					s.api.WatchBurst, s.api.WatchesPerSecond = 1, 1e-9
					s.api.Exempt = func(netip.Addr) bool { return false }
				}
			}
			run(t, change, func(p *plane) {
				c.provoke(p)
				if c.seenIn == ready {
					if body := p.ops("/readyz").body; !strings.Contains(body, strconv.Quote(string(reason))) {
						p.Errorf("not listed: %s", body)
					}
					return
				}
				if got := p.metric(c.seenIn, string(reason)); got != 1 {
					p.Errorf("counted %v times, want once", got)
				}
			})
		})
	}
}

// get asks for the JSON snapshot, with the tags that the caller holds.
func (p *plane) get(query string, held ...string) answer {
	p.Helper()
	a, ok := <-p.getLater(query, held...)
	if !ok {
		p.FailNow()
	}
	return a
}

// getLater is get whose answer is sent when it comes; the channel closes.
func (p *plane) getLater(query string, held ...string) <-chan answer {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.url+"/v1/load_monitor/snapshot"+query, nil)
	if err != nil {
		p.Fatal(err)
	}
	for _, tag := range held {
		req.Header.Add("If-None-Match", tag)
	}
	c, answers := p.client(false), make(chan answer, 1)
	go func() {
		defer close(answers)
		res, err := c.Do(req)
		if err != nil {
			p.Error(err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			p.Error(err)
			return
		}
		answers <- answer{res, string(body)}
	}()
	return answers
}

// cutOff has a watch of a client cut: it does not read.
func (p *plane) cutOff(id string) {
	p.Helper()
	if p.slots["a:30000"] == nil {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 0, 512)
		p.after(settle)
	}
	before := p.metric("loadplane_api_sends_failed_total", "deadline")
	s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: id, FullOnly: true, HeartbeatIntervalMs: 100})
	for n := int64(2); p.metric("loadplane_api_sends_failed_total", "deadline") == before; n++ {
		if n > 200 {
			p.Fatal("not cut")
		}
		p.report("a:30000", uint64(time.Now().UnixMilli()), n, 512)
		p.after(100 * time.Millisecond)
	}
	s.end()
}

// stall opens a watch that does not read, lets d pass, and perhaps hangs up.
func (p *plane) stall(d time.Duration, hangUp bool) {
	p.add(newWorker("a:30000"))
	p.report("a:30000", 1, 0, 512)
	p.after(settle)
	conn, err := p.dial(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET /v1/load_monitor/watch HTTP/1.1\r\nHost: plane\r\n\r\n"); err != nil {
		p.Fatal(err)
	}
	p.after(d)
	if hangUp {
		_ = conn.Close()
		p.after(0)
	}
}

// declared returns the words of the constants in reason.go.
func declared(t *testing.T) []store.Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []store.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, store.Reason(word))
		return true
	})
	if len(words) < 9 {
		t.Fatalf("found %v", words)
	}
	return words
}

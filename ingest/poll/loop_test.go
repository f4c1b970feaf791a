package poll

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const loadsQuery = "/v1/loads?include=core,disagg,queues"

// silent reads and never answers.
func silent(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// raw answers every connection with the same bytes.
func raw(answer string) func(net.Conn) {
	return func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		_, _ = io.WriteString(c, answer)
	}
}

// process answers as a page tells that can be changed.
type process struct{ bodies map[string]string }

func (p *process) handle(w http.ResponseWriter, r *http.Request) { pages(p.bodies)(w, r) }

func TestPolledLoad(t *testing.T) {
	inBubble(t, pages(map[string]string{"/v1/loads": loads(3, 4)}), func(p *plane, e *engine) {
		after(10500 * time.Millisecond)
		entry, live, d := p.entry(testWorker)
		if entry.Freshness != store.Fresh || entry.Worker.Dialect != store.DialectPoll || len(entry.Ranks) != 2 {
			t.Fatalf("got %s, %s, ranks %v", entry.Freshness, entry.Worker.Dialect, entry.Ranks)
		}
		if n, ok := entry.Ranks[1].Count(store.NumRunningReqs); n != 4 || !ok {
			t.Errorf("rank 1 runs %d, %v", n, ok)
		}
		if d.Registration != string(registry.StatePolling) || d.RegistrationStatus != 200 || d.PollInterval != time.Second {
			t.Errorf("diagnostics %+v", d)
		}
		// The newest may not be committed yet.
		ahead := p.polled("ok") - int(live.Sequence)
		if live.Sequence < 9 || live.Sequence > 11 || ahead < 0 || ahead > 1 || !strings.HasPrefix(p.source(), "poll-") {
			t.Errorf("sequence %d of %q, polls %d", live.Sequence, p.source(), p.polled("ok"))
		}
		if l := entry.Load; l.Begun <= 0 || l.Begun > l.Received || live.ReportUnixMs != 1785542400000 {
			t.Errorf("begun %d, received %d, engine time %d", l.Begun, l.Received, live.ReportUnixMs)
		}
		if testutil.ToFloat64(p.poller.metrics.engines) != 1 || testutil.ToFloat64(p.poller.metrics.bytes) == 0 {
			t.Error("the engine or its bytes were not counted")
		}
		if e.most != 1 || p.net.dials != 1 {
			t.Errorf("%d requests at once over %d connections", e.most, p.net.dials)
		}
	})
}

// TestBug27OneRequestAnInterval polls an engine of eight ranks.
func TestBug27OneRequestAnInterval(t *testing.T) {
	inBubble(t, pages(map[string]string{"/v1/loads": loads(1, 2, 3, 4, 5, 6, 7, 8)}), func(_ *plane, e *engine) {
		after(1200 * time.Millisecond)
		e.forget()
		after(20 * time.Second)
		asked := e.forget()
		if len(asked) < 19 || len(asked) > 21 {
			t.Errorf("%d requests in 20 s", len(asked))
		}
		for _, r := range asked {
			if r.path != loadsQuery {
				t.Errorf("asked for %q", r.path)
			}
		}
	})
}

func TestBegunIsBeforeTheRequest(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		<-time.After(100 * time.Millisecond)
		pages(map[string]string{"/v1/loads": loads(1)})(w, r)
	}
	inBubble(t, slow, func(p *plane, _ *engine) {
		after(3 * time.Second)
		if entry, _, _ := p.entry(testWorker); entry.Load.Received.Sub(entry.Load.Begun) != 100*time.Millisecond {
			t.Errorf("begun %s before it was received", entry.Load.Received.Sub(entry.Load.Begun))
		}
	})
}

// failures provoke each reason with an engine that was never heard, and say
// what is shown. parked says that the answer is definite.
var failures = map[string]struct {
	engine func(e *engine)
	reason store.Reason
	parked bool
}{
	"refuses connections": {func(e *engine) { e.down = true }, registry.ReasonConnectFailed, false},
	"black hole":          {func(e *engine) { e.black = true }, registry.ReasonConnectFailed, false},
	"never answers":       {func(e *engine) { e.raw = silent }, survey.ReasonTimeout, false},
	"no HTTP":             {func(e *engine) { e.raw = raw("SSH-2.0\r\n") }, survey.ReasonBroken, false},
	"wrong length":        {func(e *engine) { e.raw = raw("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + llama) }, survey.ReasonBroken, false},
	"10 MB header":        {func(e *engine) { e.raw = raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 10<<20) + "\r\n\r\n") }, survey.ReasonTooLarge, false},
	"endless body":        {func(e *engine) { e.raw = endless }, survey.ReasonTooLarge, false},
	"gzip bomb":           {func(e *engine) { e.raw = raw("HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b") }, survey.ReasonCompressed, false},
	"redirect loop":       {func(e *engine) { e.raw = raw("HTTP/1.1 307 No\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n") }, registry.ReasonRedirected, false},
	"bug 46: auth":        {func(e *engine) { e.raw = raw("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n") }, registry.ReasonAuth, true},
	"bug 46: forbidden":   {func(e *engine) { e.raw = raw("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n") }, registry.ReasonAuth, true},
	"bug 47: 503 with a valid body": {func(e *engine) {
		e.raw = raw("HTTP/1.0 503 No\r\n\r\n" + loads(1))
	}, registry.ReasonEngineError, false},
	"bug 48: HTML 404": {func(e *engine) { e.raw = raw("HTTP/1.0 404 No\r\n\r\n" + html) }, registry.ReasonUnsupported, true},
	"bug 48: HTML 200": {func(e *engine) { e.raw = raw("HTTP/1.0 200 OK\r\n\r\n" + html) }, sample.ReasonHTMLPage, false},
	"bad request":      {func(e *engine) { e.raw = raw("HTTP/1.0 400 No\r\n\r\n") }, registry.ReasonRejected, false},
	"bug 70: no loads": {func(e *engine) { e.handle = pages(map[string]string{"/v1/loads": loads()}) }, sample.ReasonNoData, false},
	"no load yet":      {func(e *engine) { e.handle = pages(map[string]string{"/metrics": "vllm:other 1\n"}) }, sample.ReasonNoLoad, false},
	"loads": {func(e *engine) {
		e.handle = pages(map[string]string{"/metrics": vllm(1, 0), "/health": "status 503"})
	}, reader.ReasonNotReady, false},
}

func endless(c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	_, err := io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
	for chunk := strings.Repeat("x 1\n", 1<<14); err == nil; {
		_, err = io.WriteString(c, chunk)
	}
}

// TestFailuresChangeNothing also holds that the registry is told of what is
// definite, and asks no engine that said so again for a while.
func TestFailuresChangeNothing(t *testing.T) {
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane, e *engine) {
				e.set(c.engine)
				after(20 * time.Second)
				p.wantFailing(c.reason)
				_, _, d := p.entry(testWorker)
				if parked := d.Registration == string(registry.StateParked); parked != c.parked {
					t.Errorf("state %q", d.Registration)
				}
				if n := p.polled(c.reason); c.parked && n != 1 || n == 0 || p.polled("ok") > 0 {
					t.Errorf("%d polls as %s, %d good ones", n, c.reason, p.polled("ok"))
				}
			})
		})
	}
}

func TestBug48SelfSigned(t *testing.T) {
	inBubbleWith(t, func(r *registry.Options, _ *Options) { r.Workers = []string{"https://10.0.0.1:30000,dialect=poll"} }, func(p *plane) {
		e := p.net.add(testOrigin, nil)
		e.raw = raw("HTTP/1.1 400 TLS please\r\n\r\n")
		p.run()
		after(1200 * time.Millisecond)
		if p.polled(survey.ReasonTLS) == 0 {
			t.Error("no poll failed for TLS within one interval")
		}
	})
}

// TestFailureAfterLoadAges keeps the last load and the source through trouble.
func TestFailureAfterLoadAges(t *testing.T) {
	proc := &process{map[string]string{"/v1/loads": loads(7)}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(5 * time.Second)
		before, _, _ := p.entry(testWorker)
		e.set(func(*engine) { proc.bodies["/v1/loads"] = "status 503" })
		after(5 * time.Second)
		entry, _, d := p.entry(testWorker)
		if entry.Freshness != store.Stale || entry.Reason != store.ReasonAge || entry.Load != before.Load {
			t.Errorf("got %s, %s", entry.Freshness, entry.Reason)
		}
		if d.Registration != string(registry.StateFailing) || d.RegistrationStatus != 503 {
			t.Errorf("diagnostics %+v", d)
		}
		source := p.source()
		e.set(func(*engine) { proc.bodies["/v1/loads"] = loads(8) })
		after(5500 * time.Millisecond)
		if entry, _, _ = p.entry(testWorker); entry.Freshness != store.Fresh || p.source() != source {
			t.Errorf("got %s by %q, before %q", entry.Freshness, p.source(), source)
		}
	})
}

// TestBug67UnsupportedIsNotCachedFromTrouble lets the best page fail for a
// while. Another one is read meanwhile, and then the best again.
func TestBug67UnsupportedIsNotCachedFromTrouble(t *testing.T) {
	for name, trouble := range map[string]func(http.ResponseWriter){
		"503":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
		"timeout": func(http.ResponseWriter) { <-time.After(2500 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			sick := true
			handle := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/loads" && sick {
					trouble(w)
					return
				}
				pages(map[string]string{"/v1/loads": loads(1, 2), "/metrics": sglang})(w, r)
			}
			inBubble(t, handle, func(p *plane, e *engine) {
				after(15 * time.Second)
				if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh || len(entry.Ranks) != 1 {
					t.Errorf("with trouble: %s, %d ranks", entry.Freshness, len(entry.Ranks))
				}
				e.set(func(*engine) { sick = false })
				after(40 * time.Second)
				if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh || len(entry.Ranks) != 2 {
					t.Errorf("after it: %s, %d ranks", entry.Freshness, len(entry.Ranks))
				}
			})
		})
	}
}

// TestBug67AbsentIsRemembered holds that an engine is not asked again for what
// it does not have, until it is upgraded.
func TestBug67AbsentIsRemembered(t *testing.T) {
	proc := &process{map[string]string{"/metrics": sglang}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(1500 * time.Millisecond)
		e.forget()
		after(5 * time.Minute)
		if asked := paths(e.forget()); slices.Contains(asked, loadsQuery) || len(asked) < 290 {
			t.Errorf("asked %d times, for %q again", len(asked), loadsQuery)
		}
		// The process ends, and another version comes up.
		e.set(func(e *engine) { e.down = true })
		p.net.cut()
		after(3 * time.Second)
		e.set(func(e *engine) { e.down = false; proc.bodies["/v1/loads"] = loads(1, 2) })
		after(3 * time.Second)
		if entry, _, _ := p.entry(testWorker); len(entry.Ranks) != 2 || entry.Freshness != store.Fresh {
			t.Errorf("%s, %d ranks", entry.Freshness, len(entry.Ranks))
		}
	})
}

// TestPageMoves changes what an engine serves while it is read.
func TestPageMoves(t *testing.T) {
	for name, next := range map[string]map[string]string{
		"gone":           {"/get_load": `[{"dp_rank":0,"num_reqs":9,"num_waiting_reqs":0}]`},
		"another family": {"/metrics": strings.ReplaceAll(vllm(2, 9), "vllm:kv", "vllm:x")},
	} {
		t.Run(name, func(t *testing.T) {
			proc := &process{map[string]string{"/metrics": sglang}}
			inBubble(t, proc.handle, func(p *plane, e *engine) {
				after(3 * time.Second)
				e.set(func(*engine) { proc.bodies = next })
				after(3500 * time.Millisecond)
				entry, _, _ := p.entry(testWorker)
				if n, _ := entry.Ranks[0].Count(store.NumRunningReqs); n != 9 || entry.Freshness != store.Fresh {
					t.Errorf("%s, runs %d", entry.Freshness, n)
				}
			})
		})
	}
}

// TestAuthOfAReadPage: two answers in a row that want a credential end the
// polling of an engine that was read; it is begun anew with back-off for a
// minute. What is known of the engine stays.
func TestAuthOfAReadPage(t *testing.T) {
	refusals := 0
	handle := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" && refusals > 0 {
			refusals--
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pages(map[string]string{"/metrics": sglang})(w, r)
	}
	inBubble(t, handle, func(p *plane, e *engine) {
		after(3 * time.Second)
		source := p.source()
		for range 2 {
			e.set(func(*engine) { refusals = 1 })
			after(4 * time.Second)
		}
		if entry, _, _ := p.entry(testWorker); p.polled(registry.ReasonAuth) != 2 || entry.Freshness != store.Fresh || p.source() != source {
			t.Errorf("%d answers ended it, %s by %q", p.polled(registry.ReasonAuth), entry.Freshness, p.source())
		}
		e.set(func(*engine) { refusals = 2 })
		after(4 * time.Second)
		if entry, _, _ := p.entry(testWorker); p.polled(registry.ReasonAuth) != 4 || entry.Freshness != store.Fresh || p.source() != source {
			t.Errorf("%d answers, %s by %q", p.polled(registry.ReasonAuth), entry.Freshness, p.source())
		}
		e.set(func(*engine) { refusals = 1000 })
		after(75 * time.Second)
		e.set(func(*engine) { refusals = 0 })
		if _, _, d := p.entry(testWorker); d.Registration != string(registry.StateParked) {
			t.Errorf("%d answers, diagnostics %+v", p.polled(registry.ReasonAuth), d)
		}
		after(time.Minute)
		if entry, live, _ := p.entry(testWorker); entry.Freshness != store.Fresh || p.source() != source || live.Sequence < 8 {
			t.Errorf("%s by %q, before %q, sequence %d", entry.Freshness, p.source(), source, live.Sequence)
		}
	})
}

// TestRestart brings another process up under the same address.
func TestRestart(t *testing.T) {
	proc := &process{map[string]string{"/metrics": vllm(100, 5)}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(5 * time.Second)
		first := p.source()
		e.forget()
		e.set(func(*engine) { proc.bodies["/metrics"] = vllm(200, 6) })
		after(3 * time.Second)
		entry, live, _ := p.entry(testWorker)
		if n, _ := entry.Ranks[0].Count(store.NumRunningReqs); n != 6 || entry.Freshness != store.Fresh {
			t.Errorf("%s, runs %d", entry.Freshness, n)
		}
		if second := p.source(); second == first || live.Sequence > 4 {
			t.Errorf("source %q, before %q, sequence %d", second, first, live.Sequence)
		}
		asked := paths(e.forget())
		if n := strings.Count(strings.Join(asked, " "), "/health"); n != 1 {
			t.Errorf("the health page of the new process was asked for %d times in %q", n, asked)
		}
		if !slices.Contains(asked, loadsQuery) {
			t.Errorf("the pages of the new process were not looked at: %q", asked)
		}
		// A third process soon after, which is not ready at once.
		second := p.source()
		e.set(func(*engine) { proc.bodies = map[string]string{"/metrics": vllm(300, 7), "/health": "status 503"} })
		after(2 * time.Second)
		if p.source() != second {
			t.Error("a process that is not ready spoke")
		}
		e.set(func(*engine) { delete(proc.bodies, "/health") })
		after(1200 * time.Millisecond)
		entry, _, _ = p.entry(testWorker)
		if n, _ := entry.Ranks[0].Count(store.NumRunningReqs); n != 7 || p.source() == second {
			t.Errorf("runs %d by %q", n, p.source())
		}
		st, _, _ := p.store.Inspect(entry.Row)
		if len(st.Retired) != 2 {
			t.Errorf("retired %q", st.Retired)
		}
	})
}

// TestRestartBehindRefusals has connections refused for a while. A page that
// does not name its process is another's then, one that does is as it says.
func TestRestartBehindRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		other      bool
	}{
		"no start time": {"/v1/loads", loads(7), true},
		"start time":    {"/metrics", vllm(100, 5), false},
	} {
		t.Run(name, func(t *testing.T) {
			proc := &process{map[string]string{c.path: c.body}}
			inBubble(t, proc.handle, func(p *plane, e *engine) {
				after(5 * time.Second)
				first := p.source()
				e.set(func(e *engine) { e.down = true })
				p.net.cut()
				after(6 * time.Second)
				e.set(func(e *engine) { e.down = false })
				for range 2 { // and stays
					after(6 * time.Second)
					entry, _, _ := p.entry(testWorker)
					if other := p.source() != first; other != c.other || entry.Freshness != store.Fresh {
						t.Errorf("%s by %q, before %q", entry.Freshness, p.source(), first)
					}
				}
				entry, _, _ := p.entry(testWorker)
				if st, _, _ := p.store.Inspect(entry.Row); (len(st.Retired) == 1) != c.other {
					t.Errorf("retired %q", st.Retired)
				}
			})
		})
	}
}

// TestRestartIsToldWhenItIsHeard has a process that is not ready at first. Its
// pages are looked at again after its first report, not before.
func TestRestartIsToldWhenItIsHeard(t *testing.T) {
	proc := &process{map[string]string{"/metrics": vllm(100, 5)}}
	inBubble(t, proc.handle, func(_ *plane, e *engine) {
		after(5 * time.Second)
		e.set(func(*engine) { proc.bodies = map[string]string{"/metrics": vllm(200, 6), "/health": "status 503"} })
		e.forget()
		after(5 * time.Second)
		if asked := paths(e.forget()); slices.Contains(asked, loadsQuery) {
			t.Errorf("not heard yet, and asked for %q", asked)
		}
		e.set(func(*engine) { delete(proc.bodies, "/health") })
		after(3 * time.Second)
		if asked := paths(e.forget()); !slices.Contains(asked, loadsQuery) {
			t.Errorf("heard, and asked for %q", asked)
		}
	})
}

// TestBug45AlternatingProcesses reads two processes behind one address.
func TestBug45AlternatingProcesses(t *testing.T) {
	n := 0
	handle := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			n++
		}
		pages(map[string]string{"/metrics": vllm(float64(100+n%2), 5)})(w, r)
	}
	inBubble(t, handle, func(p *plane, _ *engine) {
		after(time.Minute)
		entry, _, _ := p.entry(testWorker)
		if entry.Freshness != store.Fresh || entry.Flags&store.FlagUnstableSource == 0 {
			t.Errorf("%s, flags %v", entry.Freshness, entry.Flags.Words())
		}
		if st, _, _ := p.store.Inspect(entry.Row); len(st.Retired) > 2 {
			t.Errorf("%d instances of two processes", len(st.Retired))
		}
	})
}

// TestNotReady holds back the zeros of an engine that loads its model.
func TestNotReady(t *testing.T) {
	proc := &process{map[string]string{"/metrics": vllm(100, 0), "/health": "status 503"}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(10 * time.Second)
		p.wantFailing(reader.ReasonNotReady)
		if _, _, d := p.entry(testWorker); d.RegistrationStatus != http.StatusServiceUnavailable {
			t.Errorf("shown status %d", d.RegistrationStatus)
		}
		e.set(func(*engine) { proc.bodies["/health"] = "" })
		after(1500 * time.Millisecond)
		if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh {
			t.Errorf("ready, and %s", entry.Freshness)
		}
		e.forget()
		after(10 * time.Second)
		if asked := paths(e.forget()); slices.Contains(asked, "/health") {
			t.Error("the health page is asked for again and again")
		}
	})
}

func TestAsleep(t *testing.T) {
	page := vllm(100, 0) + "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 0\n" +
		"vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"} 1\n"
	inBubble(t, pages(map[string]string{"/metrics": page}), func(p *plane, _ *engine) {
		after(3 * time.Second)
		entry, live, _ := p.entry(testWorker)
		if entry.Freshness != store.Unreachable || len(entry.Ranks) != 0 || !strings.Contains(live.LastError, "weights_offloaded") {
			t.Errorf("%s, ranks %v, %q", entry.Freshness, entry.Ranks, live.LastError)
		}
	})
}

// TestRefusedReport reads more ranks than a report may have.
func TestRefusedReport(t *testing.T) {
	inBubbleWith(t, func(_ *registry.Options, o *Options) { o.MaxRanks = 1 }, func(p *plane) {
		p.net.add(testOrigin, pages(map[string]string{"/v1/loads": loads(1, 2)}))
		p.run()
		after(3 * time.Second)
		p.wantFailing(ingest.ReasonTooManyRanks)
		if _, _, d := p.entry(testWorker); d.Refused == 0 || d.LastRefusal != ingest.ReasonTooManyRanks {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

// TestSlowEngineIsStretched answers late for a while.
func TestSlowEngineIsStretched(t *testing.T) {
	late := 1400 * time.Millisecond
	handle := func(w http.ResponseWriter, r *http.Request) {
		<-time.After(late)
		pages(map[string]string{"/v1/loads": loads(1)})(w, r)
	}
	inBubble(t, handle, func(p *plane, e *engine) {
		for range 20 {
			after(time.Second)
			if entry, _, _ := p.entry(testWorker); entry.Load != nil && entry.Freshness != store.Fresh {
				t.Fatalf("a slow engine is %s", entry.Freshness)
			}
		}
		if _, _, d := p.entry(testWorker); d.PollInterval != testStale/2 || testutil.ToFloat64(p.poller.metrics.stretched) != 1 {
			t.Errorf("interval %s", d.PollInterval)
		}
		e.set(func(*engine) { late = 0 })
		after(10 * time.Second)
		if _, _, d := p.entry(testWorker); d.PollInterval != time.Second || testutil.ToFloat64(p.poller.metrics.stretched) != 0 {
			t.Errorf("interval %s", d.PollInterval)
		}
	})
}

// TestDeadEngineIsAskedRarely holds that a black hole is asked for ever, at
// twice its time-out, and one that answers again is soon asked as before.
func TestDeadEngineIsAskedRarely(t *testing.T) {
	inBubble(t, pages(map[string]string{"/v1/loads": loads(1)}), func(p *plane, e *engine) {
		e.set(func(e *engine) { e.black = true })
		after(time.Minute)
		if _, _, d := p.entry(testWorker); d.PollInterval != 2*DefaultTimeout {
			t.Errorf("interval %s", d.PollInterval)
		}
		before := p.polled(registry.ReasonConnectFailed)
		after(time.Minute)
		if n := p.polled(registry.ReasonConnectFailed) - before; n < 14 || n > 16 {
			t.Errorf("%d polls in a minute", n)
		}
		e.set(func(e *engine) { e.black = false })
		after(15 * time.Second)
		if entry, _, d := p.entry(testWorker); entry.Freshness != store.Fresh || d.PollInterval != time.Second {
			t.Errorf("%s, interval %s", entry.Freshness, d.PollInterval)
		}
	})
}

// captor hands the engines that a poller serves to a test, and what Serve
// returned.
type captor struct {
	*Poller
	engine chan *registry.Engine
	reason chan store.Reason
}

func (c *captor) Serve(ctx context.Context, e *registry.Engine) store.Reason {
	c.engine <- e
	reason := c.Poller.Serve(ctx, e)
	c.reason <- reason
	return reason
}

// TestSuperseded takes the worker from a poller, by a session of its own.
func TestSuperseded(t *testing.T) {
	c := &captor{engine: make(chan *registry.Engine, 9), reason: make(chan store.Reason, 9)}
	wrapped := func(r *registry.Options, _ *Options) {
		r.Dialers = map[store.Dialect]registry.Dialer{store.DialectPoll: c}
	}
	inBubbleWith(t, wrapped, func(p *plane) {
		c.Poller = p.poller
		p.net.add(testOrigin, pages(map[string]string{"/v1/loads": loads(1)}))
		p.run()
		after(3 * time.Second)
		load := &store.Load{Source: "other", Sequence: 1, Status: store.StatusUnreachable, LastError: "x", ReportUnixMs: -1, Received: p.poller.opts.Clock.Now()}
		other, err := (<-c.engine).Open("other", netip.MustParseAddrPort(testOrigin), load)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		select {
		case reason := <-c.reason:
			if reason != registry.ReasonSuperseded {
				t.Errorf("Serve returned %q", reason)
			}
		case <-time.After(10 * time.Millisecond):
			t.Error("Serve goes on without its binding")
		}
	})
}

// TestBug33OptionalMetricsAreNoErrors reads a vLLM without most of its names
// for an hour.
func TestBug33OptionalMetricsAreNoErrors(t *testing.T) {
	inBubble(t, pages(map[string]string{"/metrics": vllm(1, 1)}), func(p *plane, _ *engine) {
		after(time.Hour)
		if n := p.polled("ok"); n < 3590 {
			t.Errorf("%d good polls in an hour", n)
		}
		if n := testutil.CollectAndCount(p.poller.metrics.polls); n != 1 {
			t.Errorf("%d results of polls were counted, want only ok", n)
		}
		if n := testutil.CollectAndCount(p.poller.metrics.unusable); n != 0 {
			t.Errorf("%d kinds of unusable values", n)
		}
	})
}

// TestBug32HalfOfTheMetrics lists an engine with what it has.
func TestBug32HalfOfTheMetrics(t *testing.T) {
	inBubble(t, pages(map[string]string{"/metrics": "vllm:num_requests_running 2\nvllm:kv_cache_usage_perc NaN\n"}), func(p *plane, _ *engine) {
		after(3 * time.Second)
		entry, _, _ := p.entry(testWorker)
		if entry.Freshness != store.Fresh || entry.Ranks[0].Has(store.TokenUsage) || !entry.Partial {
			t.Errorf("%s, ranks %v", entry.Freshness, entry.Ranks)
		}
		if testutil.ToFloat64(p.poller.metrics.unusable.WithLabelValues(string(sample.ReasonNotFinite))) == 0 {
			t.Error("NaN was not counted")
		}
	})
}

// TestToken sends the token that is in force.
func TestToken(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pages(map[string]string{"/v1/loads": loads(1)})(w, r)
	}
	inBubbleWith(t, func(r *registry.Options, _ *Options) { r.TokenFile = token }, func(p *plane) {
		p.net.add(testOrigin, handle)
		p.run()
		after(3 * time.Second)
		if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh {
			t.Errorf("got %s", entry.Freshness)
		}
		if err := os.Remove(token); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		if p.polled(registry.ReasonCredential) == 0 {
			t.Error("a poll without its credential was not counted")
		}
	})
}

func TestOptions(t *testing.T) {
	clock := store.NewClock()
	for name, o := range map[string]Options{
		"Clock": {StaleAfter: 1}, "StaleAfter": {Clock: clock}, "Timeout": {Clock: clock, StaleAfter: 1, Timeout: -1},
		"MaxRanks": {Clock: clock, StaleAfter: 1, MaxRanks: ingest.HardMaxRanks + 1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	reg := prometheus.NewRegistry()
	good := Options{Clock: clock, StaleAfter: testStale, Registerer: reg}
	p, err := New(good)
	if err != nil || p.opts.Timeout != DefaultTimeout {
		t.Fatalf("got %+v, %v", p, err)
	}
	if _, err := New(good); err == nil {
		t.Error("the metrics were registered twice")
	}
}

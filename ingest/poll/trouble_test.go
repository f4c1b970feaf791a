package poll

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/pace"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const getLoad = `[{"dp_rank":0,"num_reqs":9,"num_waiting_reqs":0}]`

// record is a log that is read while it is written.
type record struct {
	mu sync.Mutex
	b  strings.Builder
}

func (r *record) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(line)
}

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// hanging answers as pages, and some paths never.
func hanging(bodies map[string]string, never ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(never, r.URL.Path) {
			<-time.After(2500 * time.Millisecond)
			return
		}
		pages(bodies)(w, r)
	}
}

// TestTwoPagesThatHang has an engine whose only good page comes behind two
// that never answer. Once it is read, it is read in time.
func TestTwoPagesThatHang(t *testing.T) {
	handle := hanging(map[string]string{"/get_load": getLoad}, "/v1/loads", "/prometheus/metrics")
	inBubble(t, handle, func(p *plane, e *engine) {
		after(20 * time.Second)
		e.forget()
		for range 120 {
			after(time.Second)
			if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh {
				t.Fatalf("got %s, %s", entry.Freshness, entry.Reason)
			}
		}
		asked := paths(e.forget())
		if !slices.Contains(asked, loadsQuery) || !slices.Contains(asked, "/prometheus/metrics") || len(asked) > 130 {
			t.Errorf("%d requests in two minutes: %q", len(asked), asked)
		}
	})
}

// TestOpenPagesAreAskedInSpareTime has a page that may be better and never
// answers. The known one keeps its interval.
func TestOpenPagesAreAskedInSpareTime(t *testing.T) {
	handle := hanging(map[string]string{"/metrics": sglang}, "/v1/loads")
	inBubble(t, handle, func(_ *plane, e *engine) {
		after(10 * time.Second)
		e.forget()
		after(5 * time.Minute)
		var last time.Time
		open := 0
		for _, r := range e.forget() {
			if r.path != "/metrics" {
				open++
				continue
			}
			if gap := r.at.Sub(last); !last.IsZero() && gap > 1100*time.Millisecond {
				t.Errorf("%s between two polls", gap)
			}
			last = r.at
		}
		if open < 8 || open > 11 {
			t.Errorf("%d requests for the other page in five minutes", open)
		}
	})
}

// TestOnlyAbsenceParks has an engine whose every answer is of no use, and may
// change any time.
func TestOnlyAbsenceParks(t *testing.T) {
	proc := &process{map[string]string{"/v1/loads": html, "/metrics": "status 302", "/prometheus/metrics": "status 400", "/get_load": "{"}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(10 * time.Second)
		e.forget()
		after(time.Minute)
		if n := len(e.forget()); n < 4*11 || n > 4*13 {
			t.Errorf("%d requests in a minute, want four each 5 s", n)
		}
		p.wantFailing(sample.ReasonHTMLPage)
		if _, _, d := p.entry(testWorker); d.Registration != string(registry.StateFailing) {
			t.Errorf("state %s", d.Registration)
		}
		e.set(func(*engine) { proc.bodies["/v1/loads"] = loads(1) })
		after(5500 * time.Millisecond)
		if entry, _, d := p.entry(testWorker); entry.Freshness != store.Fresh || d.PollInterval != time.Second {
			t.Errorf("got %s, interval %s", entry.Freshness, d.PollInterval)
		}
	})
}

// TestTimeoutOfTheKnownPageAsksNoOther lets the page hang for a while.
func TestTimeoutOfTheKnownPageAsksNoOther(t *testing.T) {
	late := false
	handle := func(w http.ResponseWriter, r *http.Request) {
		if late {
			<-time.After(2500 * time.Millisecond)
			return
		}
		pages(map[string]string{"/metrics": sglang})(w, r)
	}
	inBubble(t, handle, func(p *plane, e *engine) {
		after(3 * time.Second)
		e.set(func(*engine) { late = true })
		e.forget()
		after(20 * time.Second)
		if asked := slices.Compact(paths(e.forget())); !slices.Equal(asked, []string{"/metrics"}) || p.polled(survey.ReasonTimeout) == 0 {
			t.Errorf("asked for %q, %d time-outs", asked, p.polled(survey.ReasonTimeout))
		}
	})
}

// TestBug10PanicOfAPollIsSurvived panics where the engine is dialled. The
// stack is logged once a minute.
func TestBug10PanicOfAPollIsSurvived(t *testing.T) {
	var lines record
	var calm atomic.Bool
	inBubbleWith(t, func(_ *registry.Options, o *Options) {
		dial := o.Dial
		o.Logger = slog.New(slog.NewTextHandler(&lines, nil))
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if !calm.Load() {
				panic("boom")
			}
			return dial(ctx, network, addr)
		}
	}, func(p *plane) {
		p.net.add(testOrigin, pages(map[string]string{"/v1/loads": loads(1)}))
		p.run()
		after(30 * time.Second)
		p.wantFailing(survey.ReasonReaderPanic)
		if n := strings.Count(lines.text(), "boom"); n != 1 || testutil.ToFloat64(p.poller.metrics.panics) < 6 || !strings.Contains(lines.text(), "goroutine") {
			t.Errorf("%d lines for %v panics", n, testutil.ToFloat64(p.poller.metrics.panics))
		}
		calm.Store(true)
		after(6 * time.Second)
		if entry, _, _ := p.entry(testWorker); entry.Freshness != store.Fresh {
			t.Errorf("got %s", entry.Freshness)
		}
	})
}

// TestBug10PanicOfADeliveryIsSurvived has no registry to deliver to.
func TestBug10PanicOfADeliveryIsSurvived(t *testing.T) {
	inBubbleWith(t, func(*registry.Options, *Options) {}, func(p *plane) {
		p.run()
		l := &loop{poller: p.poller, memory: &memory{}, engine: &registry.Engine{}}
		rank := ingest.RankReport{}
		rank.Rank.SetCount(store.NumRunningReqs, 1)
		read := &reader.Result{
			Page: &survey.Page{Answer: &egress.Answer{}, Reading: &sample.Reading{}}, Source: "a",
			Report: &ingest.Report{Source: "a", Status: int32(store.StatusHealthy), Ranks: []ingest.RankReport{rank}},
		}
		if over := l.take(read); over != "" || read.Page.Reason != survey.ReasonReaderPanic || testutil.ToFloat64(p.poller.metrics.panics) != 1 {
			t.Errorf("over %q, page %q, %v panics", over, read.Page.Reason, testutil.ToFloat64(p.poller.metrics.panics))
		}
	})
}

// TestBug03VanishedFieldIsTold: a process that had a field and has it no more
// is told of; another process begins anew.
func TestBug03VanishedFieldIsTold(t *testing.T) {
	var lines record
	whole := vllm(100, 5)
	renamed := strings.ReplaceAll(whole, "vllm:kv_cache_usage_perc", "vllm:kv_cache_used_share")
	proc := &process{map[string]string{"/metrics": whole}}
	logging := func(_ *registry.Options, o *Options) { o.Logger = slog.New(slog.NewTextHandler(&lines, nil)) }
	inBubbleWith(t, logging, func(p *plane) {
		e := p.net.add(testOrigin, proc.handle)
		p.run()
		after(5 * time.Second)
		if n := strings.Count(lines.text(), "poll fields matched"); n != 1 || !strings.Contains(lines.text(), "token_usage (vllm:kv_cache_usage_perc)") {
			t.Errorf("%d lines of names:\n%s", n, lines.text())
		}
		e.set(func(*engine) { proc.bodies["/metrics"] = renamed })
		after(10 * time.Second)
		vanished := p.poller.metrics.vanished.WithLabelValues("token_usage")
		if n := testutil.ToFloat64(vanished); n != 1 || strings.Count(lines.text(), "poll fields vanished") != 1 {
			t.Errorf("counted %v times, log:\n%s", n, lines.text())
		}
		entry, _, d := p.entry(testWorker)
		if entry.Freshness != store.Fresh || d.Registration != string(registry.StatePolling) ||
			d.RegistrationError != "fields vanished from the page: token_usage (vllm:kv_cache_usage_perc)" {
			t.Errorf("%s, diagnostics %+v", entry.Freshness, d)
		}
		e.set(func(*engine) { proc.bodies["/metrics"] = strings.Replace(renamed, "seconds 100", "seconds 200", 1) })
		after(5 * time.Second)
		if _, _, d = p.entry(testWorker); d.RegistrationError != "" || testutil.ToFloat64(vanished) != 1 {
			t.Errorf("another process: %q, counted %v times", d.RegistrationError, testutil.ToFloat64(vanished))
		}
	})
}

// TestAnotherProcessBehindTheAddress has a page that does not name its process.
func TestAnotherProcessBehindTheAddress(t *testing.T) {
	elsewhere := netip.MustParseAddrPort("10.0.0.2:30000")
	for name, c := range map[string]struct {
		change, back func(e *engine)
		away         time.Duration
		other        bool
	}{
		"away for long":    {func(e *engine) { e.black = true }, func(e *engine) { e.black = false }, 10 * time.Second, true},
		"away for a while": {func(e *engine) { e.black = true }, func(e *engine) { e.black = false }, 1200 * time.Millisecond, false},
		"another address":  {func(e *engine) { e.peer = elsewhere }, func(*engine) {}, time.Second, true},
		"another port":     {func(e *engine) { e.peer = netip.MustParseAddrPort("10.0.0.1:9") }, func(*engine) {}, time.Second, false},
		"connection ended": {func(*engine) {}, func(*engine) {}, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, pages(map[string]string{"/v1/loads": loads(1)}), func(p *plane, e *engine) {
				after(40 * time.Second)
				first := p.source()
				e.set(c.change)
				p.net.cut()
				after(c.away)
				e.set(c.back)
				for range 2 { // and stays
					after(15 * time.Second)
					entry, _, _ := p.entry(testWorker)
					if other := p.source() != first; other != c.other || entry.Freshness != store.Fresh {
						t.Errorf("%s, another source %v", entry.Freshness, other)
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

// TestAddressesByTurns has a name that leads to two addresses, and an engine
// that ends each connection.
func TestAddressesByTurns(t *testing.T) {
	n := 0
	handle := func(w http.ResponseWriter, r *http.Request) { pages(map[string]string{"/v1/loads": loads(1)})(w, r) }
	inBubble(t, handle, func(p *plane, e *engine) {
		for range 60 {
			n++
			e.set(func(e *engine) { e.peer = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + n%2)}), 1) })
			p.net.cut()
			after(time.Second)
		}
		entry, _, _ := p.entry(testWorker)
		if st, _, _ := p.store.Inspect(entry.Row); entry.Freshness != store.Fresh || len(st.Retired) > 3 {
			t.Errorf("%s, %d instances in a minute", entry.Freshness, len(st.Retired))
		}
	})
}

// TestTwoRestartsAreLookedAtOnce within ten seconds.
func TestTwoRestartsAreLookedAtOnce(t *testing.T) {
	proc := &process{map[string]string{"/metrics": vllm(100, 5)}}
	inBubble(t, proc.handle, func(p *plane, e *engine) {
		after(5 * time.Second)
		e.forget()
		for i := range 2 {
			e.set(func(*engine) { proc.bodies["/metrics"] = vllm(float64(200+i), 6) })
			after(3 * time.Second)
		}
		searches := func() int {
			return strings.Count(strings.Join(paths(e.forget()), " "), loadsQuery)
		}
		if n := searches(); n != 1 {
			t.Errorf("%d searches at once", n)
		}
		after(10 * time.Second)
		entry, _, _ := p.entry(testWorker)
		if st, _, _ := p.store.Inspect(entry.Row); searches() != 1 || len(st.Retired) != 2 {
			t.Errorf("not searched again later, or retired %q", st.Retired)
		}
	})
}

// TestFirstPollsAreSpread begins 100 workers at once.
func TestFirstPollsAreSpread(t *testing.T) {
	const all = 100
	address := func(i int) string { return fmt.Sprintf("10.0.0.%d:30000", i+1) }
	listed := func(r *registry.Options, _ *Options) {
		r.Workers = nil
		for i := range all {
			r.Workers = append(r.Workers, "http://"+address(i)+",dialect=poll")
		}
	}
	inBubbleWith(t, listed, func(p *plane) {
		var engines []*engine
		for i := range all {
			engines = append(engines, p.net.add(address(i), pages(map[string]string{"/v1/loads": loads(1)})))
		}
		began := time.Now()
		p.run()
		after(1500 * time.Millisecond)
		var quarters [8]int
		for _, e := range engines {
			quarters[e.forget()[0].at.Sub(began)/(time.Second/4)]++
		}
		for i, n := range quarters[:4] {
			if n < 5 {
				t.Errorf("%d of 100 in quarter %d of the first interval", n, i)
			}
		}
	})
}

// TestSlowEngineIsLeftAlone between an answer and the next request.
func TestSlowEngineIsLeftAlone(t *testing.T) {
	var answered time.Time
	least := time.Hour
	handle := func(w http.ResponseWriter, r *http.Request) {
		if !answered.IsZero() {
			least = min(least, time.Since(answered))
		}
		<-time.After(1400 * time.Millisecond)
		answered = time.Now()
		pages(map[string]string{"/v1/loads": loads(1)})(w, r)
	}
	inBubble(t, handle, func(*plane, *engine) { after(time.Minute) })
	if least < testStale/2/4 {
		t.Errorf("asked again after %s", least)
	}
}

// TestBug39ClockOfTheEngine is an hour off. The age is counted from the
// receipt.
func TestBug39ClockOfTheEngine(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		handle := func(w http.ResponseWriter, r *http.Request) {
			at := time.Now().Add(off).UTC().Format(time.RFC3339)
			page := strings.Replace(loads(1), "2026-08-01T00:00:00Z", at, 1)
			pages(map[string]string{"/v1/loads": page})(w, r)
		}
		inBubble(t, handle, func(p *plane, _ *engine) {
			after(5 * time.Second)
			entry, live, _ := p.entry(testWorker)
			skew := time.Duration(live.ReportUnixMs-live.ReceivedUnixMs) * time.Millisecond
			if entry.Freshness != store.Fresh || (skew-off).Abs() > time.Second {
				t.Errorf("%s off: %s, skew %s", off, entry.Freshness, skew)
			}
			if age := p.poller.opts.Clock.Now().Sub(live.Received); age < 0 || age > 1100*time.Millisecond {
				t.Errorf("%s off: received %s ago", off, age)
			}
			p.net.cut()
		})
	}
}

// asker is a prober that knows facts, and one way to read load.
type asker struct {
	mu    sync.Mutex
	facts registry.Facts
	asked int
}

func (a *asker) Facts(context.Context, registry.Target) registry.Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return registry.Finding{Facts: a.facts, Complete: true}
}

func (a *asker) Probe(ctx context.Context, t registry.Target) registry.Finding {
	f := a.Facts(ctx, t)
	f.Offers = []registry.Offer{{Dialect: store.DialectPoll, Verdict: registry.VerdictOffered, Detail: "asked"}}
	return f
}

func (a *asker) set(f registry.Facts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.facts = f
}

// TestAnotherEngineBehindTheAddress comes while a proxy answers 502.
func TestAnotherEngineBehindTheAddress(t *testing.T) {
	for name, c := range map[string]struct {
		page    string
		version string
		why     string
		other   bool
	}{
		"the same":        {vllm(0, 5), "3", "GET /metrics: vllm /metrics, 1 rank", false},
		"another version": {vllm(0, 5), "4", "GET /metrics: vllm /metrics, 1 rank", true},
		"another family":  {tgi, "3", "GET /metrics: tgi /metrics, 1 rank", true},
	} {
		t.Run(name, func(t *testing.T) {
			ask := &asker{facts: registry.Facts{Version: "3", CapacityTokens: 100}}
			proc := &process{map[string]string{"/metrics": strings.Replace(vllm(0, 5), "process_start_time_seconds 0", "x 0", 1)}}
			inBubbleWith(t, func(r *registry.Options, _ *Options) { r.Workers, r.Prober = []string{testWorker}, ask }, func(p *plane) {
				e := p.net.add(testOrigin, proc.handle)
				p.run()
				after(60 * time.Second)
				first := p.source()
				e.set(func(*engine) { proc.bodies = map[string]string{"/metrics": "status 502", "/v1/loads": "status 502"} })
				after(4 * time.Second)
				page := strings.Replace(c.page, "process_start_time_seconds 0", "x 0", 1)
				e.set(func(*engine) { proc.bodies = map[string]string{"/metrics": page} })
				ask.set(registry.Facts{Version: c.version, CapacityTokens: 200})
				after(15 * time.Second)
				entry, _, d := p.entry(testWorker)
				if other := p.source() != first; other != c.other || entry.Freshness != store.Fresh {
					t.Errorf("%s, another source %v", entry.Freshness, other)
				}
				if d.DialectWhy != "poll: offered ("+c.why+")" || d.EngineVersion != c.version {
					t.Errorf("version %s, why %q", d.EngineVersion, d.DialectWhy)
				}
				st, _, _ := p.store.Inspect(entry.Row)
				if len(st.Retired) > 1 {
					t.Errorf("retired %q", st.Retired)
				}
			})
		})
	}
}

// TestSlowEngineIsHeardInAuto has an engine that takes 1.2 s for each answer.
// Its pages are asked for once; each trial goes on where the last one ended.
func TestSlowEngineIsHeardInAuto(t *testing.T) {
	var lines record
	page := pages(map[string]string{"/metrics": vllm(1, 5)})
	handle := func(w http.ResponseWriter, r *http.Request) {
		<-time.After(1200 * time.Millisecond)
		page(w, r)
	}
	inBubbleWith(t, func(r *registry.Options, o *Options) {
		r.Workers, r.Prober = []string{testWorker}, &asker{}
		o.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	}, func(p *plane) {
		p.net.add(testOrigin, handle)
		p.run()
		after(10 * time.Second)
		for range 60 {
			after(time.Second)
			if entry, live, _ := p.entry(testWorker); entry.Load == nil || p.poller.opts.Clock.Now().Sub(live.Received) > testStale {
				t.Fatalf("got %s, %s", entry.Freshness, entry.Reason)
			}
		}
		if n := testutil.ToFloat64(p.poller.metrics.surveys); n != 1 {
			t.Errorf("%v surveys", n)
		}
		if n := strings.Count(lines.text(), "poll endpoint chosen"); n != 1 {
			t.Errorf("%d lines of the endpoint", n)
		}
	})
}

// TestTrialsKeepWhatIsKnown has an engine that is read and whose reports are
// refused, so that every trial is in vain.
func TestTrialsKeepWhatIsKnown(t *testing.T) {
	var lines record
	inBubbleWith(t, func(r *registry.Options, o *Options) {
		r.Workers, r.Prober = []string{testWorker}, &asker{}
		o.MaxRanks, o.Logger = 1, slog.New(slog.NewTextHandler(&lines, nil))
	}, func(p *plane) {
		p.net.add(testOrigin, pages(map[string]string{"/metrics": vllm(1, 5, 6)}))
		p.run()
		after(3 * time.Minute)
		if n := testutil.ToFloat64(p.poller.metrics.surveys); n != 1 {
			t.Errorf("%v surveys", n)
		}
		if n := strings.Count(lines.text(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, lines.text())
		}
	})
}

// TestShorterIntervalIsTakenUp has a stretched poll that is due in a while.
func TestShorterIntervalIsTakenUp(t *testing.T) {
	inBubbleWith(t, func(*registry.Options, *Options) {}, func(p *plane) {
		p.run()
		now := time.Now()
		m := &memory{wanted: 50 * time.Second, due: now.Add(32 * time.Second), pace: pace.Pace{Interval: 100 * time.Second}}
		l := &loop{poller: p.poller, memory: m, target: registry.Target{Interval: 500 * time.Millisecond}}
		l.stretch(true)
		l.hurry()
		if l.due.Sub(now) > 500*time.Millisecond || l.pace.Stretched(l.wanted) || l.stretched {
			t.Errorf("due in %s, interval %s", l.due.Sub(now), l.pace.Interval)
		}
		before := l.due
		l.target.Interval = time.Hour
		if l.hurry(); l.due.After(before) && l.due.Sub(now) > time.Hour {
			t.Errorf("due in %s", l.due.Sub(now))
		}
	})
}

package reader

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

func TestRead(t *testing.T) {
	p := serving("/v1/loads", loads(3, 4))
	inBubble(t, p.handle, func(b *bench) {
		first := *b.good()
		if !first.Found || first.Changed || first.Useless || first.Over != "" || first.Tally.Surveys != 1 || first.Tally.Bytes == 0 {
			t.Errorf("got %+v", first)
		}
		if !strings.HasPrefix(first.Source, "test-") || first.Source != first.Report.Source || len(first.Report.Ranks) != 2 {
			t.Errorf("source %q, report %+v", first.Source, first.Report)
		}
		if first.Detail != "GET /v1/loads?include=core,disagg,queues: sglang /v1/loads, 2 ranks" {
			t.Errorf("detail %q", first.Detail)
		}
		p.put("/v1/loads", loads(5, 6))
		for range 5 {
			res := b.good()
			if running(res) != 5 || res.Source != first.Source || res.Tally.Surveys != 0 || res.Report.Received < res.Page.Began {
				t.Errorf("got %+v", res)
			}
		}
		if b.e.dials != 1 || b.e.most != 1 || len(b.e.forget()) != 6 {
			t.Errorf("%d connections, %d requests at once", b.e.dials, b.e.most)
		}
	})
}

// failures say what comes of an engine that was never read.
var failures = map[string]struct {
	pages   map[string]string
	down    bool
	reason  store.Reason
	over    store.Reason
	useless bool
	found   bool
}{
	"refuses connections": {down: true, reason: registry.ReasonConnectFailed},
	"has no page":         {reason: registry.ReasonUnsupported, over: registry.ReasonUnsupported},
	"wants a credential":  {pages: map[string]string{"/v1/loads": "status 401"}, reason: registry.ReasonAuth, over: registry.ReasonAuth},
	"bug 70: no loads":    {pages: map[string]string{"/v1/loads": loads()}, reason: sample.ReasonNoData},
	"HTML":                {pages: map[string]string{"/v1/loads": "<!DOCTYPE html>"}, reason: sample.ReasonHTMLPage, useless: true},
	"is not ready": {
		pages:  map[string]string{"/metrics": vllm(1, 0), "/health": "status 503"},
		reason: ReasonNotReady, found: true,
	},
}

func TestFailures(t *testing.T) {
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			p := &process{bodies: c.pages}
			inBubble(t, p.handle, func(b *bench) {
				b.e.down = c.down
				for range 3 {
					res := b.read()
					if res.Page.Reason != c.reason || res.Over != c.over || res.Useless != c.useless || res.Found != c.found || res.Report != nil {
						t.Errorf("got %q, over %q, useless %v, found %v, report %v", res.Page.Reason, res.Over, res.Useless, res.Found, res.Report)
					}
					if (res.Source != "") != c.found || res.Changed {
						t.Errorf("source %q, changed %v", res.Source, res.Changed)
					}
				}
			})
		})
	}
}

// TestReasonsAreProvoked holds that every reason of this package is one of the
// failures.
func TestReasonsAreProvoked(t *testing.T) {
	provoked := map[store.Reason]bool{}
	for _, f := range failures {
		provoked[f.reason] = true
	}
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(source)) {
		if _, word, ok := strings.Cut(line, "store.Reason = "); ok {
			n++
			if !provoked[store.Reason(strings.Trim(word, "\"\n"))] {
				t.Errorf("%s is not provoked", word)
			}
		}
	}
	if n == 0 {
		t.Error("no reasons found")
	}
}

// TestAnotherProcess says when a page counts as that of another process.
func TestAnotherProcess(t *testing.T) {
	away := func(b *bench) {
		b.e.set(func(e *engine) { e.down = true })
		b.e.cut()
		b.read()
		b.e.set(func(e *engine) { e.down = false })
	}
	for name, c := range map[string]struct {
		path, body string
		do         func(b *bench, p *process)
		changed    bool
	}{
		"the same":       {"/metrics", vllm(100, 1), func(*bench, *process) {}, false},
		"start time":     {"/metrics", vllm(100, 1), func(_ *bench, p *process) { p.put("/metrics", vllm(200, 1)) }, true},
		"refusals":       {"/v1/loads", loads(1), func(b *bench, _ *process) { away(b) }, true},
		"named process":  {"/metrics", vllm(100, 1), func(b *bench, _ *process) { away(b) }, false},
		"ended idle":     {"/v1/loads", loads(1), func(b *bench, _ *process) { b.e.cut() }, false},
		"another family": {"/metrics", vllm(0, 1), func(_ *bench, p *process) { p.put("/metrics", "tgi_batch_current_size 3\ntgi_queue_size 0\n") }, true},
		"another address": {"/v1/loads", loads(1), func(b *bench, _ *process) {
			b.e.set(func(e *engine) { e.peer = netip.MustParseAddrPort("10.0.0.2:1") })
			b.e.cut()
		}, true},
		"another version": {"/v1/loads", loads(1), func(b *bench, _ *process) { b.target.Facts.Version = "2" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := serving(c.path, c.body)
			inBubble(t, p.handle, func(b *bench) {
				b.target.Facts.Version = "1"
				first := b.good().Source
				after(askAgain)
				b.good()
				c.do(b, p)
				changed := 0
				for range 4 {
					if res := b.read(); res.Changed {
						changed++
					}
				}
				if got := b.good().Source != first; got != c.changed || (changed == 1) != c.changed || changed > 1 {
					t.Errorf("another source %v, told %d times", got, changed)
				}
			})
		})
	}
}

func TestForgetTellsNothing(t *testing.T) {
	inBubble(t, serving("/v1/loads", loads(1)).handle, func(b *bench) {
		first := b.good().Source
		b.Forget()
		if res := b.good(); res.Source == first || res.Changed {
			t.Errorf("source %q, before %q, changed %v", res.Source, first, res.Changed)
		}
	})
}

// TestCloseKeepsWhatIsKnown and Reconsider has all pages asked for again.
func TestCloseKeepsWhatIsKnown(t *testing.T) {
	inBubble(t, serving("/metrics", vllm(1, 2)).handle, func(b *bench) {
		first := b.good().Source
		b.Close()
		b.e.forget()
		if res := b.good(); res.Source != first || !slices.Equal(b.e.forget(), []string{"/metrics"}) || b.e.dials != 2 {
			t.Errorf("source %q, before %q, %d connections", res.Source, first, b.e.dials)
		}
		b.Reconsider()
		if res := b.good(); res.Source != first || count(b.e.forget(), "/v1/loads") != 1 {
			t.Errorf("the pages were not looked at anew, or by %q", res.Source)
		}
	})
}

func TestAsleep(t *testing.T) {
	page := vllm(1, 0) + "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"} 1\n"
	inBubble(t, serving("/metrics", page).handle, func(b *bench) {
		r := b.good().Report
		if r.Status != int32(store.StatusUnreachable) || r.Ranks != nil || r.LastError != "the engine sleeps: weights_offloaded" {
			t.Errorf("got %+v", r)
		}
	})
}

// TestBug45AlternatingProcesses reads two processes by turns.
func TestBug45AlternatingProcesses(t *testing.T) {
	p := serving("/metrics", "")
	inBubble(t, p.handle, func(b *bench) {
		changed := 0
		var last *Result
		for i := range 30 {
			p.put("/metrics", vllm(100+i%2, 5))
			if last = b.good(); last.Changed {
				changed++
			}
		}
		if changed > 1 || last.Page.Reading.Flags&store.FlagUnstableSource == 0 {
			t.Errorf("%d changes, flags %v", changed, last.Page.Reading.Flags.Words())
		}
	})
}

// TestBug67TroubleIsNotAbsence has the best page fail for a while; another one
// is read meanwhile. A page that is absent is not asked for again.
func TestBug67TroubleIsNotAbsence(t *testing.T) {
	for _, trouble := range []string{"status 503", "late", "status 404"} {
		t.Run(trouble, func(t *testing.T) {
			p := serving("/metrics", "sglang:num_running_reqs 4\nsglang:num_queue_reqs 0\n")
			p.put("/v1/loads", trouble)
			inBubble(t, p.handle, func(b *bench) {
				b.good()
				p.put("/v1/loads", loads(1, 2))
				b.e.forget()
				var last *Result
				for range 40 {
					last = b.good()
					if counts := b.Improve(b.t.Context(), last, 500*time.Millisecond); counts.Surveys > 1 {
						t.Errorf("%d searches at once", counts.Surveys)
					}
				}
				absent := trouble == "status 404"
				if asked := count(b.e.forget(), "/v1/loads"); (asked == 0) != absent || (len(last.Report.Ranks) == 2) == absent {
					t.Errorf("asked %d times, %d ranks", asked, len(last.Report.Ranks))
				}
				// An engine works on for a while after a request was given up.
				if trouble != "late" && b.e.most != 1 {
					t.Errorf("%d requests at once", b.e.most)
				}
			})
		})
	}
}

// TestImproveIsRare has a better page that goes on failing.
func TestImproveIsRare(t *testing.T) {
	p := serving("/metrics", vllm(1, 2))
	p.put("/v1/loads", "status 503")
	inBubble(t, p.handle, func(b *bench) {
		b.good()
		b.e.forget()
		for range 95 {
			b.Improve(b.t.Context(), b.good(), 500*time.Millisecond)
		}
		if n := count(b.e.forget(), "/v1/loads"); n != 3 {
			t.Errorf("asked %d times in 95 s", n)
		}
	})
}

// TestImproveIsBounded has the better page answer late.
func TestImproveIsBounded(t *testing.T) {
	p := serving("/metrics", vllm(1, 2))
	p.put("/v1/loads", "late")
	inBubble(t, p.handle, func(b *bench) {
		b.good()
		after(askAgain)
		res := b.good()
		began := time.Now()
		if b.Improve(b.t.Context(), res, 0); time.Since(began) != 0 {
			t.Error("without time it searched")
		}
		b.Improve(b.t.Context(), res, 300*time.Millisecond)
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// TestOneAuthIsNotEnough of an engine that was read.
func TestOneAuthIsNotEnough(t *testing.T) {
	p := serving("/v1/loads", loads(1))
	inBubble(t, p.handle, func(b *bench) {
		b.good()
		p.put("/v1/loads", "status 401")
		if over := b.read().Over; over != "" {
			t.Errorf("one answer: %q", over)
		}
		if over := b.read().Over; over != registry.ReasonAuth {
			t.Errorf("two answers: %q", over)
		}
	})
}

// TestBug10PanicOfAReaderIsSurvived begins with a sampler that is in disorder.
// The engine is read by a new one.
func TestBug10PanicOfAReaderIsSurvived(t *testing.T) {
	inBubble(t, serving("/v1/loads", loads(1)).handle, func(b *bench) {
		b.known, b.chosen = survey.Choice{Endpoint: sample.Endpoints()[0], Sampler: new(sample.Sampler)}, true
		res := b.read()
		if len(res.Tally.Panics) != 1 || res.Page.Reason != survey.ReasonReaderPanic || !strings.Contains(res.Tally.Panics[0].Why.Stack, "goroutine") {
			t.Fatalf("got %q, %+v", res.Page.Reason, res.Tally.Panics)
		}
		if n := len(b.good().Tally.Panics); n != 0 {
			t.Errorf("%d panics more", n)
		}
	})
}

// TestBug10PanicOfADialIsSurvived also holds that the line is left.
func TestBug10PanicOfADialIsSurvived(t *testing.T) {
	inBubble(t, serving("/v1/loads", loads(1)).handle, func(b *bench) {
		b.target.Line = egress.NewLine()
		b.opts.Dial = func(context.Context, string, string) (net.Conn, error) { panic("boom") }
		for range 2 {
			if res := b.read(); res.Page.Reason != survey.ReasonReaderPanic || len(res.Tally.Panics) != 1 || res.Over != "" {
				t.Errorf("got %q, %d panics", res.Page.Reason, len(res.Tally.Panics))
			}
		}
		b.opts.Dial = b.e.dial
		b.good()
	})
}

// TestCredentialsOfAnotherPath takes over the path of a CA file that changed.
func TestCredentialsOfAnotherPath(t *testing.T) {
	inBubble(t, serving("/v1/loads", loads(1)).handle, func(b *bench) {
		b.target.CAFile = "/nowhere"
		for _, want := range []store.Reason{registry.ReasonCredential, registry.ReasonCredential, ""} {
			before := b.client
			if want == "" {
				b.target.CAFile = ""
			}
			if res := b.read(); res.Page.Reason != want {
				t.Errorf("with %q: reason %q, want %q", b.target.CAFile, res.Page.Reason, want)
			}
			if before == b.client && want == "" {
				t.Error("the client of another path is used")
			}
		}
	})
}

// TestEnds returns nothing once ctx ended, before and while the engine is
// asked.
func TestEnds(t *testing.T) {
	p := serving("/v1/loads", loads(1))
	inBubble(t, p.handle, func(b *bench) {
		ended, stop := context.WithCancel(b.t.Context())
		stop()
		if res := b.Read(ended, b.target); res != nil {
			t.Errorf("got %+v", res)
		}
		b.good()
		p.put("/v1/loads", "late")
		short, cancel := context.WithTimeout(b.t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		if res := b.Read(short, b.target); res != nil || time.Since(began) != 100*time.Millisecond {
			t.Errorf("got %+v after %s", res, time.Since(began))
		}
	})
}

// TestLineIsJoined has somebody else ask the engine.
func TestLineIsJoined(t *testing.T) {
	inBubble(t, serving("/v1/loads", loads(1)).handle, func(b *bench) {
		b.target.Line = egress.NewLine()
		leave, err := b.target.Line.Join(b.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(5*time.Second, leave)
		began := time.Now()
		if res := b.good(); res.Began.Sub(began) != 5*time.Second {
			t.Errorf("began after %s", res.Began.Sub(began))
		}
	})
}

// TestResultSharesNothingWithThePage overwrites the buffer of the page.
func TestResultSharesNothingWithThePage(t *testing.T) {
	page := vllm(1, 7) + "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} 1\n"
	inBubble(t, serving("/metrics", page).handle, func(b *bench) {
		b.good()
		buffer := bytes.Repeat([]byte("x"), 1<<16)
		b.opts.Buffers.give(buffer)
		res := b.good()
		full := buffer[:cap(buffer)]
		for i := range full {
			full[i] = '#'
		}
		r := res.Page.Reading
		if !slices.Equal(r.Models, []string{"m"}) || !strings.HasSuffix(res.Report.LastError, "discard_all") || res.Page.Answer.Body != nil {
			t.Errorf("models %q, error %q", r.Models, res.Report.LastError)
		}
		for _, m := range r.Matches {
			if strings.Contains(m.Name, "#") {
				t.Errorf("field %d is found by %q", m.Field, m.Name)
			}
		}
	})
}

func TestBuffers(t *testing.T) {
	var b Buffers
	b.give(nil)
	b.give(make([]byte, 0, maxKeptBuffer+1))
	if got := b.take(); got != nil {
		t.Errorf("a buffer of %d bytes was kept", cap(got))
	}
}

// TestTallyOfFields tells of values that are not usable, and of a field that
// is there no more.
func TestTallyOfFields(t *testing.T) {
	whole := vllm(1, 2) + "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n"
	p := serving("/metrics", whole)
	inBubble(t, p.handle, func(b *bench) {
		b.good()
		p.put("/metrics", strings.Replace(whole, "perc{engine=\"0\",model_name=\"m\"} 0.5", "perc{engine=\"0\",model_name=\"m\"} NaN", 1))
		if n := b.good().Tally.Unusable[sample.ReasonNotFinite]; n != 1 {
			t.Errorf("%d values are not finite", n)
		}
		p.put("/metrics", vllm(1, 2))
		var vanished []store.Field
		for range 4 {
			vanished = append(vanished, b.good().Tally.Vanished...)
		}
		if !slices.Equal(vanished, []store.Field{store.TokenUsage}) || b.result.Gone != "token_usage (vllm:kv_cache_usage_perc)" {
			t.Errorf("vanished %v, gone %q", vanished, b.result.Gone)
		}
	})
}

// TestDerivedNames has two readers of one process name it alike where its page
// says when it started, and another process or engine otherwise.
func TestDerivedNames(t *testing.T) {
	for _, c := range []struct {
		name       string
		path, page string
		url        string
		same       bool
	}{
		{"the same process", "/metrics", vllm(1, 2), testURL, true},
		{"another process", "/metrics", vllm(2, 2), testURL, false},
		{"another engine", "/metrics", vllm(1, 2), "http://10.0.0.2:30000", false},
		{"a page that does not tell", "/v1/loads", loads(1), testURL, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var first string
			inBubble(t, serving("/metrics", vllm(1, 2)).handle, func(b *bench) {
				b.opts.Derived = true
				first = b.good().Source
				if l := b.Life(); l != (Life{first, 1}) || !strings.HasPrefix(first, "test-") {
					t.Errorf("life %+v of %q", l, first)
				}
				b.Forget()
				if l := b.Life(); l != (Life{}) {
					t.Errorf("life %+v", l)
				}
				if again := b.good().Source; again == first {
					t.Error("what was forgotten has the same name")
				}
			})
			inBubble(t, serving(c.path, c.page).handle, func(b *bench) {
				b.opts.Derived, b.target.URL = true, c.url
				if got := b.good().Source; (got == first) != c.same {
					t.Errorf("%q, before %q", got, first)
				}
			})
		})
	}
}

package survey

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// ask surveys an engine in memory.
func ask(t *testing.T, bodies map[string]string, behind string) (*Finding, []string) {
	t.Helper()
	e := &engine{bodies: bodies}
	s := e.survey()
	defer s.Client.Close()
	s.Behind = behind
	return s.Run(t.Context()), e.forget()
}

const loadsQuery = "/v1/loads?include=core,disagg,queues"

func TestSurvey(t *testing.T) {
	all := []string{loadsQuery, prometheusPath, metricsPath, "/get_load"}
	noMetrics := []string{loadsQuery, prometheusPath, "/get_load"}
	for name, c := range map[string]struct {
		bodies   map[string]string
		asked    []string
		chosen   string
		reason   store.Reason
		complete bool
	}{
		"nothing":                {nil, all, "", registry.ReasonUnsupported, true},
		"loads ends the search":  {map[string]string{"/v1/loads": loads(1), "/metrics": vllm(1, 2)}, all[:1], "sglang /v1/loads", "", true},
		"vllm":                   {map[string]string{"/metrics": vllm(1, 2)}, all, "vllm /metrics", "", true},
		"tgi":                    {map[string]string{"/metrics": tgi}, all, "tgi /metrics", "", true},
		"llama.cpp":              {map[string]string{"/metrics": llama}, all, "llama.cpp /metrics", "", true},
		"most ranks":             {map[string]string{"/metrics": sglang, "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0},{"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0}]`}, all, "sglang /get_load", "", true},
		"most fields":            {map[string]string{"/metrics": sglang + "sglang:num_used_tokens 1\nsglang:max_total_num_tokens 9\nsglang:token_usage 0.1\n", "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`}, all, "sglang /metrics", "", true},
		"most fields last":       {map[string]string{"/metrics": "sglang:num_running_reqs 4\n", "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`}, all, "sglang /get_load", "", true},
		"first of the table":     {map[string]string{"/metrics": sglang, "/get_load": `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`}, all, "sglang /metrics", "", true},
		"queue behind its page":  {map[string]string{"/prometheus/metrics": trtllm, "/metrics": iterations}, noMetrics, "tensorrt-llm /prometheus/metrics", "", true},
		"queue without its page": {map[string]string{"/metrics": iterations}, all, "tensorrt-llm /metrics", "", true},
		"queue, page not ready":  {map[string]string{"/prometheus/metrics": "status 503", "/metrics": iterations}, noMetrics, "", registry.ReasonEngineError, false},
		"queue, page empty":      {map[string]string{"/prometheus/metrics": "", "/metrics": iterations}, noMetrics, "", sample.ReasonNoData, false},
		"queue, page for login":  {map[string]string{"/prometheus/metrics": "status 405", "/metrics": iterations}, all, "tensorrt-llm /metrics", "", true},
		"a site for every path":  {map[string]string{"/v1/loads": html, "/prometheus/metrics": html, "/metrics": llama, "/get_load": html}, all, "llama.cpp /metrics", "", false},
		"only sites":             {map[string]string{"/v1/loads": html, "/prometheus/metrics": html, "/metrics": html, "/get_load": html}, all, "", sample.ReasonHTMLPage, false},
		"auth":                   {map[string]string{"/v1/loads": "status 401", "/get_load": "status 403"}, all, "", registry.ReasonAuth, true},
		"auth for some only":     {map[string]string{"/v1/loads": "status 401", "/metrics": vllm(1)}, all, "vllm /metrics", "", true},
		"busy for some":          {map[string]string{"/v1/loads": "status 503", "/metrics": sglang}, all, "sglang /metrics", "", false},
		"redirect":               {map[string]string{"/metrics": "status 307"}, all, "", registry.ReasonRedirected, false},
		"cold":                   {map[string]string{"/metrics": "# TYPE vllm:num_requests_running gauge\n"}, all, "", sample.ReasonNoData, false},
		"nobody's page":          {map[string]string{"/metrics": "x 1\n"}, all, "", sample.ReasonNotRecognised, false},
		"bug 70: no loads":       {map[string]string{"/v1/loads": loads()}, all, "", sample.ReasonNoData, false},
		"bug 70: null load":      {map[string]string{"/v1/loads": `{"loads":null}`, "/get_load": `{"load": null}`}, all, "", sample.ReasonNoData, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, asked := ask(t, c.bodies, "")
			chosen, reason := "", store.Reason("")
			if f.Chosen != nil {
				chosen = f.Chosen.Endpoint.Name
			} else {
				reason = f.Telling.Reason
			}
			if chosen != c.chosen || reason != c.reason || f.Complete != c.complete {
				t.Errorf("chose %q, reason %q, complete %v", chosen, reason, f.Complete)
			}
			if !slices.Equal(asked, c.asked) {
				t.Errorf("asked for %q", asked)
			}
		})
	}
}

func TestSurveyEndsWithoutConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{black: true}
		s := e.survey()
		if f := s.Run(t.Context()); len(f.Pages) != 1 || f.Complete || f.Telling.Reason != registry.ReasonConnectFailed || f.Telling.Took() != time.Second {
			t.Errorf("got %+v", f)
		}
		e.black, e.bodies = false, late("/v1/loads", "/prometheus/metrics", "/metrics", "/get_load")
		if f := s.Run(t.Context()); len(f.Pages) != maxTimeouts || f.Complete || f.Telling.Reason != ReasonTimeout {
			t.Errorf("got %+v", f)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if f := s.Run(ctx); len(f.Pages) != 1 || f.Complete {
			t.Errorf("got %+v", f)
		}
		s.Client.Close()
	})
}

func TestSurveyOrderWithoutSpecialPaths(t *testing.T) {
	table := []*sample.Endpoint{{Path: "/b"}, {Path: "/a"}, {Path: "/b"}}
	if got := surveyOrder(table); !slices.Equal(got, []string{"/b", "/a"}) {
		t.Errorf("got %q", got)
	}
}

func TestHints(t *testing.T) {
	target := registry.Target{Models: []string{"m"}, Facts: registry.Facts{DPSize: 2, CapacityTokens: 3, MaxRunning: 4}}
	h := hints(&target)
	if len(h.Models) != 1 || h.DPSize != 2 || h.CapacityTokens != 3 || h.MaxRunning != 4 {
		t.Errorf("got %+v", h)
	}
	target.MaxRunning = 9
	if h = hints(&target); h.MaxRunning != 9 {
		t.Errorf("discovery says 9, got %d", h.MaxRunning)
	}
}

// TestEveryPageHasItsTurn has two pages that never come. Whatever they are, a
// good page is read in the end, but for TensorRT-LLM's queue.
func TestEveryPageHasItsTurn(t *testing.T) {
	paths := []string{"/v1/loads", prometheusPath, metricsPath, "/get_load"}
	bodies := map[string]string{"/v1/loads": loads(1), metricsPath: sglang, "/get_load": getLoad, prometheusPath: trtllm}
	for _, good := range paths {
		for _, fine := range paths {
			hanging := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == good || p == fine })
			if good == fine || good == metricsPath && slices.Contains(hanging, prometheusPath) {
				continue
			}
			t.Run(good+" while "+strings.Join(hanging, " and ")+" hang", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					behind := ""
					for range 4 {
						f, _ := ask(t, with(late(hanging...), good, bodies[good]), behind)
						if f.Chosen != nil && f.Chosen.is(good) {
							return
						}
						behind = f.Behind
					}
					t.Error("it is never read")
				})
			})
		}
	}
}

// TestQueueIsLeftAloneWhileItsPageHangs begins behind TensorRT-LLM's metrics
// page, which timed out.
func TestQueueIsLeftAloneWhileItsPageHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bodies := with(late(prometheusPath), metricsPath, iterations)
		for _, behind := range []string{"", prometheusPath, metricsPath} {
			if f, asked := ask(t, bodies, behind); slices.Contains(asked, metricsPath) || f.Complete {
				t.Errorf("behind %q: asked for %q, complete %v", behind, asked, f.Complete)
			}
		}
	})
}

// TestTimeoutEndsTheSearchBesideAPage reads on no more than one page that hangs
// where there is another to read.
func TestTimeoutEndsTheSearchBesideAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f, _ := ask(t, with(late("/v1/loads", "/get_load"), metricsPath, sglang), "")
		if f.Chosen == nil || time.Since(began) != time.Second || !slices.Equal(f.Open, []string{loadsQuery, "/get_load"}) {
			t.Errorf("chose %v after %s, open %q", f.Chosen, time.Since(began), f.Open)
		}
	})
}

// TestOnly asks for some pages, in their order.
func TestOnly(t *testing.T) {
	e := &engine{bodies: map[string]string{"/get_load": getLoad}}
	s := e.survey()
	defer s.Client.Close()
	s.Only = []string{"/get_load", metricsPath}
	if f := s.Run(t.Context()); f.Chosen == nil || !slices.Equal(e.forget(), []string{metricsPath, "/get_load"}) {
		t.Errorf("chose %v", f.Chosen)
	}
}

// TestBug10PanicIsAReason reads by a sampler that is in disorder. The other
// pages are read as before.
func TestBug10PanicIsAReason(t *testing.T) {
	e := &engine{bodies: map[string]string{"/v1/loads": loads(1), "/get_load": getLoad}}
	s := e.survey()
	defer s.Client.Close()
	s.Known = Choice{Endpoint: sample.Endpoints()[0], Sampler: new(sample.Sampler)}
	f := s.Run(t.Context())
	p := f.Pages[0]
	var why *Panic
	if p.Reason != ReasonReaderPanic || !errors.As(p.Err, &why) || !strings.Contains(why.Stack, "sample") || p.Definite() {
		t.Errorf("reason %q, %v", p.Reason, p.Err)
	}
	if f.Chosen == nil || !f.Chosen.is("/get_load") {
		t.Errorf("chose %v", f.Chosen)
	}
}

// TestReasonsAreProvoked holds that every reason of this package comes of an
// engine that gives cause for it.
func TestReasonsAreProvoked(t *testing.T) {
	const head = "raw HTTP/1.1 200 OK\r\n"
	provoked := map[store.Reason]bool{ReasonReaderPanic: true /* TestBug10PanicIsAReason */}
	for want, answer := range map[store.Reason]string{
		ReasonTimeout: "late", ReasonBroken: "raw SSH-2.0\r\n", ReasonTooLarge: head + "Content-Length: 99999999\r\n\r\n",
		ReasonCompressed: head + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
		ReasonTLS:        "raw HTTP/1.1 400 TLS please\r\n\r\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{bodies: map[string]string{"/v1/loads": answer}}
			s := e.survey()
			if want == ReasonTLS {
				s.Target.URL = "https://10.0.0.1:30000"
			}
			f := s.Run(t.Context())
			s.Client.Close()
			provoked[f.Pages[0].Reason] = true
			if f.Pages[0].Reason != want || f.Complete {
				t.Errorf("got %s, complete %v, want %s", f.Pages[0].Reason, f.Complete, want)
			}
		})
	}
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`store\.Reason = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	for _, word := range words {
		if !provoked[store.Reason(word[1])] {
			t.Errorf("%s is not provoked", word[1])
		}
	}
	if len(words) == 0 {
		t.Error("no reasons found")
	}
}

// TestKnownFamilyIsNotSpared: an engine that says that it is another than
// TensorRT-LLM has no queue to empty, whatever its other pages answer.
func TestKnownFamilyIsNotSpared(t *testing.T) {
	for family, spared := range map[sample.Family]bool{"": true, sample.TensorRTLLM: true, sample.VLLM: false} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{bodies: map[string]string{
				"/v1/loads": "status 500", "/prometheus/metrics": "status 500", "/metrics": vllm(1, 2), "/get_load": "status 500",
			}}
			s := e.survey()
			defer s.Client.Close()
			s.Target.Facts.Family = string(family)
			if f := s.Run(t.Context()); (f.Chosen == nil) != spared || (f.Spared != "") != spared {
				t.Errorf("%q: chosen %v, spared %q", family, f.Chosen != nil, f.Spared)
			}
		})
	}
}

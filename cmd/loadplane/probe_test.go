package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// fleet starts engines and returns their URLs.
func fleet(t *testing.T, args ...string) []string {
	t.Helper()
	sim := start(t, nil, append([]string{"sim"}, args...)...)
	text := sim.out.await(soon(t), t, func(s string) bool { return strings.HasSuffix(s, "\n") })
	var list struct{ Workers []struct{ URL string } }
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, w := range list.Workers {
		urls = append(urls, w.URL)
	}
	return urls
}

func TestProbeOfEachKind(t *testing.T) {
	kinds := []struct {
		kind, engine, dialect, page string
		from                        string // a line of the fields
		unknown                     string // one of the fields
		rates                       string // that two readings make known
	}{
		{"sglang", "sglang 0.5.18", "push", "sglang /v1/loads", "num_waiting_reqs num_waiting_reqs", "nothing", "gen_throughput prefill_throughput"},
		{"sglang-monitor", "sglang 0.5.18", "monitor", "sglang /v1/loads", "num_waiting_reqs num_waiting_reqs", "prefill_throughput", "gen_throughput"},
		{"sglang-loadstat", "sglang 0.5.19", "loadstat", "sglang /v1/loads", "num_waiting_reqs num_waiting_reqs", "prefill_throughput", "gen_throughput"},
		{"sglang-poll", "sglang 0.5.15", "poll", "sglang /v1/loads", "prefill_inflight_reqs disaggregation.prefill_inflight_queue_reqs", "prefill_throughput", "gen_throughput"},
		{"vllm", "vllm 0.26.0", "poll", "vllm /metrics", "token_usage vllm:kv_cache_usage_perc", "max_running_requests", "gen_throughput prefill_throughput_wall"},
		{"tgi", "tgi 3.3.6", "poll", "tgi /metrics", "num_waiting_reqs tgi_queue_size", "num_waiting_uncached_tokens", "gen_throughput"},
		{"llamacpp", "llama.cpp b8681-sim", "poll", "llama.cpp /metrics", "num_running_reqs llamacpp:requests_processing", "token_usage", "gen_throughput prefill_throughput_wall"},
		{"trtllm", "tensorrt-llm 1.3.0", "poll", "tensorrt-llm /prometheus/metrics", "max_running_requests trtllm_max_num_active_requests", "num_total_tokens", "gen_throughput prefill_throughput_wall"},
		{"triton", "-", "poll", "triton /metrics", "num_running_reqs nv_trt_llm_request_metrics{request_type=active}", "num_total_tokens", ""},
	}
	var words []string
	for _, k := range kinds {
		words = append(words, k.kind)
	}
	urls := fleet(t, fmt.Sprint("--engines=", len(kinds)), "--ranks=2", "--kinds="+strings.Join(words, ","))
	for i, k := range kinds {
		t.Run(k.kind, func(t *testing.T) {
			t.Parallel()
			code, out, err := run(t, "probe", urls[i])
			if code != exitOK {
				t.Fatalf("exit %d: %s", code, err)
			}
			requireWidth(t, out)
			words := strings.Join(strings.Fields(out), " ")
			for _, want := range []string{"engine " + k.engine + " models", "dialect " + k.dialect + " why", "page " + k.page + " unknown", " " + k.from + " "} {
				if !strings.Contains(words, want) {
					t.Errorf("it lacks %q:\n%s", want, out)
				}
			}
			_, unknown, _ := strings.Cut(words, " unknown ")
			unknown, _, _ = strings.Cut(unknown, " RANK ")
			listed := strings.Fields(strings.ReplaceAll(unknown, ",", ""))
			if !slices.Contains(listed, k.unknown) || strings.Contains(unknown, "need two readings") {
				t.Errorf("%s is known, or a reading is missing:\n%s", k.unknown, out)
			}
			for _, field := range strings.Fields(k.rates) {
				if slices.Contains(listed, field) {
					t.Errorf("%s is unknown:\n%s", field, out)
				}
			}
			checkProbeJSON(t, urls[i], k.dialect, k.page)
		})
	}
}

// checkProbeJSON probes once more, for a program.
func checkProbeJSON(t *testing.T, url, dialect, page string) {
	t.Helper()
	code, out, err := run(t, "probe", url, "-o", "json")
	var doc struct {
		URL, Dialect, Endpoint string
		Ranks                  []map[string]any
	}
	if bad := json.Unmarshal([]byte(out), &doc); bad != nil || code != exitOK {
		t.Fatalf("exit %d: %s: %v\n%s", code, err, bad, out)
	}
	if doc.URL != url || doc.Dialect != dialect || doc.Endpoint != page || len(doc.Ranks) == 0 || doc.Ranks[0]["num_running_reqs"] == nil {
		t.Errorf("%+v", doc)
	}
}

// serve answers every request like that until the test ends.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestProbeOfWhatIsNoEngine(t *testing.T) {
	html := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<html>\x1b[31m\u202e</html>"))
	}
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for name, url := range map[string]string{
		"HTML": serve(t, html), "redirect": serve(t, elsewhere), "nobody": "http://" + closed.Addr().String(),
		"not found": serve(t, http.NotFound),
	} {
		t.Run(name, func(t *testing.T) {
			code, out, err := run(t, "probe", url)
			if code != exitFailure || !strings.Contains(err, "no dialect can be used with "+url) || !strings.Contains(out, "none can be used") {
				t.Errorf("exit %d: %s\n%s", code, err, out)
			}
			requireWidth(t, out)
			if strings.ContainsAny(out+err, "\x1b\u202e") || strings.Count(err, "\n") != 1 {
				t.Errorf("the text of an engine passes:\n%q\n%q", out, err)
			}
		})
	}
}

func TestProbeSendsTheToken(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+canary {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path != "/get_load" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(`[{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1,"num_tokens":10}]`))
	})
	token := writeFile(t, "token", canary+"\n")
	code, out, _ := run(t, "probe", url, "--token-file="+token)
	if code != exitOK || !regexp.MustCompile(`\n +0 +2 +1 `).MatchString(out) {
		t.Errorf("exit %d:\n%s", code, out)
	}
	code, more, err := run(t, "probe", url)
	if code != exitFailure || !strings.Contains(more, " auth\n") || strings.Contains(out+more+err, canary) {
		t.Errorf("exit %d: %s\n%s", code, err, more)
	}
}

func TestProbeEndsWhenInterrupted(t *testing.T) {
	asked := make(chan struct{}, 100)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	c := start(t, nil, "probe", url, "--timeout=1h")
	<-asked
	c.stop()
	if code := c.wait(t); code != exitFailure || !strings.Contains(c.err.String(), "canceled") || c.out.String() != "" {
		t.Errorf("exit %d: %s\n%s", code, c.err, c.out)
	}
}

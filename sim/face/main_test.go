package face

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// engine returns an engine that has been at work, and its faults.
func engine(t *testing.T, mode string, ranks int) (Engine, *reporter.Faults) {
	t.Helper()
	role := pb.WorkerType_WORKER_TYPE_REGULAR
	switch mode {
	case "prefill":
		role = pb.WorkerType_WORKER_TYPE_PREFILL
	case "decode":
		role = pb.WorkerType_WORKER_TYPE_DECODE
	}
	faults := &reporter.Faults{}
	p := reporter.New(reporter.Config{Role: role, Model: "m", Ranks: ranks, Seed: 1, Warm: true, Faults: faults})
	t.Cleanup(p.Close)
	return Engine{Model: "m", Mode: mode, Host: "127.0.0.1", Port: 30_000, Ranks: ranks, Sample: p.Sample}, faults
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// body returns the body of a page that must be there.
func body(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := get(t, h, path)
	if w.Code != http.StatusOK {
		t.Fatalf("%s answers %d: %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// outside returns a real file, or skips the test.
func outside(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if dir == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS is not set: the pages are not held against real ones")
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// shape returns the kind of the value at each path of a JSON text: those of
// all elements of an array are under one path. Numbers with a fraction are
// floats.
func shape(t *testing.T, text string) map[string]string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	kinds := map[string]string{}
	describe(kinds, "", v)
	return kinds
}

func describe(kinds map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		kinds[path] = "object"
		for key, value := range v {
			describe(kinds, path+"."+key, value)
		}
	case []any:
		kinds[path] = "array"
		for _, value := range v {
			describe(kinds, path+"[]", value)
		}
	case json.Number:
		kinds[path] = "int"
		if strings.ContainsAny(v.String(), ".eE") {
			kinds[path] = "float"
		}
	default:
		kinds[path] = fmt.Sprintf("%T", v)
	}
}

// families describes a metrics page: the type of each family, and the names of
// the labels of each of its series.
type families struct {
	kinds  map[string]string
	labels map[string][]string
	// values has the values of each label.
	values map[string][]string
}

// read parses a page with the library that Prometheus uses.
func read(t *testing.T, page string) families {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("%v:\n%s", err, page)
	}
	f := families{map[string]string{}, map[string][]string{}, map[string][]string{}}
	for name, family := range parsed {
		f.kinds[name] = strings.ToLower(family.GetType().String())
		for _, m := range family.GetMetric() {
			var names []string
			for _, l := range m.GetLabel() {
				names = append(names, l.GetName())
				key := name + " " + l.GetName()
				if !slices.Contains(f.values[key], l.GetValue()) {
					f.values[key] = append(f.values[key], l.GetValue())
				}
			}
			slices.Sort(names)
			if set := strings.Join(names, ","); !slices.Contains(f.labels[name], set) {
				f.labels[name] = append(f.labels[name], set)
			}
		}
	}
	return f
}

// same fails for keys of want that are not in got, or otherwise.
func same[V any](t *testing.T, got, want map[string]V) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		v, ok := got[key]
		switch {
		case !ok:
			t.Errorf("%s is missing", key)
		case fmt.Sprint(v) != fmt.Sprint(want[key]):
			t.Errorf("%s is %v, want %v", key, v, want[key])
		}
	}
}

// equal fails for keys that only one has, too.
func equal[V any](t *testing.T, got, want map[string]V) {
	t.Helper()
	same(t, got, want)
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("%s is there in vain", key)
		}
	}
}

func TestShapeTellsKindsApart(t *testing.T) {
	got := shape(t, `{"a":[{"b":1},{"c":1.0}],"d":null,"e":"x","f":true}`)
	equal(t, got, map[string]string{
		"": "object", ".a": "array", ".a[]": "object", ".a[].b": "int", ".a[].c": "float", ".d": "<nil>", ".e": "string", ".f": "bool",
	})
}

// metricsPages are all pages in the text format.
var metricsPages = []struct {
	name, path string
	pages      func(Engine) http.Handler
}{
	{"sglang", "/metrics", SGLang}, {"sglang loads", "/v1/loads?format=prometheus", SGLang}, {"vllm", "/metrics", VLLM},
	{"tgi", "/metrics", TGI}, {"llamacpp", "/metrics", LlamaCPP}, {"trtllm", "/prometheus/metrics", TensorRTLLM}, {"triton", "/metrics", Triton},
}

// TestMetricsPagesAreValid reads all pages as Prometheus does, and holds the
// histograms against their counts.
func TestMetricsPagesAreValid(t *testing.T) {
	for _, tt := range metricsPages {
		for _, mode := range []string{"null", "prefill", "decode"} {
			t.Run(tt.name+" "+mode, func(t *testing.T) {
				e, _ := engine(t, mode, 3)
				w := get(t, tt.pages(e), tt.path)
				if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
					t.Errorf("content type %q", got)
				}
				parser := expfmt.NewTextParser(model.UTF8Validation)
				parsed, err := parser.TextToMetricFamilies(w.Body)
				if err != nil || len(parsed) < 6 {
					t.Fatalf("%d families, %v", len(parsed), err)
				}
				for name, family := range parsed {
					for _, m := range family.GetMetric() {
						h := m.GetHistogram()
						buckets := h.GetBucket()
						for i, b := range buckets {
							if i > 0 && b.GetCumulativeCount() < buckets[i-1].GetCumulativeCount() {
								t.Errorf("%s: bucket %v goes back", name, b.GetUpperBound())
							}
						}
						if n := len(buckets); h != nil && (n < 2 || buckets[n-1].GetCumulativeCount() != h.GetSampleCount() || h.GetSampleCount() == 0) {
							t.Errorf("%s: %v", name, h)
						}
					}
				}
			})
		}
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	e, _ := engine(t, "null", 1)
	want := map[string]string{
		"sglang": `{"object":"error","message":"Not Found","type":"404","param":null,"code":404}`,
		"vllm":   `{"detail":"Not Found"}`, "trtllm": `{"detail":"Not Found"}`, "tgi": "", "triton": "",
		"llamacpp": `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`,
	}
	for _, tt := range metricsPages {
		if _, ok := want[tt.name]; !ok {
			continue
		}
		w := get(t, tt.pages(e), "/nowhere")
		if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusNotFound || got != want[tt.name] {
			t.Errorf("%s: %d %s", tt.name, w.Code, got)
		}
	}
}

func TestPagesWithoutALoadAreErrors(t *testing.T) {
	e, faults := engine(t, "null", 1)
	faults.Fail.Store(true)
	for _, tt := range metricsPages {
		if w := get(t, tt.pages(e), tt.path); w.Code != http.StatusInternalServerError {
			t.Errorf("%s answers %d", tt.name, w.Code)
		}
	}
}

package promtext

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// generated returns a page as vLLM makes it, with some engines: 4 engines are
// about 100 KB.
func generated(engines int) string {
	var b strings.Builder
	each := func(kind, name string, value float64) {
		fmt.Fprintf(&b, "# HELP vllm:%s Some words about %s.\n# TYPE vllm:%s %s\n", name, name, name, kind)
		for e := range engines {
			fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %g\n", name, e, value+float64(e))
		}
	}
	b.WriteString("# HELP process_start_time_seconds Start time.\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7426e+09\n")
	for _, name := range []string{"num_requests_running", "num_requests_waiting"} {
		each("gauge", name, 8)
	}
	each("gauge", "kv_cache_usage_perc", 0.25)
	for _, name := range []string{
		"num_preemptions_total", "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
	} {
		each("counter", name, 123456)
	}
	for i := range 14 {
		name := fmt.Sprintf("request_part_%d_seconds", i)
		fmt.Fprintf(&b, "# HELP vllm:%s A histogram.\n# TYPE vllm:%s histogram\n", name, name)
		for e := range engines {
			labels := fmt.Sprintf("engine=\"%d\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"", e)
			for le := range 16 {
				fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"%g\"} %d.0\n", name, labels, float64(le)*0.5, le*10)
			}
			fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"+Inf\"} 200.0\nvllm:%s_count{%s} 200.0\nvllm:%s_sum{%s} 17.25\n",
				name, labels, name, labels, name, labels)
		}
	}
	return b.String()
}

// oracle returns the samples of simple metrics by family, in order; false
// where the library refuses the page, or panics, as it does at a TYPE line followed by empty braces.
func oracle(page []byte) (found map[string][]*dto.Metric, ok bool) {
	defer func() {
		if recover() != nil {
			found, ok = nil, false
		}
	}()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, false
	}
	found = map[string][]*dto.Metric{}
	for name, f := range families {
		if t := f.GetType(); t != dto.MetricType_HISTOGRAM && t != dto.MetricType_SUMMARY {
			found[name] = f.GetMetric()
		}
	}
	return found, true
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	}
	return m.GetUntyped().GetValue()
}

// agree compares the wanted samples of a page that the oracle accepts.
func agree(t *testing.T, page []byte, names []string, want map[string][]*dto.Metric) {
	t.Helper()
	s := NewScanner(NewWanted(names))
	s.Reset(page)
	next := map[string]int{}
	for s.Next() {
		name := names[s.Sample.Name]
		metrics := want[name]
		i := next[name]
		next[name]++
		if metrics == nil {
			continue // a histogram or a summary of that name
		}
		if i >= len(metrics) {
			t.Fatalf("sample %d of %s, the oracle has %d", i+1, name, len(metrics))
		}
		m := metrics[i]
		if !same(s.Sample.Value, value(m)) || len(s.Sample.Labels) != len(m.GetLabel()) {
			t.Fatalf("sample %d of %s is %+v, the oracle has %v", i, name, s.Sample, m)
		}
		for _, l := range m.GetLabel() {
			if got := labelValue(s.Sample.Labels, l.GetName()); got != l.GetValue() {
				t.Fatalf("label %s of %s is %q, the oracle has %q", l.GetName(), name, got, l.GetValue())
			}
		}
	}
	for _, name := range names {
		if n := len(want[name]); next[name] < n {
			t.Fatalf("%d samples of %s, the oracle has %d", next[name], name, n)
		}
	}
	if s.Counts.Broken != 0 {
		t.Fatalf("%d broken lines, the oracle accepts all", s.Counts.Broken)
	}
}

func labelValue(labels []Label, name string) string {
	for _, l := range labels {
		if string(l.Name) == name {
			return string(l.Value)
		}
	}
	return "missing"
}

func TestAgreesWithTheOracle(t *testing.T) {
	page := []byte(generated(3))
	want, ok := oracle(page)
	if !ok || len(want["vllm:num_requests_running"]) != 3 {
		t.Fatalf("the oracle has %d families", len(want))
	}
	agree(t, page, []string{"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total", "process_start_time_seconds"}, want)
}

// TestBug10ParserWithoutScheme reads one line with the product's parser, and
// shows that the library's needs a name validation scheme.
func TestBug10ParserWithoutScheme(t *testing.T) {
	if got, _ := read(t, "a 1\n", "a"); len(got) != 1 {
		t.Errorf("read %q", got)
	}
	defer func() {
		if recover() == nil {
			t.Log("the zero parser of the library does not panic any more")
		}
	}()
	var zero expfmt.TextParser
	if _, err := zero.TextToMetricFamilies(strings.NewReader("a 1\n")); err != nil {
		t.Log(err)
	}
}

// TestBug09SecondTypeLine: the library refuses the whole page.
func TestBug09SecondTypeLine(t *testing.T) {
	page := "# TYPE light counter\nlight{id=\"0\"} 1.0\n# TYPE light counter\nlight 2.0\na 3\n"
	if _, ok := oracle([]byte(page)); ok {
		t.Error("the oracle accepts a second TYPE line")
	}
	got, counts := read(t, page, "a")
	if len(got) != 1 || counts.RepeatedTypes != 1 || counts.Broken != 0 {
		t.Errorf("read %q, %+v", got, counts)
	}
}

// quotedNames are names in quotes, which engines do not use and we do not read.
var quotedNames = regexp.MustCompile(`[{,]\s*"`)

func FuzzScan(f *testing.F) {
	for _, page := range []string{
		"a 1\n", generated(1)[:1500], "a{x=\"q\\\"b\\\\n\\n\"} NaN 12\r\n", "# TYPE a histogram\na_bucket{le=\"1\"} 2\na_sum 1\n",
		"# TYPE a summary\na{quantile=\"0.5\"} 2\na_count 1\n", "a{} 1 # {x=\"1\"} 2\n# EOF\n", "# HELP a \\n\n# TYPE a counter\na +Inf\na -Inf",
		"<html>", "{\"a\": 1}", "a{,} 1", "\ta { x = \"1\" , } 1e3 -5 ",
	} {
		f.Add([]byte(page))
	}
	names := []string{"a", "a_total", "v:b"}
	f.Fuzz(func(t *testing.T, page []byte) {
		s := NewScanner(NewWanted(names))
		s.Reset(page)
		for s.Next() {
			if len(s.Sample.Labels) > MaxLabels || s.Sample.Name < 0 || s.Sample.Name >= len(names) {
				t.Fatalf("sample %+v", s.Sample)
			}
		}
		for name := range Families(page) {
			if len(name) == 0 {
				t.Fatal("a family without a name")
			}
		}
		FormatOf(page)
		if len(page) > 0 && page[len(page)-1] != '\n' {
			return // the oracle wants the last newline
		}
		if want, ok := oracle(page); ok && !quotedNames.Match(page) {
			agree(t, page, names, want)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	page := []byte(generated(4))
	s := NewScanner(NewWanted([]string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"}))
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		for s.Reset(page); s.Next(); {
		}
	}
}

func BenchmarkOracle(b *testing.B) {
	page := []byte(generated(4))
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := oracle(page); !ok {
			b.Fatal("the oracle refuses the page")
		}
	}
}

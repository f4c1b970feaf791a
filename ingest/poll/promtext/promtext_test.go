package promtext

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// read returns the wanted samples of a page as text.
func read(t *testing.T, page string, names ...string) ([]string, Counts) {
	t.Helper()
	s := NewScanner(NewWanted(names))
	s.Reset([]byte(page))
	var got []string
	for s.Next() {
		text := names[s.Sample.Name]
		for _, l := range s.Sample.Labels {
			text += fmt.Sprintf(" %s=%q", l.Name, l.Value)
		}
		got = append(got, fmt.Sprintf("%s %g", text, s.Sample.Value))
	}
	return got, s.Counts
}

func TestNext(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       []string
		counts     Counts
	}{
		{"plain", "a 1\n", []string{"a 1"}, Counts{Samples: 1}},
		{"no last newline", "a 1", []string{"a 1"}, Counts{Samples: 1}},
		{"CRLF", "# TYPE a gauge\r\na{x=\"1\"} 1\r\n\r\na 2\r\n", []string{`a x="1" 1`, "a 2"}, Counts{Samples: 2}},
		{"colon", "v:a 1\n", []string{"v:a 1"}, Counts{Samples: 1}},
		{"exact names only", "aa 1\na_total 2\na_total_sum 3\na 4\n", []string{"a 4"}, Counts{Samples: 4}},
		{"skipped neighbours", "b{x=\"1\"} 1\nb{x=\"2\"} 2\nb 3\nba 4\na 5\n", []string{"a 5"}, Counts{Samples: 5}},
		{"labels", `a{x="1",y_2="b c"} 3`, []string{`a x="1" y_2="b c" 3`}, Counts{Samples: 1}},
		{"empty braces and spaces", "\t a  { }\t 1 ", []string{"a 1"}, Counts{Samples: 1}},
		{"spaces in braces", `a{ x = "1" , y="2" , } 3`, []string{`a x="1" y="2" 3`}, Counts{Samples: 1}},
		{"no space after braces", `a{x="1"}3`, []string{`a x="1" 3`}, Counts{Samples: 1}},
		{"escapes", `a{x="q\"b\\n\n}"} 1`, []string{`a x="q\"b\\n\n}" 1`}, Counts{Samples: 1}},
		{"two escaped values", `a{x="\\1",y="\\2"} 1`, []string{`a x="\\1" y="\\2" 1`}, Counts{Samples: 1}},
		{"braces and hash in a value", `a{x="} 2 # {'k': 'v'}"} 1`, []string{`a x="} 2 # {'k': 'v'}" 1`}, Counts{Samples: 1}},
		{"timestamp", "a 1 1700000000000\n", []string{"a 1"}, Counts{Samples: 1}},
		{"OpenMetrics", "a 1 1700000000.5 # {trace_id=\"x\"} 0.5 1.5\na 2 # {} 1\n# EOF\n", []string{"a 1", "a 2"}, Counts{Samples: 2}},
		{"created", "v:a_created 1.7e9\nv:a 3\n", []string{"v:a 3"}, Counts{Samples: 2}},
		{"special values", "a NaN\na +Inf\na -Inf\na 1e-3\na -0\n", []string{"a NaN", "a +Inf", "a -Inf", "a 0.001", "a -0"}, Counts{Samples: 5}},
		{"comments", "# HELP a says\n#\n# anything { else\n#TYPE a gauge\na 1\n", []string{"a 1"}, Counts{Samples: 1}},
		{"repeated TYPE and HELP", "# TYPE a gauge\n# HELP a x\n# TYPE a counter\n# HELP a x\n# TYPE b gauge\na 1\n", []string{"a 1"}, Counts{Samples: 1, RepeatedTypes: 1}},
		{"headers only", "# TYPE a gauge\n# HELP b x\n", nil, Counts{}},
		{"empty", "", nil, Counts{}},
		{"no value", "a\na{x=\"1\"}\na \n", nil, Counts{Broken: 3}},
		{"bad values", "a x\na 0x10\na 1_0\na 1e999\na 1,5\n", nil, Counts{Broken: 5}},
		{"bad timestamps", "a 1 x\na 1 2 3\n", nil, Counts{Broken: 2}},
		{"bad labels", "a{x=1} 1\na{x=\"1} 1\na{\"x\"=\"1\"} 1\na{x=\"1\" y=\"2\"} 1\na{x} 1\na{1=\"x\"} 1\na{x=\"\\q\"} 1\na{x=\"\\\n", nil, Counts{Broken: 8}},
		{"a label twice", `a{x="1",x="1"} 1`, nil, Counts{Broken: 1}},
		{"no metric name", "<html>\n{\"a\": 1}\n1a 1\n", nil, Counts{Broken: 3}},
		{"good after broken", "a{x=\"\na 1\n", []string{"a 1"}, Counts{Samples: 1, Broken: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, counts := read(t, c.page, "a", "v:a")
			if !slices.Equal(got, c.want) || counts != c.counts {
				t.Errorf("read %q, %+v\nwant %q, %+v", got, counts, c.want, c.counts)
			}
		})
	}
}

func TestLabelsAreBounded(t *testing.T) {
	page := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "l%d=\"\",", i)
		}
		return "a{" + b.String() + "} 1"
	}
	if got, _ := read(t, page(MaxLabels), "a"); len(got) != 1 {
		t.Errorf("%d samples with %d labels, want 1", len(got), MaxLabels)
	}
	if got, counts := read(t, page(MaxLabels+1), "a"); len(got) != 0 || counts.Broken != 1 {
		t.Errorf("%d samples, %d broken lines with %d labels, want 0 and 1", len(got), counts.Broken, MaxLabels+1)
	}
}

func TestWantedTakesTheLastOfEqualNames(t *testing.T) {
	s := NewScanner(NewWanted([]string{"a", "b", "a"}))
	s.Reset([]byte("a 1\nb 2\n"))
	for _, want := range []int{2, 1} {
		if !s.Next() || s.Sample.Name != want {
			t.Fatalf("sample of name %d, want %d", s.Sample.Name, want)
		}
	}
}

// TestResetForgets reads pages one after the other with one scanner.
func TestResetForgets(t *testing.T) {
	s := NewScanner(NewWanted([]string{"a"}))
	s.Reset([]byte("# TYPE a gauge\nb 1\na{x=\"\\\\\"} 1\n!\n"))
	for s.Next() {
	}
	s.Reset([]byte("# TYPE a gauge\nb 1\na 2\n"))
	if !s.Next() || s.Sample.Value != 2 || len(s.Sample.Labels) != 0 || s.Next() {
		t.Errorf("sample %+v of the second page", s.Sample)
	}
	if want := (Counts{Samples: 2}); s.Counts != want {
		t.Errorf("counts %+v, want %+v", s.Counts, want)
	}
}

func TestNoAllocations(t *testing.T) {
	page := []byte(generated(4))
	s := NewScanner(NewWanted([]string{"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}))
	n := 0
	allocs := testing.AllocsPerRun(10, func() {
		for s.Reset(page); s.Next(); n++ {
		}
	})
	if allocs != 0 || n == 0 {
		t.Errorf("%g allocations for a page, %d samples; want none", allocs, n)
	}
}

func TestFormatOf(t *testing.T) {
	for page, want := range map[string]Format{
		"":                             FormatEmpty,
		" \r\n\t":                      FormatEmpty,
		"a 1\n":                        FormatText,
		"# TYPE a gauge":               FormatText,
		"Not Found":                    FormatText,
		"\n <!DOCTYPE html>":           FormatHTML,
		"<html>":                       FormatHTML,
		"[]":                           FormatJSON,
		"{}":                           FormatJSON,
		" {\"loads\": []}":             FormatJSON,
		"{\"a.b\", x=\"1\"} 1\n":       FormatText,
		"{\"a.b\"} 1\n":                FormatText,
		"{\"unclosed":                  FormatJSON,
		"{\"key\n\": 1}":               FormatJSON,
		"{\n \"timestamp\": \"2026\"}": FormatJSON,
	} {
		if got := FormatOf([]byte(page)); got != want {
			t.Errorf("format of %q is %d, want %d", page, got, want)
		}
	}
}

func TestFamilies(t *testing.T) {
	page := "# HELP a x\n# TYPE a gauge\na{x=\"1\"} 1\n\n# EOF\n# other b\nb 2\r\nbroken\n<x> 1\n#  TYPE  c  gauge\n"
	var got []string
	for name := range Families([]byte(page)) {
		got = append(got, string(name))
	}
	if want := []string{"a", "a", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("families %q, want %q", got, want)
	}
	for name := range Families([]byte(page)) {
		if string(name) != "a" {
			t.Errorf("first family is %q", name)
		}
		break
	}
}

// TestLongLines reads lines that punish anything not linear.
func TestLongLines(t *testing.T) {
	const n = 1 << 20
	for name, page := range map[string]string{
		"backslashes": `a{x="` + strings.Repeat(`\\`, n) + `"} 1`,
		"quotes":      `a{x=` + strings.Repeat(`"`, n),
		"braces":      "a" + strings.Repeat("{", n),
		"commas":      "a{" + strings.Repeat(",", n) + "} 1",
		"blanks":      "a" + strings.Repeat(" ", n) + "1",
		"newlines":    strings.Repeat("\n", n),
		"names":       strings.Repeat("a", n),
		"types":       strings.Repeat("# TYPE a gauge\n", n/16),
	} {
		s := NewScanner(NewWanted([]string{"a"}))
		s.Reset([]byte(page))
		for s.Next() {
			if s.Sample.Value != 1 {
				t.Errorf("%s: value %g", name, s.Sample.Value)
			}
		}
	}
}

func TestTypesAreBounded(t *testing.T) {
	var page bytes.Buffer
	for i := range 2 * maxTypes {
		fmt.Fprintf(&page, "# TYPE m%d gauge\n", i)
	}
	s := NewScanner(NewWanted(nil))
	s.Reset(page.Bytes())
	if s.Next() || len(s.types) != maxTypes {
		t.Errorf("%d TYPE lines are remembered, want %d", len(s.types), maxTypes)
	}
}

// same compares values so that NaN equals NaN.
func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b }

package page

import (
	"encoding/json"
	"math"
	"testing"
)

func TestPythonFloat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 27: "27.0", 0.3624: "0.3624", 131072: "131072.0", 1048576: "1.048576e+06", 2e6: "2e+06",
		1742624005.57: "1.74262400557e+09", 8.1e9: "8.1e+09", 123456.5: "123456.5", 12_000_000_000: "1.2e+010",
	} {
		if got := pythonFloat(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	if got := (&Text{}).text(math.NaN()); got != "NaN" {
		t.Errorf("NaN is %s", got)
	}
	for v, want := range map[float64]string{0: "0", 27: "27", 0.4875: "0.4875", 1_610_236: "1610236"} {
		if got := (&Text{Plain: true}).text(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}

func TestLabelsAreSortedAndEscaped(t *testing.T) {
	var p Text
	p.Put("x", 1, "model_name", "a\"b\\c\nd", "le", "+Inf", "engine", "0")
	if got, want := p.String(), `x{engine="0",le="+Inf",model_name="a\"b\\c\nd"} 1.0`+"\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestObjectsKeepTheirOrder(t *testing.T) {
	b, err := json.Marshal(Object{{"b", Number(1)}, {"a", Object{{"z", nil}, {"y", []Object{}}}}, {"n", Number(math.NaN())}, {"f", Number(0.25)}})
	if got, want := string(b), `{"b":1.0,"a":{"z":null,"y":[]},"n":null,"f":0.25}`; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	if _, err := json.Marshal(Object{{"a", func() {}}}); err == nil {
		t.Error("a value without a JSON form is no error")
	}
}

func TestHistogram(t *testing.T) {
	var p Text
	h := Histogram{Name: "x", Help: "about x", Mean: 1, Buckets: []float64{1, 2}}
	h.Family(&p)
	h.Put(&p, 100, "a", "b")
	want := "# HELP x about x\n# TYPE x histogram\nx_bucket{a=\"b\",le=\"1.0\"} 63.0\nx_bucket{a=\"b\",le=\"2.0\"} 86.0\n" +
		"x_bucket{a=\"b\",le=\"+Inf\"} 100.0\nx_count{a=\"b\"} 100.0\nx_sum{a=\"b\"} 100.0\n"
	if got := p.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.Reset()
	Histogram{Name: "x", Buckets: []float64{1}}.Put(&p, 0)
	if got, want := p.String(), "x_bucket{le=\"1.0\"} 0.0\nx_bucket{le=\"+Inf\"} 0.0\nx_count 0.0\nx_sum 0.0\n"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestWithCopies(t *testing.T) {
	labels := make([]string, 2, 8)
	if a, b := With(labels, "x", "1"), With(labels, "x", "2"); a[3] != "1" || b[3] != "2" {
		t.Errorf("%v and %v", a, b)
	}
}

func TestPlain(t *testing.T) {
	for v, want := range map[any]string{7: "7", int64(-3): "-3", Number(2): "2.0", Number(0.25): "0.25", Number(math.NaN()): "nan", "text": "0"} {
		if got := Plain(v); got != want {
			t.Errorf("%v gives %s, want %s", v, got, want)
		}
	}
}

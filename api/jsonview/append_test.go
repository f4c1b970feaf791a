package jsonview

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"
)

func FuzzJSONString(f *testing.F) {
	for _, s := range []string{"", "plain", "q\"\\", "\x00\x1f", "é\u2028", "\xff\xfe", "<>&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if utf8.ValidString(s) && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func FuzzJSONFloat(f *testing.F) {
	for _, v := range []float64{0, 1, -1, 0.1, 1e15, 1e21, 1e-7, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1)} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		b := appendFloat(nil, v, true)
		var got *float64
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%v: %s: %v", v, b, err)
		}
		if finite := !math.IsNaN(v) && !math.IsInf(v, 0); finite != (got != nil) || finite && *got != v {
			t.Errorf("%v became %s", v, b)
		}
		if got != nil && !bytes.ContainsAny(b, ".e") {
			t.Errorf("%s reads as an integer", b)
		}
	})
}

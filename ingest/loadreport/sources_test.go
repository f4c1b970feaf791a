package loadreport

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

func TestSourcesAreBounded(t *testing.T) {
	var s Sources
	for i := range maxSources + 5 {
		s.Add(fmt.Sprint(i))
	}
	if len(s.sent) > maxSources || !s.Has(fmt.Sprint(maxSources+4)) {
		t.Errorf("%d sources", len(s.sent))
	}
}

func TestSampleAge(t *testing.T) {
	for _, tt := range []struct {
		name    string
		report  int64
		samples []int64
		want    time.Duration
		ok      bool
	}{
		{"none", 5, nil, 0, false},
		{"report time unknown", -1, []int64{1}, 0, false},
		{"sample time unknown", 5, []int64{3, -1}, 0, false},
		{"oldest", 1000, []int64{900, 700, 800}, 300 * time.Millisecond, true},
		{"in the future", 1000, []int64{2000}, 0, true},
		{"far apart", math.MaxInt64, []int64{0}, time.Hour, true},
	} {
		l := &store.Load{ReportUnixMs: tt.report}
		for _, s := range tt.samples {
			l.Samples = append(l.Samples, store.Sample{TimeUnixMs: s})
		}
		if got, ok := SampleAge(l); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %s %v", tt.name, got, ok)
		}
	}
}

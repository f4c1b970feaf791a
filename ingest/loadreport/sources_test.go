package loadreport

import (
	"fmt"
	"testing"
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

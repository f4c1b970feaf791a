package store

import (
	"strings"
	"testing"
)

// Only a time with a monotonic reading is not moved by setting the wall clock.
func TestClockIsMonotonic(t *testing.T) {
	if start := NewClock().start.String(); !strings.Contains(start, "m=") {
		t.Errorf("the clock starts at %s, without a monotonic reading", start)
	}
}

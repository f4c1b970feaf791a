package clock

import (
	"testing"
	"time"
)

// The least delayed message of the last minute or two decides; another server
// has another clock.
func TestServerClock(t *testing.T) {
	start := time.Now()
	var c Server
	see := func(server string, ms uint64, at time.Duration) {
		c = c.Seen(server, ms, start.Add(at))
	}
	want := func(ms uint64, at time.Duration) {
		t.Helper()
		if got := c.Local(ms).Sub(start); got != at {
			t.Errorf("the server's %d ms is %v, want %v", ms, got, at)
		}
	}
	see("a", 1000, 1500*time.Millisecond) // 500 ms on the way
	want(1000, 1500*time.Millisecond)
	see("a", 2000, 2010*time.Millisecond) // 10 ms on the way
	want(3000, 3010*time.Millisecond)
	see("a", 3000, 6*time.Second) // read 3 s late
	want(5000, 5010*time.Millisecond)
	see("a", 63_000, 63_050*time.Millisecond) // the next window
	want(63_000, 63_010*time.Millisecond)
	see("a", 125_000, 125_050*time.Millisecond) // and the next: the 10 ms are forgotten
	want(125_000, 125_050*time.Millisecond)
	see("b", 7, 126*time.Second)
	want(7, 126*time.Second)
	see("b", 1<<63, 127*time.Second) // out of all range
	if got := c.Local(1 << 63); got.Before(start.Add(-280 * 365 * 24 * time.Hour)) {
		t.Errorf("out of range: %v", got)
	}
}

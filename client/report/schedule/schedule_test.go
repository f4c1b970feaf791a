package schedule

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDeadlines(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	// Each step is a report at a time, or another interval in milliseconds.
	type step struct {
		at, interval int
		next         int
		skipped      int64
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"the first one is due at once", []step{{at: 0, next: 100}}},
		{"delays do not add up", []step{{at: 7, next: 100}, {at: 130, next: 200}, {at: 299, next: 300}}},
		{"missed ones are skipped", []step{{at: 0, next: 100}, {at: 350, next: 400, skipped: 2}}},
		{"one that is missed by a whole interval", []step{{at: 0, next: 100}, {at: 200, next: 300, skipped: 1}}},
		{"an early one moves nothing", []step{{at: 0, next: 100}, {at: 50, next: 100}, {at: 100, next: 200}}},
		{"the same interval moves nothing", []step{{at: 0, next: 100}, {at: 60, interval: 100, next: 100}}},
		{"a longer interval", []step{{at: 0, next: 100}, {at: 60, interval: 500, next: 500}, {at: 500, next: 1000}}},
		{"a shorter interval", []step{{at: 0, next: 100}, {at: 60, interval: 80, next: 80}}},
		{"a shorter interval that is past", []step{{at: 0, next: 100}, {at: 60, interval: 50, next: 60}, {at: 60, next: 110}}},
		{"another interval before the first report", []step{{at: 5, interval: 20, next: 0}, {at: 6, next: 20}}},
		{"no interval counts as 1 ms", []step{{at: 0, interval: 0, next: 0}, {at: 0, next: 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(100*time.Millisecond, start)
			for i, step := range tt.steps {
				skipped := int64(0)
				if step.interval > 0 || i == 0 && tt.name == "no interval counts as 1 ms" {
					s.SetInterval(time.Duration(step.interval)*time.Millisecond, at(step.at))
				} else {
					skipped = s.Fired(at(step.at))
				}
				if !s.Next().Equal(at(step.next)) || skipped != step.skipped {
					t.Errorf("step %d: due after %v with %d skipped, want %d ms and %d",
						i, s.Next().Sub(start), skipped, step.next, step.skipped)
				}
			}
		})
	}
	if got := New(0, start).Interval(); got != shortest {
		t.Errorf("no interval is %v", got)
	}
}

// A reporter that wakes late by less than an interval reports once an interval
// and never drifts, however often its lease is renewed.
func TestNeverDrifts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.IntRange(1, 2000).Draw(t, "interval")) * time.Millisecond
		start := time.Now()
		s := New(interval, start)
		for i := range rapid.IntRange(1, 500).Draw(t, "reports") {
			due := start.Add(time.Duration(i) * interval)
			if !s.Next().Equal(due) {
				t.Fatalf("report %d is due after %v, want %v", i, s.Next().Sub(start), due.Sub(start))
			}
			late := time.Duration(rapid.Int64Range(0, int64(interval)-1).Draw(t, "late"))
			if rapid.Bool().Draw(t, "renewed") {
				s.SetInterval(interval, due.Add(late))
			}
			if skipped := s.Fired(due.Add(late)); skipped != 0 {
				t.Fatalf("%d deadlines were skipped", skipped)
			}
		}
	})
}

// Whatever is granted and however often, a reporter that reports when it is due
// is never silent for longer than the longest interval of that time, and never
// reports twice for one deadline.
func TestNeverStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Now()
		draw := func() time.Duration {
			return time.Duration(rapid.IntRange(1, 300).Draw(t, "interval")) * time.Millisecond
		}
		s := New(draw(), now)
		last, longest := now, s.Interval()
		s.Fired(now)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "pass")) * time.Millisecond)
			if !s.Next().After(now) {
				due := s.Next()
				if gap := due.Sub(last); gap > longest {
					t.Fatalf("silent for %v with intervals up to %v", gap, longest)
				}
				s.Fired(now)
				if !s.Next().After(now) {
					t.Fatalf("due at %v again after a report at %v", s.Next(), now)
				}
				last, longest = s.anchor, s.Interval()
			}
			if rapid.Bool().Draw(t, "granted") {
				s.SetInterval(draw(), now)
				longest = max(longest, s.Interval())
			}
		}
	})
}

// Periods that passed without a report are skipped: the grid stays, and none is
// replayed.
func TestSkippedPeriods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.IntRange(1, 1000).Draw(t, "interval")) * time.Millisecond
		start := time.Now()
		s, made := New(interval, start), int64(0)
		now := start
		for range rapid.IntRange(1, 100).Draw(t, "reports") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(5*interval)).Draw(t, "pass")))
			if s.Next().After(now) {
				continue
			}
			made += 1 + s.Fired(now)
			if off := s.Next().Sub(start) % interval; off != 0 {
				t.Fatalf("off the grid by %v", off)
			}
			if want := int64(now.Sub(start)/interval) + 1; made != want {
				t.Fatalf("%d deadlines until %v, want %d", made, now.Sub(start), want)
			}
			if wait := s.Next().Sub(now); wait <= 0 || wait > interval {
				t.Fatalf("the next one is due in %v", wait)
			}
		}
	})
}

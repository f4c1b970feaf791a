package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStretch(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{0, time.Second}, {249 * time.Millisecond, time.Second}, {250 * time.Millisecond, 2 * time.Second},
		{time.Second, 2 * time.Second}, {time.Second + 1, 4 * time.Second}, {time.Minute, 4 * time.Second},
	} {
		if got := stretch(2*time.Second, c.took); got != c.want {
			t.Errorf("took %s: got %s, want %s", c.took, got, c.want)
		}
	}
}

func TestPaceBounds(t *testing.T) {
	for name, c := range map[string]struct {
		took     time.Duration
		answered bool
		want     time.Duration
	}{
		"fast":          {time.Millisecond, true, time.Second},
		"slow":          {1900 * time.Millisecond, true, 1500 * time.Millisecond},
		"never answers": {10 * time.Second, false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := Pace{StaleAfter: 3 * time.Second}
				due := p.First(time.Second, time.Now())
				if wait := time.Until(due); wait < 0 || wait >= time.Second {
					t.Errorf("the first poll is in %s", wait)
				}
				for range 50 {
					<-time.After(time.Until(due))
					<-time.After(c.took)
					due = p.Next(time.Second, c.took, c.answered)
					if rest := time.Until(due); rest < p.Interval/4 {
						t.Fatalf("%s after a poll of %s at an interval of %s", rest, c.took, p.Interval)
					}
				}
				if p.Interval != c.want || p.Stretched(time.Second) != (c.want > time.Second) {
					t.Errorf("interval %s, want %s", p.Interval, c.want)
				}
				<-time.After(time.Until(due))
				if got := p.Next(2*time.Second, 0, true); p.Interval != 2*time.Second || time.Until(got) > 3*time.Second {
					t.Errorf("a longer wanted interval gives %s", p.Interval)
				}
			})
		})
	}
}

// TestPaceKeepsTheMean lets jitter move each poll, and not their rate.
func TestPaceKeepsTheMean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pace{StaleAfter: 3 * time.Second}
		first := p.First(time.Second, time.Now())
		due, moved := first, 0
		for i := range 1000 {
			<-time.After(time.Until(due))
			due = p.Next(time.Second, 0, true)
			off := due.Sub(first.Add(time.Duration(i+1) * time.Second))
			if off < -50*time.Millisecond || off > 50*time.Millisecond {
				t.Fatalf("poll %d is off by %s", i, off)
			}
			if off != 0 {
				moved++
			}
		}
		if moved < 900 {
			t.Errorf("only %d of 1000 polls have jitter", moved)
		}
	})
}

// TestSlowPollIsFollowedByARest takes polls of which each lasts to shortly
// before the next one, wherever jitter has put that.
func TestSlowPollIsFollowedByARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pace{StaleAfter: 3 * time.Second}
		due := p.First(time.Second, time.Now())
		for i := range 1000 {
			<-time.After(time.Until(due))
			took := time.Duration(i) * time.Millisecond
			<-time.After(took)
			due = p.Next(time.Second, took, true)
			if rest := time.Until(due); rest < p.Interval/4 {
				t.Fatalf("%s after a poll of %s at an interval of %s", rest, took, p.Interval)
			}
			if spare := p.Spare(due); spare != time.Until(due)-p.Interval/4 {
				t.Fatalf("%s to spare", spare)
			}
		}
	})
}

func TestRestDoubles(t *testing.T) {
	var p Pace
	began := time.Now()
	for _, want := range []int64{200, 400, 800, 1600, 3200, 5000, 5000} {
		if got := p.Rest(began, began).Sub(began); got.Milliseconds() != want {
			t.Errorf("a rest of %s, want %d ms", got, want)
		}
	}
	if due := began.Add(time.Minute); p.Rest(began, due) != due {
		t.Error("the rest is shorter than the interval")
	}
	p.Rested()
	if got := p.Rest(began, began).Sub(began); got != 200*time.Millisecond {
		t.Errorf("a rest of %s after a success", got)
	}
}

// TestFirstIsSpread begins 1,000 workers at once.
func TestFirstIsSpread(t *testing.T) {
	now := time.Now()
	var quarters [4]int
	for range 1000 {
		p := Pace{StaleAfter: 3 * time.Second}
		quarters[p.First(time.Second, now).Sub(now)/(time.Second/4)]++
	}
	for i, n := range quarters {
		if n < 150 {
			t.Errorf("%d of 1000 in quarter %d", n, i)
		}
	}
}

// TestStallIsNotMadeUp goes on at the interval after a poll that took long.
func TestStallIsNotMadeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pace{StaleAfter: 3 * time.Second}
		due := p.First(time.Second, time.Now())
		<-time.After(time.Until(due) + 20*time.Second)
		due = p.Next(time.Second, 20*time.Second, true)
		for range 9 {
			<-time.After(time.Until(due))
			next := p.Next(time.Second, 0, true)
			if gap := next.Sub(due); gap < 900*time.Millisecond {
				t.Fatalf("%s between two polls", gap)
			}
			due = next
		}
	})
}

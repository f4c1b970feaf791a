package retry

import (
	"testing"
	"time"
)

// highest and lowest are the ends of what is random.
func highest(n int64) int64 { return n - 1 }
func lowest(int64) int64    { return 0 }

func TestBackoffDoubles(t *testing.T) {
	s := New([]string{"a"}, highest)
	now := time.Now()
	window := FirstWindow
	for i := range 70 {
		s.Ended(Ending{}, now)
		if _, at := s.Pick(now); at.Sub(now) != window {
			t.Errorf("after %d failures the wait is %v, want %v", i+1, at.Sub(now), window)
		}
		window = min(2*window, LastWindow)
	}
	s.Ended(Ending{Lasted: HealthyAfter - 1}, now)
	if _, at := s.Pick(now); at.Sub(now) != LastWindow {
		t.Errorf("a stream that was not healthy: %v", at.Sub(now))
	}
	s.Ended(Ending{Lasted: HealthyAfter}, now)
	if _, at := s.Pick(now); at.Sub(now) != FirstWindow {
		t.Errorf("a healthy stream: %v", at.Sub(now))
	}
	s.random = lowest
	s.Ended(Ending{}, now)
	if _, at := s.Pick(now); !at.Equal(now) {
		t.Errorf("full jitter begins at 0, not at %v", at.Sub(now))
	}
}

func TestSchedule(t *testing.T) {
	all := []string{"http://a", "http://b", "http://c"}
	for _, c := range []struct {
		name string
		ends []Ending
		// address and wait come then, with no jitter.
		address int
		wait    time.Duration
	}{
		{"at first", nil, 0, 0},
		{"the next one after a failure", []Ending{{Address: 0}}, 1, 0},
		{"and round", []Ending{{Address: 2}}, 0, 0},
		{"past one that asked to wait", []Ending{{Address: 1, Stay: 9 * time.Second}, {Address: 0}}, 2, 0},
		{"all asked to wait", []Ending{
			{Address: 0, Stay: 9 * time.Second},
			{Address: 1, Stay: 4 * time.Second},
			{Address: 2, Stay: 7 * time.Second},
		}, 1, 4 * time.Second},
		{"all refused", []Ending{{Address: 0, Refused: true}, {Address: 1, Refused: true}, {Address: 2, Refused: true}}, 0, RefusedWait},
		{"an alternative", []Ending{{Address: 0, Prefer: []string{"http://z", "http://c/"}}}, 2, 0},
		{"no known alternative", []Ending{{Address: 0, Prefer: []string{"http://z", ""}}}, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(all, lowest)
			now := time.Now()
			for _, e := range c.ends {
				s.Ended(e, now)
			}
			if address, at := s.Pick(now); address != c.address || at.Sub(now) != c.wait {
				t.Errorf("address %d after %v, want %d after %v", address, at.Sub(now), c.address, c.wait)
			}
		})
	}
	t.Run("the bounds of what is random", func(t *testing.T) {
		now := time.Now()
		s := New(all[:1], highest)
		s.Ended(Ending{Refused: true}, now)
		if _, at := s.Pick(now); at.Sub(now) > 30*time.Second {
			t.Errorf("a refused client comes back after %v", at.Sub(now))
		}
		s = New(all, highest)
		s.Ended(Ending{Within: 2 * time.Second}, now)
		if _, at := s.Pick(now); at.Sub(now) != 2*time.Second {
			t.Errorf("a client that was sent away comes back after %v", at.Sub(now))
		}
		s.Ended(Ending{Within: 1000 * time.Hour}, now)
		if _, at := s.Pick(now); at.Sub(now) != LongestWait {
			t.Errorf("a client that was sent away comes back after %v", at.Sub(now))
		}
	})
}

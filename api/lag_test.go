package api

import (
	"testing"
	"time"
)

// The watch that waits longest shows, until it left or its message was taken.
func TestLongestLag(t *testing.T) {
	var l lags
	want := func(what string, want time.Duration) {
		t.Helper()
		if got := l.longest(10 * time.Second); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	want("no watch", 0)
	old, young, idle, first := l.enter(), l.enter(), l.enter(), l.enter()
	want("nothing is sent", 0)
	old.begin(2 * time.Second)
	young.begin(9 * time.Second)
	want("two are sent", 8*time.Second)
	old.end()
	want("one was taken", time.Second)
	l.leave(young)
	want("one left", 0)
	first.begin(0)
	want("begun with the API", 10*time.Second-1)
	l.leave(old)
	l.leave(idle)
	l.leave(first)
	if len(l.open) != 0 {
		t.Errorf("%d watches are kept", len(l.open))
	}
}

package ingest

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestShelfForgets holds that a memory is taken once, is kept for its time and no
// longer, and that no name stays for ever.
func TestShelfForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shelf[int]
		m := new(int)
		s.Put("a", m)
		<-time.After(keepFor)
		if s.Take("b") != nil || s.Take("a") != m || s.Take("a") != nil {
			t.Error("a memory is not taken once within its time")
		}
		s.Put("a", m)
		<-time.After(keepFor + time.Nanosecond)
		if s.Take("a") != nil {
			t.Error("a memory is kept for too long")
		}
		s.Put("a", m)
		<-time.After(keepFor + sweepEach)
		s.Put("b", m)
		if len(s.kept) != 1 {
			t.Errorf("%d names are kept", len(s.kept))
		}
	})
}

// TestShelfSweepsWhatIsLeft: taking one old memory does not keep the others.
func TestShelfSweepsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shelf[int]
		m := new(int)
		s.Put("a", m)
		if s.Take("a") != m || s.Take("a") != nil || s.Take("b") != nil {
			t.Error("what was kept is taken once")
		}
		s.Put("a", m)
		s.Put("b", m)
		<-time.After(keepFor + time.Second)
		if s.Take("a") != nil {
			t.Error("an old memory is used")
		}
		s.Put("c", m)
		if len(s.kept) != 1 {
			t.Errorf("%d kept, want 1", len(s.kept))
		}
	})
}

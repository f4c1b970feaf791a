package gaps

import (
	"testing"
	"time"
)

// Gaps are those of one source that began after Record, and are off by what
// they are longer or shorter.
func TestRecorder(t *testing.T) {
	r := New[string]()
	r.Note("a", 0) // before Record: begins no gap that counts
	r.Record(100*time.Microsecond, 50)
	for _, e := range []struct {
		source string
		at     int64
	}{{"a", 100}, {"b", 120}, {"a", 190}, {"b", 250}, {"a", 290}} {
		r.Note(e.source, e.at)
	}
	got := r.Seen(400)
	if want := (Seen{Events: 5, Count: 3, Sources: 2, P50: 10, P99: 30, Max: 30, Longest: 150}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := r.Events(); n != 5 {
		t.Errorf("%d events", n)
	}
	r.Record(time.Second, 300)
	if got := r.Seen(400); got.Count != 0 || got.Events != 0 {
		t.Errorf("got %+v after Record", got)
	}
}

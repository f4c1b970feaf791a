package store

import (
	"math"
	"strings"
	"testing"
)

// A count stays at its largest value.
func TestCountOfHappeningsStays(t *testing.T) {
	h := history{list: []Happening{{Event: EventRefused, Count: math.MaxUint32 - 1}}}
	for range 2 {
		h.add(Happening{Event: EventRefused})
	}
	if got := h.list[0].Count; len(h.list) != 1 || got != math.MaxUint32 {
		t.Errorf("%d happenings, counted %d", len(h.list), got)
	}
}

// A detail of 160 bytes is kept whole.
func TestShorten(t *testing.T) {
	for n, want := range map[int]string{160: strings.Repeat("x", 160), 161: strings.Repeat("x", 157) + "..."} {
		if got := shorten(strings.Repeat("x", n)); got != want {
			t.Errorf("%d bytes became %q", n, got)
		}
	}
}

// Each thing that discovery changes in place is named, and nothing else.
func TestChangesAreNamed(t *testing.T) {
	worker := func() *Worker {
		return &Worker{Models: []string{"m"}, Labels: map[string]string{"a": "b"}, Zone: "z", DiscoveredBy: "file", Role: RoleRegular, Interval: 1}
	}
	for want, change := range map[string]func(old, w *Worker){
		"":               func(_, _ *Worker) {},
		"draining ended": func(old, _ *Worker) { old.Draining = true },
		"draining begun": func(_, w *Worker) { w.Draining = true },
		"role":           func(_, w *Worker) { w.Role = RoleDecode },
		"models":         func(_, w *Worker) { w.Models = nil },
		"zone":           func(_, w *Worker) { w.Zone = "" },
		"labels":         func(_, w *Worker) { w.Labels = nil },
		"interval":       func(_, w *Worker) { w.Interval = 2 },
		"discovered by":  func(_, w *Worker) { w.DiscoveredBy = "dns" },
		"role, zone":     func(old, w *Worker) { old.Zone, w.Role, w.Draining, old.Draining = "y", RoleDecode, true, true },
	} {
		old, w := worker(), worker()
		change(old, w)
		got := ""
		for _, h := range changes(old, w, 0) {
			got += h.Detail
		}
		if got != want {
			t.Errorf("%q is told as %q", want, got)
		}
	}
}

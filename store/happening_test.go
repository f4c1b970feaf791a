package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/loadplane/loadplane/store"
)

// told returns what happened to the worker of a slot, oldest first: the event,
// the reason and the detail of each, and how often where it was not once.
func (p *plane) told(sl *store.Slot) (list []string) {
	p.t.Helper()
	_, diag, there := p.Inspect(sl.Row())
	if !there {
		p.t.Fatalf("row %d is not in the tables", sl.Row())
	}
	for _, h := range diag.Happenings {
		text := fmt.Sprintf("%s/%s/%s", h.Event, h.Reason, h.Detail)
		if h.Count != 1 {
			text += fmt.Sprintf("*%d", h.Count)
		}
		list = append(list, text)
	}
	return list
}

func (p *plane) requireTold(sl *store.Slot, want ...string) {
	p.t.Helper()
	if got := p.told(sl); strings.Join(got, "\n") != strings.Join(want, "\n") {
		p.t.Errorf("it tells\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLifeIsTold follows a worker through a life.
func TestLifeIsTold(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		p.requireTold(sl, "discovered//flag")
		sl.Bind(store.Stream{Source: "s1", Peer: "10.0.0.1:9", Generation: 2})
		sl.Offer(2, p.load(1, 1))
		p.after(staleAfter + settle)
		sl.Bind(store.Stream{Source: "s1", Generation: 3})
		sl.Bind(store.Stream{Source: "s2", Peer: "10.0.0.1:10", Generation: 4})
		changed := worker("a")
		changed.Dialect, changed.Draining, changed.Zone = store.DialectPoll, true, "z"
		p.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: changed}}})
		p.settled()
		p.requireTold(sl, "discovered//flag", "bound//source s1, peer 10.0.0.1:9", "fresh//", "stale/age/",
			"stream_ended//peer 10.0.0.1:9", "source_changed//s1 to s2, peer 10.0.0.1:10",
			"dialect_changed//push to poll", "changed//draining begun, zone")
		_, diag, _ := p.Inspect(sl.Row())
		for i, h := range diag.Happenings[1:] {
			if h.At < diag.Happenings[i].At {
				t.Errorf("%s is before %s", h.Event, diag.Happenings[i].Event)
			}
		}
		p.Apply(store.Discovery{Removed: []*store.Slot{sl}})
		p.settled()
		if _, _, there := p.Inspect(sl.Row()); there {
			t.Error("what happened outlives the worker")
		}
	})
}

// TestUnreachableAndMissingAreTold tells of the judgements that need no receipt
// or a bad one.
func TestUnreachableAndMissingAreTold(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Note("connect_failed")
		p.settled()
		bad := p.loadOf(1)
		bad.Status, bad.LastError = store.StatusUnreachable, "gone"
		sl.Offer(1, bad)
		p.settled()
		p.requireTold(sl, "discovered//flag", "missing/connect_failed/", "unreachable/engine_unreachable/")
	})
}

// TestTheSameInARowIsCounted has calls and refusals that differ in detail count
// as the same, and changes of state only where they are.
func TestTheSameInARowIsCounted(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		for i := range 3 {
			sl.Happen(store.EventCallFailed, "connect_failed", fmt.Sprint("try ", i))
		}
		sl.Happen(store.EventCallFailed, "auth", "")
		for _, state := range []string{"retrying", "retrying", "registered"} {
			sl.Happen(store.EventRegistration, "", state)
		}
		p.settled()
		p.requireTold(sl, "discovered//flag", "call_failed/connect_failed/try 2*3", "call_failed/auth/",
			"registration//retrying*2", "registration//registered")
	})
}

// TestHappeningsAreBounded floods a worker: the newest 32 stay, with texts that
// are cut at a rune.
func TestHappeningsAreBounded(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		long := strings.Repeat("ü", 1000)
		for i := range 1000 {
			sl.Happen(store.EventRegistration, "", fmt.Sprint(i, " ", long))
			if i%100 == 0 {
				p.settled()
			}
		}
		p.settled()
		_, diag, _ := p.Inspect(sl.Row())
		if len(diag.Happenings) != 32 {
			t.Fatalf("%d are kept", len(diag.Happenings))
		}
		for i, h := range diag.Happenings {
			if !strings.HasPrefix(h.Detail, fmt.Sprint(968+i, " ")) || len(h.Detail) > 160 || !utf8.ValidString(h.Detail) {
				t.Fatalf("number %d is %q", i, h.Detail)
			}
		}
	})
}

// TestReadersKeepWhatTheyRead changes nothing in a row that was read.
func TestReadersKeepWhatTheyRead(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		sl.Happen(store.EventRefused, "retired", "first")
		p.settled()
		_, before, _ := p.Inspect(sl.Row())
		sl.Happen(store.EventRefused, "retired", "second")
		sl.Happen(store.EventBound, "", "")
		p.settled()
		if n := len(before.Happenings); n != 2 || before.Happenings[1].Detail != "first" || before.Happenings[1].Count != 1 {
			t.Errorf("the row that was read became %+v", before.Happenings)
		}
		p.requireTold(sl, "discovered//flag", "refused/retired/second*2", "bound//")
	})
}

// TestHappeningsMakeNoVersion moves no content.
func TestHappeningsMakeNoVersion(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.discover("a")[0]
		p.settled()
		version, at := p.version(), p.clock.Now()
		p.after(time.Second)
		sl.Happen(store.EventRefused, "retired", "")
		p.settled()
		if p.version() != version {
			t.Error("a happening makes a version")
		}
		_, diag, _ := p.Inspect(sl.Row())
		if last := diag.Happenings[len(diag.Happenings)-1]; last.At.Sub(at) != time.Second {
			t.Errorf("it happened %v later, want 1s", last.At.Sub(at))
		}
	})
}

package registry

import (
	"slices"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// happened returns how often an event with a reason is told of the worker, and
// the detail of the last.
func (p *plane) happened(event store.Event, reason store.Reason) (n uint32, detail string) {
	p.t.Helper()
	for _, h := range p.diagnostics(testWorker).Happenings {
		if h.Event == event && h.Reason == reason {
			n, detail = n+h.Count, h.Detail
		}
	}
	return n, detail
}

// TestCallsAreTold tells of every call that failed, also where it failed as the
// one before, and of each state.
func TestCallsAreTold(t *testing.T) {
	inBubble(t, []string{testWorker + ",dialect=push"}, func(p *plane) {
		p.run()
		p.after(2 * time.Second)
		if n, detail := p.happened(store.EventCallFailed, ReasonConnectFailed); n < 3 || detail == "" {
			t.Errorf("%d failed calls are told, the last of %q", n, detail)
		}
		p.net.add("10.0.0.1:30000", always(200, goodAnswer))
		p.after(10 * time.Second)
		if _, detail := p.happened(store.EventRegistration, ""); detail != string(StateRegistered) {
			t.Errorf("the last state that is told is %q", detail)
		}
	})
}

// TestRefusalsAreTold tells of what was refused, and not of what ended in the
// course of things.
func TestRefusalsAreTold(t *testing.T) {
	inBubble(t, []string{testWorker + ",dialect=push"}, func(p *plane) {
		p.run()
		p.bindAs("s1", 1)
		p.bindAs("s1", 2)
		if n, _ := p.happened(store.EventRefused, ReasonSuperseded); n != 0 {
			t.Error("a stream that was replaced is told as refused")
		}
		c := claim("s1")
		c.Peer = otherPeer
		_, err := p.Bind(c, p.load("s1", 3))
		wantRefusal(t, err, ReasonPeerMismatch, false)
		if n, detail := p.happened(store.EventRefused, ReasonPeerMismatch); n != 1 || detail == "" {
			t.Errorf("%d refusals are told, the last of %q", n, detail)
		}
	})
}

// TestIdentityChangeIsTold begins anew where another engine has the place.
func TestIdentityChangeIsTold(t *testing.T) {
	inBubble(t, []string{testWorker + ",dialect=push,role=prefill"}, func(p *plane) {
		p.run()
		if n, _ := p.happened(store.EventIdentityChanged, ReasonIdentityChanged); n != 0 {
			t.Error("a new worker took the place of one")
		}
		p.discover(testWorker + ",dialect=push,role=decode")
		var events []store.Event
		for _, h := range p.diagnostics(testWorker).Happenings {
			events = append(events, h.Event)
		}
		if !slices.Equal(events, []store.Event{store.EventDiscovered, store.EventIdentityChanged}) {
			t.Errorf("it tells %v", events)
		}
	})
}

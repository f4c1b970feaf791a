package source

import (
	"context"
	"time"

	"github.com/loadplane/loadplane/registry"
)

// minAsk and maxAsk bound the time after which an engine is asked once more for
// what it did not answer; settle is what passes before it is asked at a signal.
const minAsk, maxAsk, settle = time.Second, 30 * time.Second, 200 * time.Millisecond

// inquire asks the engine what it is until every question is answered, and anew
// when another process answers.
func (s *Source) inquire(ctx context.Context) {
	wait := minAsk
	for {
		complete := s.learn(s.opts.Prober.Facts(ctx, s.target()))
		var again <-chan time.Time
		if !complete {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			wait = min(2*wait, maxAsk)
		case <-s.curious:
			wait = minAsk
			if !pause(ctx, settle) {
				return
			}
		}
	}
}

// pause waits and says whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// learn takes over what the engine said of itself, and says whether there is
// nothing more to ask.
func (s *Source) learn(f registry.Finding) (complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	facts := f.Facts
	if !f.Complete {
		facts = facts.Or(&s.latest.Facts)
	}
	s.known = f.Complete
	next := s.latest
	next.Facts = facts
	s.publish(next)
	return f.Complete
}

// target is the engine with what is known of it.
func (s *Source) target() registry.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.opts.Target
	t.Facts = s.latest.Facts
	return t
}

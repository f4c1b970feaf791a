package store

import (
	"testing"
	"testing/synctest"
	"time"
)

// A reader that finds an expiry overdue waits for its commit, and no longer.
func TestFreshWaitsForTheCommitOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := twoHeard(t)
		<-time.After(s.current.Load().state.NextDue.Sub(s.opts.Clock.Now()))
		go func() {
			<-s.overdue
			s.commitNow(t)
		}()
		began := s.opts.Clock.Now()
		st, stale := s.Fresh(t.Context())
		if took := s.opts.Clock.Now().Sub(began); took != 0 {
			t.Errorf("waited %v after the commit", took)
		}
		if st.Entries[0].Freshness != Stale || st.NextDue != 0 {
			t.Errorf("served as %v, due at %v", st.Entries[0].Freshness, st.NextDue)
		}
		select {
		case <-stale:
			t.Error("the channel is that of the state before")
		default:
		}
	})
}

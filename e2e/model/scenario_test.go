package model

import (
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"pgregory.net/rapid"
)

// scenario runs fixed operations with all the checks of the model test.
func scenario(t *testing.T, body func(s *scene)) {
	t.Helper()
	set(t, "rapid.checks", 1)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			s := &scene{newSim(t, dir, false)}
			defer s.end()
			s.then(settle)
			body(s)
		})
	})
}

// scene is a simulation with names for what scenarios do.
type scene struct{ *sim }

// then lets time pass and checks.
func (s *scene) then(d time.Duration) {
	s.pass(d)
	s.check()
}

// lists discovers workers, one on each host.
func (s *scene) lists(names ...string) {
	s.list(func(listed map[string]listing) {
		clear(listed)
		for _, id := range names {
			listed[id] = listing{
				id: id, host: int(id[1]-'0') + 1, role: pb.Role_ROLE_REGULAR, dialect: pb.Dialect_DIALECT_PUSH, models: []string{"m"},
			}
		}
	})
	s.then(settle)
}

// reports has the engine on a host report.
func (s *scene) reports(host int, sequence uint64, running float64) {
	c := claim{host: host, peer: host, role: pb.Role_ROLE_REGULAR, source: "a"}
	rank := numbers{"num_running_reqs": running, "max_total_num_tokens": 1000, "max_running_requests": 64}
	s.send(c, report{source: "a", sequence: sequence, status: pb.Status_STATUS_HEALTHY, ranks: []numbers{rank}, clock: 1}, false)
	s.then(settle)
}

func TestOldSequenceChangesNothing(t *testing.T) {
	scenario(t, func(s *scene) {
		s.lists("w0")
		s.reports(1, 5, 1)
		s.then(time.Second)
		s.reports(1, 5, 2) // equal
		s.reports(1, 4, 3) // lower
		s.reports(1, 6, 4)
		s.then(staleAfter)
	})
}

func TestDeltaIsAgainstWhatWasSent(t *testing.T) {
	scenario(t, func(s *scene) {
		s.lists("w0", "w1", "w2")
		s.reopen(1)
		s.watchers[1].close()
		s.reports(1, 1, 1)
		s.reports(2, 1, 2)
		s.reports(3, 1, 3)
		s.reopen(1) // three versions in one delta
		s.then(settle)
		s.reports(1, 2, 4)
	})
}

func TestWallClockMovesNothing(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			scenario(t, func(s *scene) {
				s.lists("w0")
				s.wallStep = step
				s.reports(1, 1, 1)
				s.then(staleAfter - settle - time.Millisecond)
				s.then(time.Millisecond)
				s.then(time.Second)
			})
		})
	}
}

func TestExpiryIsAVersion(t *testing.T) {
	scenario(t, func(s *scene) {
		s.lists("w0", "w1")
		s.reports(1, 1, 1)
		s.reports(2, 1, 1)
		s.then(staleAfter)
		s.then(heartbeat)
	})
}

func TestRemovedWorkerLeavesOnResume(t *testing.T) {
	for name, away := range map[string]time.Duration{"with tombstones": time.Second, "past the horizon": keepGraves + time.Second} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(s *scene) {
				s.lists("w0", "w1")
				s.reopen(1)
				s.watchers[1].close()
				s.lists("w0")
				s.then(away)
				s.reports(1, 1, 1)
				s.reports(1, 2, 2)
				s.reopen(1)
				s.then(settle)
			})
		})
	}
}

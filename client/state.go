package client

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// receipt is a worker's liveness with the end of its validity on the local
// clock.
type receipt struct {
	*pb.WorkerLiveness
	until time.Time
}

// state is the content of a view. Its slices and maps are shared between
// views: they are replaced, never changed.
type state struct {
	cursor   *pb.Cursor
	warming  bool
	digest   uint64
	workers  []*pb.Worker
	rows     map[uint32]*pb.Worker
	pools    []*pb.Pool
	receipts map[uint32]receipt
	clock    serverClock
}

func findWorker(sorted []*pb.Worker, id string) (int, bool) {
	return slices.BinarySearchFunc(sorted, id, func(w *pb.Worker, id string) int {
		return strings.Compare(w.GetWorkerId(), id)
	})
}

// full takes the content of an event in place of what was there.
func (s *state) full(e *event) {
	s.setWorkers(slices.Clone(e.workers))
	s.setPools(slices.Clone(e.pools))
}

// delta applies a change, removals first.
func (s *state) delta(e *event) {
	gone := make(map[uint32]bool, len(e.removed)+len(e.workers))
	for _, r := range e.removed {
		gone[r.GetRow()] = true
	}
	for _, w := range e.workers {
		gone[w.GetRow()] = true // replaced whole
	}
	next := make([]*pb.Worker, 0, len(s.workers)+len(e.workers))
	for _, w := range s.workers {
		if !gone[w.GetRow()] {
			next = append(next, w)
		}
	}
	s.setWorkers(append(next, e.workers...))
	s.deltaPools(e)
}

// setWorkers takes a slice over and sorts it.
func (s *state) setWorkers(all []*pb.Worker) {
	slices.SortFunc(all, func(a, b *pb.Worker) int {
		return cmp.Or(strings.Compare(a.GetWorkerId(), b.GetWorkerId()), cmp.Compare(a.GetRow(), b.GetRow()))
	})
	s.workers, s.rows = all, make(map[uint32]*pb.Worker, len(all))
	for _, w := range all {
		s.rows[w.GetRow()] = w
	}
}

func (s *state) deltaPools(e *event) {
	pools := make(map[poolKey]*pb.Pool, len(s.pools))
	for _, p := range s.pools {
		pools[keyOf(p.GetKey())] = p
	}
	for _, k := range e.removedPools {
		delete(pools, keyOf(k))
	}
	for _, p := range e.pools {
		pools[keyOf(p.GetKey())] = p
	}
	s.setPools(slices.Collect(maps.Values(pools)))
}

// setPools takes a slice over and sorts it.
func (s *state) setPools(all []*pb.Pool) {
	slices.SortFunc(all, func(a, b *pb.Pool) int {
		x, y := keyOf(a.GetKey()), keyOf(b.GetKey())
		return cmp.Or(cmp.Compare(x.model, y.model), cmp.Compare(x.role, y.role))
	})
	s.pools = all
}

type poolKey struct {
	model string
	role  pb.Role
}

func keyOf(k *pb.PoolKey) poolKey { return poolKey{k.GetModel(), k.GetRole()} }

// finish takes what every message carries and checks the result.
func (s *state) finish(m *pb.WatchSnapshotsResponse, at time.Time) error {
	s.cursor, s.warming, s.digest = m.GetCursor(), m.GetWarming(), m.GetDigest()
	if len(s.rows) != len(s.workers) || twice(s.workers, sameID) || twice(s.pools, sameKey) {
		return fmt.Errorf("%w: version %d names a worker or a pool twice", ErrMalformed, s.cursor.GetVersion())
	}
	var sum uint64
	for _, w := range s.workers {
		sum += w.GetContentHash()
	}
	if sum != s.digest {
		return fmt.Errorf("%w: version %d has %x, its workers sum to %x", ErrTorn, s.cursor.GetVersion(), s.digest, sum)
	}
	s.receive(m, at)
	return nil
}

// twice says that two neighbours of a sorted list are the same.
func twice[T any](sorted []T, same func(a, b T) bool) bool {
	for i := 1; i < len(sorted); i++ {
		if same(sorted[i-1], sorted[i]) {
			return true
		}
	}
	return false
}

func sameID(a, b *pb.Worker) bool { return a.GetWorkerId() == b.GetWorkerId() }
func sameKey(a, b *pb.Pool) bool  { return keyOf(a.GetKey()) == keyOf(b.GetKey()) }

// receive takes the receipts of a message, and keeps none of workers that are
// gone.
func (s *state) receive(m *pb.WatchSnapshotsResponse, at time.Time) {
	receipts := make(map[uint32]receipt, len(s.workers))
	keep := func(row uint32, r receipt) {
		if s.rows[row] != nil {
			receipts[row] = r
		}
	}
	for row, r := range s.receipts {
		keep(row, r)
	}
	s.clock = s.clock.seen(m, at)
	latest := at.Add(time.Duration(m.GetStaleAfterMs()) * time.Millisecond)
	for _, l := range m.GetLiveness().GetWorkers() {
		until := s.clock.local(l.GetValidUntilMs())
		if until.After(latest) {
			until = latest
		}
		keep(l.GetRow(), receipt{l, until})
	}
	s.receipts = receipts
}

package client

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/loadplane/loadplane/client/internal/clock"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// receipt is a worker's liveness with its times on the local clock.
type receipt struct {
	*pb.WorkerLiveness
	// received is when the plane got the report, until the end of its validity.
	received, until time.Time
}

// sampled returns when the oldest of the report's samples was taken, at the
// latest: what the engine's own clock shows between it and the report, before
// the receipt. ok is false where the engine does not say both.
func (r receipt) sampled() (at time.Time, ok bool) {
	if r.WorkerLiveness == nil || r.OldestSampleUnixMs == nil || r.ReportUnixMs == nil {
		return time.Time{}, false
	}
	oldest, report := r.GetOldestSampleUnixMs(), r.GetReportUnixMs()
	if oldest >= report {
		return r.received, true
	}
	// The difference of two int64 fits in an uint64.
	return r.received.Add(-clock.Millis(uint64(report) - uint64(oldest))), true
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
	clock    clock.Server
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
	slices.SortFunc(all, func(a, b *pb.Pool) int { return comparePool(a, keyOf(b.GetKey())) })
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
	receipts := maps.Clone(s.receipts)
	if receipts == nil {
		receipts = make(map[uint32]receipt, len(s.workers))
	}
	maps.DeleteFunc(receipts, func(row uint32, _ receipt) bool { return s.rows[row] == nil })
	s.clock = s.clock.Seen(m.GetServerId(), m.GetServerClockMs(), at)
	latest := at.Add(time.Duration(m.GetStaleAfterMs()) * time.Millisecond)
	for _, l := range m.GetLiveness().GetWorkers() {
		if s.rows[l.GetRow()] != nil {
			receipts[l.GetRow()] = receipt{
				l, earlier(s.clock.Local(l.GetReceivedMs()), at), earlier(s.clock.Local(l.GetValidUntilMs()), latest),
			}
		}
	}
	s.receipts = receipts
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

package client

import (
	"fmt"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// event is a whole event: the message that ended it, and what all its chunks
// carried.
type event struct {
	*pb.WatchSnapshotsResponse
	workers      []*pb.Worker
	pools        []*pb.Pool
	removed      []*pb.RemovedWorker
	removedPools []*pb.PoolKey
}

// EventName returns what kind of event a message of a watch carries, as the
// lines of the JSON watch name it: full, delta, heartbeat or go_away; empty for
// none that this package knows.
func EventName(m *pb.WatchSnapshotsResponse) string {
	switch m.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		return "full"
	case *pb.WatchSnapshotsResponse_Delta:
		return "delta"
	case *pb.WatchSnapshotsResponse_Heartbeat:
		return "heartbeat"
	case *pb.WatchSnapshotsResponse_GoAway:
		return "go_away"
	}
	return ""
}

// place says which part of an event a message is.
type place struct {
	number, count uint32
	// base is the version that a delta is against.
	base  uint64
	delta bool
}

func placeOf(m *pb.WatchSnapshotsResponse) place {
	switch e := m.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		return place{number: e.Full.GetChunk(), count: e.Full.GetChunks()}
	case *pb.WatchSnapshotsResponse_Delta:
		d := e.Delta
		return place{number: d.GetChunk(), count: d.GetChunks(), base: d.GetBaseVersion(), delta: true}
	}
	return place{}
}

// follows says that chunk m belongs to the event that first began.
func follows(m, first *pb.WatchSnapshotsResponse) bool {
	p := placeOf(m)
	p.number = 0
	return p == placeOf(first) && sameVersion(m.GetCursor(), first.GetCursor())
}

// sameVersion says that two cursors name one content.
func sameVersion(a, b *pb.Cursor) bool {
	return sameEpoch(a, b) && a.GetVersion() == b.GetVersion()
}

// sameEpoch says that the versions of two cursors count the same contents.
func sameEpoch(a, b *pb.Cursor) bool {
	return a.GetLineage() == b.GetLineage() && a.GetEpoch() == b.GetEpoch() && a.GetFilterHash() == b.GetFilterHash()
}

// older compares two cursors of one lineage.
func older(a, b *pb.Cursor) bool {
	if a.GetEpoch() != b.GetEpoch() {
		return a.GetEpoch() < b.GetEpoch()
	}
	return a.GetVersion() < b.GetVersion()
}

// join makes one event of its chunks; all but its content is that of the last.
func join(parts []*pb.WatchSnapshotsResponse) *event {
	e := &event{WatchSnapshotsResponse: parts[len(parts)-1]}
	for _, p := range parts {
		e.workers = append(append(e.workers, p.GetFull().GetWorkers()...), p.GetDelta().GetWorkers()...)
		e.pools = append(append(e.pools, p.GetFull().GetPools()...), p.GetDelta().GetPools()...)
		e.removed = append(e.removed, p.GetDelta().GetRemoved()...)
		e.removedPools = append(e.removedPools, p.GetDelta().GetRemovedPools()...)
	}
	return e
}

// after returns the view that e leads to from v, which may be nil. It changes
// neither.
func (v *View) after(e *event, at time.Time) (*View, error) {
	cursor := e.GetCursor()
	// The versions of two filters do not compare.
	if v != nil && cursor.GetFilterHash() == v.cursor.GetFilterHash() && older(cursor, v.cursor) {
		return nil, fmt.Errorf("%w: %v after %v", ErrBackwards, cursor, v.cursor)
	}
	next := &View{at: at}
	switch kind := e.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		if v != nil {
			next.clock = v.clock
		}
		next.full(e)
	case *pb.WatchSnapshotsResponse_Delta:
		if base := kind.Delta.GetBaseVersion(); v == nil || !sameEpoch(cursor, v.cursor) || base != v.Version() {
			return nil, fmt.Errorf("%w: base %d", ErrGap, base)
		}
		next.state = v.state
		next.delta(e)
	case *pb.WatchSnapshotsResponse_Heartbeat, *pb.WatchSnapshotsResponse_GoAway:
		if !v.names(cursor) {
			return nil, fmt.Errorf("%w: no content of version %d", ErrGap, cursor.GetVersion())
		}
		next.state = v.state
	default:
		return nil, fmt.Errorf("%w: no event", ErrMalformed)
	}
	if err := next.finish(e.WatchSnapshotsResponse, at); err != nil {
		return nil, err
	}
	return next, nil
}

// names says that v is the content that c names.
func (v *View) names(c *pb.Cursor) bool { return v != nil && sameVersion(v.cursor, c) }

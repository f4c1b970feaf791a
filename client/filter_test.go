package client

import (
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// TestBug54FullOfAnotherFilter holds that the versions of two filters do not
// compare: a full of another filter takes
// the place of a view whatever its version is.
func TestBug54FullOfAnotherFilter(t *testing.T) {
	var r Replica
	full := func(version, filter uint64) *pb.WatchSnapshotsResponse {
		m := message(version, 0)
		m.Cursor.FilterHash = filter
		m.Event = &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{}}
		return m
	}
	apply(t, &r, full(9, 0))
	r.Resume()
	apply(t, &r, full(4, 77))
	if v := r.View(); v.Version() != 4 {
		t.Fatalf("the view is of version %d, want that of the other filter", v.Version())
	}
	if _, err := r.Apply(full(3, 77), start); err == nil {
		t.Error("an older version of the same filter is taken")
	}
}

package client

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/client/internal/clock"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Replica is the plane's view as one client holds it, across streams. It is
// for one goroutine; the views that it returns are not. The zero Replica holds
// nothing.
type Replica struct {
	view *View
	// candidate is the view of another lineage that was not adopted yet.
	candidate *View
	// lineage is that of the stream; empty before its first message.
	lineage string
	// parts are the chunks of an event that is not whole yet.
	parts []*pb.WatchSnapshotsResponse
	// lost says that the next watch must begin with a full.
	lost bool
}

// View returns the view in force; nil before the first full.
func (r *Replica) View() *View { return r.view }

// Resume begins a stream and returns the cursor to open it with; nil asks for
// a full. The stream before it must be over: closed by the plane, or ended
// because it was silent for 2.5 heartbeats. What it left unfinished is
// forgotten.
func (r *Replica) Resume() *pb.Cursor {
	r.parts, r.candidate, r.lineage = nil, nil, ""
	if r.view == nil {
		return nil
	}
	// The server may have stood still in between, its clock with it.
	again := *r.view
	again.clock = clock.Server{}
	r.view = &again
	if r.lost {
		return nil
	}
	return r.view.cursor
}

// Apply takes the next message of the stream, which arrived at at, a reading
// of the local clock with its monotonic part. The message must not be changed
// any more, since views share it. Apply returns the view in force afterwards:
// nil before the first whole full, which may come in several messages; the old
// one while an event is not whole, and while another lineage, which
// begins with a full, is not yet fit to be adopted. It is fit once it is not
// warming, or has as many fresh workers as the old view has valid ones. On an
// error the view is unchanged and the stream must be ended.
func (r *Replica) Apply(m *pb.WatchSnapshotsResponse, at time.Time) (*View, error) {
	next, err := r.advance(m, at)
	if err != nil {
		r.lost, r.parts = true, nil
		return r.view, err
	}
	if next != nil {
		r.lost = false
		r.put(next, at)
	}
	return r.view, nil
}

// advance returns the view that m leads to; nil while an event is not whole.
func (r *Replica) advance(m *pb.WatchSnapshotsResponse, at time.Time) (*View, error) {
	lineage := m.GetCursor().GetLineage()
	if lineage == "" || r.lineage != "" && r.lineage != lineage {
		return nil, fmt.Errorf("%w: lineage %q after %q", ErrMalformed, lineage, r.lineage)
	}
	r.lineage = lineage
	e, err := r.gather(m)
	if err != nil || e == nil {
		return nil, err
	}
	base := r.base(lineage)
	next, err := base.after(e, at)
	if err != nil {
		return nil, err
	}
	// A full that was asked for after an error settles which content is right.
	if !r.lost && base.names(next.cursor) && base.digest != next.digest {
		return nil, fmt.Errorf("%w: version %d has two contents", ErrMalformed, next.Version())
	}
	return next, nil
}

// base returns the view that a message of a lineage continues.
func (r *Replica) base(lineage string) *View {
	for _, v := range []*View{r.candidate, r.view} {
		if v != nil && v.Lineage() == lineage {
			return v
		}
	}
	return nil
}

// put makes a view the one in force, or the candidate.
func (r *Replica) put(next *View, now time.Time) {
	old := r.view
	if old == nil || old.Lineage() == next.Lineage() || !next.warming || next.CountValid(now) >= old.CountValid(now) {
		r.view, r.candidate = next, nil
		return
	}
	r.candidate = next
}

// maxChunks bounds the chunks of an event, of about 2 MiB each.
const maxChunks = 4096

// gather returns the event of m, joined with the chunks before it; nil while
// it is not whole.
func (r *Replica) gather(m *pb.WatchSnapshotsResponse) (*event, error) {
	p := placeOf(m)
	if p.count > maxChunks {
		return nil, fmt.Errorf("%w: %d chunks", ErrMalformed, p.count)
	}
	if int(p.number) != len(r.parts) || p.number > 0 && !follows(m, r.parts[0]) {
		return nil, fmt.Errorf("%w: chunk %d of %d after %d others", ErrGap, p.number, p.count, len(r.parts))
	}
	r.parts = append(r.parts, m)
	if len(r.parts) < int(p.count) {
		return nil, nil
	}
	e := join(r.parts)
	r.parts = nil
	return e, nil
}

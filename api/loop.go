package api

import (
	"context"
	"errors"
	"time"

	"github.com/loadplane/loadplane/api/frame"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// reconnectWithin is the time over which the watchers of a draining plane
// shall spread their reconnects.
const reconnectWithin = 2 * time.Second

// kind is the type of a message of a watch, as JSON lines and metrics name it.
type kind string

const (
	kindFull      kind = "full"
	kindDelta     kind = "delta"
	kindHeartbeat kind = "heartbeat"
	kindGoAway    kind = "go_away"
)

// update is one message of a watch, before it is encoded.
type update struct {
	kind kind
	view *snapshot.View
	// base is the version that a delta is against.
	base uint64
	// since is the tick after which receipts are sent; 0 for all.
	since     uint64
	heartbeat time.Duration
	// why is the reason of a go_away.
	why string
}

// watch is one watch. It is for one goroutine.
type watch struct {
	api       *API
	out       *frame.Writer
	heartbeat time.Duration
	// fullOnly sends every version whole.
	fullOnly bool
	// encode writes an update to out and flushes it.
	encode func(update) error

	// version and tick are what the reader holds: what was last sent, or, at
	// first, the version that it resumes from; 0 for nothing.
	version, tick uint64
	// begun says that something was sent.
	begun bool
}

// errCut says that a message could not be sent.
var errCut = errors.New("the reader is gone or too slow")

// run sends the view and its changes until ctx ends, the plane drains
// (a *refusal) or a message cannot be sent (errCut).
func (w *watch) run(ctx context.Context) error {
	w.out.Stream(w.api.opts.WriteTimeout)
	timer := time.NewTimer(w.heartbeat)
	defer timer.Stop()
	for {
		view, stale := w.api.snapshots.Fresh(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.send(w.next(view)); err != nil {
			return err
		}
		timer.Reset(w.heartbeat)
		select {
		case <-stale:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-w.api.drain:
			return w.goAway()
		}
	}
}

// next decides what the reader lacks of view. A full carries all receipts, and
// so does the first message.
func (w *watch) next(view *snapshot.View) update {
	u := update{kind: kindHeartbeat, view: view, since: w.tick, heartbeat: w.heartbeat}
	switch {
	case view.Version == w.version:
	case w.fullOnly || !view.Covers(w.version):
		u.kind, u.since = kindFull, 0
	default:
		u.kind, u.base = kindDelta, w.version
	}
	return u
}

// resume takes up what a reader says that it holds, where that is a version
// of this view that the plane can tell the change from.
func (w *watch) resume(c *pb.Cursor) {
	view, _ := w.api.snapshots.Current()
	if c.GetLineage() == view.Lineage && c.GetEpoch() == view.Epoch && c.GetFilterHash() == 0 && view.Covers(c.GetVersion()) {
		w.version = c.GetVersion()
	}
}

// goAway sends what the reader still lacks, so that the version of the go_away
// is one that it holds and can resume from, and then the reason.
func (w *watch) goAway() error {
	view, _ := w.api.snapshots.Current()
	if view.Version != w.version {
		if err := w.send(w.next(view)); err != nil {
			return err
		}
	}
	refused := refuseDraining(w.api.drainWhy)
	u := update{kind: kindGoAway, view: view, since: w.tick, heartbeat: w.heartbeat, why: refused.Error()}
	if err := w.send(u); err != nil {
		return err
	}
	return refused
}

// send encodes u and sends it within the write timeout.
func (w *watch) send(u update) error {
	before := w.out.Sent()
	err := w.encode(u)
	if err == nil {
		err = w.out.Err()
	}
	if err != nil {
		w.api.metrics.failed.of(w.failure()).Inc()
		return errCut
	}
	w.note(u, w.out.Sent()-before)
	return nil
}

func (w *watch) failure() store.Reason {
	if w.out.Late() {
		return ReasonDeadline
	}
	return ReasonClient
}

// note records that u was sent.
func (w *watch) note(u update, bytes int) {
	m := w.api.metrics
	m.sent.of(u.kind).Inc()
	m.bytes.Add(float64(bytes))
	if (u.kind == kindFull || u.kind == kindDelta) && w.begun {
		m.delay.Observe(max(0, time.Since(u.view.Published).Seconds()))
	}
	w.begun, w.version, w.tick = true, u.view.Version, u.view.Tick
}

// admit counts a watch in, or refuses it.
func (a *API) admit(ctx context.Context) (leave func(), refused *refusal) {
	if a.draining() {
		refused = refuseDraining(a.drainWhy)
	} else {
		leave, refused = a.gate.enter(ctx)
	}
	if refused != nil {
		a.metrics.refused.of(refused.reason).Inc()
	}
	return leave, refused
}

// grant clamps a heartbeat interval asked for; 0 asks for the default.
func (a *API) grant(asked time.Duration) time.Duration {
	if asked == 0 {
		asked = a.opts.Heartbeat
	}
	return min(max(asked, minHeartbeat), a.stale/3)
}

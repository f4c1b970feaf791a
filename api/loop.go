package api

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/loadplane/loadplane/api/feeds"
	"github.com/loadplane/loadplane/api/frame"
	"github.com/loadplane/loadplane/api/pace"
	"github.com/loadplane/loadplane/api/query"
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

// data says that a message of the kind changes what its reader holds.
func (k kind) data() bool { return k == kindFull || k == kindDelta }

// update is one message of a watch, before it is encoded.
type update struct {
	kind kind
	view *snapshot.View
	feed *feeds.Feed
	// brief leaves out the ranks.
	brief bool
	// base is the version that a delta is against.
	base uint64
	// since says which receipts are sent.
	since                  frame.Since
	heartbeat, minInterval time.Duration
	// why is the reason of a go_away.
	why string
}

// watch is one watch. It is for one goroutine.
type watch struct {
	api       *API
	out       *frame.Writer
	feed      *feeds.Feed
	pace      *pace.Pace
	heartbeat time.Duration
	// client is what the watch counts under where it is cut; empty for not at
	// all.
	client string
	brief  bool
	// fullOnly sends every version whole.
	fullOnly bool
	// encode writes an update to out and flushes it.
	encode func(update) error

	// version and tick are what the reader holds: what was last sent, or, at
	// first, the version that it resumes from; 0 for nothing.
	version, tick uint64
	// held is the head of what was last sent; nil for nothing.
	held *snapshot.View
	// lag tells the metrics since when a message is being sent.
	lag *lag
	// due is when a change that was noticed may be sent; zero for none.
	due time.Time
}

// errCut says that a message could not be sent.
var errCut = errors.New("the reader is gone or too slow")

// newWatch returns a watch of what q asks for. Its feed must be released.
func (a *API) newWatch(ctx context.Context, q query.Query) *watch {
	w := &watch{
		api: a, out: writerOf(ctx), feed: a.feeds.Take(q.Filter), heartbeat: a.grant(q.Heartbeat),
		client: a.clientOf(ctx, q.ClientID), brief: q.Brief,
	}
	settle := a.store.Options().Settle
	w.pace = pace.New(pace.Options{
		Asked: q.MinInterval, Most: a.stale / 3, Settle: settle, ClientID: q.ClientID, Origin: a.began,
		Floor: func() time.Duration { return pace.Floor(int(a.gate.open.Load()), settle) },
	})
	return w
}

// clientOf names who is refused after too many cuts: the client by its own
// name and address. Peers that are exempt from limits may stand for many, so
// without a name they are nobody.
func (a *API) clientOf(ctx context.Context, id string) string {
	peer := netip.Addr{}
	if conn, ok := ctx.Value(connKey{}).(*connection); ok {
		peer = conn.peer
	}
	if id == "" && (!peer.IsValid() || a.opts.Exempt(peer)) {
		return ""
	}
	return peer.String() + " " + id
}

// run sends the view and its changes until ctx ends, the plane drains
// (a *refusal) or a message cannot be sent (errCut).
func (w *watch) run(ctx context.Context) error {
	w.out.Stream(w.api.opts.WriteTimeout)
	w.lag = w.api.lags.enter()
	defer w.api.lags.leave(w.lag)
	timer := time.NewTimer(w.heartbeat)
	defer timer.Stop()
	for {
		view, stale := w.feed.Fresh(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.send(w.next(view)); err != nil {
			return err
		}
		if err := w.wait(ctx, timer, stale); err != nil {
			return err
		}
	}
}

// wait returns when a message is due: a change of the filter's content, or a
// heartbeat. Changes of anything else wake it, and cost a look.
func (w *watch) wait(ctx context.Context, timer *time.Timer, stale <-chan struct{}) error {
	beat := time.Now().Add(w.heartbeat)
	for {
		wake := beat
		if !w.due.IsZero() {
			stale = nil // the newest is sent when it is due
			if w.due.Before(beat) {
				wake = w.due
			}
		}
		timer.Reset(time.Until(wake))
		select {
		case <-stale:
			var moved bool
			if moved, stale = w.feed.Moved(w.version); !moved {
				continue
			}
			now := time.Now()
			if w.due = w.pace.Due(now); !now.Before(w.due) {
				return nil
			}
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-w.api.drain:
			return w.goAway()
		}
	}
}

// next decides what the reader gets of view: what it lacks where that is due,
// else a heartbeat that names what it holds. A heartbeat before a change
// carries no receipts: they may be of workers that the reader has not yet.
func (w *watch) next(view *snapshot.View) update {
	switch {
	case view.Version <= w.version:
		w.due = time.Time{}
		return w.update(kindHeartbeat, w.named(view))
	case w.early():
		return w.update(kindHeartbeat, w.held)
	}
	return w.change(view)
}

// early says that a change was noticed that is not due yet.
func (w *watch) early() bool {
	if w.held == nil {
		return false
	}
	now := time.Now()
	if w.due.IsZero() {
		w.due = w.pace.Due(now)
	}
	return now.Before(w.due)
}

// change returns what leads from what the reader holds to view. A full
// carries all receipts, and so does the first message; a delta of a filter
// those of workers that may have entered it, too.
func (w *watch) change(view *snapshot.View) update {
	u := w.update(kindDelta, view)
	if w.fullOnly || !view.Covers(w.version) {
		u.kind, u.since = kindFull, frame.Since{}
	} else {
		u.base = w.version
	}
	if u.base > 0 && view.FilterHash != 0 && w.tick > 0 {
		u.since.Entered = u.base
	}
	return u
}

func (w *watch) update(k kind, view *snapshot.View) update {
	return update{
		kind: k, view: view, feed: w.feed, brief: w.brief, since: frame.Since{Tick: w.tick},
		heartbeat: w.heartbeat, minInterval: w.pace.Interval(),
	}
}

// named returns view under the version that the reader has for the same
// content, which another feed of the filter may have told it.
func (w *watch) named(view *snapshot.View) *snapshot.View {
	if view.Version >= w.version {
		return view
	}
	return view.Named(w.version)
}

// resume takes up what a reader says that it holds, where that is a version
// of this view, at the detail of the watch, that the plane can tell the change
// from.
func (w *watch) resume(c *pb.Cursor) {
	view, _ := w.feed.Current()
	if c.GetLineage() != view.Lineage || c.GetEpoch() != view.Epoch || c.GetFilterHash() != selection(view, w.brief) {
		return
	}
	// From Version to Seen all versions name one content.
	if v := c.GetVersion(); view.Covers(v) || v > view.Version && v <= view.Seen {
		w.version = v
	}
}

// goAway sends what the reader still lacks, so that the version of the go_away
// is one that it holds and can resume from, and then the reason.
func (w *watch) goAway() error {
	view, _ := w.feed.Current()
	if view.Version > w.version {
		if err := w.send(w.change(view)); err != nil {
			return err
		}
	}
	refused := refuseDraining(w.api.drainWhy)
	u := w.update(kindGoAway, w.named(view))
	u.why = refused.Error()
	if err := w.send(u); err != nil {
		return err
	}
	return refused
}

// send encodes u and sends it within the write timeout.
func (w *watch) send(u update) error {
	before, began := w.out.Sent(), time.Now()
	w.lag.begin(began.Sub(w.api.began))
	err := w.encode(u)
	w.lag.end()
	if err == nil {
		err = w.out.Err()
	}
	if err != nil {
		w.api.metrics.failed.of(w.failure()).Inc()
		return errCut
	}
	if u.kind.data() {
		w.pace.Sent(began, time.Now())
	}
	w.note(u, w.out.Sent()-before)
	return nil
}

// failure returns why a message was not sent, and notes a reader that was too
// slow.
func (w *watch) failure() store.Reason {
	if !w.out.Late() {
		return ReasonClient
	}
	if w.client != "" {
		w.api.offenders.Cut(w.client, time.Now())
	}
	return ReasonDeadline
}

// note records that u was sent.
func (w *watch) note(u update, bytes int) {
	m := w.api.metrics
	m.sent.of(u.kind).Inc()
	m.bytes.Add(float64(bytes))
	if u.kind.data() {
		if w.held != nil {
			m.delay.Observe(max(0, time.Since(u.view.Published).Seconds()))
		}
		w.due = time.Time{}
	}
	w.held, w.version, w.tick = u.view.Bare(), u.view.Version, u.view.Tick
}

// admit counts a watch in, or refuses it. The client is empty where it does
// not matter.
func (a *API) admit(ctx context.Context, client string) (leave func(), refused *refusal) {
	pause, slow := a.offenders.Refused(client, time.Now())
	switch {
	case a.draining():
		refused = refuseDraining(a.drainWhy)
	case slow:
		refused = refuseSlow(pause)
	default:
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

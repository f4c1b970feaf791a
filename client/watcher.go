package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/client/internal/link"
	"github.com/loadplane/loadplane/client/internal/retry"
)

const (
	// grace is how long a cancelled stream gets to end.
	grace = 500 * time.Millisecond
	// maxStuck bounds the streams that did not end within their grace.
	maxStuck = 4
	// maxReason bounds what is kept of a plane's text, bytes.
	maxReason = 256
)

// Watcher follows a plane for as long as Run runs: it reconnects, resumes,
// notices silence, and keeps the last view while no plane can be reached. All
// methods are safe for concurrent use.
type Watcher struct {
	opts Options
	log  *slog.Logger
	dial link.DialFunc
	// random returns a number in [0, n).
	random func(n int64) int64

	// running is held by Run, and guards replica.
	running sync.Mutex
	replica Replica
	// slots has an element for every stream whose goroutine is not over.
	slots chan struct{}

	held atomic.Pointer[held]

	mu     sync.Mutex
	status Status
}

// held is a view and the channel that closes when it is superseded.
type held struct {
	view  *View
	stale chan struct{}
}

// NewWatcher returns a watcher that does nothing until Run is called. The error
// names the field of the options that is wrong.
func NewWatcher(o Options) (*Watcher, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	w := &Watcher{
		opts: o, log: o.Logger, random: rand.Int64N,
		dial:  (&net.Dialer{Timeout: link.DialTimeout}).DialContext,
		slots: make(chan struct{}, maxStuck),
		status: Status{
			Since: time.Now(), Messages: make(map[string]uint64), Ended: make(map[Cause]uint64),
		},
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.held.Store(&held{stale: make(chan struct{})})
	return w, nil
}

// View returns the view in force, nil before the first, and a channel that
// closes when another one is. A heartbeat brings new receipts and so a new
// view. It never blocks and allocates nothing. A reader that is slow skips
// views; nothing waits for it.
func (w *Watcher) View() (*View, <-chan struct{}) {
	h := w.held.Load()
	return h.view, h.stale
}

// Status returns what the watcher does now.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.clone()
}

// Run follows the plane until ctx ends, and then returns nil within a second.
// It never gives up before; Status tells what is wrong. The view stays when Run
// is over, and Run may be called again. While it runs, another call returns
// ErrRunning. All goroutines that it started are over when it returns, unless
// HTTPClient or Token do not heed their context: of those at most four are left
// behind.
func (w *Watcher) Run(ctx context.Context) error {
	if !w.running.TryLock() {
		return ErrRunning
	}
	defer w.running.Unlock()
	plan := retry.New(w.opts.Addresses, w.random)
	for {
		address, at := plan.Pick(time.Now())
		if !sleep(ctx, time.Until(at)) {
			return nil
		}
		e := w.follow(ctx, address)
		if ctx.Err() != nil {
			w.left()
			return nil
		}
		now := time.Now()
		w.ended(e, now)
		plan.Ended(e.Ending, now)
	}
}

// sleep waits for d, or less when ctx ends: then it returns false.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// follow holds one stream until it ends, is cut, or ctx ends.
func (w *Watcher) follow(ctx context.Context, address int) ending {
	e := ending{Ending: retry.Ending{Address: address}}
	if !w.enter(ctx) {
		return e
	}
	s := w.stream(w.opts.Addresses[address])
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		s.err = s.receive(streamCtx)
		<-w.slots
		close(s.done)
	}()
	err := w.take(ctx, s, &e)
	cancel()
	s.link.Close()
	s.end()
	e.finish(s.address, err)
	return e
}

// enter waits for the room that a stream needs. There is always some, unless
// cancelled streams do not end.
func (w *Watcher) enter(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		return true
	default:
	}
	w.mu.Lock()
	w.status.LastError, w.status.LastCause = ErrStuck, CauseUnreachable
	w.mu.Unlock()
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *Watcher) stream(address string) *stream {
	s := &stream{
		opts: w.opts, address: address, resume: w.replica.Resume(),
		arrivals: make(chan arrival), done: make(chan struct{}),
	}
	if w.opts.HTTPClient != nil {
		s.link = link.Over(w.opts.HTTPClient)
	} else {
		s.link = link.New(address, w.opts.TLS, w.dial)
	}
	return s
}

// end gives a cancelled stream the time to end.
func (s *stream) end() {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
}

// take applies what comes until the stream is over or has to be, and says why.
func (w *Watcher) take(ctx context.Context, s *stream, e *ending) error {
	watchdog := time.NewTimer(firstMessage)
	defer watchdog.Stop()
	var began time.Time
	for {
		select {
		case a := <-s.arrivals:
			if began.IsZero() {
				began = a.at
				w.log.Info("watch began", "address", s.address)
			}
			e.Lasted = a.at.Sub(began)
			if err := w.apply(s.address, a, e); err != nil {
				return err
			}
			watchdog.Reset(patience(a.WatchSnapshotsResponse))
		case <-watchdog.C:
			return ErrSilent
		case <-s.done:
			return s.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply takes a message over. It fails where the stream must end.
func (w *Watcher) apply(address string, a arrival, e *ending) error {
	view, err := w.replica.Apply(a.WatchSnapshotsResponse, a.at)
	if err != nil {
		e.cause = CauseBroken
		return err
	}
	// Who is woken by the view finds it counted.
	old, _ := w.View()
	w.note(address, a, old != nil && old.Lineage() != view.Lineage())
	w.publish(view)
	if g := a.GetGoAway(); g != nil {
		e.Within = time.Duration(g.GetReconnectWithinMs()) * time.Millisecond
		e.Prefer = g.GetAlternatives()
		return fmt.Errorf("%w: %.*q", ErrGoAway, maxReason, g.GetReason())
	}
	return nil
}

// publish makes a view the one in force.
func (w *Watcher) publish(view *View) {
	old := w.held.Load()
	if old.view == view {
		return
	}
	w.held.Store(&held{view: view, stale: make(chan struct{})})
	close(old.stale)
}

// note counts a message.
func (w *Watcher) note(address string, a arrival, adopted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.move(address, a.at)
	w.status.LastMessage = a.at
	w.status.Messages[EventName(a.WatchSnapshotsResponse)]++
	if adopted {
		w.status.Adoptions++
	}
}

// ended counts and logs an ending.
func (w *Watcher) ended(e ending, at time.Time) {
	w.mu.Lock()
	w.status.end(e, at)
	w.mu.Unlock()
	level := slog.LevelWarn
	if errors.Is(e.err, ErrGoAway) {
		level = slog.LevelInfo
	}
	w.log.Log(context.Background(), level, "watch ended", "address", w.opts.Addresses[e.Address], "cause", string(e.cause), "error", e.err)
}

// left notes that Run is over.
func (w *Watcher) left() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.move("", time.Now())
}

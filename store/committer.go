package store

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

const (
	// watchdogPeriod is how often the committer looks whether time passed as
	// it should.
	watchdogPeriod = 250 * time.Millisecond
	// stopLimit is how late a watchdog tick is when the process was stopped.
	stopLimit = time.Second
	// sleepLimit is how much sleep of the machine counts.
	sleepLimit = 100 * time.Millisecond
)

// Run is the committer. It waits the settle time after the first input, takes
// all of it into one commit, and commits what falls due by time alone at once.
// It blocks until ctx ends and returns an error only when the tables refuse a
// row.
func (s *Store) Run(ctx context.Context) error {
	c := &committer{Store: s, lastTick: s.opts.Clock.Now(), slept: s.opts.SleptFor()}
	s.beat.Store(int64(c.lastTick))
	watchdog := time.NewTicker(watchdogPeriod)
	defer watchdog.Stop()
	settle, due := stopped(), stopped()
	defer settle.Stop()
	defer due.Stop()
	for settling := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			if !settling {
				settle.Reset(s.opts.Settle)
				settling = true
			}
			continue
		case <-settle.C:
		case <-due.C:
		case <-s.overdue:
		case <-watchdog.C:
			if !c.tick() {
				continue
			}
		}
		// What this commit takes needs no other one.
		settle.Stop()
		settling = false
		drain(s.wake)
		if err := c.run(); err != nil {
			return err
		}
		c.schedule(due)
	}
}

// drain takes a token out of a channel of capacity one.
func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// committer is the state of the loop in Run.
type committer struct {
	*Store
	// lastTick is the last watchdog tick, slept the sleep known by then.
	lastTick Instant
	slept    time.Duration
}

// tick is the watchdog. It says whether there is something to commit.
func (c *committer) tick() bool {
	now := c.opts.Clock.Now()
	if _, stood := c.stoodStill(now); stood.detected != 0 {
		return true
	}
	c.lastTick = now
	c.beat.Store(int64(c.lastTick))
	return false
}

// stoodStill says whether the machine slept, and in which span the process
// did not run.
func (c *committer) stoodStill(now Instant) (slept bool, d doubt) {
	slept = c.opts.SleptFor()-c.slept > sleepLimit
	if slept || now.Sub(c.lastTick) > watchdogPeriod+stopLimit {
		d = doubt{from: c.lastTick, detected: now}
	}
	return slept, d
}

// run makes one commit.
func (c *committer) run() error {
	began := time.Now()
	// The clock is read after the input was taken: nothing in it is younger,
	// and a stop of the process before this line shows.
	in := input{wall: began}
	x := c.collect(&in)
	in.now = c.opts.Clock.Now()
	in.slept, in.doubt = c.stoodStill(in.now)
	if in.doubt.detected != 0 {
		c.metrics.stalls.Inc()
		c.log.Warn("the process stood still", slog.Duration("for", in.now.Sub(c.lastTick)), slog.Bool("slept", in.slept))
		c.lastTick, c.slept = in.now, c.opts.SleptFor()
		c.beat.Store(int64(in.now))
	}
	prev := c.current.Load()
	if in.empty(x) && !c.late(prev) {
		return nil
	}
	d := decide(prev.state, in, rules{c.opts.StaleAfter, c.opts.ReportInterval})
	c.track(in.changes)
	c.chronicle(prev.state, d, in.now, &x)

	c.commit.Lock()
	defer c.commit.Unlock()
	if err := write(c.db, prev.state, d.next, x); err != nil {
		return fmt.Errorf("store: commit: %w", err)
	}
	c.publish(prev, d)
	c.metrics.observe(d, len(in.offers), time.Since(began))
	c.metrics.published(in.offers, c.opts.Clock.Now())
	return nil
}

// empty says that there is nothing to commit but what time does.
func (in *input) empty(x extra) bool {
	return len(in.changes)+len(in.notes)+len(in.offers)+len(x.streams)+len(x.diagnostics) == 0 && in.doubt.detected == 0
}

// collect takes what is queued.
func (c *committer) collect(in *input) extra {
	c.mu.Lock()
	dirty := c.dirty
	in.changes = c.changes
	c.dirty, c.changes = nil, nil
	c.mu.Unlock()
	var x extra
	for _, sl := range dirty {
		t := sl.take()
		if t.load != nil {
			in.offers = append(in.offers, offer{sl.row, t.load})
		}
		if t.note != nil {
			in.notes = append(in.notes, note{sl.row, *t.note})
		}
		if t.stream != nil {
			x.streams = append(x.streams, t.stream)
		}
		if t.diag != nil {
			x.diagnostics = append(x.diagnostics, t.diag)
		}
	}
	return x
}

// track keeps the slots of the workers that there are.
func (c *committer) track(changes []Discovery) {
	for _, d := range changes {
		for _, sl := range d.Removed {
			delete(c.slots, sl.row)
		}
		for _, sl := range d.Added {
			c.slots[sl.row] = sl
		}
	}
}

// chronicle adds to the diagnostics what the commit makes of workers. A row
// that x has already is replaced: the later one counts.
func (c *committer) chronicle(prev *State, d *decision, now Instant, x *extra) {
	if !d.content {
		return
	}
	for i, e := range d.next.Entries {
		if e.Version != d.next.Version {
			continue
		}
		var old *Entry
		if j, ok := prev.FindNear(e.Row, i); ok {
			old = prev.Entries[j]
		}
		list := happened(old, e, now)
		if sl := c.slots[e.Row]; sl != nil && (old == nil || len(list) > 0) {
			x.diagnostics = append(x.diagnostics, sl.recall(list))
		}
	}
}

// publish makes the decision visible. Watchers of the content are woken by
// closing the old channel; none of them can hold the committer up.
func (c *committer) publish(prev *published, d *decision) {
	p := &published{state: d.next, stale: prev.stale, next: make(chan struct{})}
	if d.content {
		p.stale = make(chan struct{})
	}
	c.current.Store(p)
	if d.content {
		close(prev.stale)
	}
	close(prev.next)
}

// schedule sets the timer to the next expiry.
func (c *committer) schedule(due *time.Timer) {
	due.Stop()
	if next := c.current.Load().state.NextDue; next != 0 {
		due.Reset(max(0, next.Sub(c.opts.Clock.Now())))
	}
}

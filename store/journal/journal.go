package journal

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/store"
)

const (
	// settle is how long a change of the state waits for more.
	settle = 100 * time.Millisecond
	// sumEach is how long changes that were only counted wait for more.
	sumEach = 5 * time.Second
)

// Options configure a Journal.
type Options struct {
	// Store has the workers. Required.
	Store *store.Store
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Journal logs changes of workers. It is for one call of Run, and for the
// goroutine that makes it.
type Journal struct {
	store *store.Store
	log   *slog.Logger
	// seen is the content that was told last.
	seen *store.Content
	// lines bounds the lines.
	lines lines
}

// New returns a journal that has told nothing yet. It starts nothing.
func New(opts Options) *Journal {
	return &Journal{
		store: opts.Store, log: cmp.Or(opts.Logger, slog.Default()),
		seen: &store.Content{}, lines: newLines(),
	}
}

// Run tells of changes until ctx ends, and then of those that were only
// counted. It starts no goroutine and returns nil.
func (j *Journal) Run(ctx context.Context) error {
	var sum <-chan time.Time
	for {
		state, stale := j.store.Current()
		j.tell(state)
		if sum == nil && j.lines.left() {
			sum = time.After(sumEach)
		}
		select {
		case <-ctx.Done():
			j.sum(ctx)
			return nil
		case <-sum:
			sum = nil
			j.sum(ctx)
			continue
		case <-stale:
		}
		select {
		case <-ctx.Done():
		case <-time.After(settle):
		}
	}
}

// tell tells what changed since the last time.
func (j *Journal) tell(s *store.State) {
	if s.Content == j.seen {
		return
	}
	prev := j.seen
	j.seen = s.Content
	gone := j.gone(prev, s.Content)
	for i, e := range s.Entries {
		at, known := prev.FindNear(e.Row, i)
		switch {
		case !known:
			j.appeared(e, gone[e.Worker.ID])
			delete(gone, e.Worker.ID)
		case prev.Entries[at] != e:
			j.changed(prev.Entries[at], e, s.Live[i])
		}
	}
	for id, e := range gone {
		j.say(change{worker: id, kind: removed, attrs: []slog.Attr{slog.String("source", e.Worker.DiscoveredBy)}})
		j.lines.forget(id)
	}
}

// gone returns by id what was there before and is not any more.
func (j *Journal) gone(prev, next *store.Content) map[string]*store.Entry {
	gone := make(map[string]*store.Entry)
	for i, e := range prev.Entries {
		if _, there := next.FindNear(e.Row, i); !there {
			gone[e.Worker.ID] = e
		}
	}
	return gone
}

// appeared tells of a worker that is new, or new in the place of old.
func (j *Journal) appeared(e, old *store.Entry) {
	attrs := []slog.Attr{
		slog.String("source", e.Worker.DiscoveredBy), slog.String("url", e.Worker.URL),
		slog.String("role", e.Worker.Role.String()), slog.String("dialect", e.Worker.Dialect.String()),
	}
	if old == nil {
		j.say(change{worker: e.Worker.ID, kind: found, attrs: attrs})
	} else {
		attrs = append(attrs, slog.String("changed", difference(old.Worker, e.Worker)))
		j.say(change{worker: e.Worker.ID, kind: replaced, attrs: attrs})
	}
	if e.Load != nil {
		j.judged(&store.Entry{Freshness: store.Missing}, e, nil)
	}
}

// difference names what makes b another worker than a.
func difference(a, b *store.Worker) string {
	switch {
	case a.URL != b.URL || a.Origin != b.Origin:
		return "url"
	case a.Role != b.Role:
		return "role"
	case a.Duplicate != b.Duplicate:
		return "origin"
	case a.NoEngine != b.NoEngine:
		return "engine"
	case a.Dialect != b.Dialect:
		return "dialect"
	}
	return "instance"
}

// changed tells what became of a worker that stays.
func (j *Journal) changed(old, e *store.Entry, l *store.Live) {
	if old.Worker.Draining != e.Worker.Draining {
		kind := drains
		if !e.Worker.Draining {
			kind = undrained
		}
		j.say(change{worker: e.Worker.ID, kind: kind, attrs: []slog.Attr{slog.String("source", e.Worker.DiscoveredBy)}})
	}
	if old.Load == nil && e.Load != nil || old.Freshness != e.Freshness || e.Load != nil && old.Reason != e.Reason {
		j.judged(old, e, l)
	}
}

// judged tells how fresh a worker is now. While nothing was heard, the state of
// the way to it says more, which the registry tells.
func (j *Journal) judged(old, e *store.Entry, l *store.Live) {
	if e.Freshness == store.Missing {
		return
	}
	c := change{worker: e.Worker.ID, kind: kindOf[e.Freshness]}
	if old.Load == nil {
		j.say(change{worker: c.worker, kind: heard, attrs: []slog.Attr{
			slog.String("dialect", e.Worker.Dialect.String()), slog.Int("ranks", len(e.Ranks)),
		}})
		if e.Freshness == store.Fresh {
			return
		}
	}
	c.attrs = append(c.attrs, slog.String("was", old.Freshness.String()))
	if e.Freshness == store.Fresh {
		c.attrs = append(c.attrs, slog.String("was_reason", string(old.Reason)))
		j.say(c)
		return
	}
	c.attrs = append(c.attrs, slog.String("reason", string(e.Reason)))
	if l != nil {
		age := max(0, j.store.Options().Clock.Now().Sub(l.Received))
		c.attrs = append(c.attrs, slog.Duration("age", age.Round(time.Millisecond)))
	}
	if l != nil && l.LastError != "" {
		c.attrs = append(c.attrs, slog.String("error", cut(l.LastError)))
	}
	j.say(c)
}

package journal

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
)

// Bounds of the lines: of all workers so many a second and at once, of one worker
// so many at first and then one in each time.
const (
	linesPerSecond, lineBurst = 5, 50
	firstLines, laterEach     = 8, time.Minute
)

// maxText bounds a text of an engine in a line, bytes.
const maxText = 256

// kind is what became of a worker.
type kind uint8

const (
	found kind = iota
	replaced
	removed
	heard
	fresh
	stale
	unreachable
	drains
	undrained
	kinds
)

// kindOf says what it is to become so fresh.
var kindOf = map[store.Freshness]kind{store.Fresh: fresh, store.Stale: stale, store.Unreachable: unreachable}

// keys has for each kind the key by which changes are counted that have no line.
var keys = [kinds]string{
	found: "found", replaced: "replaced", removed: "removed", heard: "heard", fresh: "fresh",
	stale: "stale", unreachable: "unreachable", drains: "draining", undrained: "undrained",
}

// level is warning for what takes load out of sight.
func (k kind) level() slog.Level {
	if k == stale || k == unreachable {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// write writes the line of a change.
func (c *change) write(ctx context.Context, log *slog.Logger) {
	attrs := append([]slog.Attr{slog.String("worker", cut(c.worker))}, c.attrs...)
	level := c.kind.level()
	switch c.kind {
	case found:
		log.LogAttrs(ctx, level, "worker found", attrs...)
	case replaced:
		log.LogAttrs(ctx, level, "worker is another one", attrs...)
	case removed:
		log.LogAttrs(ctx, level, "worker removed", attrs...)
	case heard:
		log.LogAttrs(ctx, level, "worker heard", attrs...)
	case fresh:
		log.LogAttrs(ctx, level, "worker fresh again", attrs...)
	case stale:
		log.LogAttrs(ctx, level, "worker stale", attrs...)
	case unreachable:
		log.LogAttrs(ctx, level, "worker unreachable", attrs...)
	case drains:
		log.LogAttrs(ctx, level, "worker drains", attrs...)
	case undrained:
		log.LogAttrs(ctx, level, "worker takes new work again", attrs...)
	}
}

// change is one line.
type change struct {
	worker string
	kind   kind
	attrs  []slog.Attr
}

// lines bounds what is logged. It is for one goroutine.
type lines struct {
	all *rate.Limiter
	// of has the bound of each worker that had a line, by id.
	of map[string]*rate.Sometimes
	// counted are the changes without a line since the last sum.
	counted [kinds]int
}

func newLines() lines {
	return lines{all: rate.NewLimiter(linesPerSecond, lineBurst), of: make(map[string]*rate.Sometimes)}
}

// allow says whether a change of a worker has a line, and counts it if not.
func (l *lines) allow(c *change) (ok bool) {
	if l.of[c.worker] == nil {
		l.of[c.worker] = &rate.Sometimes{First: firstLines, Interval: laterEach}
	}
	l.of[c.worker].Do(func() { ok = l.all.Allow() })
	if !ok {
		l.counted[c.kind]++
	}
	return ok
}

// forget drops the bound of a worker that is gone.
func (l *lines) forget(worker string) { delete(l.of, worker) }

// left says whether there are changes that were only counted.
func (l *lines) left() bool { return l.counted != [kinds]int{} }

// say logs a change, within the bounds.
func (j *Journal) say(c change) {
	if j.lines.allow(&c) {
		c.write(context.Background(), j.log)
	}
}

// sum logs in one line the changes that were only counted.
func (j *Journal) sum(ctx context.Context) {
	if !j.lines.left() {
		return
	}
	var attrs []slog.Attr
	level := slog.LevelInfo
	for k, n := range j.lines.counted {
		if n > 0 {
			attrs = append(attrs, slog.Int(keys[k], n))
			level = max(level, kind(k).level())
		}
	}
	j.lines.counted = [kinds]int{}
	j.log.LogAttrs(ctx, level, "further changes of workers", attrs...)
}

// cut bounds a text.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

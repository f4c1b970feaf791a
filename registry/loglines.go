package registry

import (
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Lines about the ways to all workers together: so many a second, and so many at
// once.
const wayLines, wayBurst = 10, 200

// remindEach is how often a fault that stays is told of again.
const remindEach = time.Minute

// roll bounds the lines about discovery as a whole.
type roll struct {
	// rounds is for reconciliations, watch for the watch of the workers file,
	// and room and dropped for workers that there is no room for.
	rounds, watch, room, dropped rate.Sometimes
	// file is what is wrong with the workers file. It is guarded by
	// Registry.discovering.
	file lasting
	// ways bounds the lines about the ways to workers.
	ways crowded
}

func newRoll() roll {
	rarely := func() rate.Sometimes { return rate.Sometimes{First: 8, Interval: remindEach} }
	return roll{
		rounds: rate.Sometimes{First: 16, Interval: 5 * time.Second},
		watch:  rarely(), room: rarely(), dropped: rarely(),
		ways: crowded{limit: rate.NewLimiter(wayLines, wayBurst)},
	}
}

// crowded bounds lines of which every worker may have one at the same time. It
// is safe for concurrent use.
type crowded struct {
	limit *rate.Limiter
	// unsaid counts those without room since the last that had some.
	unsaid atomic.Int64
}

// room says whether there is room for a line, and returns its attributes with
// the number of those before it that there was none for.
func (c *crowded) room(attrs ...slog.Attr) ([]slog.Attr, bool) {
	if !c.limit.Allow() {
		c.unsaid.Add(1)
		return nil, false
	}
	if n := c.unsaid.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("unlogged", n))
	}
	return attrs, true
}

// lasting is a fault that may stay for long: it is told of when it is another,
// and then once a minute. The zero value is none.
type lasting struct {
	text  string
	told  time.Time
	times int
}

// tell says whether the fault is to be told of, and how often it was found since
// the last time it was.
func (l *lasting) tell(text string) (times int, tell bool) {
	l.times++
	if text == l.text && time.Since(l.told) < remindEach {
		return 0, false
	}
	times = l.times
	*l = lasting{text: text, told: time.Now()}
	return times, true
}

// over ends the fault, and says whether there was one.
func (l *lasting) over() bool {
	was := l.text != ""
	*l = lasting{}
	return was
}

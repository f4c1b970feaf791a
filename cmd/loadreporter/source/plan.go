package source

import "time"

// MinInterval is the shortest time between those for which two samples are
// planned.
const MinInterval = 10 * time.Millisecond

// minRest and maxRest bound the back-off from an engine that has no page that
// can be read.
const minRest, maxRest = 200 * time.Millisecond, 5 * time.Second

// plan decides when samples begin: on a grid whose period is the shortest that
// a consumer wants, and when one is asked for. Its times do not drift, as each
// is computed from the one for which the last was planned and not from when
// that began. The zero plan has no consumer. It is for one goroutine.
type plan struct {
	wants map[string]time.Duration
	// period and next are those of the grid; period is 0 without a consumer.
	period time.Duration
	next   time.Time
	// asked is since when one is asked for beside the grid; zero for none.
	asked time.Time
	// last is the time for which the last one was planned.
	last time.Time
	// rest is the back-off in force, 0 for none, and until its end.
	rest  time.Duration
	until time.Time
	// skipped counts the times of the grid that passed while a sample was under
	// way or the engine was left alone.
	skipped uint64
}

// want notes the interval of a consumer; one that is not positive ends it. A
// consumer that is new is served at once.
func (p *plan) want(id string, interval time.Duration, now time.Time) {
	if p.wants == nil {
		p.wants = make(map[string]time.Duration)
	}
	_, known := p.wants[id]
	if interval > 0 {
		p.wants[id] = max(interval, MinInterval)
	} else {
		delete(p.wants, id)
	}
	p.resize(now)
	if interval > 0 && !known {
		p.rest, p.until = 0, time.Time{}
		p.ask(now)
	}
}

// resize takes up the shortest interval. The next time of another grid is one
// period after the last sample was planned, but not in the past.
func (p *plan) resize(now time.Time) {
	period := time.Duration(0)
	for _, wanted := range p.wants {
		if period == 0 || wanted < period {
			period = wanted
		}
	}
	if period == p.period {
		return
	}
	begins := p.period == 0
	if p.period, p.next = period, p.last.Add(period); begins || p.next.Before(now) {
		p.next = now.Add(period)
	}
}

// ask asks for a sample beside the grid.
func (p *plan) ask(now time.Time) {
	if p.asked.IsZero() {
		p.asked = now
	}
}

// due returns when the next sample begins; false for never.
func (p *plan) due() (at time.Time, ok bool) {
	switch {
	case p.asked.IsZero() && p.period == 0:
		return at, false
	case p.asked.IsZero():
		at = p.next
	case p.period == 0 || p.asked.Before(p.next):
		at = p.asked
	default:
		at = p.next
	}
	return later(at, later(p.until, p.last.Add(MinInterval))), true
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// begin notes that the sample that is due begins. It serves whoever asked for
// one so far.
func (p *plan) begin(now time.Time) {
	at, _ := p.due()
	p.last, p.asked = at, time.Time{}
	if p.period > 0 && !p.next.After(now) {
		p.next = p.next.Add(p.period)
	}
}

// end notes what came of the sample. Times of the grid that passed meanwhile
// are skipped.
func (p *plan) end(now time.Time, useless bool) {
	if p.rest = min(max(minRest, 2*p.rest), maxRest); !useless {
		p.rest = 0
	}
	p.until = now.Add(p.rest)
	if p.period == 0 || p.next.After(now) {
		return
	}
	missed := now.Sub(p.next).Truncate(p.period) + p.period
	p.skipped += uint64(missed / p.period)
	p.next = p.next.Add(missed)
}

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
//
// Where it is known when consumers report, the grid is one of such times, and a
// sample begins as much before as it is likely to take: so that the report that
// is due has it.
type plan struct {
	wants map[string]time.Duration
	// dues is when a consumer reports, one of those times.
	dues map[string]time.Time
	// period and next are those of the grid; period is 0 without a consumer.
	period time.Duration
	next   time.Time
	// ahead is how long before a time of the grid its sample begins; 0 while it
	// is not known when consumers report.
	ahead time.Duration
	takes takes
	// asked is since when one is asked for beside the grid; zero for none.
	asked time.Time
	// last is the time for which the last one was planned, and began since when
	// it counts.
	last, began time.Time
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
	before := p.wants[id]
	if interval > 0 {
		p.wants[id] = max(interval, MinInterval)
	} else {
		delete(p.wants, id)
	}
	if p.wants[id] != before {
		delete(p.dues, id)
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
	if p.period, p.next, p.ahead = period, p.last.Add(period), 0; begins || p.next.Before(now) {
		p.next = now.Add(period)
	}
	p.settle(now)
}

// align notes one of the times at which a consumer reports. Who is not known is
// ignored.
func (p *plan) align(id string, due, now time.Time) {
	if _, known := p.wants[id]; !known {
		return
	}
	if p.dues == nil {
		p.dues = make(map[string]time.Time)
	}
	p.dues[id] = due
	p.settle(now)
}

// settle moves the grid to the consumer for whose reports the samples of all
// are youngest. The next sample is for the first of its times that it is in time
// for, and not for one whose sample began.
func (p *plan) settle(now time.Time) {
	var best time.Time
	least := time.Duration(-1)
	for id, due := range p.dues {
		if p.wants[id]%p.period != 0 {
			continue
		}
		if sum := p.ages(due); least < 0 || sum < least || sum == least && due.Before(best) {
			best, least = due, sum
		}
	}
	if least < 0 {
		return
	}
	p.ahead = p.lead()
	behind := later(now, p.last.Add(p.period/2)).Add(p.ahead)
	p.next = best.Add(-best.Sub(behind).Truncate(p.period))
	for p.next.Before(behind) {
		p.next = p.next.Add(p.period)
	}
	for !p.next.Add(-p.period).Before(behind) {
		p.next = p.next.Add(-p.period)
	}
}

// ages is the sum of the ages that samples of a grid have when consumers
// report.
func (p *plan) ages(grid time.Time) (sum time.Duration) {
	for id, due := range p.dues {
		if p.wants[id]%p.period == 0 {
			sum += ((due.Sub(grid) % p.period) + p.period) % p.period
		}
	}
	return sum
}

// lead is the time that a sample needs before a report; it is not longer than
// the time between two.
func (p *plan) lead() time.Duration { return min(p.takes.likely(), p.period) }

// start is when the next sample of the grid begins.
func (p *plan) start() time.Time { return p.next.Add(-p.ahead) }

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
		at = p.start()
	case p.period == 0 || p.asked.Before(p.start()):
		at = p.asked
	default:
		at = p.start()
	}
	return later(at, later(p.until, p.last.Add(p.gap()))), true
}

// gap is the least time between two samples. It leaves a grid some room to
// begin earlier as samples take longer.
func (p *plan) gap() time.Duration {
	if p.ahead > 0 && p.asked.IsZero() {
		return MinInterval - MinInterval/10
	}
	return MinInterval
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
	p.last, p.began = at, now
	if p.asked.IsZero() {
		p.began = at // with what the timer is late
	}
	p.asked = time.Time{}
	if p.period > 0 && !p.start().After(now) {
		p.next = p.next.Add(p.period)
	}
}

// took notes how long a good sample took.
func (p *plan) took(now time.Time) {
	p.takes.note(now.Sub(p.began))
	if p.ahead > 0 {
		p.ahead = p.lead()
	}
}

// end notes what came of the sample. Times of the grid that passed meanwhile
// are skipped.
func (p *plan) end(now time.Time, useless bool) {
	if p.rest = min(max(minRest, 2*p.rest), maxRest); !useless {
		p.rest = 0
	}
	p.until = now.Add(p.rest)
	if p.period == 0 || p.start().After(now) {
		return
	}
	missed := now.Sub(p.start()).Truncate(p.period) + p.period
	p.skipped += uint64(missed / p.period)
	p.next = p.next.Add(missed)
}

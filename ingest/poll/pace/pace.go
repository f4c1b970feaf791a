// Package pace decides when the next poll of an engine is due.
package pace

import (
	"math/rand/v2"
	"time"
)

const (
	// maxDeadInterval is the longest interval for an engine that does not
	// answer.
	maxDeadInterval = 5 * time.Second
	// jitterParts of an interval is how far a poll may be off its time.
	jitterParts = 20
	// restParts of an interval is what an engine is left alone at least after
	// a poll.
	restParts = 4
	// minRest and maxRest bound the back-off of an engine that is of no use.
	minRest, maxRest = 200 * time.Millisecond, 5 * time.Second
)

// Pace decides when the polls of one worker are due. It is for one goroutine.
type Pace struct {
	// StaleAfter is the age at which a report stops being fresh.
	StaleAfter time.Duration
	// Interval is the one in force; 0 before the first poll.
	Interval time.Duration
	// rest is the back-off in force; 0 for none.
	rest time.Duration
	// base is when the last poll was due without jitter.
	base time.Time
}

// First spreads the first poll over the interval.
func (p *Pace) First(wanted time.Duration, now time.Time) time.Time {
	p.Interval = wanted
	p.base = now.Add(rand.N(wanted))
	return p.base
}

// Change takes up another wanted interval and returns when the poll that was
// due at a time is due now: then, or within the new interval.
func (p *Pace) Change(wanted time.Duration, due time.Time) time.Time {
	if p.First(wanted, time.Now()); due.Before(p.base) {
		p.base = due
	}
	return p.base
}

// Next returns when the poll after one that ended now and took some time is
// due. answered says that the engine answered it, in whatever way.
func (p *Pace) Next(wanted, took time.Duration, answered bool) time.Time {
	p.Interval = stretch(p.Interval, took)
	most := maxDeadInterval
	if answered {
		most = p.StaleAfter / 2
	}
	p.Interval = max(min(p.Interval, most), wanted)
	now := time.Now()
	p.base = p.base.Add(p.Interval)
	soonest := now.Add(p.Interval / restParts)
	if p.base.Before(soonest) {
		p.base = soonest
		return p.base
	}
	jitter := p.Interval / jitterParts
	due := p.base.Add(rand.N(2*jitter+1) - jitter)
	if due.Before(soonest) {
		return soonest
	}
	return due
}

// stretch returns the interval after a poll that took some time at an
// interval.
func stretch(interval, took time.Duration) time.Duration {
	switch {
	case took > interval/2:
		return 2 * interval
	case took < interval/8:
		return interval / 2
	}
	return interval
}

// Stretched says whether the interval in force is above the wanted one.
func (p *Pace) Stretched(wanted time.Duration) bool { return p.Interval > wanted }

// Spare is how long an engine may be asked for other things before a poll that
// is due at a time.
func (p *Pace) Spare(due time.Time) time.Duration {
	return time.Until(due) - p.Interval/restParts
}

// Rest returns when the next poll is due of an engine that was of no use at a
// poll that began at a time and whose next one is due: after a back-off that
// doubles.
func (p *Pace) Rest(began, due time.Time) time.Time {
	p.rest = min(max(minRest, 2*p.rest), maxRest)
	if at := began.Add(p.rest); due.Before(at) {
		return at
	}
	return due
}

// Rested ends the back-off.
func (p *Pace) Rested() { p.rest = 0 }

package pace

import (
	"math/rand/v2"
	"time"

	"github.com/cespare/xxhash/v2"
)

const (
	// maxAsked is the longest interval that a watcher may ask for.
	maxAsked = 10 * time.Second
	// maxSends is what the data messages of all watchers together stay below,
	// a second.
	maxSends = 20_000
	// step is what the interval for all is rounded up to, so that it does not
	// move with every watcher.
	step = 5 * time.Millisecond
	// maxFactor bounds how far a watcher's own interval is raised.
	maxFactor = 8
	// quickSends is how many sends within half of the interval halve the
	// factor.
	quickSends = 4
)

// Floor returns the interval below which n watchers together could get more
// than 20,000 data messages a second; 0 where the settle time of commits keeps
// them below that anyway.
func Floor(n int, settle time.Duration) time.Duration {
	least := time.Duration(n) * (time.Second / maxSends)
	if least < settle {
		return 0
	}
	return (least + step - 1).Truncate(step)
}

// Options say how a watcher is paced. All durations are at least 0.
type Options struct {
	// Asked is the interval that the watcher asked for.
	Asked time.Duration
	// Most bounds the interval in force.
	Most time.Duration
	// Settle is the shortest time between two commits.
	Settle time.Duration
	// Floor returns the interval that holds for all watchers now; required.
	Floor func() time.Duration
	// ClientID gives the watcher its place in the interval; a random one where
	// it is empty.
	ClientID string
	// Origin is when all intervals began.
	Origin time.Time
}

// Pace is the pace of one watcher. It is for one goroutine.
type Pace struct {
	o     Options
	phase uint64
	// factor is what the interval is multiplied by, 1 to 8.
	factor int64
	quick  int
	// last is when the last data message began to be sent; zero for never.
	last time.Time
}

// New returns the pace of a watcher that got nothing yet.
func New(o Options) *Pace {
	p := &Pace{o: o, phase: xxhash.Sum64String(o.ClientID), factor: 1}
	p.o.Asked = min(max(o.Asked, 0), maxAsked)
	if o.ClientID == "" {
		p.phase = rand.Uint64()
	}
	return p
}

// Interval returns the shortest time between two data messages in force. Most
// bounds it whatever the floor is: with 1 s, as of a stale time of 3 s, more
// than 20,000 watchers can get more than 20,000 messages a second together.
func (p *Pace) Interval() time.Duration {
	interval := max(p.o.Asked, p.o.Floor())
	if p.factor > 1 {
		interval = time.Duration(int64(max(interval, p.o.Settle)) * p.factor)
	}
	return min(interval, p.o.Most)
}

// Due returns when a change that was noticed at some time may be sent: at the
// watcher's next place in the interval, not within the interval after the last
// message, and not later than the interval after it was noticed.
func (p *Pace) Due(noticed time.Time) time.Time {
	interval := p.Interval()
	if interval <= 0 {
		return noticed
	}
	earliest := noticed
	if next := p.last.Add(interval); next.After(earliest) {
		earliest = next
	}
	due, latest := p.place(earliest, interval), noticed.Add(interval)
	if due.After(latest) {
		due = latest
	}
	if due.Before(earliest) {
		due = earliest
	}
	return due
}

// place returns the watcher's first place in the interval at or after t.
func (p *Pace) place(t time.Time, interval time.Duration) time.Time {
	phase := time.Duration(p.phase % uint64(interval))
	past := (t.Sub(p.o.Origin) - phase) % interval
	if past < 0 {
		past += interval
	}
	if past == 0 {
		return t
	}
	return t.Add(interval - past)
}

// Sent takes notice of a data message. A send that takes longer than the
// interval doubles it, up to 8 times; some quick ones halve it again.
func (p *Pace) Sent(began, ended time.Time) {
	p.last = began
	took, interval := ended.Sub(began), max(p.Interval(), p.o.Settle)
	switch {
	case took > interval:
		p.factor, p.quick = min(2*p.factor, maxFactor), 0
	case took > interval/2:
		p.quick = 0
	default:
		p.quick++
	}
	if p.quick >= quickSends {
		p.factor, p.quick = max(p.factor/2, 1), 0
	}
}

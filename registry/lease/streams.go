package lease

import "time"

const (
	// freshFor is how long a lease counts in the load without a stream: since
	// it began, or since its stream ended.
	freshFor = 5 * time.Second
	// freshShare is the part of the limit that all leases without a stream
	// count for at most.
	freshShare = 10
)

// state says how a lease counts in the load.
type state uint8

const (
	// idle does not count: there has been no stream for long.
	idle state = iota
	// fresh counts for a while, together with all that are.
	fresh
	// streaming counts for what it wants.
	streaming
	states
)

// fading is a lease that is fresh until a time, unless it is something else by
// then.
type fading struct {
	lease *Lease
	until time.Time
}

// Stream notes that a stream speaks by a lease, or that none does any more. The
// first one lets a brief lease last as long as others. Balance is to be called
// after it.
func (b *Book) Stream(l *Lease, speaks bool, now time.Time) {
	switch {
	case b.byID[l.ID] != l:
	case !speaks && l.state == streaming:
		b.freshen(l, now)
	case speaks:
		b.count(l, streaming)
		if l.streamed = true; l.wish.Brief {
			l.wish.Brief = false
			b.put(l, b.limits.grant(l.wish, b.step), l.renewed)
		}
	}
}

// Fade lets leases count no more that have had no stream for long, and returns
// the time until there is another one to fade; false where there is none.
// Balance is to be called after it.
func (b *Book) Fade(now time.Time) (in time.Duration, more bool) {
	for len(b.fades) > 0 {
		f := b.fades[0]
		if left := f.until.Sub(now); left > 0 && f.current(b) {
			return left, true
		}
		if f.current(b) {
			b.count(f.lease, idle)
		}
		b.fades[0] = fading{}
		b.fades = b.fades[1:]
	}
	b.fades = nil
	return 0, false
}

// current says whether a lease is still fresh since the same moment.
func (f *fading) current(b *Book) bool {
	return b.byID[f.lease.ID] == f.lease && f.lease.state == fresh && f.lease.until.Equal(f.until)
}

// freshen counts a lease as one without a stream, for a while.
func (b *Book) freshen(l *Lease, now time.Time) {
	b.count(l, fresh)
	l.until = now.Add(freshFor)
	b.fades = append(b.fades, fading{l, l.until})
}

// count makes a lease count by another state.
func (b *Book) count(l *Lease, s state) {
	b.rates[l.state] -= b.wants(l)
	l.state = s
	b.rates[s] += b.wants(l)
}

// wanted is the number of reports in a million seconds that count.
func (b *Book) wanted() float64 {
	return float64(b.rates[streaming]) + min(float64(b.rates[fresh]), b.limits.MaxRate*1e6/freshShare)
}

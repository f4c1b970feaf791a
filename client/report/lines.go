package report

import (
	"context"
	"sync"
	"time"
)

const (
	// lineEach is the time between lines about one thing, after the first
	// lineBurst.
	lineEach  = 10 * time.Second
	lineBurst = 4
	// answerEach is the time between answers of a plane that are read, after the
	// first answerBurst.
	answerEach  = 10 * time.Millisecond
	answerBurst = 100
)

// bucket allows so many at once, and then one in each time. The zero value is
// full. It is for one goroutine.
type bucket struct {
	// used are those that are not made up for at last.
	used float64
	last time.Time
}

// pass makes up for the time since last.
func (b *bucket) pass(now time.Time, each time.Duration) {
	b.used = max(0, b.used-float64(now.Sub(b.last))/float64(each))
	b.last = now
}

// lines bounds the lines about one thing: one for each change of its state, and
// few of those. It is safe for concurrent use.
type lines struct {
	mu sync.Mutex
	bucket
	state string
	left  int
}

// allow says whether there is to be a line about a state, and how many were left
// out before it.
func (l *lines) allow(state string, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == l.state {
		return 0, false
	}
	if l.pass(now, lineEach); l.used > lineBurst-1 {
		l.left++
		return 0, false
	}
	l.used++
	left, l.state, l.left = l.left, state, 0
	return left, true
}

// pace bounds how often the answers of a plane are read: what it sends more
// often waits on its side. It is for one goroutine.
type pace struct{ bucket }

// wait returns the time until the next answer is to be read, after one.
func (p *pace) wait(now time.Time) time.Duration {
	p.pass(now, answerEach)
	p.used++
	return time.Duration(max(0, p.used-answerBurst) * float64(answerEach))
}

// pause waits, and says whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

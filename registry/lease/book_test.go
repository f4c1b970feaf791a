package lease

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var (
	testLimits = Limits{TTL: 15 * time.Second, MaxInterval: time.Second, MaxRate: 100}
	began      = time.Unix(1000, 0)
)

func TestGrant(t *testing.T) {
	for name, c := range map[string]struct {
		wish Wish
		want Grant
	}{
		"usual life":         {Wish{Interval: time.Second}, Grant{time.Second, 15 * time.Second, 5 * time.Second}},
		"too short interval": {Wish{Interval: time.Nanosecond}, Grant{MinInterval, 15 * time.Second, 5 * time.Second}},
		"too long interval":  {Wish{Interval: time.Hour}, Grant{time.Second, 15 * time.Second, 5 * time.Second}},
		"part of a ms":       {Wish{Interval: 20500 * time.Microsecond}, Grant{21 * time.Millisecond, 15 * time.Second, 5 * time.Second}},
		"too short life":     {Wish{Interval: time.Second, TTL: 1}, Grant{time.Second, 4 * time.Second, 4 * time.Second / 3}},
		"least life":         {Wish{Interval: MinInterval, TTL: 1}, Grant{MinInterval, MinTTL, MinTTL / 3}},
		"too long life":      {Wish{Interval: time.Second, TTL: 1 << 62}, Grant{time.Second, MaxTTL, MaxTTL / 3}},
		"life as wanted":     {Wish{Interval: time.Second, TTL: 9 * time.Second}, Grant{time.Second, 9 * time.Second, 3 * time.Second}},
	} {
		if got := testLimits.grant(c.wish, 0); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestBeginRenewEnd(t *testing.T) {
	b := NewBook(testLimits)
	l := b.Begin("a", Wish{Interval: time.Second}, began)
	if len(l.ID) != 32 || b.Get(l.ID) != l || b.Of("a") != l || b.Next() != l || b.Len() != 1 {
		t.Fatalf("lease %+v of %+v", l, b)
	}
	if l.Due != began.Add(15*time.Second) {
		t.Errorf("due %s", l.Due)
	}
	other := b.Begin("b", Wish{Interval: time.Second, TTL: 5 * time.Second}, began)
	if b.Next() != other || other.ID == l.ID {
		t.Errorf("next %+v", b.Next())
	}
	b.Renew(other, Wish{Interval: time.Second, TTL: 5 * time.Second}, began.Add(12*time.Second))
	if b.Next() != l || closed(other.Changed()) {
		t.Errorf("after the renewal: next %+v", b.Next())
	}
	old := other.Changed()
	b.Renew(other, Wish{Interval: 500 * time.Millisecond}, began)
	if !closed(old) || closed(other.Changed()) {
		t.Error("a renewal with another grant was not told once")
	}
	b.End(l)
	b.End(l)
	if b.Get(l.ID) != nil || b.Of("a") != nil || b.Next() != other || !closed(l.Changed()) {
		t.Errorf("after the end: %+v", b)
	}
	again := b.Begin("b", Wish{Interval: time.Second}, began)
	if b.Get(other.ID) != nil || b.Of("b") != again || !closed(other.Changed()) || b.Len() != 1 {
		t.Error("a second lease of a holder did not replace the first")
	}
	if b.End(again); b.Next() != nil || b.rates != [states]int64{} {
		t.Errorf("left %+v", b)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestBalance: 100 reports per second are allowed; 15 reporters want 10 each.
func TestBalance(t *testing.T) {
	b := NewBook(testLimits)
	var all []*Lease
	for i := range 10 {
		all = append(all, b.speak(fmt.Sprint(i), Wish{Interval: 100 * time.Millisecond, TTL: time.Second}))
		if changed := b.Balance(); changed != nil || b.Load() != 1 {
			t.Fatalf("lease %d: changed %v at load %v", i, changed, b.Load())
		}
	}
	first := all[0].Changed()
	for i := range 5 {
		all = append(all, b.speak(fmt.Sprint("x", i), Wish{Interval: 100 * time.Millisecond, TTL: time.Second}))
		b.Balance()
	}
	if got := all[0].Grant.Interval; got != 162*time.Millisecond || !closed(first) {
		t.Errorf("interval %s of a load of 1.5, told %v", got, closed(first))
	}
	for _, l := range all[3:] {
		b.End(l)
	}
	b.Balance()
	if got := all[0].Grant; got != (Grant{100 * time.Millisecond, time.Second, time.Second / 3}) || b.Load() != 1 {
		t.Errorf("grant %+v at load %v once they are gone", got, b.Load())
	}
}

// TestRaisedIntervalRaisesTheLife, and does not take it back before a renewal.
func TestRaisedIntervalRaisesTheLife(t *testing.T) {
	b := NewBook(Limits{TTL: 15 * time.Second, MaxInterval: time.Second, MaxRate: 10})
	wish := Wish{Interval: 250 * time.Millisecond, TTL: time.Second}
	l := b.speak("a", wish)
	b.Balance()
	extra := b.speak("b", Wish{Interval: MinInterval})
	b.Balance()
	if l.Grant.Interval != time.Second || l.Grant.TTL != 4*time.Second || l.Due != began.Add(4*time.Second) {
		t.Errorf("lease %+v", l)
	}
	b.End(extra)
	b.Balance()
	if l.Grant.Interval != 250*time.Millisecond || l.Grant.TTL != 4*time.Second {
		t.Errorf("grant %+v once the load is gone", l.Grant)
	}
	if b.Renew(l, wish, began); l.Grant.TTL != time.Second {
		t.Errorf("grant %+v after the renewal", l.Grant)
	}
}

// TestNoFlapping: one reporter that comes and goes at the edge of a step moves
// the intervals of the others once.
func TestNoFlapping(t *testing.T) {
	b := NewBook(testLimits)
	for i := range 110 {
		b.speak(fmt.Sprint(i), Wish{Interval: time.Second})
	}
	b.Balance()
	moves := 0
	for range 100 {
		l := b.speak("one", Wish{Interval: 500 * time.Millisecond})
		if b.Balance() != nil {
			moves++
		}
		b.End(l)
		if b.Balance() != nil {
			moves++
		}
	}
	if moves > 1 {
		t.Errorf("%d moves", moves)
	}
}

// TestRandomBook holds a book to what follows from its leases alone.
func TestRandomBook(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := NewBook(testLimits)
		now := began
		for range 2000 {
			holder := fmt.Sprint(rnd.IntN(60))
			wish := Wish{time.Duration(rnd.IntN(1500)) * time.Millisecond, time.Duration(rnd.IntN(20)) * time.Second, rnd.IntN(2) == 0}
			switch l := b.Of(holder); {
			case l == nil || rnd.IntN(10) == 0:
				b.Begin(holder, wish, now)
			case rnd.IntN(3) == 0:
				b.End(l)
			case rnd.IntN(2) == 0:
				b.Stream(l, rnd.IntN(3) > 0, now)
			default:
				b.Renew(l, wish, now)
			}
			b.Fade(now)
			b.Balance()
			now = now.Add(time.Duration(rnd.IntN(100)) * time.Millisecond)
			for n := b.Next(); n != nil && n.Due.Before(now); n = b.Next() {
				b.End(n)
			}
			b.Fade(now)
			b.Balance()
			b.check(t, now)
		}
	}
}

// check recomputes what the book keeps.
func (b *Book) check(t *testing.T, now time.Time) {
	t.Helper()
	var rates [states]int64
	granted, longest := 0.0, true
	var first time.Time
	for id, l := range b.byID {
		rates[l.state] += b.wants(l)
		if l.state == streaming {
			granted += 1 / l.Grant.Interval.Seconds()
		}
		if l.state == fresh != (now.Before(l.until) && l.state != streaming) {
			t.Fatalf("at %s lease %+v", now, l)
		}
		longest = longest && l.Grant.Interval == b.limits.MaxInterval
		if l.ID != id || b.holders[l.Holder] != l || closed(l.changed) || b.queue[l.place] != l {
			t.Fatalf("lease %+v", l)
		}
		if l.Grant.TTL < 4*l.Grant.Interval || l.Grant.Interval < MinInterval || l.Grant.Interval > b.limits.MaxInterval {
			t.Fatalf("grant %+v", l.Grant)
		}
		if first.IsZero() || l.Due.Before(first) {
			first = l.Due
		}
	}
	if rates != b.rates || len(b.holders) != len(b.byID) || len(b.queue) != len(b.byID) {
		t.Fatalf("rates %d, want %d; %d leases of %d holders", b.rates, rates, len(b.byID), len(b.holders))
	}
	if n := b.Next(); n != nil && n.Due != first {
		t.Fatalf("next ends at %s, the first at %s", n.Due, first)
	}
	if granted > b.limits.MaxRate*1.0001 && !longest && !b.capped() {
		t.Fatalf("%v reports per second are granted", granted)
	}
}

// capped says that the load is above what the longest interval allows for
// those that are at it.
func (b *Book) capped() bool {
	return slices.ContainsFunc(b.queue, func(l *Lease) bool { return l.Grant.Interval == b.limits.MaxInterval })
}

// speak begins a lease by which a stream speaks.
func (b *Book) speak(holder string, w Wish) *Lease {
	l := b.Begin(holder, w, began)
	b.Stream(l, true, began)
	return l
}

// TestLeasesWithoutStreamsHardlyCount: they do not raise the interval of one
// that reports, and count for nothing after a while.
func TestLeasesWithoutStreamsHardlyCount(t *testing.T) {
	b := NewBook(testLimits)
	honest := b.speak("honest", Wish{Interval: 100 * time.Millisecond})
	for i := range 1000 {
		b.Begin(fmt.Sprint(i), Wish{Interval: MinInterval}, began)
	}
	b.Balance()
	if honest.Grant.Interval != 100*time.Millisecond || b.Load() != 1 || b.wanted() != 20e6 {
		t.Errorf("granted %+v at a load of %v, %v wanted", honest.Grant, b.Load(), b.wanted())
	}
	if in, more := b.Fade(began.Add(freshFor - 1)); in != 1 || !more || b.wanted() != 20e6 {
		t.Errorf("fade in %s, %v, %v wanted", in, more, b.wanted())
	}
	if _, more := b.Fade(began.Add(freshFor)); more || b.wanted() != 10e6 {
		t.Errorf("more to fade %v, %v wanted", more, b.wanted())
	}
	b.Stream(honest, false, began.Add(time.Minute))
	if b.wanted() != 10e6 {
		t.Errorf("%v wanted by one that reconnects", b.wanted())
	}
	if b.Fade(began.Add(time.Minute + freshFor)); b.wanted() != 0 {
		t.Errorf("%v wanted in the end", b.wanted())
	}
}

// TestBriefLease lasts as long as others once a stream spoke by it.
func TestBriefLease(t *testing.T) {
	limits := testLimits
	limits.BriefTTL = 6 * time.Second
	b := NewBook(limits)
	wish := Wish{Interval: time.Second, Brief: true}
	l := b.Begin("a", wish, began)
	if l.Grant.TTL != 6*time.Second || l.Due != began.Add(6*time.Second) || l.Grant.RenewAfter != 2*time.Second {
		t.Errorf("lease %+v", l)
	}
	if b.Renew(l, wish, began.Add(time.Second)); l.Due != began.Add(7*time.Second) {
		t.Errorf("renewed until %s", l.Due)
	}
	told := l.Changed()
	b.Stream(l, true, began.Add(2*time.Second))
	if l.Grant.TTL != 15*time.Second || l.Due != began.Add(16*time.Second) || !closed(told) {
		t.Errorf("lease %+v, told %v", l, closed(told))
	}
	b.Stream(l, false, began.Add(3*time.Second))
	if b.Renew(l, wish, began.Add(4*time.Second)); l.Grant.TTL != 15*time.Second {
		t.Errorf("lease %+v", l)
	}
	b.End(l)
	if b.Stream(l, true, began); b.rates != [states]int64{} {
		t.Errorf("an old lease counts: %v", b.rates)
	}
}

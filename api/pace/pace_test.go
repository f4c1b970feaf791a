package pace

import (
	"fmt"
	"testing"
	"time"
)

const ms = time.Millisecond

// origin is when the intervals of the tests begin; its wall clock is of no
// meaning.
func origin() time.Time { return time.Now().Truncate(time.Second) }

func TestFloorKeepsAllBelowTheLimit(t *testing.T) {
	for _, c := range []struct {
		watchers int
		want     time.Duration
	}{
		{0, 0}, {1, 0}, {199, 0}, {200, 10 * ms}, {201, 15 * ms}, {1000, 50 * ms}, {2000, 100 * ms}, {2001, 105 * ms},
	} {
		got := Floor(c.watchers, 10*ms)
		if got != c.want {
			t.Errorf("%d watchers: %v, want %v", c.watchers, got, c.want)
		}
		if sends := float64(c.watchers) / max(got, 10*ms).Seconds(); sends > maxSends {
			t.Errorf("%d watchers: %v sends a second", c.watchers, sends)
		}
	}
}

func TestIntervalInForce(t *testing.T) {
	for _, c := range []struct {
		name                     string
		asked, most, floor, want time.Duration
	}{
		{"none asked", 0, time.Second, 0, 0},
		{"as asked", 200 * ms, time.Second, 0, 200 * ms},
		{"above the most", 5 * time.Second, time.Second, 0, time.Second},
		{"above 10 s", time.Hour, time.Minute, 0, 10 * time.Second},
		{"raised for all", 20 * ms, time.Second, 100 * ms, 100 * ms},
		{"raised for all above the most", 0, 50 * ms, 100 * ms, 50 * ms},
	} {
		p := New(Options{Asked: c.asked, Most: c.most, Settle: 10 * ms, Floor: func() time.Duration { return c.floor }})
		if got := p.Interval(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// newPace returns one with an interval of 100 ms.
func newPace(client string, begin time.Time) *Pace {
	return New(Options{
		Asked: 100 * ms, Most: time.Second, Settle: 10 * ms, Origin: begin, ClientID: client,
		Floor: func() time.Duration { return 0 },
	})
}

// TestDueIsWithinItsBounds notices changes at many times after the last
// message.
func TestDueIsWithinItsBounds(t *testing.T) {
	begin := origin()
	for client := range 50 {
		p := newPace(fmt.Sprint("router-", client), begin)
		last := begin.Add(time.Duration(client) * 7 * ms)
		p.Sent(last, last)
		for after := time.Duration(0); after < 400*ms; after += 3 * ms {
			noticed := last.Add(after)
			due := p.Due(noticed)
			if due.Sub(last) < 100*ms || due.Before(noticed) || due.Sub(noticed) > 100*ms {
				t.Fatalf("noticed %v after the last: due %v after it", after, due.Sub(last))
			}
		}
	}
}

// TestPlacesAreKeptAndSpread lets changes come all the time: every client ends
// at a place of its own, the same after a reconnect.
func TestPlacesAreKeptAndSpread(t *testing.T) {
	begin := origin()
	places := map[time.Duration]int{}
	for client := range 40 {
		id := fmt.Sprint("router-", client)
		settle := func(at time.Time) time.Duration {
			p := newPace(id, begin)
			p.Sent(at, at)
			for range 60 {
				at = p.Due(at.Add(10 * ms))
				p.Sent(at, at)
			}
			return at.Sub(begin) % (100 * ms)
		}
		one, again := settle(begin), settle(begin.Add(12345*ms))
		if one != again {
			t.Fatalf("%s is at %v, and at %v after a reconnect", id, one, again)
		}
		places[one/(20*ms)]++
	}
	for fifth := range time.Duration(5) {
		if places[fifth] == 0 || places[fifth] > 20 {
			t.Errorf("of 40 clients %d are in fifth %d of the interval", places[fifth], fifth)
		}
	}
	if one, two := newPace("", begin), newPace("", begin); one.phase == two.phase {
		t.Error("two clients without a name have one place")
	}
}

func TestSlowSendsDoubleTheInterval(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked time.Duration
		// base is the interval that is doubled.
		base time.Duration
	}{{"asked", 100 * ms, 100 * ms}, {"none asked", 0, 10 * ms}} {
		p := New(Options{Asked: c.asked, Most: time.Minute, Settle: 10 * ms, Floor: func() time.Duration { return 0 }})
		at := origin()
		send := func(took, want time.Duration) {
			t.Helper()
			p.Sent(at, at.Add(took))
			at = at.Add(took)
			if got := p.Interval(); got != want {
				t.Fatalf("%s: %v after a send of %v, want %v", c.name, got, took, want)
			}
		}
		send(c.base, c.asked)
		for _, want := range []time.Duration{2 * c.base, 4 * c.base, 8 * c.base, 8 * c.base} {
			send(2*time.Second, want)
		}
		for range 3 {
			send(0, 8*c.base)
		}
		send(0, 4*c.base)
		send(3*c.base, 4*c.base) // neither quick nor slow: counts anew
		for range 3 {
			send(0, 4*c.base)
		}
		send(0, 2*c.base)
		for range 4 {
			p.Sent(at, at)
		}
		if got := p.Interval(); got != c.asked {
			t.Errorf("%s: %v in the end", c.name, got)
		}
	}
}

func TestOffendersAreRefusedForAWhile(t *testing.T) {
	var o Offenders
	at := origin()
	for i := range 4 {
		if _, refused := o.Refused("a", at); refused {
			t.Fatalf("refused after %d cuts", i)
		}
		at = at.Add(10 * time.Second)
		o.Cut("a", at)
	}
	pauses := map[time.Duration]bool{}
	for range 20 {
		pause, refused := o.Refused("a", at)
		if !refused || pause < 10*time.Second || pause > 30*time.Second {
			t.Fatalf("refused: %t, for %v", refused, pause)
		}
		pauses[pause] = true
	}
	if len(pauses) < 2 {
		t.Error("the pauses are not spread")
	}
	if _, refused := o.Refused("b", at); refused {
		t.Error("another client is refused")
	}
	if _, refused := o.Refused("a", at.Add(30*time.Second)); !refused {
		t.Error("not refused a minute after the first of four cuts")
	}
	if _, refused := o.Refused("a", at.Add(31*time.Second)); refused {
		t.Error("refused for good")
	}
}

func TestOffendersAreBounded(t *testing.T) {
	var o Offenders
	at := origin()
	for i := range maxOffenders + 100 {
		for range 4 {
			o.Cut(fmt.Sprint(i), at.Add(time.Duration(i)*ms))
		}
	}
	if len(o.cuts) != maxOffenders {
		t.Errorf("%d clients are remembered", len(o.cuts))
	}
	now := at.Add(2 * time.Second)
	if _, refused := o.Refused("99", now); refused {
		t.Error("the oldest is remembered")
	}
	if _, refused := o.Refused("1100", now); !refused {
		t.Error("a newer one was forgotten")
	}
}

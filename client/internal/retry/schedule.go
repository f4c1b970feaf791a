// Package retry decides when a client tries which address of a plane again, so
// that neither one client nor many together hammer a plane.
package retry

import (
	"slices"
	"strings"
	"time"
)

// How long to wait before a new attempt.
const (
	// FirstWindow bounds the random wait before the first retry; it doubles
	// with every failure, up to LastWindow.
	FirstWindow = 100 * time.Millisecond
	// LastWindow bounds the random wait after many failures.
	LastWindow = 5 * time.Second
	// HealthyAfter is how long a stream must last for the failures before it
	// to be forgotten.
	HealthyAfter = 30 * time.Second
	// An address that refused is asked again after RefusedWait and up to
	// RefusedSpread more.
	RefusedWait = 5 * time.Second
	// RefusedSpread is added to RefusedWait at random.
	RefusedSpread = 20 * time.Second
	// LongestWait bounds the times that a plane asks for.
	LongestWait = time.Minute
)

// Ending is how a stream or an attempt to open one ended. It is a plain value.
type Ending struct {
	// Address is the number of the address.
	Address int
	// Lasted is the time from the first to the last message; 0 without one.
	Lasted time.Duration
	// Stay is how long the plane asks not to be asked again; 0 where it does not.
	Stay time.Duration
	// Refused says that waiting does not cure it.
	Refused bool
	// Within is the time over which the plane spreads the clients that it sends
	// away; 0 where it sends none.
	Within time.Duration
	// Prefer are addresses to try first, if they are among those of the schedule.
	Prefer []string
}

// Schedule decides which address is tried when. It is for one goroutine.
type Schedule struct {
	addresses []string
	// notBefore is when an address may be tried again.
	notBefore []time.Time
	// next is the address to try first.
	next int
	// failures counts them since a stream was healthy.
	failures int
	// wait is the random time before the next attempt.
	wait time.Duration
	// random returns a number in [0, n), for n above 0.
	random func(n int64) int64
}

// New returns a schedule of at least one address that begins at a random one.
// random returns a number in [0, n), for n above 0.
func New(addresses []string, random func(n int64) int64) *Schedule {
	return &Schedule{
		addresses: addresses, notBefore: make([]time.Time, len(addresses)),
		next: int(random(int64(len(addresses)))), random: random,
	}
}

// within returns a random time up to d.
func (s *Schedule) within(d time.Duration) time.Duration {
	return time.Duration(s.random(int64(d) + 1))
}

// Ended takes an ending into account.
func (s *Schedule) Ended(e Ending, now time.Time) {
	if e.Lasted >= HealthyAfter {
		s.failures = 0
	}
	window := LastWindow
	if s.failures < 6 {
		window = min(FirstWindow<<s.failures, LastWindow)
	}
	s.wait = s.within(window)
	s.failures++
	s.next = (e.Address + 1) % len(s.addresses)
	s.prefer(e.Prefer)
	if e.Within > 0 {
		s.wait = max(s.wait, s.within(min(e.Within, LongestWait)))
	}
	stay := min(e.Stay, LongestWait)
	if e.Refused {
		stay = RefusedWait + s.within(RefusedSpread)
	}
	s.notBefore[e.Address] = now.Add(stay)
}

// prefer tries first what a plane names, if it was configured: one of them at
// random, since all clients of the plane are told the same.
func (s *Schedule) prefer(alternatives []string) {
	var known []int
	for i, a := range s.addresses {
		if slices.ContainsFunc(alternatives, func(b string) bool { return sameAddress(a, b) }) {
			known = append(known, i)
		}
	}
	if len(known) > 0 {
		s.next = known[s.random(int64(len(known)))]
	}
}

// Pick returns the address to try, and when: the first in order that may be
// tried after the wait, else the one that may be tried soonest.
func (s *Schedule) Pick(now time.Time) (address int, at time.Time) {
	at = now.Add(s.wait)
	soonest := s.next
	for i := range s.addresses {
		a := (s.next + i) % len(s.addresses)
		if !s.notBefore[a].After(at) {
			return a, at
		}
		if s.notBefore[a].Before(s.notBefore[soonest]) {
			soonest = a
		}
	}
	return soonest, s.notBefore[soonest].Add(s.wait)
}

// sameAddress compares base URLs; a slash at the end does not count.
func sameAddress(a, b string) bool {
	return strings.TrimRight(a, "/") == strings.TrimRight(b, "/")
}

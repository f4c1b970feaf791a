package lease

import (
	"math"
	"time"
)

// Bounds of what is granted.
const (
	// MinInterval is the shortest interval of reports.
	MinInterval = 10 * time.Millisecond
	// MinTTL is the shortest life of a lease.
	MinTTL = time.Second
	// MaxTTL is the longest life of a lease.
	MaxTTL = 10 * time.Minute
	// perTTL is how many intervals a lease lasts at least.
	perTTL = 4
	// perRenewal is how many times a lease is renewed in its life.
	perRenewal = 3
)

// Intervals grow under load in steps of a tenth, and shrink only where the
// load would be a twentieth below the step.
const stepUp, margin = 1.1, 1.05

// Limits bound what a Book grants. It is a plain value.
type Limits struct {
	// TTL is the life of a lease for which none is wanted.
	TTL time.Duration
	// BriefTTL bounds the life of a brief lease until a stream spoke by it; 0
	// for not at all.
	BriefTTL time.Duration
	// MaxInterval is the longest interval; at least MinInterval.
	MaxInterval time.Duration
	// MaxRate is the number of reports per second of all leases together above
	// which intervals are raised, up to MaxInterval.
	MaxRate float64
}

// Wish is what a reporter asks for. It is a plain value.
type Wish struct {
	// Interval is that of reports.
	Interval time.Duration
	// TTL is the life of the lease; 0 for the usual one.
	TTL time.Duration
	// Brief says that the lease is to be short until a stream spoke by it.
	Brief bool
}

// Grant is what a reporter gets. It is a plain value and comparable.
type Grant struct {
	// Interval is that of reports, in whole milliseconds.
	Interval time.Duration
	// TTL is the life of the lease from its last renewal, RenewAfter when to
	// renew it.
	TTL, RenewAfter time.Duration
}

// clamp returns the interval for a wish where there is no load.
func (l *Limits) clamp(wanted time.Duration) time.Duration {
	return min(max(wholeMillis(wanted), MinInterval), l.MaxInterval.Truncate(time.Millisecond))
}

// wholeMillis rounds up.
func wholeMillis(d time.Duration) time.Duration {
	if over := d % time.Millisecond; over > 0 {
		d += time.Millisecond - over
	}
	return d
}

// grant returns what a wish gets at a step of load.
func (l *Limits) grant(w Wish, step int) Grant {
	scaled := float64(l.clamp(w.Interval)) * factor(step)
	interval := l.clamp(time.Duration(min(scaled, float64(l.MaxInterval))))
	ttl := l.TTL
	if w.TTL > 0 {
		ttl = w.TTL
	}
	if w.Brief && l.BriefTTL > 0 {
		ttl = min(ttl, l.BriefTTL)
	}
	return withTTL(interval, ttl)
}

// withTTL returns the grant of an interval with a life near the wanted one.
func withTTL(interval, ttl time.Duration) Grant {
	ttl = min(max(wholeMillis(ttl), MinTTL, perTTL*interval), MaxTTL)
	return Grant{Interval: interval, TTL: ttl, RenewAfter: ttl / perRenewal}
}

// factor is what a step multiplies intervals by.
func factor(step int) float64 { return math.Pow(stepUp, float64(step)) }

// steps is how many steps of intervals a load needs, which is the ratio of the
// reports that are wanted to those that are allowed.
func steps(load float64) int {
	if load <= 1 {
		return 0
	}
	return int(math.Ceil(math.Log(load) / math.Log(stepUp)))
}

// microrate is the number of reports in a million seconds. It is whole, so
// that a sum comes back to what it was.
func microrate(interval time.Duration) int64 {
	return int64(1e6*time.Second) / int64(interval)
}

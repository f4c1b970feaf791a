package report

import (
	"log/slog"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Status is what a Reporter does at one moment. It is a plain value.
type Status struct {
	// Connected says that the plane answered the stream that is open.
	Connected bool
	// Since is when Connected last changed, and at first when the Reporter was
	// made.
	Since time.Time
	// WorkerID is the worker that is reported for; empty while there is no lease.
	WorkerID string
	// Interval, LeaseTTL and RenewAfter are those that were granted last; 0
	// before. An interval is held to 10 ms to a minute, whatever the plane grants.
	Interval, LeaseTTL, RenewAfter time.Duration
	// LastRefusal is why a report was refused last; its At is zero before.
	LastRefusal Refusal
	// LastError is why a call or a stream failed last; nil before. It stays when a
	// later one succeeds. It wraps the *connect.Error or an error of this package.
	LastError error
	// Sent counts the reports that were handed to the network, Replaced those that
	// a newer one took the place of before, and Skipped the deadlines at which
	// none could be made in time.
	Sent, Replaced, Skipped uint64
	// Refused counts the refusals that the plane told of, at most one a second.
	Refused uint64
	// Registrations counts the leases that were begun, Renewals those that were
	// renewed, and Streams those that the plane answered.
	Registrations, Renewals, Streams uint64
}

// Refusal is why a report changed nothing at the plane. It is a plain value.
type Refusal struct {
	// Sequence is that of the report.
	Sequence uint64
	// Reason is the plane's word, and Message its text.
	Reason, Message string
	// At is when it came.
	At time.Time
}

// connect notes whether a stream is answered.
func (s *Status) connect(connected bool, at time.Time) {
	if s.Connected == connected {
		return
	}
	s.Connected, s.Since = connected, at
	if connected {
		s.Streams++
	}
}

// grant is what a plane allows, made fit for use.
type grant struct{ interval, ttl, renewAfter time.Duration }

const (
	defaultInterval = time.Second
	defaultRenewal  = 5 * time.Second
	// minRenewal keeps a plane from having its reporters call without a break.
	minRenewal = 100 * time.Millisecond
	// minInterval and maxInterval bound what is granted.
	minInterval = 10 * time.Millisecond
	maxInterval = time.Minute
)

// grantOf reads a grant, and says where its interval is not kept.
func (u *run) grantOf(g *pb.Grant) grant {
	out := grantOf(g)
	asked := time.Duration(g.GetReportIntervalMs()) * time.Millisecond
	if asked == 0 || asked == out.interval {
		return out
	}
	if left, ok := u.clamps.allow(asked.String(), time.Now()); ok {
		u.log.Warn("the granted interval is out of bounds", slog.String("address", u.opts.Address),
			slog.Duration("granted", asked), slog.Duration("used", out.interval), slog.Int("left_out", left))
	}
	return out
}

// grantOf reads a grant; what is missing gets a default.
func grantOf(g *pb.Grant) grant {
	out := grant{
		interval:   time.Duration(g.GetReportIntervalMs()) * time.Millisecond,
		ttl:        time.Duration(g.GetLeaseTtlMs()) * time.Millisecond,
		renewAfter: time.Duration(g.GetRenewAfterMs()) * time.Millisecond,
	}
	if out.interval == 0 {
		out.interval = defaultInterval
	}
	out.interval = min(max(out.interval, minInterval), maxInterval)
	if out.renewAfter == 0 {
		out.renewAfter = out.ttl / 3
	}
	if out.renewAfter == 0 {
		out.renewAfter = defaultRenewal
	}
	out.renewAfter = max(out.renewAfter, minRenewal)
	return out
}

package native

import (
	"errors"
	"sync"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/native/frame"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
)

// Bounds of reports that come faster than granted.
const (
	// rateBurst is how many reports above the granted rate are taken at once.
	rateBurst = 5
	// A stream ends where more reports have to be merged than mergedPerSecond for
	// long; mergedBurst of them more are borne, which is what a reporter sends
	// until it has heard of a longer interval.
	mergedPerSecond = 50
	mergedBurst     = 500
	// shortestHold is how long a report is held back at least.
	shortestHold = time.Millisecond
)

// session is what a stream does by its lease. The receiver and the handler share
// it; its methods but close lock.
type session struct {
	stream  *stream
	lease   string
	answers *answers
	// changed closes when the grant changed or the lease ended; for the handler.
	changed <-chan struct{}
	// bound closes once binding, which does not change then, is set.
	bound   chan struct{}
	binding *registry.Binding
	// held fires when the report that was held back is due.
	held *time.Timer

	mu     sync.Mutex
	grant  registry.Grant
	rate   *rate.Limiter
	excess *rate.Limiter
	streak ingest.Streak
	// source is that of the first report.
	source string
	// pending is the newest report above the granted rate; nil for none.
	pending *store.Load
	closed  bool
}

// newSession takes up a lease and answers what it was granted. The error is the
// registry's refusal.
func newSession(st *stream, lease string) (*session, error) {
	grant, changed, err := st.service.opts.Registry.Granted(lease)
	if err != nil {
		refusal := asRefusal(err)
		count(st.service.metrics.refused, string(refusal.Reason))
		return nil, refusal
	}
	ss := &session{
		stream: st, lease: lease, answers: st.answers, changed: changed, bound: make(chan struct{}),
		held: time.NewTimer(time.Hour), grant: grant,
		rate: rate.NewLimiter(limit(grant), rateBurst), excess: rate.NewLimiter(mergedPerSecond, mergedBurst),
	}
	ss.held.Stop()
	ss.answers.allow(grant)
	return ss, nil
}

// limit is the rate above which reports are merged.
func limit(g registry.Grant) rate.Limit { return 2 * rate.Every(g.Interval) }

// renew takes up what the lease is granted now, and returns what the next change
// closes. The error is the refusal that ends the stream: the lease ended.
func (ss *session) renew() (<-chan struct{}, error) {
	if err := ss.ended(); err != nil {
		return nil, err
	}
	grant, changed, err := ss.stream.service.opts.Registry.Granted(ss.lease)
	if err != nil {
		if why := ss.ended(); why != nil {
			return nil, why
		}
		return nil, &registry.Refusal{Reason: registry.ReasonLeaseExpired, Message: "the lease ended"}
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if grant != ss.grant {
		ss.grant = grant
		ss.rate.SetLimit(limit(grant))
		ss.answers.allow(grant)
	}
	return changed, nil
}

// ended returns why the binding ended; nil while it lasts or there is none.
func (ss *session) ended() error {
	ss.mu.Lock()
	binding := ss.binding
	ss.mu.Unlock()
	if binding == nil {
		return nil
	}
	return binding.Err()
}

// close gives the right to speak back. A report that is held back is dropped.
func (ss *session) close() {
	ss.mu.Lock()
	ss.closed, ss.pending = true, nil
	ss.held.Stop()
	binding := ss.binding
	ss.mu.Unlock()
	if binding != nil {
		binding.Close()
	}
}

// take handles a frame. It returns the refusal that ends the stream.
func (ss *session) take(f *frame.Frame) *registry.Refusal {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if f.Lease != "" && f.Lease != ss.lease {
		return ss.refused(0, ss.object(claimChanged("the lease must stay that of the first frame")))
	}
	if f.Fault == nil && !f.Reported {
		return nil
	}
	now := time.Now()
	allowed := ss.rate.AllowN(now, 1)
	if !allowed && !ss.merge(now) {
		return ss.refused(0, ss.object(ingest.Refuse(ingest.ReasonReportRate, "reports come much faster than they were granted")))
	}
	load, refusal := ss.judge(f, now)
	switch {
	case refusal != nil:
		return ss.refused(f.Report.Sequence, ss.object(refusal))
	case !allowed:
		ss.hold(load, now)
		return nil
	}
	return ss.admit(load)
}

// merge counts a report above the granted rate, and says whether that is borne.
func (ss *session) merge(now time.Time) bool {
	ss.stream.service.metrics.merged.Inc()
	return ss.excess.AllowN(now, 1)
}

// judge returns what a frame reports, or why it is refused.
func (ss *session) judge(f *frame.Frame, now time.Time) (*store.Load, *registry.Refusal) {
	if f.Fault != nil {
		return nil, f.Fault
	}
	f.Report.Received = ss.stream.service.opts.Clock.Now()
	f.Report.ReceivedUnixMs = now.UnixMilli()
	return ingest.Validate(&f.Report, ingest.Rules{MaxRanks: ss.stream.service.opts.MaxRanks})
}

// hold keeps a report until the next one may be taken. The newest counts.
func (ss *session) hold(load *store.Load, now time.Time) {
	if ss.pending == nil {
		wait := float64(time.Second) * (1 - ss.rate.TokensAt(now)) / float64(ss.rate.Limit())
		ss.held.Reset(max(time.Duration(wait), shortestHold))
	}
	ss.pending = load
}

// flush admits the report that was held back.
func (ss *session) flush() *registry.Refusal {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.pending == nil || ss.closed {
		return nil
	}
	load, now := ss.pending, time.Now()
	ss.pending = nil
	if !ss.rate.AllowN(now, 1) {
		ss.hold(load, now) // a longer interval was granted meanwhile
		return nil
	}
	return ss.admit(load)
}

// admit leaves a report in the store, and binds the stream by the first one. It
// returns the refusal that ends the stream.
func (ss *session) admit(load *store.Load) *registry.Refusal {
	ss.pending = nil
	if err := ss.offer(load); err != nil {
		return ss.refused(load.Sequence, asRefusal(err))
	}
	ss.streak.Accept()
	metrics := ss.stream.service.metrics
	metrics.accepted.Inc()
	if age, ok := ingest.SampleAge(load); ok {
		metrics.sampleAge.Observe(age.Seconds())
	}
	return nil
}

func (ss *session) offer(load *store.Load) error {
	if ss.binding == nil {
		binding, err := ss.stream.service.opts.Registry.BindLease(ss.lease, ss.claim(load.Source), load)
		if err != nil {
			return err
		}
		ss.binding, ss.source = binding, load.Source
		close(ss.bound)
		return nil
	}
	if load.Source != ss.source {
		return ss.object(claimChanged("source_instance_id must stay that of the first report"))
	}
	return ss.binding.Admit(load)
}

// refused counts and answers a refusal, and returns the one that ends the stream.
func (ss *session) refused(sequence uint64, r *registry.Refusal) *registry.Refusal {
	count(ss.stream.service.metrics.refused, string(r.Reason))
	if r.Drop {
		ss.answers.refuse(sequence, r)
	}
	if r.Reason == registry.ReasonUnsteady {
		return nil // nothing is wrong with the report
	}
	return ss.streak.Refuse(r)
}

// unread tells the registry of a message that could not be read.
func (ss *session) unread(r *registry.Refusal) *registry.Refusal {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.object(r)
}

// object tells the registry of a refusal that is not its own.
func (ss *session) object(r *registry.Refusal) *registry.Refusal {
	ss.stream.service.opts.Registry.Refuse(ss.binding, ss.claim(ss.source), r)
	return r
}

func (ss *session) claim(source string) registry.Claim {
	return registry.Claim{Source: source, Peer: ss.stream.peer}
}

// claimChanged ends a stream that does not stay what it was opened as.
func claimChanged(message string) *registry.Refusal {
	return &registry.Refusal{Reason: registry.ReasonClaimChanged, Message: message}
}

// asRefusal returns the refusal that every error of admission is.
func asRefusal(err error) *registry.Refusal {
	var r *registry.Refusal
	if errors.As(err, &r) {
		return r
	}
	return ingest.Refuse(ingest.ReasonMalformed, err.Error())
}

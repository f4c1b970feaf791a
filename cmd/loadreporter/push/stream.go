package push

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/loadplane/loadplane/client/report/schedule"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Times of a stream.
const (
	retryInitial = 250 * time.Millisecond
	retryMax     = 5 * time.Second
	// writeTimeout is after how long a report that cannot be written ends the
	// stream.
	writeTimeout = 3 * time.Second
	// firstWait is for how long the first report to a new target is held back
	// while it says unreachable, as the first sample may be under way: what a
	// sample may take by default.
	firstWait = time.Second
	// farewell bounds the end of a stream that this side closes.
	farewell = 500 * time.Millisecond
	// anewEach is the shortest time between two streams that are opened anew
	// without a pause.
	anewEach = time.Second
)

// errChanged ends a stream whose next report would be of another source, or of
// an engine with another address or role: receivers refuse it, as a stream has
// to stay what its first report said.
var errChanged = errors.New("the engine is another one; its reports go by a new stream")

// stream reports to one target while its lease lasts. ctx ends with the lease
// or with the set. The fields below hurry belong to the mutex of the set.
type stream struct {
	set    *Set
	target netip.AddrPort
	// began is when the target came.
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	// renewed and hurry hold a token after a renewal, and for a report that is
	// due at once.
	renewed, hurry chan struct{}

	state Target
	// met says that there was a connection once.
	met      bool
	revision uint64
	lease    *time.Timer
}

// newStream returns the stream of a new target. The caller holds s.mu.
func newStream(s *Set, r Registration) *stream {
	now := time.Now()
	st := &stream{
		set: s, target: r.Target, began: now, renewed: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		state: Target{Addr: r.Target, Interval: r.Interval, Expires: now.Add(r.Lease)},
	}
	st.ctx, st.cancel = context.WithCancel(s.ctx)
	st.lease = time.AfterFunc(r.Lease, st.cancel)
	return st
}

// renew prolongs the lease; false says that it is over. The caller holds the
// mutex of the set.
func (st *stream) renew(r Registration) bool {
	if st.ctx.Err() != nil || !st.lease.Stop() {
		return false
	}
	st.lease.Reset(r.Lease)
	st.revision++
	st.state.Interval, st.state.Expires = r.Interval, time.Now().Add(r.Lease)
	poke(st.renewed)
	return true
}

// asked returns what was asked for last.
func (st *stream) asked() (interval time.Duration, revision uint64) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	return st.state.Interval, st.revision
}

// note changes the state that is shown.
func (st *stream) note(change func(*Target)) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	change(&st.state)
}

// verdict is what becomes of a target after its stream ended.
type verdict int

const (
	verdictEnd    verdict = iota // nothing until it is registered again
	verdictRetry                 // another stream after a pause
	verdictReject                // another stream after the next registration
	verdictAnew                  // another stream at once
)

// String returns the word that the metrics use.
func (v verdict) String() string {
	return [...]string{"terminated", "retried", "rejected", "reopened"}[v]
}

// judge reads how a stream ended.
func judge(err error) verdict {
	switch {
	case errors.Is(err, errBlocked):
		return verdictRetry
	case errors.Is(err, errChanged):
		return verdictAnew
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return verdictRetry
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return verdictReject
	}
	return verdictEnd
}

// run reports until the lease or the set ends, or the router ends it for good.
func (st *stream) run() {
	defer st.end()
	var pause backoff
	var anew time.Time
	for {
		_, revision := st.asked()
		ready, err := st.connection()
		if st.ctx.Err() != nil {
			return
		}
		if ready {
			pause = backoff{}
		}
		v := judge(err)
		st.ended(v, err)
		switch v {
		case verdictRetry:
			st.sleep(pause.next())
		case verdictReject:
			st.awaitRevision(revision)
		case verdictAnew:
			if time.Since(anew) < anewEach {
				st.sleep(pause.next())
			}
			anew = time.Now()
		case verdictEnd:
			return
		}
	}
}

// ended notes how a stream ended.
func (st *stream) ended(v verdict, err error) {
	text := "the router ended the stream"
	if err != nil {
		text = status.Convert(err).Message()
	}
	st.note(func(t *Target) { t.Connected, t.Err = false, text })
	st.set.metrics.ended.WithLabelValues(v.String()).Inc()
	st.set.opts.Logger.Info("report stream ended",
		"target", st.target, "then", v.String(), "code", status.Code(err).String(), "err", text)
}

// end gives everything up.
func (st *stream) end() {
	st.cancel()
	st.set.forget(st)
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	st.lease.Stop()
}

// sleep waits for d, or for the end.
func (st *stream) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-st.ctx.Done():
	}
}

// awaitRevision waits for a registration later than the seen one, or for the
// end.
func (st *stream) awaitRevision(seen uint64) {
	for {
		if _, now := st.asked(); now != seen {
			return
		}
		select {
		case <-st.renewed:
		case <-st.ctx.Done():
			return
		}
	}
}

// backoff is the pause before the next connection; the zero value is at its
// start.
type backoff struct{ last time.Duration }

// next doubles from 250 ms to 5 s, and spreads each over 0.8 to 1.2 of itself.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, retryInitial), retryMax)
	return time.Duration(float64(b.last) * (0.8 + 0.4*rand.Float64()))
}

// connection opens one connection and one stream, and reports there until it
// ends. ready says that there was a connection; the error is nil where the
// router answered OK.
func (st *stream) connection() (ready bool, err error) {
	conn, err := st.connect()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(st.ctx)
	defer cancel(nil)
	rpc, err := pb.NewLoadMonitorServiceClient(conn).Report(ctx)
	if err != nil {
		return true, err
	}
	c := &call{stream: st, rpc: rpc, ended: make(chan error, 1)}
	c.watch = time.AfterFunc(writeTimeout, func() { cancel(errBlocked) })
	defer c.watch.Stop()
	go func() { c.ended <- rpc.RecvMsg(new(emptypb.Empty)) }()
	st.note(func(t *Target) { t.Connected, st.met = true, true })
	switch err := c.deliver(); {
	case errors.Is(err, errChanged):
		c.hangUp()
		return true, err
	case err != nil && !errors.Is(err, io.EOF):
		cancel(err) // not sent, and the stream may still be open
	}
	err = <-c.ended
	if errors.Is(context.Cause(ctx), errBlocked) {
		err = errBlocked
	}
	return true, err
}

// call is one open stream. ended gets its status once; watch ends it when a
// write takes too long. It is for one goroutine.
type call struct {
	stream *stream
	rpc    grpc.ClientStreamingClient[pb.LoadReport, emptypb.Empty]
	ended  chan error
	watch  *time.Timer
	rush   rush
	// claim is that of the first report; nil before it.
	claim *claim
}

// claim is what has to stay the same on a stream.
type claim struct {
	source, addr string
	kind         pb.WorkerType
}

func claimOf(r *pb.LoadReport) claim {
	return claim{r.GetSourceInstanceId(), r.GetWorker().GetWorkerAddr(), r.GetWorker().GetWorkerType()}
}

// hangUp ends the stream from this side. The router has heard of it when it
// answers, so that a stream after this one does not overtake the end.
func (c *call) hangUp() {
	c.watch.Reset(farewell)
	_ = c.rpc.CloseSend() // else the watch ends the stream
	if err := <-c.ended; err != nil {
		c.stream.set.opts.Logger.Debug("report stream closed", "target", c.stream.target, "err", err)
	}
}

// deliver sends the first report at once, or when there is something to say,
// and the next ones when they are due. It returns nil when the stream ended,
// else the error of a send.
func (c *call) deliver() error {
	st := c.stream
	interval, _ := st.asked()
	opened := time.Now()
	plan := schedule.New(interval, opened)
	if err := c.send(opened); err != nil {
		return err
	}
	plan.Fired(opened)
	align := func() { st.set.opts.Align(st.target.String(), plan.Next()) }
	align()
	timer := time.NewTimer(time.Until(c.next(plan)))
	defer timer.Stop()
	for {
		select {
		case err := <-c.ended:
			c.ended <- err
			return nil
		case <-st.renewed:
			if now, _ := st.asked(); now != interval {
				interval = now
				plan.SetInterval(interval, time.Now())
				align()
			}
		case <-st.hurry:
			c.rush.ask(time.Now())
		case <-timer.C:
			if err := c.fire(plan); err != nil {
				return err
			}
		}
		timer.Reset(time.Until(c.next(plan)))
	}
}

// next returns when to look for the next report.
func (c *call) next(plan *schedule.Schedule) time.Time {
	at := c.rush.before(plan.Next())
	if over := c.stream.began.Add(firstWait); c.claim == nil && over.Before(at) {
		return over
	}
	return at
}

// fire sends a report that is due, by the plan or early.
func (c *call) fire(plan *schedule.Schedule) error {
	now := time.Now()
	if due := plan.Next(); !now.Before(due) {
		m := c.stream.set.metrics
		m.late.Observe(now.Sub(due).Seconds())
		m.skipped.Add(float64(plan.Fired(now)))
		c.rush.reset()
	}
	return c.send(now)
}

// send writes a report, unless it is too early for it. It does not wait for
// longer than writeTimeout. The error is errChanged where the stream is not for
// the report, else that of the write.
func (c *call) send(now time.Time) error {
	c.watch.Reset(writeTimeout)
	defer c.watch.Stop()
	report := c.stream.set.opts.Report(now)
	if c.claim == nil {
		if c.early(report, now) {
			c.rush.reset()
			return nil
		}
		first := claimOf(report)
		c.claim = &first
	}
	if claimOf(report) != *c.claim {
		return errChanged
	}
	if err := c.rpc.Send(report); err != nil {
		return err
	}
	c.rush.sent(now)
	c.stream.set.metrics.reports.Inc()
	c.stream.note(func(t *Target) { t.Reports++ })
	return nil
}

// early says that a first report would only tell that nothing is known yet.
func (c *call) early(r *pb.LoadReport, now time.Time) bool {
	return r.GetStatus() == pb.ReportStatus_REPORT_STATUS_UNREACHABLE && now.Before(c.stream.began.Add(firstWait))
}

// minGap is the time between an early report and the one before it.
const minGap = 10 * time.Millisecond

// rush is about a report that goes out before it is due: one between two that
// are due. The zero value asks for none. It is for one goroutine.
type rush struct {
	due  time.Time
	used bool
	last time.Time
}

// ask wants an early report.
func (r *rush) ask(now time.Time) {
	if r.used || !r.due.IsZero() {
		return
	}
	r.due = now
	if soonest := r.last.Add(minGap); soonest.After(now) {
		r.due = soonest
	}
}

// before returns when the next report goes out that the plan wants at next.
func (r *rush) before(next time.Time) time.Time {
	if !r.due.IsZero() && r.due.Before(next) {
		return r.due
	}
	return next
}

// sent notes a report, by which an early one is done.
func (r *rush) sent(now time.Time) {
	r.last = now
	if !r.due.IsZero() {
		r.due, r.used = time.Time{}, true
	}
}

// reset allows the next early report, as one went out when it was due.
func (r *rush) reset() { r.due, r.used = time.Time{}, false }

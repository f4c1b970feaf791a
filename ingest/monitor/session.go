package monitor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/loadplane/loadplane/ingest/monitor/frame"
	"github.com/loadplane/loadplane/ingest/monitor/link"
	"github.com/loadplane/loadplane/registry"
	"google.golang.org/grpc"
)

const (
	// stopFor bounds the wait for an engine that is told to stop.
	stopFor = 200 * time.Millisecond
	// pullFor is the time that an engine may take for a sample.
	pullFor = time.Second
)

// session is one Monitor stream. It is for the goroutine of Serve.
type session struct {
	monitor *Monitor
	engine  *registry.Engine
	target  registry.Target
	peer    netip.AddrPort
	stream  grpc.ClientStream
	// hangUp ends the stream.
	hangUp func()

	in     *intake
	sender *sender
	// received brings why the receiver ended, idle closes when the sender did.
	received chan *fault
	idle     chan struct{}
	gone     bool

	// began is when the register frame was posted; every is the time between
	// two keep-alives and renewal when the next one is due.
	began, renewal time.Time
	every          time.Duration
	acked          bool
	binding        *registry.Binding
	// heard says that a report was admitted.
	heard bool
}

// open connects to the engine and begins a session. It takes the time of one
// call at most.
func (m *Monitor) open(ctx context.Context, e *registry.Engine, t *registry.Target) (*session, *fault) {
	addr, err := endpoint(t)
	if err != nil {
		return nil, &fault{reason: registry.ReasonBadAddress, err: err}
	}
	l, err := link.Open(ctx, link.Options{Dial: m.opts.Dial, Timeout: m.opts.CallTimeout}, addr)
	switch {
	case errors.Is(err, link.ErrTimeout):
		return nil, &fault{reason: ReasonAckTimeout, err: err}
	case err != nil:
		return nil, &fault{reason: registry.ConnectReason(err), err: err}
	}
	s := &session{monitor: m, engine: e, target: *t, peer: l.Peer, stream: l.Stream, hangUp: l.Close}
	s.start()
	return s, nil
}

// endpoint returns host:port of a worker's load reporter.
func endpoint(t *registry.Target) (string, error) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(u.Hostname(), strconv.Itoa(t.ReporterPort)), nil
}

func (s *session) start() {
	s.in = s.monitor.newIntake(s.engine, s.peer)
	s.in.pace(s.target.Interval)
	s.sender = newSender()
	s.received, s.idle = make(chan *fault, 1), make(chan struct{})
	go func() { s.received <- s.in.receive(s.stream) }()
	go func() {
		defer close(s.idle)
		s.sender.run(s.stream)
	}()
	s.began = time.Now()
	s.sender.post(frame.Register(s.monitor.opts.RouterID, s.target.Interval, s.target.Lease))
}

// run keeps the session until ctx ends, when it returns nil, or something else
// ends it.
func (s *session) run(ctx context.Context) *fault {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var lost <-chan struct{}
		if s.binding != nil {
			lost = s.binding.Ended()
		}
		s.begun()
		timer.Reset(time.Until(s.due()))
		select {
		case <-ctx.Done():
			return nil
		case why := <-s.received:
			s.gone = true
			return why
		case <-lost:
			return refusal(s.binding.Err())
		case a := <-s.in.acks:
			s.granted(a)
		case s.binding = <-s.in.opened:
		case <-s.in.held:
		case <-s.sender.sent:
			s.sender.done()
		case <-s.engine.Changed():
			if why := s.change(); why != nil {
				return why
			}
		case <-timer.C:
			if why := s.tick(); why != nil {
				return why
			}
		}
	}
}

// due returns when the next deadline is.
func (s *session) due() time.Time {
	t := s.in.timing()
	due := s.began.Add(s.monitor.opts.CallTimeout)
	if s.acked {
		due = earliest(s.renewal, t.heard.Add(s.patience()))
	}
	if !t.due.IsZero() {
		due = earliest(due, t.due)
	}
	if !s.sender.since.IsZero() {
		due = earliest(due, s.sender.since.Add(s.monitor.opts.CallTimeout))
	}
	return due
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// patience is how long the engine may be silent.
func (s *session) patience() time.Duration {
	return max(3*s.target.Interval, s.monitor.opts.StaleAfter) + pullFor
}

// tick does what is due.
func (s *session) tick() *fault {
	now, timeout := time.Now(), s.monitor.opts.CallTimeout
	heard := s.in.timing().heard
	switch {
	case s.sender.stuck(now, timeout):
		return faultf(ReasonReporterStuck, "a frame could not be sent within %s", timeout)
	case !s.acked && heard.IsZero() && now.Sub(s.began) >= timeout:
		return faultf(ReasonAckTimeout, "the registration was not answered within %s", timeout)
	case s.acked && now.Sub(heard) >= s.patience():
		return s.silent()
	case s.acked && !now.Before(s.renewal):
		s.renew(now)
	}
	return s.in.flush(now)
}

// silent says that nothing was heard for too long.
func (s *session) silent() *fault {
	if s.in.timing().refused {
		return faultf(ReasonReporterSilent, "no report came for %s that has a newer sequence", s.patience())
	}
	return faultf(ReasonReporterSilent, "no report came for %s", s.patience())
}

// renew sends a keep-alive. Where the one before, or a change, is still under
// way, that has to do.
func (s *session) renew(now time.Time) {
	s.renewal = now.Add(s.every)
	if s.sender.since.IsZero() {
		s.sender.post(frame.KeepAlive())
		s.monitor.metrics.keepAlives.Inc()
	}
	if s.heard {
		s.show()
	}
}

// granted takes the engine's answer to the registration.
func (s *session) granted(a frame.Ack) {
	every, sane := a.Renewal(s.target.Lease)
	if !sane {
		s.monitor.metrics.oddGrants.Inc()
	}
	s.acked, s.every, s.renewal = true, every, time.Now().Add(every)
	s.monitor.metrics.sessions.Inc()
}

// change takes over what discovery says now.
func (s *session) change() *fault {
	old := s.target
	s.target = s.monitor.target(s.engine)
	switch t := &s.target; {
	case moved(t, &old):
		return &fault{moved: true}
	case t.Interval == old.Interval && t.Lease == old.Lease:
		return nil
	}
	s.in.pace(s.target.Interval)
	s.sender.post(frame.Update(s.target.Interval, s.target.Lease))
	if s.target.Lease != old.Lease && s.acked {
		s.every, _ = frame.Ack{}.Renewal(s.target.Lease)
		s.renewal = earliest(s.renewal, time.Now().Add(s.every))
	}
	if s.heard {
		s.show()
	}
	return nil
}

// begun shows the session once a report was admitted.
func (s *session) begun() {
	if s.heard || s.binding == nil || s.in.timing().admitted.IsZero() {
		return
	}
	s.heard = true
	s.show()
}

// show tells operators that the session reports, and when it is renewed.
func (s *session) show() {
	s.engine.Show(registry.Way{
		State: registry.StateRegistered, Interval: s.target.Interval, Renewal: time.Until(s.renewal),
		Detail: "load reporter at " + s.peer.String(),
	})
}

// end ends the session and waits for its goroutines. An engine that may go on
// is told to stop.
func (s *session) end(tell bool) {
	s.in.close()
	if tell && !s.gone && s.sender.since.IsZero() {
		s.sayStop()
	}
	s.hangUp()
	close(s.sender.queue)
	if !s.gone {
		<-s.received
	}
	<-s.idle
	if s.acked {
		s.monitor.metrics.sessions.Dec()
	}
}

// sayStop waits a little for the engine to end the stream.
func (s *session) sayStop() {
	s.sender.post(frame.Stop())
	timer := time.NewTimer(stopFor)
	defer timer.Stop()
	select {
	case <-s.received:
		s.gone = true
	case <-timer.C:
	}
}

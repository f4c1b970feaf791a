package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/link"
	"github.com/loadplane/loadplane/client/internal/retry"
	"github.com/loadplane/loadplane/client/report/schedule"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// maxAnswer bounds an answer of the plane, bytes.
const maxAnswer = 64 << 10

// session is one connection with its stream. The sampler, the sender, the
// receiver and the renewer are goroutines of their own; the first one to fail
// ends all.
type session struct {
	run  *run
	link *link.Link
	// lease, url and source do not change; source is that of the first report,
	// and for the sampler.
	lease, url, source string
	stream             *connect.BidiStreamForClientSimple[pb.ReportRequest, pb.ReportResponse]
	slot               slot

	// granted is what the plane allowed last; regranted tells the renewer, and
	// respaced the sampler.
	mu                  sync.Mutex
	granted             grant
	regranted, respaced chan struct{}
}

// options are those of all calls.
func options() connect.ClientOption {
	return connect.WithClientOptions(connect.WithGRPC(), connect.WithReadMaxBytes(maxAnswer),
		connect.WithAcceptCompression("gzip", nil, nil))
}

// session registers and reports until something fails or ctx ends.
func (u *run) session(ctx context.Context) error {
	s := &session{
		run: u, link: link.New(u.opts.Address, u.opts.TLS, u.dial), slot: newSlot(),
		regranted: make(chan struct{}, 1), respaced: make(chan struct{}, 1),
	}
	defer s.link.Close()
	if err := s.register(ctx); err != nil {
		return err
	}
	return s.report(ctx)
}

// register begins a lease or takes up the one that is held.
func (s *session) register(ctx context.Context) error {
	drain(s.run.changed)
	r := s.run.current(s.run.lease)
	if s.run.lease != "" && r.GetUrl() != s.run.url {
		_ = s.run.deregister(ctx, s.link, s.run.lease) // it ends by itself
		s.run.forget()
		r.LeaseId = ""
	}
	began := r.GetLeaseId() == ""
	answer, err := s.run.register(ctx, s.link, r)
	if err != nil {
		err = fmt.Errorf("registration: %w", err)
		if code := connect.CodeOf(err); code == connect.CodeNotFound || code == connect.CodeAlreadyExists {
			s.run.forget()
		}
		return err
	}
	s.run.lease, s.run.url, s.run.had = answer.GetLeaseId(), r.GetUrl(), true
	s.lease, s.url = answer.GetLeaseId(), r.GetUrl()
	s.granted = s.run.grantOf(answer.GetGrant())
	s.run.granted, s.run.held = s.granted, 0
	s.run.note(func(st *Status) {
		st.WorkerID = answer.GetWorkerId()
		st.Interval, st.LeaseTTL, st.RenewAfter = s.granted.interval, s.granted.ttl, s.granted.renewAfter
		if began {
			st.Registrations++
		} else {
			st.Renewals++
		}
	})
	return nil
}

// report streams reports until something fails or ctx ends.
func (s *session) report(ctx context.Context) error {
	outer := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	callCtx, err := s.run.authorized(ctx)
	if err != nil {
		return err
	}
	s.stream, err = loadplanev1connect.NewReportServiceClient(s.link.Client(), s.run.opts.Address, options()).Report(callCtx)
	if err != nil {
		return fmt.Errorf("report stream: %w", err)
	}
	silent := time.AfterFunc(callTimeout, func() { fail(ErrSilent) })
	defer silent.Stop()
	s.begin()
	var parts sync.WaitGroup
	for _, part := range []func(context.Context) error{
		s.sample, s.send, s.renew,
		func(ctx context.Context) error { return s.receive(ctx, silent) },
	} {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				fail(err)
			}
		})
	}
	<-ctx.Done()
	s.link.Close()
	parts.Wait()
	s.run.note(func(st *Status) { st.connect(false, time.Now()) })
	if cause := context.Cause(ctx); outer.Err() == nil {
		return fmt.Errorf("report stream: %w", cause)
	}
	return context.Cause(ctx)
}

// begin makes the first report, and the schedule where there is none.
func (s *session) begin() {
	now := time.Now()
	if s.run.schedule == nil {
		s.run.schedule = schedule.New(s.granted.interval, now)
	}
	s.run.schedule.SetInterval(s.granted.interval, now)
	defer s.planned()
	drain(s.run.hurried)
	if report := s.run.opts.Report(now); report != nil {
		s.source = report.GetSourceInstanceId()
		s.slot.put(report)
	}
	s.fired(time.Now())
}

// planned tells by which times reports go.
func (s *session) planned() {
	if told := s.run.opts.Planned; told != nil {
		told(s.run.schedule.Next(), s.run.schedule.Interval())
	}
}

// fired moves the schedule on.
func (s *session) fired(now time.Time) {
	if skipped := s.run.schedule.Fired(now); skipped > 0 {
		s.run.note(func(st *Status) { st.Skipped += uint64(skipped) })
	}
}

// sample makes reports when they are due.
func (s *session) sample(ctx context.Context) error {
	h := hurry{bucket: bucket{last: time.Now()}}
	timer := time.NewTimer(time.Until(s.run.schedule.Next()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.respaced:
			if next := s.grant().interval; next != s.run.schedule.Interval() {
				s.run.schedule.SetInterval(next, time.Now())
				s.planned()
			}
		case <-s.run.hurried:
			h.wanted = true
		case <-timer.C:
		}
		now := time.Now()
		interval := s.run.schedule.Interval()
		if due := !now.Before(s.run.schedule.Next()); due || h.due(now, interval) {
			if due && s.run.opts.Late != nil {
				s.run.opts.Late(now.Sub(s.run.schedule.Next()))
			}
			if err := s.produce(now); err != nil {
				return err
			}
			h.made(due)
		}
		timer.Reset(h.wait(time.Now(), interval, s.run.schedule.Next()))
	}
}

// produce makes a report for the sender.
func (s *session) produce(now time.Time) error {
	drain(s.run.hurried) // what hurries by now is in the report
	report := s.run.opts.Report(now)
	s.fired(time.Now())
	if report == nil {
		return nil
	}
	if s.source == "" {
		s.source = report.GetSourceInstanceId()
	}
	if report.GetSourceInstanceId() != s.source {
		return ErrSourceChanged
	}
	if s.slot.put(report) {
		s.run.note(func(st *Status) { st.Replaced++ })
	}
	return nil
}

// send sends the newest report. The first frame names the lease, whether there is
// a report or not.
func (s *session) send(ctx context.Context) error {
	frame := &pb.ReportRequest{LeaseId: s.lease, Report: s.slot.take()}
	for {
		if err := s.stream.Send(frame); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the receiver learns why
			}
			return err
		}
		if frame.GetReport() != nil {
			s.run.note(func(st *Status) { st.Sent++ })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.slot.filled:
			frame = &pb.ReportRequest{Report: s.slot.take()}
		}
	}
}

// receive takes what the plane answers.
func (s *session) receive(ctx context.Context, silent *time.Timer) error {
	var pace pace
	for first := true; ; first = false {
		answer, err := s.stream.Receive()
		if errors.Is(err, io.EOF) {
			return ErrClosed
		}
		if err != nil {
			return err
		}
		if first {
			silent.Stop()
			s.run.began()
		}
		if g := answer.GetGrant(); g != nil {
			s.allow(g)
		}
		if r := answer.GetRefusal(); r != nil {
			s.run.refused(r)
		}
		if !pause(ctx, pace.wait(time.Now())) {
			return nil
		}
	}
}

// refused notes a refusal, and logs it where the last line was about another.
func (u *run) refused(r *pb.ReportRefusal) {
	u.note(func(st *Status) {
		st.Refused++
		st.LastRefusal = Refusal{r.GetSequence(), r.GetReason(), r.GetMessage(), time.Now()}
	})
	if left, ok := u.refusals.allow("refused "+r.GetReason(), time.Now()); ok {
		u.log.Warn("report refused", slog.String("address", u.opts.Address), slog.String("reason", r.GetReason()),
			slog.String("message", r.GetMessage()), slog.Int("left_out", left))
	}
}

// allow takes a grant over.
func (s *session) allow(g *pb.Grant) {
	next := s.run.grantOf(g)
	s.mu.Lock()
	old := s.granted
	s.granted = next
	s.mu.Unlock()
	if next == old {
		return
	}
	s.run.note(func(st *Status) {
		st.Interval, st.LeaseTTL, st.RenewAfter = next.interval, next.ttl, next.renewAfter
	})
	poke(s.regranted)
	poke(s.respaced)
}

func (s *session) grant() grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted
}

// renew keeps the lease until it is lost or the way to the plane is. Other
// trouble is borne: the reports go on while the lease lasts.
func (s *session) renew(ctx context.Context) error {
	last, wait := time.Now(), s.grant().renewAfter
	plan := retry.New([]string{s.run.opts.Address}, s.run.random)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.regranted:
			timer.Reset(time.Until(last.Add(s.grant().renewAfter)))
			continue
		case <-s.run.changed:
		case <-timer.C:
		}
		began := time.Now()
		err := s.renewOnce(ctx)
		now := time.Now()
		switch code := connect.CodeOf(err); {
		case err == nil:
			last, wait = began, s.grant().renewAfter
			plan = retry.New([]string{s.run.opts.Address}, s.run.random)
		case errors.Is(err, errMoved), lost(err), code == connect.CodeNotFound, code == connect.CodeAlreadyExists:
			return fmt.Errorf("renewal: %w", err)
		default:
			s.run.note(func(st *Status) { st.LastError = fmt.Errorf("%s: renewal: %w", s.run.opts.Address, err) })
			plan.Ended(retry.Ending{Stay: stayOf(err)}, now)
			_, at := plan.Pick(now)
			wait = at.Sub(now)
		}
		timer.Reset(wait)
	}
}

// renewOnce renews the lease with the facts as they are now. Where the URL is
// another one the lease is given back.
func (s *session) renewOnce(ctx context.Context) error {
	r := s.run.current(s.lease)
	if r.GetUrl() != s.url {
		_ = s.run.deregister(ctx, s.link, s.lease) // it ends by itself
		return errMoved
	}
	answer, err := s.run.register(ctx, s.link, r)
	if err != nil {
		return err
	}
	s.run.note(func(st *Status) { st.Renewals++ })
	s.allow(answer.GetGrant())
	return nil
}

// register makes one call.
func (u *run) register(ctx context.Context, way *link.Link, r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ctx, err := u.authorized(ctx)
	if err != nil {
		return nil, err
	}
	return loadplanev1connect.NewRegistrationServiceClient(way.Client(), u.opts.Address, options()).Register(ctx, r)
}

// deregister gives a lease back.
func (u *run) deregister(ctx context.Context, way *link.Link, lease string) error {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	ctx, err := u.authorized(ctx)
	if err != nil {
		return err
	}
	_, err = loadplanev1connect.NewRegistrationServiceClient(way.Client(), u.opts.Address, options()).
		Deregister(ctx, &pb.DeregisterRequest{LeaseId: lease})
	return err
}

// authorized returns a context for one call, with the token.
func (u *run) authorized(ctx context.Context) (context.Context, error) {
	ctx, call := connect.NewClientContext(ctx)
	if u.opts.Token == nil {
		return ctx, nil
	}
	token, err := u.opts.Token(ctx)
	if err != nil {
		return nil, fmt.Errorf("no token: %w", err)
	}
	call.RequestHeader().Set("Authorization", "Bearer "+token)
	return ctx, nil
}

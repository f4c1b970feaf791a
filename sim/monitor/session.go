package monitor

import (
	"context"
	"strings"
	"sync"
	"time"

	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Words of an error frame.
const (
	codeFirstFrame = "INVALID_FIRST_FRAME"
	codeArgument   = "INVALID_ARGUMENT"
)

// maxDuration bounds what a router asks for.
const maxDuration = 100 * 365 * 24 * time.Hour

type monitorStream = grpc.BidiStreamingServer[monitorpb.RouterFrame, monitorpb.WorkerFrame]

// serving is a server while it runs.
type serving struct {
	monitorpb.UnimplementedLoadMonitorServiceServer
	*Server
	ctx     context.Context
	address string
	// wake holds a token after a schedule changed.
	wake chan struct{}
	// receivers are the goroutines that read streams.
	receivers sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session
}

// session is what one router asked for. The fields below expiry belong to the
// mutex of serving.
type session struct {
	// out holds the newest report that was not sent yet.
	out chan *monitorpb.WorkerFrame
	// ended closes when the session ends without an error.
	ended chan struct{}
	end   func()

	expiry   *time.Timer
	lease    time.Duration
	interval time.Duration
	due      time.Time
}

// Monitor serves one session of a router.
func (v *serving) Monitor(stream monitorStream) error {
	first, err := stream.Recv()
	if err != nil {
		return nil
	}
	r := first.GetRegister()
	if r == nil {
		return refuse(stream, codeFirstFrame, "the first frame must be register")
	}
	if wrong := fault(r); wrong != "" {
		return refuse(stream, codeArgument, wrong)
	}
	s := v.open(r)
	defer v.close(r.RouterId, s)
	ack := &monitorpb.RegisterResponse{LeaseTtlMs: r.LeaseTtlMs, RenewAfterMs: max(1, r.LeaseTtlMs/3)}
	if err := stream.Send(&monitorpb.WorkerFrame{Payload: &monitorpb.WorkerFrame_Registered{Registered: ack}}); err != nil {
		return err
	}
	failed := make(chan string, 1)
	v.receivers.Go(func() { v.receive(stream, s, failed) })
	return v.deliver(stream, s, failed)
}

// refuse tells of an error; the stream ends as OK all the same.
func refuse(stream monitorStream, code, message string) error {
	return stream.Send(&monitorpb.WorkerFrame{Payload: &monitorpb.WorkerFrame_Error{
		Error: &monitorpb.StreamError{Code: code, Message: message},
	}})
}

// fault says what is wrong with a register; empty for nothing.
func fault(r *monitorpb.RegisterRequest) string {
	switch {
	case strings.TrimSpace(r.GetRouterId()) == "":
		return "router_id must not be blank"
	case r.GetReportIntervalMs() <= 0:
		return "report_interval_ms must be above 0"
	case r.GetLeaseTtlMs() <= 0:
		return "lease_ttl_ms must be above 0"
	}
	return ""
}

// open begins a session, whose first report is due at once, and ends the one
// that the router had.
func (v *serving) open(r *monitorpb.RegisterRequest) *session {
	ended := make(chan struct{})
	s := &session{
		out: make(chan *monitorpb.WorkerFrame, 1), ended: ended,
		end: sync.OnceFunc(func() { close(ended) }),
		due: time.Now(), interval: millis(r.ReportIntervalMs), lease: millis(r.LeaseTtlMs),
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if old := v.sessions[r.RouterId]; old != nil {
		old.end()
	}
	v.sessions[r.RouterId] = s
	s.expiry = time.AfterFunc(s.lease, s.end)
	v.live.Add(1)
	v.rescheduled()
	return s
}

// close forgets a session.
func (v *serving) close(id string, s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.end()
	s.expiry.Stop()
	if v.sessions[id] == s {
		delete(v.sessions, id)
	}
	v.live.Add(-1)
}

// deliver sends what is due until the session or the server ends.
func (v *serving) deliver(stream monitorStream, s *session, failed <-chan string) error {
	for {
		select {
		case r := <-s.out:
			if err := stream.Send(r); err != nil {
				return err
			}
		case message := <-failed:
			return refuse(stream, codeArgument, message)
		case <-s.ended:
			return nil
		case <-v.ctx.Done():
			return status.Error(codes.Unavailable, "load reporter is shutting down")
		}
	}
}

// receive takes the frames of a router. It ends the session when the router
// stops or half-closes, and tells failed of a wrong frame.
func (v *serving) receive(stream monitorStream, s *session, failed chan<- string) {
	for {
		f, err := stream.Recv()
		if err != nil || f.GetStop() != nil {
			s.end()
			return
		}
		if wrong := v.apply(s, f); wrong != "" {
			failed <- wrong
			return
		}
	}
}

// apply does what a frame of a live session asks for, or says what is wrong.
func (v *serving) apply(s *session, f *monitorpb.RouterFrame) string {
	switch p := f.Payload.(type) {
	case *monitorpb.RouterFrame_Register:
		if wrong := fault(p.Register); wrong != "" {
			return wrong
		}
		v.update(s, &p.Register.ReportIntervalMs, &p.Register.LeaseTtlMs)
	case *monitorpb.RouterFrame_UpdateConfig:
		interval, lease := p.UpdateConfig.ReportIntervalMs, p.UpdateConfig.LeaseTtlMs
		if interval != nil && *interval <= 0 || lease != nil && *lease <= 0 {
			return "report_interval_ms and lease_ttl_ms must be above 0"
		}
		v.update(s, interval, lease)
	case *monitorpb.RouterFrame_KeepAlive:
		v.update(s, nil, nil)
	default:
		return "the frame is empty"
	}
	return ""
}

// update changes what is not nil and begins the lease anew. Only another
// interval moves the next report.
func (v *serving) update(s *session, intervalMs, leaseMs *int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if leaseMs != nil {
		s.lease = millis(*leaseMs)
	}
	s.expiry.Reset(s.lease)
	if intervalMs != nil && millis(*intervalMs) != s.interval {
		s.interval = millis(*intervalMs)
		s.due = v.after(time.Now(), s.interval)
		v.rescheduled()
	}
}

func millis(ms int64) time.Duration {
	return time.Duration(min(ms, maxDuration.Milliseconds())) * time.Millisecond
}

// Package cadence has both ends of reports that come at an interval: a server
// that takes them and measures the intervals, and a bare loop that sends them.
package cadence

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/gaps"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// lease is what is granted: no renewal disturbs a measurement.
const lease = time.Hour

// Receiver takes the reports of one reporter, and those of a bare loop, in the
// native and in the push dialect, and grants the interval that is asked for. It
// is safe for concurrent use.
type Receiver struct {
	ln     net.Listener
	server *grpc.Server
	// interval is what the newest registration asked for, milliseconds.
	interval atomic.Uint32

	reports, bare *gaps.Recorder[string]
	// unhealthy counts the reports that say so since Record; ranks are those of
	// the newest.
	unhealthy, ranks atomic.Int64
}

// NewReceiver binds a port of 127.0.0.1. Serve gives it back.
func NewReceiver() (*Receiver, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Receiver{ln: ln, server: grpc.NewServer(), reports: gaps.New[string](), bare: gaps.New[string]()}
	loadplanev1.RegisterRegistrationServiceServer(r.server, &registration{receiver: r})
	loadplanev1.RegisterReportServiceServer(r.server, &native{receiver: r})
	pb.RegisterLoadMonitorServiceServer(r.server, &push{receiver: r})
	return r, nil
}

// Address is host:port.
func (r *Receiver) Address() string { return r.ln.Addr().String() }

// Serve takes reports until Close.
func (r *Receiver) Serve() error { return r.server.Serve(r.ln) }

// Close ends all streams and Serve.
func (r *Receiver) Close() { r.server.Stop() }

// note notes a report.
func (r *Receiver) note(source string, healthy bool, ranks int) {
	now := engine.Now()
	if source == bareSource {
		r.bare.Note(source, now)
		return
	}
	r.reports.Note(source, now)
	r.ranks.Store(int64(ranks))
	if !healthy {
		r.unhealthy.Add(1)
	}
}

// Await waits until a number of reports came, and fails where they are not
// healthy ones of a number of ranks.
func (r *Receiver) Await(ctx context.Context, reports, ranks int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		bad := r.unhealthy.Load()
		if r.reports.Events()-bad >= int64(reports) && r.ranks.Load() == int64(ranks) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d reports came, %d of them not healthy, the last with %d ranks: %w",
				r.reports.Events(), bad, r.ranks.Load(), ctx.Err())
		}
	}
}

// Record begins to record the reports of an interval that come from now on.
func (r *Receiver) Record(interval time.Duration) {
	now := engine.Now()
	r.unhealthy.Store(0)
	r.reports.Record(interval, now)
	r.bare.Record(interval, now)
}

// Seen is what was recorded. It is a plain value.
type Seen struct {
	// Reports are those of the reporter, Bare those of a bare loop.
	Reports, Bare gaps.Seen
	// Unhealthy counts those of the reporter that said so.
	Unhealthy int64
}

// Seen returns what was recorded.
func (r *Receiver) Seen() Seen {
	now := engine.Now()
	return Seen{Reports: r.reports.Seen(now), Bare: r.bare.Seen(now), Unhealthy: r.unhealthy.Load()}
}

// registration answers those that register themselves.
type registration struct {
	loadplanev1.UnimplementedRegistrationServiceServer
	receiver *Receiver
}

// Register grants what is asked for.
func (s *registration) Register(_ context.Context, q *loadplanev1.RegisterRequest) (*loadplanev1.RegisterResponse, error) {
	s.receiver.interval.Store(q.GetReportIntervalMs())
	return &loadplanev1.RegisterResponse{LeaseId: "bench", WorkerId: q.GetUrl(), Grant: s.receiver.grant()}, nil
}

func (*registration) Deregister(context.Context, *loadplanev1.DeregisterRequest) (*loadplanev1.DeregisterResponse, error) {
	return &loadplanev1.DeregisterResponse{}, nil
}

func (r *Receiver) grant() *loadplanev1.Grant {
	return &loadplanev1.Grant{
		ReportIntervalMs: r.interval.Load(),
		LeaseTtlMs:       uint32(lease.Milliseconds()),
		RenewAfterMs:     uint32(lease.Milliseconds() / 3),
	}
}

// native takes the reports of a lease.
type native struct {
	loadplanev1.UnimplementedReportServiceServer
	receiver *Receiver
}

func (s *native) Report(stream grpc.BidiStreamingServer[loadplanev1.ReportRequest, loadplanev1.ReportResponse]) error {
	grant := &loadplanev1.ReportResponse{Payload: &loadplanev1.ReportResponse_Grant{Grant: s.receiver.grant()}}
	if err := stream.Send(grant); err != nil {
		return err
	}
	for {
		q, err := stream.Recv()
		if err != nil {
			return err
		}
		if m := q.GetReport(); m != nil {
			s.receiver.note(m.GetSourceInstanceId(), m.GetStatus() == loadplanev1.Status_STATUS_HEALTHY, len(m.GetRanks()))
		}
	}
}

// push takes the reports that an engine was asked for.
type push struct {
	pb.UnimplementedLoadMonitorServiceServer
	receiver *Receiver
}

func (s *push) Report(stream grpc.ClientStreamingServer[pb.LoadReport, emptypb.Empty]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.receiver.note(m.GetSourceInstanceId(), m.GetStatus() == pb.ReportStatus_REPORT_STATUS_HEALTHY, len(m.GetRanks()))
	}
}

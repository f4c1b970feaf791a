package flood

import (
	"context"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// monitorLease is what the monitored engine grants.
const monitorLease = time.Minute

// serveMonitor serves the engine that the plane dials.
func (p *Peers) serveMonitor(ctx context.Context) {
	if p.kind == Deaf {
		hold(ctx, p.monitor, &p.metMonitor)
		return
	}
	srv := grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterLoadMonitorServiceServer(srv, &monitored{peers: p, ctx: ctx})
	defer context.AfterFunc(ctx, srv.Stop)()
	_ = srv.Serve(p.monitor)
	srv.Stop()
}

type monitored struct {
	pb.UnimplementedLoadMonitorServiceServer
	peers *Peers
	ctx   context.Context
}

// Monitor accepts whatever the plane wants and sends reports at its own rate.
func (m *monitored) Monitor(stream grpc.BidiStreamingServer[pb.RouterFrame, pb.WorkerFrame]) error {
	m.peers.metMonitor.Add(1)
	if _, err := stream.Recv(); err != nil {
		return err
	}
	ack := &pb.RegisterResponse{LeaseTtlMs: monitorLease.Milliseconds(), RenewAfterMs: monitorLease.Milliseconds() / 3}
	if err := stream.Send(&pb.WorkerFrame{Payload: &pb.WorkerFrame_Registered{Registered: ack}}); err != nil {
		return err
	}
	rate, r := frequent, m.report()
	if m.peers.kind == Giant {
		rate, r.LastError = seldom, proto.String(strings.Repeat("x", giant))
	}
	frame := &pb.WorkerFrame{Payload: &pb.WorkerFrame_Report{Report: r}}
	return pace(stream.Context(), rate, func() error {
		r.SequenceId++
		r.Ranks[0].NumRunningReqs = int64(r.SequenceId % 100)
		m.peers.sentMonitor.Add(1)
		return stream.Send(frame)
	})
}

func (m *monitored) report() *pb.LoadReport {
	return &pb.LoadReport{
		SourceInstanceId: "flood", SequenceId: m.peers.sentMonitor.Load(), Status: pb.ReportStatus_REPORT_STATUS_HEALTHY,
		Worker: &pb.Worker{WorkerAddr: "http://" + m.peers.monitorPages.Addr().String(), WorkerType: pb.WorkerType_WORKER_TYPE_REGULAR},
		Ranks: []*pb.RankLoad{{
			NumUsedTokens: 210_000, NumTotalTokens: 215_120, MaxTotalNumTokens: 500_000, MaxRunningRequests: 256, TokenUsage: 0.42,
		}},
	}
}

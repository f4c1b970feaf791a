package cadence

import (
	"context"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/gaps"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// bareSource is the source instance of a bare loop.
const bareSource = "bare"

// Bare is a loop around a ticker that sends one report at each tick, the same
// again and again, and does nothing else. It is safe for concurrent use, except
// that Run is called once.
type Bare struct{ ticks *gaps.Recorder[string] }

// NewBare returns a loop that does not run yet.
func NewBare() *Bare { return &Bare{ticks: gaps.New[string]()} }

// Run sends reports with a number of ranks to the receiver at an address until
// ctx ends, and returns nil then.
func (b *Bare) Run(ctx context.Context, spec BareSpec) error {
	conn, err := grpc.NewClient("passthrough:///"+spec.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := pb.NewLoadMonitorServiceClient(conn).Report(ctx)
	if err != nil {
		return err
	}
	r := bareReport(spec.Ranks)
	tick := time.NewTicker(spec.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.ticks.Note(bareSource, engine.Now())
		case <-ctx.Done():
			return nil
		}
		r.SequenceId++
		if err := stream.Send(r); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// BareSpec says what a bare loop sends, and where to. It is a plain value.
type BareSpec struct {
	// Address is host:port of a Receiver.
	Address  string
	Ranks    int
	Interval time.Duration
}

// Record begins to record the ticks from now on, held against an interval.
func (b *Bare) Record(interval time.Duration) { b.ticks.Record(interval, engine.Now()) }

// Ticks returns what was recorded of the loop itself.
func (b *Bare) Ticks() gaps.Seen { return b.ticks.Seen(engine.Now()) }

func bareReport(ranks int) *pb.LoadReport {
	r := &pb.LoadReport{SourceInstanceId: bareSource, Status: pb.ReportStatus_REPORT_STATUS_HEALTHY}
	for i := range ranks {
		r.Ranks = append(r.Ranks, &pb.RankLoad{
			DpRank: int32(i), NumRunningReqs: 100, NumWaitingReqs: 3, NumWaitingUncachedTokens: 5120,
			NumUsedTokens: 210_000, NumTotalTokens: 215_120, MaxTotalNumTokens: 500_000, MaxRunningRequests: 256, TokenUsage: 0.42,
		})
	}
	return r
}

package monitor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
)

// pullBudget is how long the engine waits for a sample.
const pullBudget = time.Second

var errSlow = errors.New("load sample timed out after 1.0 s")

// report samples and builds the next report. A sample that fails in any way is
// an UNREACHABLE report without ranks.
func (v *serving) report() *monitorpb.WorkerFrame {
	ranks, err := v.pull()
	r := &monitorpb.LoadReport{
		SourceInstanceId: v.config.Process.Source(),
		SequenceId:       v.config.Process.NextSequence(),
		ReportTimeUnixMs: time.Now().UnixMilli(),
		Worker: &monitorpb.Worker{
			WorkerAddr: v.address, WorkerType: monitorpb.WorkerType(v.config.Role), Model: &v.config.Model,
		},
		Status: monitorpb.ReportStatus_REPORT_STATUS_HEALTHY,
		Ranks:  ranks,
	}
	if err != nil {
		text := err.Error()
		r.Status, r.LastError = monitorpb.ReportStatus_REPORT_STATUS_UNREACHABLE, &text
	}
	return &monitorpb.WorkerFrame{Payload: &monitorpb.WorkerFrame_Report{Report: r}}
}

// pull samples all ranks, or none.
func (v *serving) pull() ([]*monitorpb.RankLoad, error) {
	if slow := v.config.Slow(); slow > 0 {
		wait(v.ctx, min(slow, pullBudget))
		if slow >= pullBudget {
			return nil, errSlow
		}
	}
	sample, err := v.config.Process.Sample()
	if err != nil {
		return nil, err
	}
	ranks := make([]*monitorpb.RankLoad, len(sample.Ranks))
	for i, r := range sample.Ranks {
		if math.IsNaN(r.TokenUsage) {
			return nil, fmt.Errorf("rank %d: token_usage is not finite", i)
		}
		ranks[i] = v.load(r)
	}
	return ranks, nil
}

// load has the fields that this reporter knows. A prefill engine runs none:
// its requests never enter the running batch; sglang#31495.
func (v *serving) load(r *pb.RankLoad) *monitorpb.RankLoad {
	running := r.NumRunningReqs
	if v.config.Role == pb.WorkerType_WORKER_TYPE_PREFILL {
		running = 0
	}
	return &monitorpb.RankLoad{
		DpRank: r.DpRank, SnapshotTimeUnixMs: r.SnapshotTimeUnixMs,
		NumRunningReqs: running, NumWaitingReqs: r.NumWaitingReqs, NumWaitingUncachedTokens: r.NumWaitingUncachedTokens,
		NumUsedTokens: r.NumUsedTokens, NumTotalTokens: r.NumTotalTokens,
		MaxTotalNumTokens: r.MaxTotalNumTokens, MaxRunningRequests: r.MaxRunningRequests,
		TokenUsage: r.TokenUsage, GenThroughput: r.GenThroughput, CacheHitRate: r.CacheHitRate, Utilization: r.Utilization,
	}
}

// wait returns after d or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

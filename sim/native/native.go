// Package native reports the load of a simulated engine that registers itself
// at a plane.
package native

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/client/report"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
	"github.com/loadplane/loadplane/sim/reporter"
	"google.golang.org/protobuf/proto"
)

// What the engine calls itself.
const (
	engine  = "sim"
	version = "1.0.0"
)

// Config is what Run needs. It is a plain value.
type Config struct {
	// Process returns the process of now, which is sampled and numbers the
	// reports. Required.
	Process func() *reporter.Process
	// Plane returns the base URL of the plane's ingest listener. Required.
	Plane func() string
	// URL is the engine's own, Model and Zone what it tells of itself; an empty
	// zone is left out.
	URL, Model, Zone string
	// Faults may change at any time; Silent stops the reports. Required.
	Faults *reporter.Faults
	// Logger is required.
	Logger *slog.Logger
}

// Run registers one engine and reports for it until ctx ends, and then leaves
// the plane. Its lease outlives processes, as it does where an engine is killed
// and comes back. The error says that the address of the plane is none.
func Run(ctx context.Context, c Config) error {
	client, err := report.New(report.Options{
		Address: c.Plane(),
		Registration: &loadplanev1.RegisterRequest{
			Url: c.URL, Role: loadplanev1.Role_ROLE_REGULAR, Models: []string{c.Model}, Zone: c.Zone,
			Engine: engine, EngineVersion: version,
		},
		Report: c.report,
		Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	return client.Run(ctx)
}

// report builds the next report, nil while there is to be none. After a sample
// that failed it has the last good one and says so.
func (c Config) report(now time.Time) *loadplanev1.EngineReport {
	if c.Faults.Silent.Load() {
		return nil
	}
	process := c.Process()
	s, err := process.Sample()
	rep := &loadplanev1.EngineReport{
		SourceInstanceId: process.Source(),
		Sequence:         process.NextSequence(),
		ReportTimeUnixMs: proto.Int64(now.UnixMilli()),
		Status:           loadplanev1.Status_STATUS_HEALTHY,
	}
	switch {
	case errors.Is(err, reporter.ErrNoSample):
		rep.Status, rep.LastError = loadplanev1.Status_STATUS_UNREACHABLE, err.Error()
	case err != nil:
		rep.Status, rep.LastError = loadplanev1.Status_STATUS_STALE, err.Error()
	}
	for i, load := range s.Ranks {
		rep.Ranks = append(rep.Ranks, sample(load, s.Counters[i]))
	}
	return rep
}

// sample has all that the engine knows: it has no prefill and decode queues.
func sample(r *pb.RankLoad, c queue.Counters) *loadplanev1.RankSample {
	return &loadplanev1.RankSample{
		Load: &loadplanev1.RankLoad{
			DpRank:         r.DpRank,
			NumRunningReqs: &r.NumRunningReqs, NumWaitingReqs: &r.NumWaitingReqs,
			NumWaitingUncachedTokens: &r.NumWaitingUncachedTokens,
			NumUsedTokens:            &r.NumUsedTokens, NumTotalTokens: &r.NumTotalTokens,
			MaxTotalNumTokens: &r.MaxTotalNumTokens, MaxRunningRequests: &r.MaxRunningRequests,
			TokenUsage: &r.TokenUsage, GenThroughput: &r.GenThroughput, CacheHitRate: &r.CacheHitRate,
			Utilization: &r.Utilization, PrefillThroughput: &r.PrefillThroughput,
		},
		SnapshotTimeUnixMs:         &r.SnapshotTimeUnixMs,
		TotalPrefillUncachedTokens: proto.Int64(c.PromptTokens - c.CachedTokens),
		TotalPrefillBusyUs:         proto.Int64(c.PrefillBusy.Microseconds()),
		TotalGeneratedTokens:       proto.Int64(c.GeneratedTokens),
	}
}

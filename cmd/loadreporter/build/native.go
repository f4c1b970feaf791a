package build

import (
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// native builds a report for planes. What is unknown is absent.
func (b *Builder) native(s *source.Snapshot, now time.Time) *pb.EngineReport {
	v := Judge(s, now, b.opts.StaleAfter)
	ms := now.UnixMilli()
	r := &pb.EngineReport{
		SourceInstanceId: b.sourceOf(s),
		Sequence:         b.next(now),
		ReportTimeUnixMs: &ms,
		Status:           pb.Status(v.Status),
		LastError:        v.Err,
	}
	if v.Status == store.StatusUnreachable {
		return r
	}
	r.Ranks = make([]*pb.RankSample, len(s.Ranks))
	for i := range s.Ranks {
		r.Ranks[i] = nativeRank(s, i)
	}
	return r
}

func nativeRank(s *source.Snapshot, i int) *pb.RankSample {
	from := &s.Ranks[i]
	at := sampleTime(s, i)
	return &pb.RankSample{
		Load:                       nativeLoad(&from.Rank),
		SnapshotTimeUnixMs:         &at,
		TotalPrefillUncachedTokens: known(from.PrefillUncachedTokens),
		TotalPrefillBusyUs:         known(from.PrefillBusyUs),
		TotalGeneratedTokens:       known(from.GeneratedTokens),
	}
}

func known(i ingest.Int) *int64 {
	if !i.Known {
		return nil
	}
	return &i.Value
}

// nativeLoad copies what is known of a rank.
func nativeLoad(r *store.Rank) *pb.RankLoad {
	return &pb.RankLoad{
		DpRank:                   r.DPRank,
		NumRunningReqs:           count(r, store.NumRunningReqs),
		NumWaitingReqs:           count(r, store.NumWaitingReqs),
		NumWaitingUncachedTokens: count(r, store.NumWaitingUncachedTokens),
		NumUsedTokens:            count(r, store.NumUsedTokens),
		NumTotalTokens:           count(r, store.NumTotalTokens),
		MaxTotalNumTokens:        count(r, store.MaxTotalNumTokens),
		MaxRunningRequests:       count(r, store.MaxRunningRequests),
		PrefillBootstrapReqs:     count(r, store.PrefillBootstrapReqs),
		PrefillInflightReqs:      count(r, store.PrefillInflightReqs),
		DecodePreallocReqs:       count(r, store.DecodePreallocReqs),
		DecodeTransferReqs:       count(r, store.DecodeTransferReqs),
		DecodeRetractedReqs:      count(r, store.DecodeRetractedReqs),
		TokenUsage:               float(r, store.TokenUsage),
		GenThroughput:            float(r, store.GenThroughput),
		CacheHitRate:             float(r, store.CacheHitRate),
		Utilization:              float(r, store.Utilization),
		PrefillThroughput:        float(r, store.PrefillThroughput),
		PrefillThroughputWall:    float(r, store.PrefillThroughputWall),
	}
}

func count(r *store.Rank, f store.Field) *int64 {
	v, ok := r.Count(f)
	if !ok {
		return nil
	}
	return &v
}

func float(r *store.Rank, f store.Field) *float64 {
	v, ok := r.Float(f)
	if !ok {
		return nil
	}
	return &v
}

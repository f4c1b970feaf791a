package build

import (
	"fmt"
	"strings"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/proto"
)

// Missing returns the fields that every report of the push dialect has and
// that some rank of the sample does not tell, in the order of the fields.
// Nothing is missing from a sample without ranks.
func Missing(s *source.Snapshot) (missing []store.Field) {
	for f := range store.NumFields {
		if store.Fields[f].Core && lacks(s.Ranks, f) {
			missing = append(missing, f)
		}
	}
	return missing
}

func lacks(ranks []ingest.RankReport, f store.Field) bool {
	for i := range ranks {
		if !ranks[i].Rank.Has(f) {
			return true
		}
	}
	return false
}

// Names lists the names of fields for people.
func Names(fields []store.Field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = store.Fields[f].Name
	}
	return strings.Join(names, ", ")
}

// CannotSay tells people why the push dialect does not do for an engine that
// leaves some fields out.
func CannotSay(missing []store.Field) string {
	return "the engine does not tell " + Names(missing) +
		", and the push dialect cannot say that a number is unknown: use native, or --push-unknown=zero"
}

// push builds a report for routers. Where unknown fields are refused, a sample
// that has some makes the engine unreachable.
func (b *Builder) push(s *source.Snapshot, now time.Time) *pb.LoadReport {
	v := Judge(s, now, b.opts.StaleAfter)
	if missing := Missing(s); len(missing) > 0 && !b.opts.UnknownAsZero && v.Status != store.StatusUnreachable {
		v = Verdict{store.StatusUnreachable, CannotSay(missing)}
	}
	r := &pb.LoadReport{
		SourceInstanceId: b.sourceOf(s),
		SequenceId:       b.next(now),
		ReportTimeUnixMs: now.UnixMilli(),
		Worker:           b.worker(s),
		Status:           pb.ReportStatus(v.Status),
	}
	if v.Err != "" {
		r.LastError = proto.String(v.Err)
	}
	if v.Status != store.StatusUnreachable {
		r.Ranks = pushRanks(s)
	}
	return r
}

// worker says who reports: the engine as routers know it.
func (b *Builder) worker(s *source.Snapshot) *pb.Worker {
	id := b.opts.Identity.with(s)
	w := &pb.Worker{WorkerAddr: b.opts.Origin, WorkerType: pb.WorkerType(id.Role)}
	if id.Role == store.RoleUnspecified {
		w.WorkerType = pb.WorkerType_WORKER_TYPE_REGULAR
	}
	if len(id.Models) > 0 {
		w.Model = proto.String(id.Models[0])
	}
	if id.Zone != "" {
		w.Zone = proto.String(id.Zone)
	}
	return w
}

func pushRanks(s *source.Snapshot) []*pb.RankLoad {
	ranks := make([]*pb.RankLoad, len(s.Ranks))
	loads := make([]pb.RankLoad, len(s.Ranks))
	for i := range s.Ranks {
		ranks[i] = &loads[i]
		fillPush(ranks[i], s, i)
	}
	return ranks
}

// fillPush copies what is known; the rest stays 0.
func fillPush(to *pb.RankLoad, s *source.Snapshot, i int) {
	r := &s.Ranks[i].Rank
	to.DpRank = r.DPRank
	to.SnapshotTimeUnixMs = sampleTime(s, i)
	to.NumRunningReqs, _ = r.Count(store.NumRunningReqs)
	to.NumWaitingReqs, _ = r.Count(store.NumWaitingReqs)
	to.NumWaitingUncachedTokens, _ = r.Count(store.NumWaitingUncachedTokens)
	to.NumUsedTokens, _ = r.Count(store.NumUsedTokens)
	to.NumTotalTokens, _ = r.Count(store.NumTotalTokens)
	to.MaxTotalNumTokens, _ = r.Count(store.MaxTotalNumTokens)
	to.MaxRunningRequests, _ = r.Count(store.MaxRunningRequests)
	to.TokenUsage, _ = r.Float(store.TokenUsage)
	to.GenThroughput, _ = r.Float(store.GenThroughput)
	to.CacheHitRate, _ = r.Float(store.CacheHitRate)
	to.Utilization, _ = r.Float(store.Utilization)
	to.PrefillThroughput, _ = r.Float(store.PrefillThroughput)
	// A count above its limit makes receivers refuse the report, so one without
	// a known limit is lost with it.
	if !r.Has(store.MaxTotalNumTokens) {
		to.NumUsedTokens = 0
	}
	if !r.Has(store.MaxRunningRequests) {
		to.NumRunningReqs = 0
	}
}

// sampleTime returns the wall clock of a rank's sample, Unix milliseconds: the
// engine's own where it says it, else ours when the sample was asked for.
func sampleTime(s *source.Snapshot, i int) int64 {
	switch own := s.Ranks[i].TimeUnixMs; {
	case own.Known:
		return own.Value
	case s.TimeUnixMs.Known:
		return s.TimeUnixMs.Value
	}
	return s.Taken.UnixMilli()
}

// Kept says what is left of the fields that routers refuse to be without,
// where unknown fields are sent as 0; empty where both limits are known.
func Kept(missing []store.Field) string {
	var lost []string
	for _, f := range missing {
		switch f {
		case store.MaxTotalNumTokens:
			lost = append(lost, store.Fields[store.NumUsedTokens].Name)
		case store.MaxRunningRequests:
			lost = append(lost, store.Fields[store.NumRunningReqs].Name)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("%s sent as 0, as the limit is unknown", strings.Join(lost, " and "))
}

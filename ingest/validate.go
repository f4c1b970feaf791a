package ingest

import (
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Rules are what Validate cannot know from a report.
type Rules struct {
	// MaxRanks bounds the ranks; 0 for DefaultMaxRanks, at most HardMaxRanks.
	MaxRanks int
	// Claim says that every message must name its worker.
	Claim bool
}

// Validate checks a report and returns what is kept of it. It is pure, and
// the load shares no memory with r but its strings. Faults of identity come
// first; their refusal has Drop false.
func Validate(r *Report, rules Rules) (*store.Load, *registry.Refusal) {
	if refusal := checkIdentity(r, rules); refusal != nil {
		return nil, refusal
	}
	if refusal := checkHead(r, rules); refusal != nil {
		return nil, refusal
	}
	for i := range r.Ranks {
		if refusal := checkRank(&r.Ranks[i]); refusal != nil {
			return nil, refusal
		}
	}
	l := load(r)
	if d, ok := duplicate(l.Ranks); ok {
		return nil, refusef(ReasonDuplicateRank, "dp_rank %d is there twice", d)
	}
	return l, nil
}

func refusef(reason store.Reason, format string, args ...any) *registry.Refusal {
	return Refuse(reason, fmt.Sprintf(format, args...))
}

func checkIdentity(r *Report, rules Rules) *registry.Refusal {
	switch {
	case r.Source == "":
		return Refuse(ReasonMissingSource, "the source instance is empty")
	case len(r.Source) > MaxSourceBytes:
		return refusef(ReasonIdentityTooLong, "the source instance has %d bytes, at most %d are allowed", len(r.Source), MaxSourceBytes)
	case len(r.Addr) > MaxAddrBytes:
		return refusef(ReasonIdentityTooLong, "the worker address has %d bytes, at most %d are allowed", len(r.Addr), MaxAddrBytes)
	case !rules.Claim:
		return nil
	case !r.Claimed || r.Addr == "":
		return Refuse(ReasonMissingWorker, "the report does not name its worker")
	case r.Role < int32(store.RoleRegular) || r.Role > int32(store.RoleDecode):
		return refusef(ReasonBadRole, "worker type %d is not known", r.Role)
	}
	return nil
}

func checkHead(r *Report, rules Rules) *registry.Refusal {
	switch {
	case len(r.Model) > MaxModelBytes:
		return refusef(ReasonStringTooLong, "the model has %d bytes, at most %d are allowed", len(r.Model), MaxModelBytes)
	case len(r.Zone) > MaxZoneBytes:
		return refusef(ReasonStringTooLong, "the zone has %d bytes, at most %d are allowed", len(r.Zone), MaxZoneBytes)
	case r.Status < int32(store.StatusHealthy) || r.Status > int32(store.StatusUnreachable):
		return refusef(ReasonBadStatus, "status %d is not known", r.Status)
	case r.TimeUnixMs.Known && r.TimeUnixMs.Value < 0:
		return refusef(ReasonBadTime, "the report time %d is negative", r.TimeUnixMs.Value)
	case r.Status == int32(store.StatusUnreachable):
		return checkUnreachable(r)
	case len(r.Ranks) == 0:
		return Refuse(ReasonNoRanks, "the report has no ranks")
	case len(r.Ranks) > rules.maxRanks():
		return refusef(ReasonTooManyRanks, "the report has %d ranks, at most %d are allowed", len(r.Ranks), rules.maxRanks())
	}
	return nil
}

func checkUnreachable(r *Report) *registry.Refusal {
	switch {
	case len(r.Ranks) > 0:
		return Refuse(ReasonUnreachableWithRanks, "an unreachable engine cannot report ranks")
	case r.LastError == "":
		return Refuse(ReasonMissingError, "an unreachable engine must say why")
	}
	return nil
}

func (r Rules) maxRanks() int {
	if r.MaxRanks <= 0 {
		return DefaultMaxRanks
	}
	return min(r.MaxRanks, HardMaxRanks)
}

func checkRank(r *RankReport) *registry.Refusal {
	rank := &r.Rank
	if rank.DPRank < 0 || rank.DPRank >= HardMaxRanks {
		return refusef(ReasonBadRank, "dp_rank %d is not within 0 to %d", rank.DPRank, HardMaxRanks-1)
	}
	if r.TimeUnixMs.Known && r.TimeUnixMs.Value < 0 {
		return refusef(ReasonBadTime, "the sample time %d of rank %d is negative", r.TimeUnixMs.Value, rank.DPRank)
	}
	if refusal := checkCounts(r); refusal != nil {
		return refusal
	}
	if refusal := checkFloats(rank); refusal != nil {
		return refusal
	}
	return checkCapacity(rank)
}

func checkCounts(r *RankReport) *registry.Refusal {
	for f := range store.TokenUsage {
		// An unknown count reads as 0.
		if v, _ := r.Rank.Count(f); uint64(v) > MaxCount {
			return refusef(ReasonCountOutOfRange, "%s %d of rank %d is not within 0 to 2^50", store.Fields[f].Name, v, r.Rank.DPRank)
		}
	}
	for _, v := range [...]Int{r.PrefillUncachedTokens, r.PrefillBusyUs, r.GeneratedTokens} {
		if v.Known && uint64(v.Value) > MaxCount {
			return refusef(ReasonCountOutOfRange, "a cumulative count %d of rank %d is not within 0 to 2^50", v.Value, r.Rank.DPRank)
		}
	}
	return nil
}

func checkFloats(r *store.Rank) *registry.Refusal {
	for f := store.TokenUsage; f < store.NumFields; f++ {
		limit := MaxFloat
		if ratio(f) {
			limit = MaxRatio
		}
		// Written so that NaN fails. An unknown float reads as 0.
		if v, _ := r.Float(f); !(v >= 0 && v <= limit) {
			return refusef(ReasonFloatOutOfRange, "%s %g of rank %d is not within 0 to %g", store.Fields[f].Name, v, r.DPRank, limit)
		}
	}
	return nil
}

func ratio(f store.Field) bool {
	return f == store.TokenUsage || f == store.CacheHitRate || f == store.Utilization
}

func checkCapacity(r *store.Rank) *registry.Refusal {
	if used, capacity, over := above(r, store.NumUsedTokens, store.MaxTotalNumTokens); over {
		return refusef(ReasonUsedOverCapacity, "rank %d uses %d tokens of %d", r.DPRank, used, capacity)
	}
	if running, most, over := above(r, store.NumRunningReqs, store.MaxRunningRequests); over {
		return refusef(ReasonRunningOverMaximum, "rank %d runs %d requests of %d", r.DPRank, running, most)
	}
	return nil
}

// above says whether both fields are known and the first is larger.
func above(r *store.Rank, a, b store.Field) (int64, int64, bool) {
	x, haveX := r.Count(a)
	y, haveY := r.Count(b)
	return x, y, haveX && haveY && x > y
}

// load copies what is kept, with the ranks in order.
func load(r *Report) *store.Load {
	l := &store.Load{
		Source:         r.Source,
		Sequence:       r.Sequence,
		Status:         store.Status(r.Status),
		ReportUnixMs:   r.TimeUnixMs.or(),
		LastError:      cut(r.LastError),
		Received:       r.Received,
		ReceivedUnixMs: r.ReceivedUnixMs,
	}
	if len(r.Ranks) == 0 {
		return l
	}
	l.Ranks = make([]store.Rank, len(r.Ranks))
	l.Samples = make([]store.Sample, len(r.Ranks))
	ordered := true
	for i := range r.Ranks {
		l.Ranks[i] = r.Ranks[i].Rank
		l.Samples[i] = sample(&r.Ranks[i])
		l.Flags |= flags(&l.Ranks[i])
		ordered = ordered && (i == 0 || l.Ranks[i-1].DPRank < l.Ranks[i].DPRank)
	}
	if !ordered {
		sort.Sort(byRank{l})
	}
	return l
}

func sample(r *RankReport) store.Sample {
	return store.Sample{
		TimeUnixMs:            r.TimeUnixMs.or(),
		PrefillUncachedTokens: r.PrefillUncachedTokens.or(),
		PrefillBusyUs:         r.PrefillBusyUs.or(),
		GeneratedTokens:       r.GeneratedTokens.or(),
	}
}

func flags(r *store.Rank) store.Flag {
	for _, f := range [...]store.Field{store.TokenUsage, store.CacheHitRate, store.Utilization} {
		if v, _ := r.Float(f); v > 1 {
			return store.FlagRatioAboveOne
		}
	}
	return 0
}

// SampleAge returns how old the oldest sample of a load was when its report was
// built, by the engine's own clock, at most an hour; ok is false where a time is
// unknown.
func SampleAge(l *store.Load) (age time.Duration, ok bool) {
	if len(l.Samples) == 0 || l.ReportUnixMs < 0 {
		return 0, false
	}
	oldest := l.Samples[0].TimeUnixMs
	for _, s := range l.Samples[1:] {
		oldest = min(oldest, s.TimeUnixMs)
	}
	// Both are below 2^63, so their difference cannot overflow.
	ms := max(0, l.ReportUnixMs-oldest)
	return time.Duration(min(ms, int64(time.Hour/time.Millisecond))) * time.Millisecond, oldest >= 0
}

// cut shortens an error text at the start of a rune. A text that was cut does
// not keep the rest in memory.
func cut(text string) string {
	if len(text) <= MaxErrorBytes {
		return text
	}
	end := MaxErrorBytes
	for end > MaxErrorBytes-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}

// duplicate returns a rank number that is there twice in sorted ranks.
func duplicate(ranks []store.Rank) (int32, bool) {
	for i := 1; i < len(ranks); i++ {
		if ranks[i-1].DPRank == ranks[i].DPRank {
			return ranks[i].DPRank, true
		}
	}
	return 0, false
}

// byRank sorts the ranks of a load with their samples.
type byRank struct{ *store.Load }

func (b byRank) Len() int           { return len(b.Ranks) }
func (b byRank) Less(i, j int) bool { return b.Ranks[i].DPRank < b.Ranks[j].DPRank }
func (b byRank) Swap(i, j int) {
	b.Ranks[i], b.Ranks[j] = b.Ranks[j], b.Ranks[i]
	b.Samples[i], b.Samples[j] = b.Samples[j], b.Samples[i]
}

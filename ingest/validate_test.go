package ingest

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// claim is how push and monitor are validated.
var claim = Rules{Claim: true}

// good returns a valid report with the rank numbers.
func good(ranks ...int32) *Report {
	r := &Report{
		Source: "instance", Sequence: 7, Claimed: true, Addr: "http://127.0.0.1:30000", Role: 1,
		Status: 1, TimeUnixMs: Known(1000), Received: 5, ReceivedUnixMs: 2000,
	}
	for _, d := range ranks {
		rr := RankReport{TimeUnixMs: Known(900 + int64(d))}
		rr.Rank.DPRank = d
		rr.Rank.SetCount(store.NumRunningReqs, 1)
		rr.Rank.SetCount(store.MaxRunningRequests, 2)
		rr.Rank.SetCount(store.NumUsedTokens, 10)
		rr.Rank.SetCount(store.MaxTotalNumTokens, 20)
		rr.Rank.SetFloat(store.TokenUsage, 0.5)
		r.Ranks = append(r.Ranks, rr)
	}
	return r
}

// refusals are changes of a good report with two ranks, and what they are
// refused as; empty for accepted.
var refusals = []struct {
	name   string
	change func(*Report)
	reason store.Reason
}{
	{"good", func(*Report) {}, ""},
	{"no source", func(r *Report) { r.Source = "" }, ReasonMissingSource},
	{"source of 128", func(r *Report) { r.Source = strings.Repeat("x", 128) }, ""},
	{"source of 129", func(r *Report) { r.Source = strings.Repeat("x", 129) }, ReasonIdentityTooLong},
	{"no source and no ranks", func(r *Report) { r.Source, r.Ranks = "", nil }, ReasonMissingSource},
	{"no source and bad status", func(r *Report) { r.Source, r.Status = "", 9 }, ReasonMissingSource},
	{"no worker", func(r *Report) { r.Claimed = false }, ReasonMissingWorker},
	{"no address", func(r *Report) { r.Addr = "" }, ReasonMissingWorker},
	{"address of 256", func(r *Report) { r.Addr = strings.Repeat("x", 256) }, ""},
	{"address of 257", func(r *Report) { r.Addr = strings.Repeat("x", 257) }, ReasonIdentityTooLong},
	{"role unset", func(r *Report) { r.Role = 0 }, ReasonBadRole},
	{"role 3", func(r *Report) { r.Role = 3 }, ""},
	{"role 4", func(r *Report) { r.Role = 4 }, ReasonBadRole},
	{"role -1", func(r *Report) { r.Role = -1 }, ReasonBadRole},
	{"role 257", func(r *Report) { r.Role = 257 }, ReasonBadRole},
	{"model of 256", func(r *Report) { r.Model = strings.Repeat("x", 256) }, ""},
	{"model of 257", func(r *Report) { r.Model = strings.Repeat("x", 257) }, ReasonStringTooLong},
	{"zone of 64", func(r *Report) { r.Zone = strings.Repeat("x", 64) }, ""},
	{"zone of 65", func(r *Report) { r.Zone = strings.Repeat("x", 65) }, ReasonStringTooLong},
	{"status unset", func(r *Report) { r.Status = 0 }, ReasonBadStatus},
	{"status stale", func(r *Report) { r.Status = 2 }, ""},
	{"status 4", func(r *Report) { r.Status = 4 }, ReasonBadStatus},
	{"status -1", func(r *Report) { r.Status = -1 }, ReasonBadStatus},
	{"status 258", func(r *Report) { r.Status = 258 }, ReasonBadStatus},
	{"time 0", func(r *Report) { r.TimeUnixMs = Known(0) }, ""},
	{"time max", func(r *Report) { r.TimeUnixMs = Known(math.MaxInt64) }, ""},
	{"time -1", func(r *Report) { r.TimeUnixMs = Known(-1) }, ReasonBadTime},
	{"time unknown", func(r *Report) { r.TimeUnixMs = Int{} }, ""},
	{"sequence 0", func(r *Report) { r.Sequence = 0 }, ""},
	{"unreachable", unreachable, ""},
	{"unreachable with ranks", func(r *Report) { r.Status = 3; r.LastError = "x" }, ReasonUnreachableWithRanks},
	{"unreachable without text", func(r *Report) { unreachable(r); r.LastError = "" }, ReasonMissingError},
	{"healthy without ranks", func(r *Report) { r.Ranks = nil }, ReasonNoRanks},
	{"stale without ranks", func(r *Report) { r.Ranks = nil; r.Status = 2 }, ReasonNoRanks},
	{"512 ranks", func(r *Report) { *r = *good(upTo(512)...) }, ""},
	{"513 ranks", func(r *Report) { *r = *good(upTo(513)...) }, ReasonTooManyRanks},
	{"rank -1", func(r *Report) { r.Ranks[1].Rank.DPRank = -1 }, ReasonBadRank},
	{"rank 4095", func(r *Report) { r.Ranks[1].Rank.DPRank = 4095 }, ""},
	{"rank 4096", func(r *Report) { r.Ranks[1].Rank.DPRank = 4096 }, ReasonBadRank},
	{"same rank", func(r *Report) { r.Ranks[1].Rank.DPRank = 0 }, ReasonDuplicateRank},
	{"same rank apart", func(r *Report) { *r = *good(2, 1, 2) }, ReasonDuplicateRank},
	{"sample time -1", func(r *Report) { r.Ranks[1].TimeUnixMs = Known(-1) }, ReasonBadTime},
	{"sample time 0", func(r *Report) { r.Ranks[1].TimeUnixMs = Known(0) }, ""},
	{"sample time unknown", func(r *Report) { r.Ranks[1].TimeUnixMs = Int{} }, ""},
	{"count 2^50", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumWaitingReqs, 1<<50) }, ""},
	{"count 2^50+1", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumWaitingReqs, 1<<50+1) }, ReasonCountOutOfRange},
	{"count -1", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumTotalTokens, -1) }, ReasonCountOutOfRange},
	{"queue count -1", func(r *Report) { r.Ranks[0].Rank.SetCount(store.DecodeRetractedReqs, -1) }, ReasonCountOutOfRange},
	{"cumulative -1", func(r *Report) { r.Ranks[1].PrefillBusyUs = Known(-1) }, ReasonCountOutOfRange},
	{"cumulative 2^50+1", func(r *Report) { r.Ranks[1].GeneratedTokens = Known(1<<50 + 1) }, ReasonCountOutOfRange},
	{"cumulative 2^50", func(r *Report) { r.Ranks[1].PrefillUncachedTokens = Known(1 << 50) }, ""},
	{"float NaN", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.GenThroughput, math.NaN()) }, ReasonFloatOutOfRange},
	{"float +Inf", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.GenThroughput, math.Inf(1)) }, ReasonFloatOutOfRange},
	{"float -Inf", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.PrefillThroughput, math.Inf(-1)) }, ReasonFloatOutOfRange},
	{"float negative", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.PrefillThroughput, -1e-300) }, ReasonFloatOutOfRange},
	{"float 1e12", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.GenThroughput, 1e12) }, ""},
	{"float above 1e12", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.GenThroughput, 1e12+1) }, ReasonFloatOutOfRange},
	{"ratio 4", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.Utilization, 4) }, ""},
	{"ratio above 4", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.Utilization, 4.001) }, ReasonFloatOutOfRange},
	{"usage above 4", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.TokenUsage, 4.001) }, ReasonFloatOutOfRange},
	{"hit rate above 4", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.CacheHitRate, 4.001) }, ReasonFloatOutOfRange},
	{"ratio NaN", func(r *Report) { r.Ranks[1].Rank.SetFloat(store.CacheHitRate, math.NaN()) }, ReasonFloatOutOfRange},
	{"used is capacity", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumUsedTokens, 20) }, ""},
	{"used over capacity", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumUsedTokens, 21) }, ReasonUsedOverCapacity},
	{"used without capacity", func(r *Report) {
		r.Ranks[1].Rank = store.Rank{DPRank: 1}
		r.Ranks[1].Rank.SetCount(store.NumUsedTokens, 21)
	}, ""},
	{"running over maximum", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumRunningReqs, 3) }, ReasonRunningOverMaximum},
	{"total over capacity", func(r *Report) { r.Ranks[1].Rank.SetCount(store.NumTotalTokens, 1000) }, ""},
	{"zero capacity", func(r *Report) {
		r.Ranks[1].Rank.SetCount(store.NumUsedTokens, 0)
		r.Ranks[1].Rank.SetCount(store.MaxTotalNumTokens, 0)
	}, ""},
}

func unreachable(r *Report) { r.Status, r.LastError, r.Ranks = 3, "no sample", nil }

func upTo(n int32) (ranks []int32) {
	for d := range n {
		ranks = append(ranks, d)
	}
	return ranks
}

func TestValidateRefuses(t *testing.T) {
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			r := good(0, 1)
			tt.change(r)
			l, refusal := Validate(r, claim)
			if got := reasonOf(refusal); got != tt.reason {
				t.Fatalf("refused as %q, want %q", got, tt.reason)
			}
			if (l == nil) != (tt.reason != "") {
				t.Fatalf("load is %v, reason %q", l, tt.reason)
			}
			if refusal != nil && (refusal.Message == "" || refusal.Drop == identityReason(refusal.Reason)) {
				t.Errorf("refusal %+v", refusal)
			}
		})
	}
}

func reasonOf(r *registry.Refusal) store.Reason {
	if r == nil {
		return ""
	}
	return r.Reason
}

func identityReason(r store.Reason) bool {
	return r == ReasonMissingSource || r == ReasonMissingWorker || r == ReasonBadRole || r == ReasonIdentityTooLong
}

func TestValidateNeedsNoClaimWhereIdentityIsKnown(t *testing.T) {
	r := good(0)
	r.Claimed, r.Addr, r.Role = false, "", 0
	if _, refusal := Validate(r, Rules{}); refusal != nil {
		t.Error(refusal)
	}
}

func TestValidateBoundsMaxRanks(t *testing.T) {
	for _, tt := range []struct {
		max    int
		ranks  int32
		reason store.Reason
	}{
		{2, 2, ""}, {2, 3, ReasonTooManyRanks}, {4096, 4096, ""}, {1 << 20, 4096, ""},
	} {
		_, refusal := Validate(good(upTo(tt.ranks)...), Rules{MaxRanks: tt.max})
		if got := reasonOf(refusal); got != tt.reason {
			t.Errorf("%d ranks of %d: %q, want %q", tt.ranks, tt.max, got, tt.reason)
		}
	}
	if got := (Rules{MaxRanks: 1 << 20}).maxRanks(); got != HardMaxRanks {
		t.Errorf("limit is %d", got)
	}
}

func TestValidateKeepsEverything(t *testing.T) {
	r := good(2, 0, 1)
	r.LastError = "last"
	r.Ranks[1].GeneratedTokens = Known(9)
	l, refusal := Validate(r, claim)
	if refusal != nil {
		t.Fatal(refusal)
	}
	head := *l
	head.Ranks, head.Samples = nil, nil
	want := store.Load{
		Source: "instance", Sequence: 7, Status: store.StatusHealthy, ReportUnixMs: 1000,
		LastError: "last", Received: 5, ReceivedUnixMs: 2000,
	}
	if !reflect.DeepEqual(head, want) {
		t.Errorf("kept %+v, want %+v", head, want)
	}
	for i, rank := range l.Ranks {
		if rank.DPRank != int32(i) || l.Samples[i].TimeUnixMs != 900+int64(i) {
			t.Errorf("at %d: rank %d with sample %+v", i, rank.DPRank, l.Samples[i])
		}
		if running, ok := rank.Count(store.NumRunningReqs); running != 1 || !ok || rank.Has(store.CacheHitRate) {
			t.Errorf("rank %d: %+v", i, rank)
		}
	}
	if l.Samples[0].GeneratedTokens != 9 || l.Samples[1].GeneratedTokens != -1 || l.Samples[0].PrefillBusyUs != -1 ||
		l.Samples[0].PrefillUncachedTokens != -1 {
		t.Errorf("samples %+v", l.Samples)
	}
}

func TestValidateSharesNoSlices(t *testing.T) {
	r := good(0, 1)
	l, _ := Validate(r, claim)
	r.Ranks[0].Rank.SetCount(store.NumRunningReqs, 99)
	r.Ranks[0].TimeUnixMs = Known(99)
	if n, _ := l.Ranks[0].Count(store.NumRunningReqs); n != 1 || l.Samples[0].TimeUnixMs != 900 {
		t.Error("the load changed with the report")
	}
}

func TestValidateFlagsRatios(t *testing.T) {
	for _, f := range []store.Field{store.TokenUsage, store.CacheHitRate, store.Utilization} {
		for v, want := range map[float64]store.Flag{1: 0, 1.01: store.FlagRatioAboveOne} {
			r := good(0, 1)
			r.Ranks[1].Rank.SetFloat(f, v)
			if l, refusal := Validate(r, claim); refusal != nil || l.Flags != want {
				t.Errorf("%s %v: flags %v, refusal %v", store.Fields[f].Name, v, l.Flags.Words(), refusal)
			}
		}
	}
}

func TestValidateDropsMinusZero(t *testing.T) {
	r := good(0)
	r.Ranks[0].Rank.SetFloat(store.GenThroughput, math.Copysign(0, -1))
	l, refusal := Validate(r, claim)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if v, _ := l.Ranks[0].Float(store.GenThroughput); math.Signbit(v) {
		t.Error("-0 was kept")
	}
}

func TestValidateCutsErrorAtRune(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"short", "x", 1},
		{"at the limit", strings.Repeat("x", 1024), 1024},
		{"ascii", strings.Repeat("x", 5000), 1024},
		{"inside a rune", strings.Repeat("x", 1023) + strings.Repeat("ü", 10), 1023},
		{"inside a long rune", "xx" + strings.Repeat("😀", 500), 1022},
		{"no runes at all", strings.Repeat("\x80", 5000), 1020},
	} {
		r := good(0)
		r.LastError = tt.text
		l, refusal := Validate(r, claim)
		if refusal != nil || len(l.LastError) != tt.want {
			t.Errorf("%s: %d bytes, %v", tt.name, len(l.LastError), refusal)
			continue
		}
		if utf8.ValidString(tt.text) && !utf8.ValidString(l.LastError) {
			t.Errorf("%s: cut in a rune", tt.name)
		}
		if len(tt.text) > MaxErrorBytes && unsafe.StringData(l.LastError) == unsafe.StringData(tt.text) {
			t.Errorf("%s: the whole text stays in memory", tt.name)
		}
	}
}

func TestFillPrefill(t *testing.T) {
	r := good(0, 1)
	if r.FillPrefill(false) || r.Ranks[0].Rank.Has(store.PrefillThroughput) {
		t.Error("zero became known before a value was sent")
	}
	r.Ranks[1].Rank.SetFloat(store.PrefillThroughput, 3)
	if !r.FillPrefill(false) || !r.Ranks[0].Rank.Has(store.PrefillThroughput) {
		t.Error("zero beside a value is not known")
	}
	if v, _ := r.Ranks[1].Rank.Float(store.PrefillThroughput); v != 3 {
		t.Errorf("the value became %v", v)
	}
	r = good(0)
	if !r.FillPrefill(true) || !r.Ranks[0].Rank.Has(store.PrefillThroughput) {
		t.Error("zero after a value is not known")
	}
}

func TestValidateAllocations(t *testing.T) {
	r := good(upTo(8)...)
	// The load, its ranks and its samples.
	if got := testing.AllocsPerRun(100, func() { Validate(r, claim) }); got != 3 {
		t.Errorf("%v allocations, want 3", got)
	}
}

func BenchmarkValidate(b *testing.B) {
	r := good(upTo(8)...)
	b.ReportAllocs()
	for b.Loop() {
		if _, refusal := Validate(r, claim); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

func TestSampleAge(t *testing.T) {
	for _, tt := range []struct {
		name    string
		report  int64
		samples []int64
		want    time.Duration
		ok      bool
	}{
		{"none", 5, nil, 0, false},
		{"report time unknown", -1, []int64{1}, 0, false},
		{"sample time unknown", 5, []int64{3, -1}, 0, false},
		{"oldest", 1000, []int64{900, 700, 800}, 300 * time.Millisecond, true},
		{"in the future", 1000, []int64{2000}, 0, true},
		{"far apart", math.MaxInt64, []int64{0}, time.Hour, true},
	} {
		l := &store.Load{ReportUnixMs: tt.report}
		for _, s := range tt.samples {
			l.Samples = append(l.Samples, store.Sample{TimeUnixMs: s})
		}
		if got, ok := SampleAge(l); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %s %v", tt.name, got, ok)
		}
	}
}

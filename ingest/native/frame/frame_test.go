package frame

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// loaded returns a rank with all fields, the rank's number in each.
func loaded(rank int32) *loadplanev1.RankSample {
	n, f := int64(rank+1), float64(rank+1)/100
	return &loadplanev1.RankSample{
		Load: &loadplanev1.RankLoad{
			DpRank: rank, NumRunningReqs: &n, NumWaitingReqs: &n, NumWaitingUncachedTokens: &n, NumUsedTokens: &n,
			NumTotalTokens: &n, MaxTotalNumTokens: new(int64(100_000)), MaxRunningRequests: new(int64(1000)),
			TokenUsage: &f, GenThroughput: &f, CacheHitRate: &f, Utilization: &f, PrefillThroughput: &f,
			PrefillBootstrapReqs: &n, PrefillInflightReqs: &n, DecodePreallocReqs: &n, DecodeTransferReqs: &n,
			DecodeRetractedReqs: &n, PrefillThroughputWall: &f,
		},
		SnapshotTimeUnixMs: &n, TotalPrefillUncachedTokens: &n, TotalPrefillBusyUs: &n, TotalGeneratedTokens: &n,
	}
}

// sample returns a healthy report of engine "a" whose rank 0 knows a few fields.
func sample(sequence uint64) *loadplanev1.EngineReport {
	return &loadplanev1.EngineReport{
		SourceInstanceId: "a", Sequence: sequence, Status: loadplanev1.Status_STATUS_HEALTHY,
		ReportTimeUnixMs: new(int64(1_700_000_000_100)),
		Ranks: []*loadplanev1.RankSample{{
			Load: &loadplanev1.RankLoad{
				NumRunningReqs: new(int64(sequence)), NumWaitingReqs: new(int64(0)), MaxTotalNumTokens: new(int64(1000)),
			},
			SnapshotTimeUnixMs: new(int64(1_700_000_000_000)),
		}},
	}
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decoded(t testing.TB, b []byte) *Frame {
	t.Helper()
	f := New(ingest.DefaultMaxRanks)
	if err := f.DecodeWire(b); err != nil {
		t.Fatal(err)
	}
	return f
}

// report returns what a message reports, by protobuf-go.
func report(m *loadplanev1.ReportRequest) ingest.Report {
	r := m.GetReport()
	out := ingest.Report{
		Source: r.GetSourceInstanceId(), Sequence: r.GetSequence(), Status: int32(r.GetStatus()), LastError: r.GetLastError(),
	}
	if r != nil {
		out.TimeUnixMs = optional(r.ReportTimeUnixMs)
	}
	for _, s := range r.GetRanks() {
		rank := ingest.RankReport{
			Rank: store.Rank{DPRank: noRank}, TimeUnixMs: optional(s.SnapshotTimeUnixMs),
			PrefillUncachedTokens: optional(s.TotalPrefillUncachedTokens), PrefillBusyUs: optional(s.TotalPrefillBusyUs),
			GeneratedTokens: optional(s.TotalGeneratedTokens),
		}
		if s.Load != nil {
			rank.Rank = values(s.Load)
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}

func optional(v *int64) ingest.Int {
	if v == nil {
		return ingest.Int{}
	}
	return ingest.Known(*v)
}

func values(l *loadplanev1.RankLoad) store.Rank {
	r := store.Rank{DPRank: l.GetDpRank()}
	m := l.ProtoReflect()
	for f, info := range store.Fields {
		field := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(info.Number))
		switch {
		case !m.Has(field):
		case info.Float:
			r.SetFloat(store.Field(f), m.Get(field).Float())
		default:
			r.SetCount(store.Field(f), m.Get(field).Int())
		}
	}
	return r
}

// same compares reports; a NaN equals itself.
func same(a, b *ingest.Report) bool {
	return a.Source == b.Source && a.Sequence == b.Sequence && a.Status == b.Status &&
		a.LastError == b.LastError && a.TimeUnixMs == b.TimeUnixMs && slices.Equal(a.Ranks, b.Ranks)
}

func TestFrameAgreesWithProtobuf(t *testing.T) {
	for name, m := range map[string]*loadplanev1.ReportRequest{
		"empty":      {},
		"lease only": {LeaseId: "lease"},
		"everything": {LeaseId: "lease", Report: &loadplanev1.EngineReport{
			SourceInstanceId: "a", Sequence: math.MaxUint64, Status: 2, LastError: "slow", ReportTimeUnixMs: new(int64(5)),
			Ranks: []*loadplanev1.RankSample{loaded(0), loaded(7)},
		}},
		"nothing known":  {Report: &loadplanev1.EngineReport{Ranks: []*loadplanev1.RankSample{{Load: &loadplanev1.RankLoad{}}}}},
		"no load":        {Report: &loadplanev1.EngineReport{Ranks: []*loadplanev1.RankSample{{}}}},
		"known zeros":    {Report: &loadplanev1.EngineReport{ReportTimeUnixMs: new(int64), Ranks: []*loadplanev1.RankSample{{Load: &loadplanev1.RankLoad{NumUsedTokens: new(int64), TokenUsage: new(float64)}}}}},
		"negative":       {Report: &loadplanev1.EngineReport{Status: -1, Ranks: []*loadplanev1.RankSample{{Load: &loadplanev1.RankLoad{DpRank: -3, NumRunningReqs: new(int64(-1))}}}}},
		"sample, no run": {Report: sample(3)},
	} {
		f := decoded(t, encoded(t, m))
		want := report(m)
		if f.Fault != nil || f.Lease != m.GetLeaseId() || f.Reported != (m.Report != nil) || !same(&f.Report, &want) {
			t.Errorf("%s: fault %v, lease %q, reported %v\n%+v, want\n%+v", name, f.Fault, f.Lease, f.Reported, f.Report, want)
		}
	}
}

// A frame leaves nothing of the one before.
func TestFrameForgets(t *testing.T) {
	full := encoded(t, &loadplanev1.ReportRequest{LeaseId: "lease", Report: &loadplanev1.EngineReport{
		SourceInstanceId: "a", Sequence: 9, Status: 2, LastError: "slow", ReportTimeUnixMs: new(int64(5)),
		Ranks: []*loadplanev1.RankSample{loaded(0)},
	}})
	for name, next := range map[string][]byte{
		"empty":     {},
		"no report": encoded(t, &loadplanev1.ReportRequest{}),
		"no values": encoded(t, &loadplanev1.ReportRequest{Report: &loadplanev1.EngineReport{Ranks: []*loadplanev1.RankSample{{}}}}),
	} {
		f := decoded(t, full)
		if err := f.DecodeWire(next); err != nil {
			t.Fatal(err)
		}
		if fresh := decoded(t, next); f.Lease != fresh.Lease || f.Reported != fresh.Reported || !same(&f.Report, &fresh.Report) {
			t.Errorf("%s: %+v, want %+v", name, f.Report, fresh.Report)
		}
	}
}

func TestFrameFaults(t *testing.T) {
	ranks := func(n int) []byte {
		return encoded(t, &loadplanev1.ReportRequest{Report: &loadplanev1.EngineReport{Ranks: make([]*loadplanev1.RankSample, n)}})
	}
	// Two reports in one frame are merged, ranks and all.
	twice := slices.Concat(ranks(300), ranks(300))
	for name, tt := range map[string]struct {
		frame []byte
		want  store.Reason
	}{
		"cut":               {[]byte{0x0a, 5}, ingest.ReasonMalformed},
		"cut inside":        {[]byte{0x12, 2, 0x32, 9}, ingest.ReasonMalformed},
		"field number 0":    {[]byte{0x00, 0x00}, ingest.ReasonMalformed},
		"no UTF-8":          {[]byte{0x0a, 1, 0xff}, ingest.ReasonMalformed},
		"open group":        {[]byte{0x1b}, ingest.ReasonMalformed},
		"512 ranks":         {ranks(512), ""},
		"513 ranks":         {ranks(513), ingest.ReasonTooManyRanks},
		"merged ranks":      {twice, ingest.ReasonTooManyRanks},
		"64 KiB":            {slices.Concat([]byte{0x7a}, protowire.AppendBytes(nil, make([]byte, 64<<10-4))), ""},
		"more than that":    {make([]byte, ingest.MaxMessageBytes+1), ingest.ReasonMessageTooLarge},
		"20,000 empty ones": {slices.Concat([]byte{0x12}, protowire.AppendBytes(nil, bytes.Repeat([]byte{0x32, 0}, 20_000))), ingest.ReasonTooManyRanks},
	} {
		f := decoded(t, tt.frame)
		got := store.Reason("")
		if f.Fault != nil {
			got = f.Fault.Reason
		}
		if got != tt.want || cap(f.Report.Ranks) > 1024 {
			t.Errorf("%s: %q with room for %d ranks, want %q", name, got, cap(f.Report.Ranks), tt.want)
		}
	}
}

// FuzzFrame: what is decoded is what protobuf-go decodes, and what a report
// does not say is never a zero.
func FuzzFrame(f *testing.F) {
	for _, m := range []*loadplanev1.ReportRequest{
		{LeaseId: "lease"},
		{LeaseId: "lease", Report: sample(1)},
		{Report: &loadplanev1.EngineReport{SourceInstanceId: "a", Status: 1, Ranks: []*loadplanev1.RankSample{loaded(0), loaded(1)}}},
		{Report: &loadplanev1.EngineReport{SourceInstanceId: "a", Status: 3, LastError: "down"}},
	} {
		f.Add(encoded(f, m))
	}
	f.Add([]byte{0x12, 6, 0x32, 4, 0x0a, 0, 0x0a, 0}) // a load in two parts
	f.Add([]byte{0x12, 2, 0x38, 0, 0x12, 2, 0x10, 5}) // a report in two parts
	f.Fuzz(func(t *testing.T, b []byte) {
		got := decoded(t, b)
		var m loadplanev1.ReportRequest
		err := proto.Unmarshal(b, &m)
		if len(b) > ingest.MaxMessageBytes || len(m.GetReport().GetRanks()) > ingest.DefaultMaxRanks {
			if got.Fault == nil {
				t.Fatal("a frame above the limits is taken")
			}
			return
		}
		if got.Fault != nil && got.Fault.Reason == ingest.ReasonTooManyRanks {
			return // found before the end was seen
		}
		if (err != nil) != (got.Fault != nil) {
			t.Fatalf("fault %v, protobuf-go says %v", got.Fault, err)
		}
		if err != nil {
			return
		}
		want := report(&m)
		if got.Lease != m.GetLeaseId() || got.Reported != (m.Report != nil) || !same(&got.Report, &want) {
			t.Fatalf("%+v, want %+v", got.Report, want)
		}
		if load, refusal := ingest.Validate(&got.Report, ingest.Rules{}); refusal == nil {
			checkPresence(t, &m, load)
		}
	})
}

// checkPresence holds the presence of a load against that of its message.
func checkPresence(t *testing.T, m *loadplanev1.ReportRequest, l *store.Load) {
	t.Helper()
	sent := make(map[int32]*loadplanev1.RankSample)
	for _, s := range m.GetReport().GetRanks() {
		sent[s.GetLoad().GetDpRank()] = s
	}
	for i := range l.Ranks {
		r := &l.Ranks[i]
		s := sent[r.DPRank]
		for f, info := range store.Fields {
			field := s.GetLoad().ProtoReflect().Descriptor().Fields().ByNumber(protoreflect.FieldNumber(info.Number))
			if r.Has(store.Field(f)) != s.GetLoad().ProtoReflect().Has(field) {
				t.Fatalf("rank %d: %s is known: %v", r.DPRank, info.Name, r.Has(store.Field(f)))
			}
		}
		for name, v := range map[string]struct {
			kept int64
			sent *int64
		}{
			"time": {l.Samples[i].TimeUnixMs, s.SnapshotTimeUnixMs}, "uncached": {l.Samples[i].PrefillUncachedTokens, s.TotalPrefillUncachedTokens},
			"busy": {l.Samples[i].PrefillBusyUs, s.TotalPrefillBusyUs}, "generated": {l.Samples[i].GeneratedTokens, s.TotalGeneratedTokens},
		} {
			if (v.kept < 0) != (v.sent == nil) {
				t.Fatalf("rank %d: %s is %d", r.DPRank, name, v.kept)
			}
		}
	}
}

// A report of eight ranks is decoded without an allocation in steady state.
func TestFrameAllocatesNothing(t *testing.T) {
	r := sample(1)
	for i := range int32(7) {
		r.Ranks = append(r.Ranks, loaded(i+1))
	}
	b := encoded(t, &loadplanev1.ReportRequest{Report: r})
	f := decoded(t, b)
	if n := testing.AllocsPerRun(100, func() { _ = f.DecodeWire(b) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

package build

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const stale = 3 * time.Second

var taken = time.UnixMilli(1_800_000_000_000)

// rank returns a rank whose known fields have values of their own.
func rank(n int32, fields ...store.Field) ingest.RankReport {
	r := ingest.RankReport{Rank: store.Rank{DPRank: n}}
	for _, f := range fields {
		if store.Fields[f].Float {
			r.Rank.SetFloat(f, 0.25+float64(f)/100)
		} else {
			r.Rank.SetCount(f, valueOf(f))
		}
	}
	return r
}

// valueOf returns a count: limits are above what they limit.
func valueOf(f store.Field) int64 {
	if f == store.MaxTotalNumTokens || f == store.MaxRunningRequests {
		return 1000 + int64(f)
	}
	return 10 + int64(f)
}

func all() (fields []store.Field) {
	for f := range store.NumFields {
		fields = append(fields, f)
	}
	return fields
}

func without(gone ...store.Field) (fields []store.Field) {
	for _, f := range all() {
		keep := true
		for _, g := range gone {
			keep = keep && f != g
		}
		if keep {
			fields = append(fields, f)
		}
	}
	return fields
}

func good(ranks ...ingest.RankReport) source.Snapshot {
	return source.Snapshot{Source: "life", Ranks: ranks, Taken: taken}
}

func builder(t *testing.T, s *source.Snapshot, change func(*Options)) *Builder {
	t.Helper()
	opts := Options{Sample: func() source.Snapshot { return *s }, Origin: "http://10.0.0.1:30000", StaleAfter: stale}
	if change != nil {
		change(&opts)
	}
	b, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestJudge(t *testing.T) {
	with := func(change func(*source.Snapshot)) source.Snapshot {
		s := good(rank(0, all()...))
		change(&s)
		return s
	}
	long := strings.Repeat("é", 400)
	tests := []struct {
		name string
		s    source.Snapshot
		age  time.Duration
		want store.Status
		err  string
	}{
		{"no sample yet", source.Snapshot{}, 0, store.StatusUnreachable, NoSample},
		{"first sample failed", source.Snapshot{Reason: "timeout", Err: "too slow"}, 0, store.StatusUnreachable, NoSample + ": timeout: too slow"},
		{"good", good(rank(0)), 0, store.StatusHealthy, ""},
		{"as old as allowed", good(rank(0)), stale, store.StatusHealthy, ""},
		{"hung in flight", good(rank(0)), stale + time.Millisecond, store.StatusStale, "the load sample is 3001 ms old"},
		{"refused", with(func(s *source.Snapshot) { s.Reason, s.Err, s.Refused = "connect_failed", "refused", true }), time.Millisecond, store.StatusUnreachable, "connect_failed: refused"},
		{"refused without a text", with(func(s *source.Snapshot) { s.Refused = true }), time.Millisecond, store.StatusUnreachable, "the engine refused the connection"},
		{"timed out", with(func(s *source.Snapshot) { s.Reason, s.Err = "timeout", "too slow" }), time.Millisecond, store.StatusStale, "timeout: too slow"},
		{"timed out for long", with(func(s *source.Snapshot) { s.Reason, s.Err = "timeout", "too slow" }), stale + 1, store.StatusUnreachable, "timeout: too slow"},
		{"reason alone", with(func(s *source.Snapshot) { s.Reason = "engine_error" }), 0, store.StatusStale, "engine_error"},
		{"text alone", with(func(s *source.Snapshot) { s.Err = "broken" }), 0, store.StatusStale, "broken"},
		{"long text", with(func(s *source.Snapshot) { s.Err = long }), 0, store.StatusStale, long[:maxErrorBytes]},
		{"long text, cut within a rune", with(func(s *source.Snapshot) { s.Err = "x" + long }), 0, store.StatusStale, "x" + long[:maxErrorBytes-2]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Judge(&test.s, test.s.Taken.Add(test.age), stale)
			if got != (Verdict{test.want, test.err}) {
				t.Errorf("%+v, want %v, %q", got, test.want, test.err)
			}
		})
	}
}

// TestFieldsOfReports compares both reports with the sample field by field,
// for random sets of known fields.
func TestFieldsOfReports(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var fields []store.Field
		for _, f := range all() {
			if rnd.IntN(2) == 0 {
				fields = append(fields, f)
			}
		}
		s := good(rank(0, fields...), rank(3, all()...))
		b := builder(t, &s, func(o *Options) { o.UnknownAsZero = true })
		native, push := b.Native(taken), b.Push(taken)
		for i := range s.Ranks {
			checkNative(t, &s.Ranks[i].Rank, native.GetRanks()[i].GetLoad().ProtoReflect())
			checkPush(t, &s.Ranks[i].Rank, push.GetRanks()[i].ProtoReflect())
		}
	}
}

func checkNative(t *testing.T, r *store.Rank, m protoreflect.Message) {
	t.Helper()
	for f, info := range store.Fields {
		d := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(info.Number))
		if m.Has(d) != r.Has(store.Field(f)) {
			t.Errorf("%s is there: %t, known: %t", info.Name, m.Has(d), r.Has(store.Field(f)))
		}
		if m.Has(d) && valueIn(m, d) != valueAt(r, store.Field(f)) {
			t.Errorf("%s is %v, want %v", info.Name, valueIn(m, d), valueAt(r, store.Field(f)))
		}
	}
}

// checkPush wants zero where a number is unknown, and where its limit is.
func checkPush(t *testing.T, r *store.Rank, m protoreflect.Message) {
	t.Helper()
	limit := map[store.Field]store.Field{store.NumUsedTokens: store.MaxTotalNumTokens, store.NumRunningReqs: store.MaxRunningRequests}
	for f, info := range store.Fields {
		d := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(info.Number))
		if d == nil || info.Number > 14 {
			continue
		}
		want := valueAt(r, store.Field(f))
		if l, ok := limit[store.Field(f)]; ok && !r.Has(l) {
			want = 0
		}
		if got := valueIn(m, d); got != want {
			t.Errorf("%s is %v, want %v", info.Name, got, want)
		}
	}
}

func valueIn(m protoreflect.Message, d protoreflect.FieldDescriptor) float64 {
	if d.Kind() == protoreflect.DoubleKind {
		return m.Get(d).Float()
	}
	return float64(m.Get(d).Int())
}

func valueAt(r *store.Rank, f store.Field) float64 {
	if store.Fields[f].Float {
		v, _ := r.Float(f)
		return v
	}
	v, _ := r.Count(f)
	return float64(v)
}

// Whatever is known, receivers take both reports.
func TestReportsAreValid(t *testing.T) {
	for _, gone := range append(all(), store.NumFields) {
		s := good(rank(0, without(gone)...))
		b := builder(t, &s, func(o *Options) { o.UnknownAsZero = true })
		r := pushed(b.Push(taken))
		if _, refusal := ingest.Validate(r, ingest.Rules{Claim: true}); refusal != nil {
			t.Errorf("without field %d: %v", gone, refusal)
		}
	}
}

// pushed decodes what matters to validation.
func pushed(m *loadmonitorv1.LoadReport) *ingest.Report {
	r := &ingest.Report{
		Source: m.GetSourceInstanceId(), Sequence: m.GetSequenceId(), Claimed: m.GetWorker() != nil, Addr: m.GetWorker().GetWorkerAddr(),
		Role: int32(m.GetWorker().GetWorkerType()), Status: int32(m.GetStatus()), LastError: m.GetLastError(),
	}
	for _, l := range m.GetRanks() {
		rr := ingest.RankReport{Rank: store.Rank{DPRank: l.GetDpRank()}}
		rr.Rank.SetCount(store.NumUsedTokens, l.GetNumUsedTokens())
		rr.Rank.SetCount(store.MaxTotalNumTokens, l.GetMaxTotalNumTokens())
		rr.Rank.SetCount(store.NumRunningReqs, l.GetNumRunningReqs())
		rr.Rank.SetCount(store.MaxRunningRequests, l.GetMaxRunningRequests())
		r.Ranks = append(r.Ranks, rr)
	}
	return r
}

func TestPushRefusesUnknownFields(t *testing.T) {
	s := good(rank(0, all()...), rank(1, without(store.CacheHitRate, store.NumTotalTokens, store.PrefillThroughput)...))
	missing := Missing(&s)
	if len(missing) != 2 || missing[0] != store.NumTotalTokens || missing[1] != store.CacheHitRate {
		t.Fatalf("missing %v, want the core fields that one rank lacks", missing)
	}
	b := builder(t, &s, nil)
	r := b.Push(taken)
	if r.GetStatus() != loadmonitorv1.ReportStatus_REPORT_STATUS_UNREACHABLE || len(r.GetRanks()) != 0 ||
		!strings.Contains(r.GetLastError(), "num_total_tokens, cache_hit_rate") || !strings.Contains(r.GetLastError(), "use native") {
		t.Errorf("report %v", r)
	}
	if n := b.Native(taken); n.GetStatus() != loadplanev1.Status_STATUS_HEALTHY || len(n.GetRanks()) != 2 {
		t.Errorf("native report %v", n)
	}
}

func TestKept(t *testing.T) {
	tests := map[string][]store.Field{
		"": {store.CacheHitRate},
		"num_running_reqs sent as 0, as the limit is unknown":                     {store.MaxRunningRequests},
		"num_used_tokens and num_running_reqs sent as 0, as the limit is unknown": {store.MaxTotalNumTokens, store.MaxRunningRequests},
	}
	for want, missing := range tests {
		if got := Kept(missing); got != want {
			t.Errorf("%v: %q, want %q", missing, got, want)
		}
	}
}

func TestStatusDecidesWhatIsInAReport(t *testing.T) {
	s := good(rank(0, all()...))
	s.Reason, s.Err = "timeout", "too slow"
	b := builder(t, &s, nil)
	if r := b.Push(taken); r.GetStatus() != loadmonitorv1.ReportStatus_REPORT_STATUS_STALE || len(r.GetRanks()) != 1 || r.GetLastError() != "timeout: too slow" {
		t.Errorf("slow engine: %v", r)
	}
	s.Refused = true
	if r := b.Push(taken); r.GetStatus() != loadmonitorv1.ReportStatus_REPORT_STATUS_UNREACHABLE || len(r.GetRanks()) != 0 || r.GetLastError() == "" {
		t.Errorf("engine that is gone: %v", r)
	}
	if r := b.Native(taken); r.GetStatus() != loadplanev1.Status_STATUS_UNREACHABLE || len(r.GetRanks()) != 0 || r.GetLastError() == "" {
		t.Errorf("engine that is gone: %v", r)
	}
	s = good(rank(0, all()...))
	if r := b.Push(taken); r.LastError != nil || r.GetReportTimeUnixMs() != taken.UnixMilli() {
		t.Errorf("good engine: %v", r)
	}
}

func TestBeforeTheFirstSample(t *testing.T) {
	var s source.Snapshot
	b := builder(t, &s, nil)
	if r := b.Native(taken); r != nil {
		t.Errorf("native report %v before anything is known", r)
	}
	first := b.Push(taken)
	if first.GetStatus() != loadmonitorv1.ReportStatus_REPORT_STATUS_UNREACHABLE || first.GetLastError() != NoSample || first.GetSourceInstanceId() == "" {
		t.Errorf("report %v", first)
	}
	s.Reason = "timeout"
	if r := b.Native(taken); r.GetStatus() != loadplanev1.Status_STATUS_UNREACHABLE || r.GetSourceInstanceId() != first.GetSourceInstanceId() {
		t.Errorf("native report %v after a failure", r)
	}
}

// The process that goes on with the same life of the engine has built nothing
// yet, and has to be above what the one before built.
func TestSequenceGoesOnAboveThatOfTheProcessBefore(t *testing.T) {
	s := good(rank(0, all()...))
	before, next := builder(t, &s, nil), builder(t, &s, nil)
	var last uint64
	for i := range 100 {
		last = before.Native(taken.Add(time.Duration(i) * 10 * time.Millisecond)).GetSequence()
	}
	if got := next.Native(taken.Add(time.Second)).GetSequence(); got <= last {
		t.Errorf("the next process begins at %d after %d", got, last)
	}
}

func TestSequenceIsOneForAll(t *testing.T) {
	s := good(rank(0, all()...))
	b := builder(t, &s, nil)
	first := uint64(taken.UnixMicro())
	for i := first; i < first+10; i += 2 {
		if got := b.Push(taken).GetSequenceId(); got != i {
			t.Errorf("sequence %d, want %d", got, i)
		}
		if got := b.Native(taken.Add(-time.Hour)).GetSequence(); got != i+1 {
			t.Errorf("sequence %d, want %d", got, i+1)
		}
	}
	if b.Built() != 10 {
		t.Errorf("%d built", b.Built())
	}
}

func TestSampleTimes(t *testing.T) {
	s := good(rank(0, all()...), rank(1, all()...))
	s.Ranks[0].TimeUnixMs = ingest.Known(5)
	b := builder(t, &s, nil)
	times := func() string {
		p, n := b.Push(taken).GetRanks(), b.Native(taken).GetRanks()
		return fmt.Sprint(p[0].GetSnapshotTimeUnixMs(), p[1].GetSnapshotTimeUnixMs(), n[0].GetSnapshotTimeUnixMs(), n[1].GetSnapshotTimeUnixMs())
	}
	if got, want := times(), fmt.Sprint(5, taken.UnixMilli(), 5, taken.UnixMilli()); got != want {
		t.Errorf("times %s, want %s", got, want)
	}
	s.TimeUnixMs = ingest.Known(7)
	if got, want := times(), fmt.Sprint(5, 7, 5, 7); got != want {
		t.Errorf("times %s, want %s", got, want)
	}
}

func TestCumulativeCountsGoByNative(t *testing.T) {
	s := good(rank(0))
	s.Ranks[0].GeneratedTokens = ingest.Known(0)
	b := builder(t, &s, nil)
	r := b.Native(taken).GetRanks()[0]
	if r.TotalGeneratedTokens == nil || *r.TotalGeneratedTokens != 0 || r.TotalPrefillBusyUs != nil || r.TotalPrefillUncachedTokens != nil {
		t.Errorf("%v, want a known 0 and two unknown ones", r)
	}
}

func TestIdentity(t *testing.T) {
	s := good(rank(0, all()...))
	b := builder(t, &s, nil)
	w := b.Push(taken).GetWorker()
	if w.GetWorkerAddr() != "http://10.0.0.1:30000" || w.GetWorkerType() != loadmonitorv1.WorkerType_WORKER_TYPE_REGULAR || w.Model != nil || w.Zone != nil {
		t.Errorf("worker %v where nothing is known", w)
	}
	s.Facts = registry.Facts{Role: store.RoleDecode, Models: []string{"m1", "m2"}}
	if w = b.Push(taken).GetWorker(); w.GetWorkerType() != loadmonitorv1.WorkerType_WORKER_TYPE_DECODE || w.GetModel() != "m1" {
		t.Errorf("worker %v, want what the engine says", w)
	}
	b = builder(t, &s, func(o *Options) { o.Identity = Identity{store.RolePrefill, []string{"own"}, "z"} })
	if w = b.Push(taken).GetWorker(); w.GetWorkerType() != loadmonitorv1.WorkerType_WORKER_TYPE_PREFILL || w.GetModel() != "own" || w.GetZone() != "z" {
		t.Errorf("worker %v, want what is configured", w)
	}
	if id := b.Identity(); id.Role != store.RolePrefill {
		t.Errorf("%+v", id)
	}
}

func TestNewRefuses(t *testing.T) {
	sample := func() source.Snapshot { return source.Snapshot{} }
	for _, opts := range []Options{
		{Origin: "o", StaleAfter: stale}, {Sample: sample, StaleAfter: stale}, {Sample: sample, Origin: "o"},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%+v is taken", opts)
		}
	}
}

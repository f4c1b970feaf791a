package loadreport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const testAddr = "http://127.0.0.2:9"

// sample returns a healthy report with n ranks.
func sample(seq uint64, n int) *loadmonitorv1.LoadReport {
	r := &loadmonitorv1.LoadReport{
		SourceInstanceId: "0b6b9d34-6d39-4d8a-9f3c-0c8d8a1f2e11", SequenceId: seq, ReportTimeUnixMs: 1_790_000_000_000,
		Worker: &loadmonitorv1.Worker{
			WorkerAddr: testAddr, WorkerType: loadmonitorv1.WorkerType_WORKER_TYPE_REGULAR,
			Model: proto.String("m"), Zone: proto.String("z"),
		},
		Status: loadmonitorv1.ReportStatus_REPORT_STATUS_HEALTHY,
	}
	for i := range n {
		r.Ranks = append(r.Ranks, &loadmonitorv1.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: 1_790_000_000_000 - int64(i), NumRunningReqs: 17, NumWaitingReqs: 3,
			NumWaitingUncachedTokens: 4096, NumUsedTokens: 120_000, NumTotalTokens: 140_000,
			MaxTotalNumTokens: 400_000, MaxRunningRequests: 256, TokenUsage: 0.3, GenThroughput: 1234.5,
			CacheHitRate: 0.25, Utilization: 0.5,
		})
	}
	return r
}

func frame(t testing.TB, r *loadmonitorv1.LoadReport) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// seeds are frames that come close to what the decoder must tell apart.
func seeds(t testing.TB) [][]byte {
	full := frame(t, sample(1, 3))
	worker := func(w *loadmonitorv1.Worker) []byte { return frame(t, &loadmonitorv1.LoadReport{Worker: w}) }
	field := func(num protowire.Number, typ protowire.Type, value ...byte) []byte {
		return append(protowire.AppendTag(nil, num, typ), value...)
	}
	rank := func(b []byte) []byte { return protowire.AppendBytes(field(7, protowire.BytesType), b) }
	prefill := binary.LittleEndian.AppendUint64(nil, math.Float64bits(12.5))
	list := [][]byte{
		nil, full, full[:len(full)-1], full[1:],
		frame(t, &loadmonitorv1.LoadReport{Status: 3, LastError: proto.String("no sample")}),
		frame(t, &loadmonitorv1.LoadReport{Status: -5, ReportTimeUnixMs: -1, SequenceId: math.MaxUint64}),
		// A worker in pieces, and one that is replaced field by field.
		append(worker(&loadmonitorv1.Worker{WorkerAddr: "a", WorkerType: 2}), worker(&loadmonitorv1.Worker{WorkerAddr: "b", Zone: proto.String("")})...),
		worker(&loadmonitorv1.Worker{}),
		// Scalars twice, varints of all lengths, too long ones, an int32 and an enum of 64 bits.
		append(field(2, protowire.VarintType, 5), field(2, protowire.VarintType, 4)...),
		field(2, protowire.VarintType, 0x80, 0x00), field(2, protowire.VarintType, 0x80),
		field(2, protowire.VarintType, bytes.Repeat([]byte{0xff}, 10)...),
		field(2, protowire.VarintType, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		field(5, protowire.VarintType, protowire.AppendVarint(nil, 1<<40|1)...),
		rank(field(1, protowire.VarintType, protowire.AppendVarint(nil, 1<<33|7)...)),
		// Prefill throughput: as double, as varint, as both, and back to zero.
		rank(field(14, protowire.Fixed64Type, prefill...)), rank(field(14, protowire.VarintType, 9)),
		rank(append(field(14, protowire.Fixed64Type, prefill...), field(14, protowire.VarintType, 9)...)),
		rank(append(field(14, protowire.Fixed64Type, prefill...), field(14, protowire.Fixed64Type, make([]byte, 8)...)...)),
		// Every field with every wire type.
		field(1, protowire.VarintType, 1), field(7, protowire.VarintType, 1), field(4, protowire.Fixed32Type, 1, 2, 3, 4),
		rank(field(3, protowire.BytesType, 1, 5)), rank(field(10, protowire.Fixed32Type, 1, 2, 3, 4)),
		rank(field(10, protowire.Fixed64Type, binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))...)),
		rank(field(10, protowire.Fixed64Type, 0, 0, 0, 0, 0, 0, 0, 0x80)), rank(field(11, protowire.Fixed64Type, 1)),
		// Groups: closed, open, wrongly closed, nested, and the bare end of one.
		append(field(20, protowire.StartGroupType, 8, 1), field(20, protowire.EndGroupType)...),
		field(20, protowire.StartGroupType), append(field(20, protowire.StartGroupType), field(21, protowire.EndGroupType)...),
		field(20, protowire.EndGroupType), rank(field(20, protowire.EndGroupType)),
		bytes.Repeat([]byte{1<<3 | 3}, 20_000), append(bytes.Repeat([]byte{1<<3 | 3}, 9_000), bytes.Repeat([]byte{1<<3 | 4}, 9_000)...),
		// Tags: field 0, the largest number and one above, wire types 6 and 7, not minimal.
		{0}, {0x80, 0x00}, protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber)<<3), append(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber)<<3), 1),
		append(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1), append(protowire.AppendVarint(nil, math.MaxUint64&^7), 1),
		{1<<3 | 6}, {1<<3 | 7}, {0x90, 0x00, 5}, {0x90, 0x80, 0x00, 5},
		// Strings: not UTF-8, empty, longer than the frame.
		field(1, protowire.BytesType, 1, 0xff), field(6, protowire.BytesType, 1, 0xff), field(1, protowire.BytesType, 0),
		field(1, protowire.BytesType, 9, 'a'), append(field(1, protowire.BytesType, 1, 0xff), field(1, protowire.BytesType, 1, 'a')...),
		field(4, protowire.BytesType, 3, 1<<3|2, 1, 0xff), field(4, protowire.BytesType, 3, 3<<3|2, 1, 0xff),
		// Fields of other forks.
		rank(slicesOf(15, 21)), append(full, slicesOf(15, 21)...),
	}
	return list
}

// slicesOf returns varint fields with the numbers from to to.
func slicesOf(from, to protowire.Number) (b []byte) {
	for n := from; n <= to; n++ {
		b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(n))
	}
	return b
}

// differ holds a decoded frame against protobuf-go; empty where they agree.
func differ(m *Message, b []byte) string {
	_ = m.DecodeWire(b)
	var want loadmonitorv1.LoadReport
	err := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, &want)
	switch {
	case m.Fault != nil && m.Fault.Reason == ingest.ReasonTooManyRanks:
		if err == nil && len(want.Ranks) <= m.maxRanks {
			return fmt.Sprintf("too many ranks, protobuf has %d", len(want.Ranks))
		}
		return ""
	case m.Fault != nil && m.Fault.Reason == ingest.ReasonMessageTooLarge:
		if len(b) <= ingest.MaxMessageBytes {
			return fmt.Sprintf("%d bytes are too many", len(b))
		}
		return ""
	case (m.Fault != nil) != (err != nil):
		return fmt.Sprintf("fault %v, protobuf %v", m.Fault, err)
	case err != nil:
		return ""
	}
	return differHead(&m.Report, &want)
}

func differHead(got *ingest.Report, want *loadmonitorv1.LoadReport) string {
	w := want.GetWorker()
	g := []any{got.Source, got.Sequence, got.TimeUnixMs, got.Claimed, got.Addr, got.Role, got.Model, got.Zone, got.Status, got.LastError, len(got.Ranks)}
	p := []any{
		want.SourceInstanceId, want.SequenceId, ingest.Known(want.ReportTimeUnixMs), want.Worker != nil, w.GetWorkerAddr(),
		int32(w.GetWorkerType()), w.GetModel(), w.GetZone(), int32(want.Status), want.GetLastError(), len(want.Ranks),
	}
	for i := range g {
		if g[i] != p[i] {
			return fmt.Sprintf("value %d is %v, protobuf has %v", i, g[i], p[i])
		}
	}
	for i := range got.Ranks {
		if d := differRank(&got.Ranks[i], want.Ranks[i]); d != "" {
			return fmt.Sprintf("rank %d: %s", i, d)
		}
	}
	return ""
}

func differRank(got *ingest.RankReport, want *loadmonitorv1.RankLoad) string {
	if got.Rank.DPRank != want.DpRank || got.TimeUnixMs != ingest.Known(want.SnapshotTimeUnixMs) {
		return fmt.Sprintf("%d at %v, protobuf has %d at %d", got.Rank.DPRank, got.TimeUnixMs, want.DpRank, want.SnapshotTimeUnixMs)
	}
	counts := []int64{
		want.NumRunningReqs, want.NumWaitingReqs, want.NumWaitingUncachedTokens, want.NumUsedTokens,
		want.NumTotalTokens, want.MaxTotalNumTokens, want.MaxRunningRequests,
	}
	for f, v := range counts {
		if g, ok := got.Rank.Count(store.Field(f)); g != v || !ok {
			return fmt.Sprintf("%s is %d, protobuf has %d", store.Fields[f].Name, g, v)
		}
	}
	for i, v := range []float64{want.TokenUsage, want.GenThroughput, want.CacheHitRate, want.Utilization, want.PrefillThroughput} {
		f := store.TokenUsage + store.Field(i)
		known := f != store.PrefillThroughput || v != 0
		if g, ok := got.Rank.Float(f); math.Float64bits(g) != math.Float64bits(v+0) && g == g || ok != known {
			return fmt.Sprintf("%s is %v %v, protobuf has %v", store.Fields[f].Name, g, ok, v)
		}
	}
	return ""
}

func TestDecodeAgreesWithProtobuf(t *testing.T) {
	m := New(ingest.DefaultMaxRanks)
	for i, b := range seeds(t) {
		if d := differ(m, b); d != "" {
			t.Errorf("seed %d, %x: %s", i, b[:min(len(b), 64)], d)
		}
	}
}

// FuzzDecode holds the decoder against protobuf-go.
func FuzzDecode(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	m := New(16)
	f.Fuzz(func(t *testing.T, b []byte) {
		if d := differ(m, b); d != "" {
			t.Error(d)
		}
	})
}

// TestFieldNumbers holds the order of store.Field against the wire numbers
// that the decoder computes with.
func TestFieldNumbers(t *testing.T) {
	for f := store.NumRunningReqs; f <= store.MaxRunningRequests; f++ {
		if tag := tagFirstCount + uint64(f)<<3; uint64(store.Fields[f].Number) != tag>>3 || store.Fields[f].Float {
			t.Errorf("%s is not at %d", store.Fields[f].Name, tag>>3)
		}
	}
	for f := store.TokenUsage; f <= store.PrefillThroughput; f++ {
		if tag := tagFirstDouble + uint64(f-store.TokenUsage)<<3; uint64(store.Fields[f].Number) != tag>>3 || !store.Fields[f].Float {
			t.Errorf("%s is not at %d", store.Fields[f].Name, tag>>3)
		}
	}
}

func TestDecodeReplacesTheLastFrame(t *testing.T) {
	m := New(8)
	_ = m.DecodeWire(frame(t, sample(4, 3)))
	_ = m.DecodeWire(nil)
	r := &m.Report
	if r.Source != "" || r.Addr != "" || r.Claimed || r.Sequence != 0 || r.Status != 0 || r.Role != 0 || len(r.Ranks) != 0 || m.Fault != nil {
		t.Errorf("left over: %+v, %v", r, m.Fault)
	}
	_ = m.DecodeWire(rankOf())
	if known := m.Report.Ranks[0].Rank; known.Has(store.PrefillThroughput) || known.Known() != 11 {
		t.Errorf("an empty rank has %d known fields", known.Known())
	}
}

// rankOf returns a frame with one empty rank.
func rankOf() []byte { return []byte{7<<3 | 2, 0} }

func TestDecodeSharesNothingWithTheFrame(t *testing.T) {
	m := New(8)
	b := frame(t, sample(4, 1))
	_ = m.DecodeWire(b)
	clear(b)
	if m.Report.Addr != testAddr || m.Report.Model != "m" {
		t.Errorf("report changed with the frame: %+v", m.Report)
	}
}

func TestDecodeBoundsRanks(t *testing.T) {
	m := New(4)
	_ = m.DecodeWire(bytes.Repeat(rankOf(), 4))
	if m.Fault != nil || len(m.Report.Ranks) != 4 {
		t.Fatalf("4 ranks of 4: %v", m.Fault)
	}
	room := cap(m.Report.Ranks)
	_ = m.DecodeWire(bytes.Repeat(rankOf(), 32<<10))
	if m.Fault == nil || m.Fault.Reason != ingest.ReasonTooManyRanks {
		t.Fatalf("a bomb of ranks: %v", m.Fault)
	}
	if got := cap(m.Report.Ranks); got != room {
		t.Errorf("room for %d ranks was made", got)
	}
	_ = m.DecodeWire(make([]byte, ingest.MaxMessageBytes+1))
	if m.Fault == nil || m.Fault.Reason != ingest.ReasonMessageTooLarge {
		t.Errorf("a message of 64 KiB and a byte: %v", m.Fault)
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	m := New(ingest.DefaultMaxRanks)
	frames := [][]byte{frame(t, sample(1, 8)), frame(t, sample(2, 8))}
	_ = m.DecodeWire(frames[0])
	i := 0
	if got := testing.AllocsPerRun(100, func() { i++; _ = m.DecodeWire(frames[i%2]) }); got != 0 {
		t.Errorf("%v allocations a frame", got)
	}
}

// checkAccepted decodes and validates a frame, and fails where a load is
// accepted that is outside of the limits.
func checkAccepted(t *testing.T, m *Message, b []byte) {
	t.Helper()
	_ = m.DecodeWire(b)
	if m.Fault != nil {
		return
	}
	m.Report.FillPrefill(false)
	l, refusal := ingest.Validate(&m.Report, ingest.Rules{MaxRanks: m.maxRanks, Claim: true})
	if refusal != nil {
		return
	}
	if l.Source == "" || len(l.Source) > 128 || len(l.LastError) > 1024 || !utf8.ValidString(l.LastError) || l.ReportUnixMs < 0 {
		t.Fatalf("accepted %+v", l)
	}
	if len(l.Ranks) > m.maxRanks || len(l.Samples) != len(l.Ranks) || (len(l.Ranks) == 0) != (l.Status == store.StatusUnreachable) {
		t.Fatalf("accepted %d ranks, %d samples, %s", len(l.Ranks), len(l.Samples), l.Status)
	}
	for i := range l.Ranks {
		if i > 0 && l.Ranks[i-1].DPRank >= l.Ranks[i].DPRank || l.Ranks[i].DPRank < 0 || l.Samples[i].TimeUnixMs < 0 {
			t.Fatalf("accepted rank %d after %d", l.Ranks[i].DPRank, l.Ranks[max(0, i-1)].DPRank)
		}
		checkValues(t, &l.Ranks[i])
	}
}

func checkValues(t *testing.T, r *store.Rank) {
	t.Helper()
	for f := range store.NumFields {
		count, _ := r.Count(f)
		float, known := r.Float(f)
		switch {
		case !known:
		case !store.Fields[f].Float && (count < 0 || count > 1<<50):
			t.Fatalf("accepted %s %d", store.Fields[f].Name, count)
		case store.Fields[f].Float && (!(float >= 0 && float <= 1e12) || math.Signbit(float)):
			t.Fatalf("accepted %s %g", store.Fields[f].Name, float)
		}
	}
}

// FuzzFrame takes raw frames through decoding and validation.
func FuzzFrame(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	m := New(64)
	f.Fuzz(func(t *testing.T, b []byte) { checkAccepted(t, m, b) })
}

// TestMutatedFrames damages valid frames in LOADPLANE_MUTATIONS ways, 20,000
// unless set, always the same. The decoder must agree with protobuf-go, and
// what validation accepts must be within the limits.
func TestMutatedFrames(t *testing.T) {
	count := 20_000
	if v, ok := os.LookupEnv("LOADPLANE_MUTATIONS"); ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("LOADPLANE_MUTATIONS: %v", err)
		}
		count = n
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	corpus := seeds(t)
	for n := range 9 {
		corpus = append(corpus, frame(t, sample(uint64(n), n)))
	}
	m := New(16)
	for i := range count {
		b := mutate(rnd, corpus)
		if d := differ(m, b); d != "" {
			t.Fatalf("mutation %d, %x: %s", i, b, d)
		}
		checkAccepted(t, m, b)
	}
}

// mutate returns a damaged frame of the corpus.
func mutate(rnd *rand.Rand, corpus [][]byte) []byte {
	b := bytes.Clone(corpus[rnd.IntN(len(corpus))])
	for range 1 + rnd.IntN(4) {
		at := rnd.IntN(len(b) + 1)
		switch rnd.IntN(6) {
		case 0:
			b = b[:at]
		case 1:
			b = append(b[:at:at], append([]byte{byte(rnd.Uint32())}, b[at:]...)...)
		case 2:
			b = append(b[:at:at], append(bytes.Clone(corpus[rnd.IntN(len(corpus))]), b[at:]...)...)
		default:
			if at < len(b) {
				b[at] ^= 1 << rnd.IntN(8)
			}
		}
	}
	return b[:min(len(b), 4096)]
}

func BenchmarkDecode(b *testing.B) {
	data := frame(b, sample(1, 8))
	b.Run("own", func(b *testing.B) {
		m := New(ingest.DefaultMaxRanks)
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			_ = m.DecodeWire(data)
		}
	})
	b.Run("protobuf-go", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			var r loadmonitorv1.LoadReport
			if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

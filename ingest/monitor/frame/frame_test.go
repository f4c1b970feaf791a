package frame

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// sample returns a healthy report of an engine that is bound to all its
// interfaces and does not know its own name.
func sample(source string, seq uint64, n int) *pb.LoadReport {
	now := time.Now().UnixMilli()
	r := &pb.LoadReport{
		SourceInstanceId: source, SequenceId: seq, ReportTimeUnixMs: now,
		Worker: &pb.Worker{WorkerAddr: "0.0.0.0:31000"}, Status: pb.ReportStatus_REPORT_STATUS_HEALTHY,
	}
	for i := range n {
		r.Ranks = append(r.Ranks, &pb.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: now - 20, NumRunningReqs: 17, NumWaitingReqs: 3,
			NumWaitingUncachedTokens: 4096, NumUsedTokens: 120_000, NumTotalTokens: 140_000,
			MaxTotalNumTokens: 400_000, MaxRunningRequests: 256, TokenUsage: 0.3, GenThroughput: 1234.5,
			CacheHitRate: 0.25, Utilization: 0.5,
		})
	}
	return r
}

func report(r *pb.LoadReport) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Report{Report: r}}
}

func registered(lease, renew int64) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Registered{Registered: &pb.RegisterResponse{LeaseTtlMs: lease, RenewAfterMs: renew}}}
}

func refusing(code, message string) *pb.WorkerFrame {
	return &pb.WorkerFrame{Payload: &pb.WorkerFrame_Error{Error: &pb.StreamError{Code: code, Message: message}}}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// seeds are frames that come close to what the decoder has to tell apart.
func seeds(t testing.TB) [][]byte {
	field := func(num protowire.Number, typ protowire.Type, value ...byte) []byte {
		return append(protowire.AppendTag(nil, num, typ), value...)
	}
	payload := func(num protowire.Number, b ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	full := encode(t, report(sample("process-1", 7, 3)))
	ack := encode(t, registered(15_000, 5_000))
	fault := encode(t, refusing("INVALID_ARGUMENT", "text"))
	return [][]byte{
		nil, full, full[:len(full)-1], full[1:], ack, ack[:len(ack)-1], fault, fault[:len(fault)-1],
		encode(t, registered(-1, math.MinInt64)), encode(t, registered(math.MaxInt64, 1)), encode(t, registered(0, 0)),
		encode(t, refusing("", "")),
		// Two payloads, of one kind and of two.
		append(bytes.Clone(ack), ack...), append(bytes.Clone(full), fault...), append(bytes.Clone(fault), 0x12, 0),
		// Empty payloads, other wire types, unknown fields before and after.
		payload(1), payload(2), payload(3), field(1, protowire.VarintType, 5), field(2, protowire.Fixed32Type, 1, 2, 3, 4),
		append(field(9, protowire.VarintType, 1), ack...), append(bytes.Clone(ack), payload(77, 1, 2)...),
		// Values twice, too long, of another wire type, in groups.
		payload(1, 8, 1, 8, 2), payload(1, 8, 0x80), payload(1, 10, 1, 5), payload(1, 0x50), payload(1, 0x0b, 0x0c), payload(1, 0x0b),
		payload(1, append([]byte{8}, bytes.Repeat([]byte{0xff}, 10)...)...),
		// Texts that are no UTF-8, empty, longer than their message.
		payload(3, 10, 1, 0xff), payload(3, 18, 1, 0xff), payload(3, 10, 0), payload(3, 10, 9, 'a'),
		// Tags: field 0, one above the largest number, wire types 6 and 7, groups.
		{0}, append(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1), {1<<3 | 6}, {1<<3 | 7},
		field(20, protowire.StartGroupType), append(field(20, protowire.StartGroupType), field(20, protowire.EndGroupType)...),
		field(20, protowire.EndGroupType), payload(2, 0xff), payload(2, 10, 1, 0xff),
	}
}

// payloads counts the payloads of bytes that protobuf-go takes.
func payloads(b []byte) (n int) {
	fields(b, func(tag uint64, b []byte) int {
		if tag == tagRegistered || tag == tagReport || tag == tagError {
			n++
		}
		return skip(tag, b)
	})
	return n
}

// differ holds a parsed frame against protobuf-go; empty where they agree.
func differ(t testing.TB, m *loadreport.Message, b []byte) string {
	var f Frame
	ok := f.Parse(b)
	var want pb.WorkerFrame
	err := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, &want)
	if payloads(b) > 1 {
		if ok {
			return "two payloads were taken"
		}
		return ""
	}
	if ok && f.Kind == Report {
		if m.Decode(f.Report); m.Fault != nil && m.Fault.Reason != ingest.ReasonMalformed {
			return "" // above a limit, which protobuf-go does not have
		}
		ok = m.Fault == nil
	}
	switch {
	case ok != (err == nil):
		return "one of them takes it: " + errorText(err)
	case !ok:
		return ""
	}
	return differPayload(t, &f, m, &want)
}

func errorText(err error) string {
	if err == nil {
		return "protobuf-go does"
	}
	return err.Error()
}

func differPayload(t testing.TB, f *Frame, m *loadreport.Message, want *pb.WorkerFrame) string {
	switch p := want.Payload.(type) {
	case nil:
		if f.Kind != Empty {
			return "it is not empty"
		}
	case *pb.WorkerFrame_Registered:
		if f.Kind != Registered || f.Ack != (Ack{p.Registered.LeaseTtlMs, p.Registered.RenewAfterMs}) {
			return "it is another answer"
		}
	case *pb.WorkerFrame_Error:
		if f.Kind != Error || string(f.Code) != p.Error.Code || string(f.Message) != p.Error.Message {
			return "it is another error"
		}
	case *pb.WorkerFrame_Report:
		again := loadreport.New(16)
		again.Decode(encode(t, p.Report))
		if f.Kind != Report || again.Fault != nil || !reflect.DeepEqual(clean(again), clean(m)) {
			return "it is another report"
		}
	}
	return ""
}

// clean returns the report in a form that equals itself: a NaN does not.
func clean(m *loadreport.Message) any {
	r := m.Report
	r.Ranks = nil
	var ranks []any
	for i := range m.Report.Ranks {
		rank := &m.Report.Ranks[i]
		list := []any{rank.Rank.DPRank, rank.TimeUnixMs, rank.Rank.Known()}
		for f := range store.NumFields {
			count, known := rank.Rank.Count(f)
			float, _ := rank.Rank.Float(f)
			list = append(list, count, known, math.Float64bits(float))
		}
		ranks = append(ranks, list)
	}
	return []any{r, ranks}
}

func TestParseAgreesWithProtobuf(t *testing.T) {
	m := loadreport.New(16)
	for i, b := range seeds(t) {
		if d := differ(t, m, b); d != "" {
			t.Errorf("seed %d, %x: %s", i, b[:min(len(b), 64)], d)
		}
	}
}

// TestMutatedFrames damages frames in 20,000 ways, always the same.
func TestMutatedFrames(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	corpus := seeds(t)
	m := loadreport.New(16)
	for i := range 20_000 {
		b := bytes.Clone(corpus[rnd.IntN(len(corpus))])
		for range 1 + rnd.IntN(3) {
			at := rnd.IntN(len(b) + 1)
			switch rnd.IntN(4) {
			case 0:
				b = b[:at]
			case 1:
				b = append(b[:at:at], append(bytes.Clone(corpus[rnd.IntN(len(corpus))]), b[at:]...)...)
			default:
				if at < len(b) {
					b[at] ^= 1 << rnd.IntN(8)
				}
			}
		}
		if d := differ(t, m, b[:min(len(b), 4096)]); d != "" {
			t.Fatalf("mutation %d, %x: %s", i, b, d)
		}
	}
}

// FuzzWorkerFrame holds the decoder against protobuf-go.
func FuzzWorkerFrame(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	m := loadreport.New(16)
	f.Fuzz(func(t *testing.T, b []byte) {
		if d := differ(t, m, b); d != "" {
			t.Error(d)
		}
	})
}

func TestParseAllocatesNothing(t *testing.T) {
	frames := [][]byte{encode(t, report(sample("process-1", 7, 8))), encode(t, registered(15_000, 5_000)), encode(t, refusing("A", "b"))}
	m := loadreport.New(16)
	var f Frame
	var reports int
	read := func() {
		for _, b := range frames {
			if f.Parse(b) && f.Kind == Report {
				m.Decode(f.Report)
				reports++
			}
		}
	}
	read()
	if got := testing.AllocsPerRun(100, read); got != 0 || reports == 0 {
		t.Errorf("%v allocations, %d reports", got, reports)
	}
}

// FuzzRenewal: whatever is granted, the time between two keep-alives is in its
// bounds.
func FuzzRenewal(f *testing.F) {
	f.Add(int64(15_000), int64(5_000), int64(time.Second))
	f.Add(int64(math.MinInt64), int64(math.MaxInt64), int64(0))
	f.Fuzz(func(t *testing.T, lease, renew, wanted int64) {
		every, sane := Ack{lease, renew}.Renewal(time.Duration(wanted))
		if every < MinRenew || every > MaxRenew {
			t.Errorf("renewed each %s", every)
		}
		if sane && lease >= 2*MinRenew.Milliseconds() && every > millis(lease)/2 {
			t.Errorf("a lease of %d ms is renewed each %s", lease, every)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	data := encode(b, report(sample("process-1", 7, 8)))
	m := loadreport.New(16)
	var f Frame
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		f.Parse(data)
		m.Decode(f.Report)
	}
}

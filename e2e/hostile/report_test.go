package hostile

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	routerpb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// speaker sends reports of one identity, each with what must become of it. A
// good report comes in time before the plane ends the stream for ten bad ones
// in a row.
type speaker struct {
	a        *arena
	id       string
	peer     *peer
	s        *stream
	sequence uint64
	row      int
}

func (a *arena) speaker(i int) *speaker {
	return &speaker{a: a, id: identity(i), peer: a.connect(ipOf(identity(i)))}
}

// say sends a report, or bytes, that must be refused for a reason; an empty
// one says that it must be accepted. A refusal that is not of the report alone
// ends the stream with a code.
func (p *speaker) say(message any, reason store.Reason) {
	p.s.send(message)
	if reason == "" {
		p.row = 0
		return
	}
	p.row++
	p.a.expect(reason, 1)
	if code, ends := terminal[reason]; ends {
		p.s.ends(code)
		p.s, p.row = nil, 0
	}
}

// terminal are the reasons that end a stream.
var terminal = map[store.Reason]codes.Code{
	ingest.ReasonMissingSource:   codes.InvalidArgument,
	ingest.ReasonMissingWorker:   codes.InvalidArgument,
	ingest.ReasonBadRole:         codes.InvalidArgument,
	ingest.ReasonIdentityTooLong: codes.InvalidArgument,
	ingest.ReasonMessageTooLarge: codes.ResourceExhausted,
	registry.ReasonClaimChanged:  codes.InvalidArgument,
	registry.ReasonBadAddress:    codes.InvalidArgument,
	registry.ReasonUnknownWorker: codes.InvalidArgument,
	registry.ReasonRoleMismatch:  codes.InvalidArgument,
	registry.ReasonPeerMismatch:  codes.PermissionDenied,
}

// ready sees to it that one more refusal does not end the stream.
func (p *speaker) ready() {
	if p.s == nil {
		p.s = p.peer.open()
	}
	if p.row == ingest.MaxRefusedInRow-1 {
		p.s.send(p.good())
		p.row = 0
	}
}

// next returns a good report, to be sent or to be spoilt.
func (p *speaker) next() *routerpb.LoadReport {
	p.ready()
	return p.good()
}

func (p *speaker) good() *routerpb.LoadReport {
	p.sequence++
	return report(p.id, "s", p.sequence, 1)
}

// done ends the stream, so that all was received.
func (p *speaker) done() {
	if p.s != nil {
		p.s.close()
		p.s, p.row = nil, 0
	}
}

// each plays an attack that several identities run at once, n cases each a
// round.
func each(t *testing.T, rounds, total int, act func(p *speaker, n int)) {
	const engines = 10
	n := max(total/rounds/engines, 1)
	attack{rounds: rounds, workers: identities(engines), begin: func(a *arena) func(int) {
		var all []*speaker
		for i := range engines {
			all = append(all, a.speaker(i))
		}
		return func(round int) {
			var running sync.WaitGroup
			for i, p := range all {
				running.Go(func() {
					for k := range n {
						act(p, (round*engines+i)*n+k)
					}
					p.done()
				})
			}
			running.Wait()
			pass(settle)
			a.readable()
		}
	}}.play(t)
}

// field is a field of a rank with its values at the ends of their ranges.
type field struct {
	name   string
	values int
	set    func(r *routerpb.RankLoad, i int) store.Reason
}

func counts(name string, at func(*routerpb.RankLoad) *int64) field {
	values := []int64{0, 1, 1 << 50, 1<<50 + 1, math.MaxInt64, -1, math.MinInt64}
	return field{name, len(values), func(r *routerpb.RankLoad, i int) store.Reason {
		if *at(r) = values[i]; i > 2 {
			return ingest.ReasonCountOutOfRange
		}
		return ""
	}}
}

func floats(name string, limit float64, at func(*routerpb.RankLoad) *float64) field {
	values := []float64{
		0, math.Copysign(0, -1), 1, limit, math.SmallestNonzeroFloat64,
		math.Nextafter(limit, 2*limit), -math.SmallestNonzeroFloat64, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64,
	}
	return field{name, len(values), func(r *routerpb.RankLoad, i int) store.Reason {
		if *at(r) = values[i]; i > 4 {
			return ingest.ReasonFloatOutOfRange
		}
		return ""
	}}
}

var fields = []field{
	{"snapshot_time", 5, func(r *routerpb.RankLoad, i int) store.Reason {
		r.SnapshotTimeUnixMs = []int64{0, 1, math.MaxInt64, -1, math.MinInt64}[i]
		if i > 2 {
			return ingest.ReasonBadTime
		}
		return ""
	}},
	counts("num_running_reqs", func(r *routerpb.RankLoad) *int64 { return &r.NumRunningReqs }),
	counts("num_waiting_reqs", func(r *routerpb.RankLoad) *int64 { return &r.NumWaitingReqs }),
	counts("num_waiting_uncached_tokens", func(r *routerpb.RankLoad) *int64 { return &r.NumWaitingUncachedTokens }),
	counts("num_used_tokens", func(r *routerpb.RankLoad) *int64 { return &r.NumUsedTokens }),
	counts("num_total_tokens", func(r *routerpb.RankLoad) *int64 { return &r.NumTotalTokens }),
	counts("max_total_num_tokens", func(r *routerpb.RankLoad) *int64 { return &r.MaxTotalNumTokens }),
	counts("max_running_requests", func(r *routerpb.RankLoad) *int64 { return &r.MaxRunningRequests }),
	floats("token_usage", 4, func(r *routerpb.RankLoad) *float64 { return &r.TokenUsage }),
	floats("gen_throughput", 1e12, func(r *routerpb.RankLoad) *float64 { return &r.GenThroughput }),
	floats("cache_hit_rate", 4, func(r *routerpb.RankLoad) *float64 { return &r.CacheHitRate }),
	floats("utilization", 4, func(r *routerpb.RankLoad) *float64 { return &r.Utilization }),
	floats("prefill_throughput", 1e12, func(r *routerpb.RankLoad) *float64 { return &r.PrefillThroughput }),
}

// boundary returns the rank of case n: two fields have values at the ends of
// their ranges, each pair of values in turn, and from the second time on two
// more have some. It comes with the reason for which it must be refused.
func boundary(n int) (*routerpb.RankLoad, store.Reason) {
	rng := rand.New(rand.NewPCG(uint64(n), 6))
	values := map[int]int{}
	a, b, va, vb := pair(n)
	if n >= pairs() {
		for range 2 {
			f := rng.IntN(len(fields))
			values[f] = rng.IntN(fields[f].values)
		}
	}
	values[a], values[b] = va, vb
	r := rank(0, 1)
	var why store.Reason
	for i, f := range fields {
		v, odd := values[i]
		if !odd {
			continue
		}
		if reason := f.set(r, v); why == "" {
			why = reason
		}
	}
	switch {
	case why != "":
	case r.NumUsedTokens > r.MaxTotalNumTokens:
		why = ingest.ReasonUsedOverCapacity
	case r.NumRunningReqs > r.MaxRunningRequests:
		why = ingest.ReasonRunningOverMaximum
	}
	return r, why
}

// pairs is the number of pairs of values of two fields.
func pairs() (n int) {
	for i := range fields {
		for j := range i {
			n += fields[i].values * fields[j].values
		}
	}
	return n
}

// pair returns the fields and the values of pair n, counted round.
func pair(n int) (a, b, va, vb int) {
	n %= pairs()
	for i := range fields {
		for j := range i {
			size := fields[i].values * fields[j].values
			if n < size {
				return i, j, n / fields[j].values, n % fields[j].values
			}
			n -= size
		}
	}
	return 0, 1, 0, 0
}

// TestBoundaryValues sends ranks at the ends of the ranges of their 13 fields.
func TestBoundaryValues(t *testing.T) {
	reasons := map[store.Reason]bool{}
	for n := range pairs() {
		_, why := boundary(n)
		reasons[why] = true
	}
	if len(reasons) != 6 {
		t.Fatalf("the pairs have the outcomes %v", reasons)
	}
	each(t, 10, amount(10_000, 100_000), func(p *speaker, n int) {
		r, why := boundary(n)
		m := p.next()
		m.Ranks = []*routerpb.RankLoad{r}
		p.say(m, why)
	})
}

// TestRankBombs sends as many ranks as fit, and far more, a hundred streams at
// once.
func TestRankBombs(t *testing.T) {
	head, err := proto.Marshal(report(identity(0), "s", 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	empty := []byte{0x3a, 0}
	sized := func(n int) []byte { return append(bytes.Clone(head), bytes.Repeat(empty, (n-len(head))/2)...) }
	bombs := []struct {
		data   []byte
		reason store.Reason
		end    codes.Code
	}{
		{sized(ingest.MaxMessageBytes), ingest.ReasonTooManyRanks, codes.OK},
		{append(bytes.Clone(head), bytes.Repeat(empty, ingest.DefaultMaxRanks-1)...), ingest.ReasonTooManyRanks, codes.OK},
		{append(bytes.Clone(head), bytes.Repeat(empty, ingest.DefaultMaxRanks-2)...), ingest.ReasonDuplicateRank, codes.OK},
		{sized(ingest.MaxMessageBytes + 2), ingest.ReasonMessageTooLarge, codes.OK},
		{sized(4 << 20), ingest.ReasonMessageTooLarge, codes.ResourceExhausted},
	}
	const rounds = 10
	n := amount(1000, 10_000) / rounds
	attack{rounds: rounds, workers: identities(1), begin: func(a *arena) func(int) {
		p := a.connect(ipOf(identity(0)))
		return func(int) {
			for range n / 100 {
				var running sync.WaitGroup
				for i := range 100 {
					running.Go(func() {
						b := bombs[i%len(bombs)]
						s := p.open()
						s.send(b.data)
						a.expect(b.reason, 1)
						if b.end == codes.OK {
							s.close()
						} else {
							s.ends(b.end)
						}
					})
				}
				running.Wait()
			}
			pass(settle)
			if _, live := a.entry(identity(0)); live != nil {
				a.Error("a bomb was accepted")
			}
		}
	}}.play(t)
}

// oddity changes a good report by one thing.
type oddity struct {
	name   string
	reason store.Reason
	change func(m *routerpb.LoadReport, text string)
}

// texts are strings that somebody might not expect.
var texts = []string{
	"", "a", "line\nline", "nul\x00nul", "\x1b[31mred", "\u202eright to left", "</script><script>alert(1)</script>",
	"\ufeff\ufffd\U0010ffff", `{"level":"error"}`, `"\"`, "%s%n%x", strings.Repeat("é", 30), "../../etc/passwd",
}

var oddities = []oddity{
	{"error text", "", func(m *routerpb.LoadReport, text string) { m.LastError = &text }},
	{"long error text", "", func(m *routerpb.LoadReport, text string) {
		m.LastError = proto.String(strings.Repeat("ü"+text, 600))
	}},
	{"huge error text", "", func(m *routerpb.LoadReport, _ string) { m.LastError = proto.String(strings.Repeat("x", 60<<10)) }},
	{"model", "", func(m *routerpb.LoadReport, text string) { m.Worker.Model = &text }},
	{"zone", "", func(m *routerpb.LoadReport, text string) { m.Worker.Zone = &text }},
	{"longest model", "", func(m *routerpb.LoadReport, _ string) { m.Worker.Model = proto.String(strings.Repeat("m", 256)) }},
	{"model too long", ingest.ReasonStringTooLong, func(m *routerpb.LoadReport, _ string) {
		m.Worker.Model = proto.String(strings.Repeat("m", 257))
	}},
	{"zone too long", ingest.ReasonStringTooLong, func(m *routerpb.LoadReport, _ string) {
		m.Worker.Zone = proto.String(strings.Repeat("z", 65))
	}},
	{"giant model", ingest.ReasonStringTooLong, func(m *routerpb.LoadReport, _ string) {
		m.Worker.Model = proto.String(strings.Repeat("m", 60<<10))
	}},
	{"no source", ingest.ReasonMissingSource, func(m *routerpb.LoadReport, _ string) { m.SourceInstanceId = "" }},
	{"source too long", ingest.ReasonIdentityTooLong, func(m *routerpb.LoadReport, _ string) { m.SourceInstanceId = strings.Repeat("s", 129) }},
	{"giant source", ingest.ReasonIdentityTooLong, func(m *routerpb.LoadReport, _ string) { m.SourceInstanceId = strings.Repeat("s", 60<<10) }},
	{"giant address", ingest.ReasonIdentityTooLong, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = strings.Repeat("a", 60<<10) }},
	{"no worker", ingest.ReasonMissingWorker, func(m *routerpb.LoadReport, _ string) { m.Worker = nil }},
	{"no role", ingest.ReasonBadRole, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerType = 0 }},
	{"unknown role", ingest.ReasonBadRole, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerType = math.MaxInt32 }},
	{"no status", ingest.ReasonBadStatus, func(m *routerpb.LoadReport, _ string) { m.Status = 0 }},
	{"unknown status", ingest.ReasonBadStatus, func(m *routerpb.LoadReport, _ string) { m.Status = math.MinInt32 }},
	{"no ranks", ingest.ReasonNoRanks, func(m *routerpb.LoadReport, _ string) { m.Ranks = nil }},
	{"a rank twice", ingest.ReasonDuplicateRank, func(m *routerpb.LoadReport, _ string) { m.Ranks[1].DpRank = 0 }},
	{"a negative rank", ingest.ReasonBadRank, func(m *routerpb.LoadReport, _ string) { m.Ranks[0].DpRank = -1 }},
	{"a rank too high", ingest.ReasonBadRank, func(m *routerpb.LoadReport, _ string) { m.Ranks[0].DpRank = ingest.HardMaxRanks }},
	{"the highest rank", "", func(m *routerpb.LoadReport, _ string) { m.Ranks[0].DpRank = ingest.HardMaxRanks - 1 }},
	{"a rank is missing", "", func(m *routerpb.LoadReport, _ string) { m.Ranks = m.Ranks[1:] }},
	{"unreachable with ranks", ingest.ReasonUnreachableWithRanks, func(m *routerpb.LoadReport, _ string) {
		m.Status = routerpb.ReportStatus_REPORT_STATUS_UNREACHABLE
	}},
	{"unreachable without a word", ingest.ReasonMissingError, func(m *routerpb.LoadReport, _ string) {
		m.Status, m.Ranks = routerpb.ReportStatus_REPORT_STATUS_UNREACHABLE, nil
	}},
}

// unbound are oddities of the address. A stream that is bound already ends for
// another reason, so each comes first in a stream.
var unbound = []oddity{
	{"address of nobody", registry.ReasonUnknownWorker, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = "http://nobody:1" }},
	{"no address", registry.ReasonBadAddress, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = "http://\x00:1" }},
	{"other scheme", registry.ReasonBadAddress, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = "file:///etc/passwd" }},
	{"port zero", registry.ReasonBadAddress, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = "http://127.0.0.1:0" }},
	{"bidi address", registry.ReasonBadAddress, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = "http://\u202e1.0.0.721:1" }},
	{"other role", registry.ReasonRoleMismatch, func(m *routerpb.LoadReport, _ string) {
		m.Worker.WorkerType = routerpb.WorkerType_WORKER_TYPE_DECODE
	}},
	{"healthy engine", registry.ReasonPeerMismatch, func(m *routerpb.LoadReport, _ string) { m.Worker.WorkerAddr = healthyID(3) }},
}

// TestOddReports sends strings of every length and kind, faults of the rank
// set, unknown fields and bytes that are no message.
func TestOddReports(t *testing.T) {
	each(t, 10, amount(5000, 50_000), func(p *speaker, n int) {
		rng := rand.New(rand.NewPCG(uint64(n), 7))
		text := texts[rng.IntN(len(texts))]
		switch rng.IntN(8) {
		case 0:
			p.done()
			o := unbound[rng.IntN(len(unbound))]
			m := p.next()
			o.change(m, text)
			p.say(m, o.reason)
		case 1:
			p.say(p.next(), "")
			m := p.next()
			m.SourceInstanceId = "other " + text
			p.say(m, registry.ReasonClaimChanged)
		case 2:
			p.say(unknownFields(p.next(), rng), "")
		case 3:
			p.say(garbage(p.next(), rng), ingest.ReasonMalformed)
		default:
			o := oddities[rng.IntN(len(oddities))]
			m := p.next()
			o.change(m, text)
			p.say(m, o.reason)
		}
	})
}

// unknownFields adds fields that are not known, in the report, the worker and
// a rank.
func unknownFields(m *routerpb.LoadReport, rng *rand.Rand) []byte {
	b := junk(nil, rng)
	m.ProtoReflect().SetUnknown(junk(nil, rng))
	m.Worker.ProtoReflect().SetUnknown(junk(nil, rng))
	m.Ranks[0].ProtoReflect().SetUnknown(junk(nil, rng))
	whole, err := proto.Marshal(m)
	if err != nil {
		return nil
	}
	return append(b, whole...)
}

func junk(b []byte, rng *rand.Rand) []byte {
	for range rng.IntN(20) {
		num := protowire.Number(100 + rng.IntN(1<<20))
		switch rng.IntN(4) {
		case 0:
			b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), rng.Uint64())
		case 1:
			b = protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), rng.Uint64())
		case 2:
			b = protowire.AppendFixed32(protowire.AppendTag(b, num, protowire.Fixed32Type), rng.Uint32())
		default:
			b = protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), make([]byte, rng.IntN(800)))
		}
	}
	return b
}

// garbage makes a message that cannot be read.
func garbage(m *routerpb.LoadReport, rng *rand.Rand) []byte {
	switch rng.IntN(5) {
	case 0: // text that is not UTF-8, at three places
		bad := []byte("\xff\xfe")
		worker := protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(1+2*rng.IntN(2)), protowire.BytesType), bad)
		return append(marshal(m), [][]byte{
			protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), bad),
			protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), bad),
			protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), worker),
		}[rng.IntN(3)]...)
	case 1: // a length beyond the end
		return append(marshal(m), 0x3a, 0xff, 0xff, 0x7f)
	case 2: // a varint without an end
		return append(marshal(m), 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	case 3: // field number 0
		return append(marshal(m), 0x00)
	default: // cut short
		b := marshal(m)
		return b[:len(b)-1]
	}
}

func marshal(m *routerpb.LoadReport) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		return []byte(fmt.Sprint(err))
	}
	return b
}

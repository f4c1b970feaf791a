package loadreport

import (
	"math"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
)

// Tags of the fields, with the only wire type that each is read in. A field
// of another wire type is unknown and skipped.
const (
	tagSource    = 1<<3 | uint64(protowire.BytesType)
	tagSequence  = 2<<3 | uint64(protowire.VarintType)
	tagTime      = 3<<3 | uint64(protowire.VarintType)
	tagWorker    = 4<<3 | uint64(protowire.BytesType)
	tagStatus    = 5<<3 | uint64(protowire.VarintType)
	tagLastError = 6<<3 | uint64(protowire.BytesType)
	tagRanks     = 7<<3 | uint64(protowire.BytesType)

	tagWorkerAddr  = 1<<3 | uint64(protowire.BytesType)
	tagWorkerType  = 2<<3 | uint64(protowire.VarintType)
	tagWorkerModel = 3<<3 | uint64(protowire.BytesType)
	tagWorkerZone  = 4<<3 | uint64(protowire.BytesType)

	tagDPRank     = 1<<3 | uint64(protowire.VarintType)
	tagSampleTime = 2<<3 | uint64(protowire.VarintType)
	// The counts 3 to 9 and the doubles 10 to 13 are in the order of
	// store.Field.
	tagFirstCount  = 3<<3 | uint64(protowire.VarintType)
	tagLastCount   = 9<<3 | uint64(protowire.VarintType)
	tagFirstDouble = 10<<3 | uint64(protowire.Fixed64Type)
	tagLastDouble  = 13<<3 | uint64(protowire.Fixed64Type)
	tagPrefill     = 14<<3 | uint64(protowire.Fixed64Type)
)

// What a decoding function returns in place of a length. Every other negative
// number, such as those of protowire, is malformed too.
const (
	malformed = -1
	overRanks = -100
)

// Message is a LoadReport that decodes itself, again and again into the same
// memory. It is for one goroutine.
type Message struct {
	// Report is what the last bytes said; valid where Fault is nil. Its ranks
	// are overwritten by the next bytes, its strings are not. When it was
	// received is for the caller to set.
	Report ingest.Report
	// Fault says why the last bytes could not be decoded: they are malformed
	// (ingest.ReasonMalformed), too many (ingest.ReasonMessageTooLarge) or have
	// too many ranks (ingest.ReasonTooManyRanks); nil where they could.
	Fault *registry.Refusal
	// Size is the number of the last bytes.
	Size int

	maxRanks int
	// blank is a rank of an empty message: fields 3 to 13 are known zeros.
	blank ingest.RankReport
}

// texts are the strings of a frame while it is decoded. They alias it.
type texts struct{ source, addr, model, zone, lastError []byte }

// New returns a message that takes at most maxRanks ranks. They are counted
// before memory is taken for them.
func New(maxRanks int) *Message {
	m := &Message{maxRanks: maxRanks}
	m.blank.TimeUnixMs = ingest.Known(0)
	for f := range store.PrefillThroughput {
		switch {
		case !store.Fields[f].Core:
		case store.Fields[f].Float:
			m.blank.Rank.SetFloat(f, 0)
		default:
			m.blank.Rank.SetCount(f, 0)
		}
	}
	return m
}

// DecodeWire is Decode for codecs that hand bytes to their messages. It
// returns no error, which would end the stream.
func (m *Message) DecodeWire(b []byte) error {
	m.Decode(b)
	return nil
}

// Decode decodes the bytes of one LoadReport, which it does not keep. It takes
// what protobuf-go takes, within the limits. Bytes that cannot be decoded leave
// a Fault.
func (m *Message) Decode(b []byte) {
	m.Size = len(b)
	m.Fault = nil
	if len(b) > ingest.MaxMessageBytes {
		m.Fault = ingest.Refuse(ingest.ReasonMessageTooLarge, "the message is above 64 KiB")
		return
	}
	switch n := m.decode(b); {
	case n == overRanks:
		m.Fault = ingest.Refuse(ingest.ReasonTooManyRanks, "the report has more ranks than allowed")
	case n < 0:
		m.Fault = ingest.Refuse(ingest.ReasonMalformed, "the bytes are no LoadReport")
	}
}

// decode returns 0, or why it failed.
func (m *Message) decode(b []byte) int {
	r := &m.Report
	r.Sequence, r.Status, r.Role, r.Claimed = 0, 0, 0, false
	r.TimeUnixMs = ingest.Known(0)
	r.Ranks = r.Ranks[:0]
	var t texts
	for len(b) > 0 {
		tag, n := consumeTag(b)
		if n < 0 {
			return malformed
		}
		b = b[n:]
		if n = m.field(tag, b, &t); n < 0 {
			return n
		}
		b = b[n:]
	}
	keep(&r.Source, t.source)
	keep(&r.Addr, t.addr)
	keep(&r.Model, t.model)
	keep(&r.Zone, t.zone)
	keep(&r.LastError, t.lastError)
	return 0
}

// keep sets a string, which allocates only where it changed.
func keep(s *string, b []byte) {
	if *s != string(b) {
		*s = string(b)
	}
}

// field decodes the value of one field and returns its length.
func (m *Message) field(tag uint64, b []byte, t *texts) int {
	r := &m.Report
	switch tag {
	case tagSource:
		return text(b, &t.source)
	case tagSequence:
		return varint(b, &r.Sequence)
	case tagTime:
		return signed(b, &r.TimeUnixMs.Value)
	case tagWorker:
		return m.worker(b, t)
	case tagStatus:
		return signed(b, &r.Status)
	case tagLastError:
		return text(b, &t.lastError)
	case tagRanks:
		return m.rank(b)
	}
	return skip(tag, b)
}

// worker merges a Worker into those before it.
func (m *Message) worker(b []byte, t *texts) int {
	b, total := protowire.ConsumeBytes(b)
	if total < 0 {
		return malformed
	}
	m.Report.Claimed = true
	for len(b) > 0 {
		tag, n := consumeTag(b)
		if n < 0 {
			return malformed
		}
		b = b[n:]
		if n = workerField(&m.Report, tag, b, t); n < 0 {
			return malformed
		}
		b = b[n:]
	}
	return total
}

func workerField(r *ingest.Report, tag uint64, b []byte, t *texts) int {
	switch tag {
	case tagWorkerAddr:
		return text(b, &t.addr)
	case tagWorkerType:
		return signed(b, &r.Role)
	case tagWorkerModel:
		return text(b, &t.model)
	case tagWorkerZone:
		return text(b, &t.zone)
	}
	return skip(tag, b)
}

// rank appends a RankLoad. It takes no memory for one rank too many.
func (m *Message) rank(b []byte) int {
	b, total := protowire.ConsumeBytes(b)
	if total < 0 {
		return malformed
	}
	if len(m.Report.Ranks) >= m.maxRanks {
		return overRanks
	}
	m.Report.Ranks = append(m.Report.Ranks, m.blank)
	r := &m.Report.Ranks[len(m.Report.Ranks)-1]
	var prefill float64
	for len(b) > 0 {
		tag, n := consumeTag(b)
		if n < 0 {
			return malformed
		}
		b = b[n:]
		if n = rankField(r, tag, b, &prefill); n < 0 {
			return malformed
		}
		b = b[n:]
	}
	if prefill != 0 {
		r.Rank.SetFloat(store.PrefillThroughput, prefill)
	}
	return total
}

func rankField(r *ingest.RankReport, tag uint64, b []byte, prefill *float64) int {
	wire := protowire.Type(tag & 7)
	switch {
	case wire == protowire.VarintType && tag >= tagFirstCount && tag <= tagLastCount:
		v, n := protowire.ConsumeVarint(b)
		r.Rank.SetCount(store.Field((tag-tagFirstCount)>>3), int64(v))
		return n
	case wire == protowire.Fixed64Type && tag >= tagFirstDouble && tag <= tagLastDouble:
		v, n := protowire.ConsumeFixed64(b)
		r.Rank.SetFloat(store.TokenUsage+store.Field((tag-tagFirstDouble)>>3), math.Float64frombits(v))
		return n
	case tag == tagDPRank:
		return signed(b, &r.Rank.DPRank)
	case tag == tagSampleTime:
		return signed(b, &r.TimeUnixMs.Value)
	case tag == tagPrefill:
		v, n := protowire.ConsumeFixed64(b)
		*prefill = math.Float64frombits(v)
		return n
	}
	return skip(tag, b)
}

// consumeTag reads a tag with a valid field number.
func consumeTag(b []byte) (uint64, int) {
	tag, n := protowire.ConsumeVarint(b)
	if num := tag >> 3; num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return 0, malformed
	}
	return tag, n
}

// skip passes over a field that is not known.
func skip(tag uint64, b []byte) int {
	return protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b)
}

func varint(b []byte, dst *uint64) int {
	v, n := protowire.ConsumeVarint(b)
	*dst = v
	return n
}

// signed reads an int32, an int64 or an enum. Too many bits are cut off.
func signed[T int32 | int64](b []byte, dst *T) int {
	v, n := protowire.ConsumeVarint(b)
	*dst = T(v)
	return n
}

func text(b []byte, dst *[]byte) int {
	v, n := protowire.ConsumeBytes(b)
	if n < 0 || !utf8.Valid(v) {
		return malformed
	}
	*dst = v
	return n
}

// Package frame decodes the frames of native reporters, without reflection and
// without allocations in steady state. It agrees with protobuf-go on every input
// within its bounds, and takes no memory for one rank too many.
package frame

import (
	"math"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
)

// Tags of the fields of report.proto, with the only wire type that each is read
// in. A field of another wire type is unknown and skipped.
const (
	tagLease  = 1<<3 | uint64(protowire.BytesType)
	tagReport = 2<<3 | uint64(protowire.BytesType)

	tagSource    = 1<<3 | uint64(protowire.BytesType)
	tagSequence  = 2<<3 | uint64(protowire.VarintType)
	tagTime      = 3<<3 | uint64(protowire.VarintType)
	tagStatus    = 4<<3 | uint64(protowire.VarintType)
	tagLastError = 5<<3 | uint64(protowire.BytesType)
	tagRanks     = 6<<3 | uint64(protowire.BytesType)

	tagLoad       = 1<<3 | uint64(protowire.BytesType)
	tagSampleTime = 2<<3 | uint64(protowire.VarintType)
	tagUncached   = 3<<3 | uint64(protowire.VarintType)
	tagBusy       = 4<<3 | uint64(protowire.VarintType)
	tagGenerated  = 5<<3 | uint64(protowire.VarintType)

	tagDPRank = 1<<3 | uint64(protowire.VarintType)
)

// What a decoding function returns in place of a length. Every other negative
// number, such as those of protowire, is malformed too.
const (
	malformed = -1
	overRanks = -100
)

// noRank is the number of a rank whose load is missing.
const noRank = -1

// byNumber has the fields of a RankLoad by their number on the wire; NumFields
// where there is none.
var byNumber = fieldsByNumber()

func fieldsByNumber() (table [32]store.Field) {
	for i := range table {
		table[i] = store.NumFields
	}
	for f, info := range store.Fields {
		table[info.Number] = store.Field(f)
	}
	return table
}

// Frame is a loadplane.v1.ReportRequest that decodes itself, again and again
// into the same memory. It is for one goroutine.
type Frame struct {
	// Lease is the lease_id of the last frame; empty for none.
	Lease string
	// Reported says that the frame has a report, which Report is where Fault is
	// nil. A number that the frame does not have is unknown.
	Reported bool
	Report   ingest.Report
	// Fault says why the last frame could not be decoded; nil where it could.
	Fault *registry.Refusal
	// Size is the length of the last frame in bytes.
	Size int

	maxRanks int
}

// New returns a frame with a bound on the ranks of a report.
func New(maxRanks int) *Frame { return &Frame{maxRanks: maxRanks} }

// texts are the strings of a frame while it is decoded. They alias it.
type texts struct{ lease, source, lastError []byte }

// DecodeWire decodes a frame. It returns no error, which would end the stream:
// a frame that cannot be decoded leaves a fault.
func (f *Frame) DecodeWire(b []byte) error {
	f.Size = len(b)
	f.Fault = nil
	if len(b) > ingest.MaxMessageBytes {
		f.Lease, f.Reported, f.Report.Sequence = "", false, 0
		f.Fault = ingest.Refuse(ingest.ReasonMessageTooLarge, "the message is above 64 KiB")
		return nil
	}
	switch n := f.decode(b); {
	case n == overRanks:
		f.Fault = ingest.Refuse(ingest.ReasonTooManyRanks, "the report has more ranks than allowed")
	case n < 0:
		f.Fault = ingest.Refuse(ingest.ReasonMalformed, "the bytes are no ReportRequest")
	}
	return nil
}

// decode returns 0, or why it failed.
func (f *Frame) decode(b []byte) int {
	r := &f.Report
	f.Lease, f.Reported = "", false
	r.Sequence, r.Status, r.TimeUnixMs = 0, 0, ingest.Int{}
	r.Ranks = r.Ranks[:0]
	var t texts
	n := each(b, func(tag uint64, b []byte) int {
		switch tag {
		case tagLease:
			return text(b, &t.lease)
		case tagReport:
			f.Reported = true
			return within(b, func(tag uint64, b []byte) int { return f.reportField(tag, b, &t) })
		}
		return skip(tag, b)
	})
	if n < 0 {
		return n
	}
	f.Lease = string(t.lease)
	keep(&r.Source, t.source)
	keep(&r.LastError, t.lastError)
	return 0
}

// keep sets a string, which allocates only where it changed.
func keep(s *string, b []byte) {
	if *s != string(b) {
		*s = string(b)
	}
}

// reportField decodes a field of an EngineReport and returns its length.
func (f *Frame) reportField(tag uint64, b []byte, t *texts) int {
	r := &f.Report
	switch tag {
	case tagSource:
		return text(b, &t.source)
	case tagSequence:
		v, n := protowire.ConsumeVarint(b)
		r.Sequence = v
		return n
	case tagTime:
		return known(b, &r.TimeUnixMs)
	case tagStatus:
		v, n := protowire.ConsumeVarint(b)
		r.Status = int32(v)
		return n
	case tagLastError:
		return text(b, &t.lastError)
	case tagRanks:
		return f.rank(b)
	}
	return skip(tag, b)
}

// rank appends a RankSample.
func (f *Frame) rank(b []byte) int {
	if len(f.Report.Ranks) >= f.maxRanks {
		return overRanks
	}
	f.Report.Ranks = append(f.Report.Ranks, ingest.RankReport{Rank: store.Rank{DPRank: noRank}})
	r := &f.Report.Ranks[len(f.Report.Ranks)-1]
	loaded := false
	return within(b, func(tag uint64, b []byte) int {
		switch tag {
		case tagLoad:
			if !loaded {
				r.Rank.DPRank, loaded = 0, true
			}
			return within(b, func(tag uint64, b []byte) int { return loadField(&r.Rank, tag, b) })
		case tagSampleTime:
			return known(b, &r.TimeUnixMs)
		case tagUncached:
			return known(b, &r.PrefillUncachedTokens)
		case tagBusy:
			return known(b, &r.PrefillBusyUs)
		case tagGenerated:
			return known(b, &r.GeneratedTokens)
		}
		return skip(tag, b)
	})
}

// loadField decodes a field of a RankLoad. What is not there stays unknown.
func loadField(r *store.Rank, tag uint64, b []byte) int {
	if tag == tagDPRank {
		v, n := protowire.ConsumeVarint(b)
		r.DPRank = int32(v)
		return n
	}
	number, wire := tag>>3, protowire.Type(tag&7)
	if number >= uint64(len(byNumber)) || byNumber[number] == store.NumFields {
		return skip(tag, b)
	}
	field := byNumber[number]
	switch float := store.Fields[field].Float; {
	case float && wire == protowire.Fixed64Type:
		v, n := protowire.ConsumeFixed64(b)
		r.SetFloat(field, math.Float64frombits(v))
		return n
	case !float && wire == protowire.VarintType:
		v, n := protowire.ConsumeVarint(b)
		r.SetCount(field, int64(v))
		return n
	}
	return skip(tag, b)
}

// each decodes the fields of a message; field returns the length of a value.
// It returns 0, or why it failed.
func each(b []byte, field func(tag uint64, b []byte) int) int {
	for len(b) > 0 {
		tag, n := protowire.ConsumeVarint(b)
		if num := tag >> 3; n < 0 || num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
			return malformed
		}
		b = b[n:]
		if n = field(tag, b); n < 0 {
			return n
		}
		b = b[n:]
	}
	return 0
}

// within decodes a message inside of another and returns its length.
func within(b []byte, field func(tag uint64, b []byte) int) int {
	inner, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return malformed
	}
	if fault := each(inner, field); fault < 0 {
		return fault
	}
	return n
}

// skip passes over a field that is not known.
func skip(tag uint64, b []byte) int {
	return protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b)
}

// known reads an optional int64.
func known(b []byte, dst *ingest.Int) int {
	v, n := protowire.ConsumeVarint(b)
	if n > 0 {
		*dst = ingest.Known(int64(v))
	}
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

package frame

import (
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kind is what a WorkerFrame carries.
type Kind uint8

// The kinds.
const (
	// Empty: no payload that is known.
	Empty Kind = iota
	// Registered: the answer to the registration.
	Registered
	// Report: a LoadReport.
	Report
	// Error: why the session ends.
	Error
)

// Tags of the fields, with the only wire type that each is read in. A field of
// another wire type is unknown and skipped.
const (
	tagRegistered = 1<<3 | uint64(protowire.BytesType)
	tagReport     = 2<<3 | uint64(protowire.BytesType)
	tagError      = 3<<3 | uint64(protowire.BytesType)

	tagLease = 1<<3 | uint64(protowire.VarintType)
	tagRenew = 2<<3 | uint64(protowire.VarintType)

	tagCode    = 1<<3 | uint64(protowire.BytesType)
	tagMessage = 2<<3 | uint64(protowire.BytesType)
)

// malformed stands in place of a length.
const malformed = -1

// Frame is a WorkerFrame. Its slices alias the bytes it was parsed from. It is
// for one goroutine.
type Frame struct {
	// Kind says which of the other fields are set.
	Kind Kind
	// Report has the bytes of a LoadReport, which are not looked into.
	Report []byte
	// Ack is the answer to the registration.
	Ack Ack
	// Code and Message are those of an error, in valid UTF-8, of any length.
	Code, Message []byte
}

// Ack is a RegisterResponse, in milliseconds as they were sent: of any sign and
// size. It is a plain value.
type Ack struct {
	// Lease is the granted one, Renew when to renew it.
	Lease, Renew int64
}

// Parse reads a frame and says whether it is one. A frame with more than one
// payload is none, as no encoder writes it.
func (f *Frame) Parse(b []byte) bool {
	*f = Frame{}
	return fields(b, f.field)
}

// fields calls field for the value of each field, which returns its length.
func fields(b []byte, field func(tag uint64, b []byte) int) bool {
	for len(b) > 0 {
		tag, n := protowire.ConsumeVarint(b)
		if num := tag >> 3; n < 0 || num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
			return false
		}
		b = b[n:]
		if n = field(tag, b); n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

func (f *Frame) field(tag uint64, b []byte) int {
	switch tag {
	case tagRegistered, tagReport, tagError:
	default:
		return skip(tag, b)
	}
	payload, n := protowire.ConsumeBytes(b)
	if n < 0 || f.Kind != Empty || !f.payload(tag, payload) {
		return malformed
	}
	return n
}

func (f *Frame) payload(tag uint64, b []byte) bool {
	switch tag {
	case tagReport:
		f.Kind, f.Report = Report, b
		return true
	case tagRegistered:
		f.Kind = Registered
		return fields(b, f.Ack.field)
	}
	f.Kind = Error
	return fields(b, f.fault)
}

func (a *Ack) field(tag uint64, b []byte) int {
	switch tag {
	case tagLease:
		return integer(b, &a.Lease)
	case tagRenew:
		return integer(b, &a.Renew)
	}
	return skip(tag, b)
}

// fault reads a field of a StreamError.
func (f *Frame) fault(tag uint64, b []byte) int {
	switch tag {
	case tagCode:
		return text(b, &f.Code)
	case tagMessage:
		return text(b, &f.Message)
	}
	return skip(tag, b)
}

// skip passes over a field that is not known.
func skip(tag uint64, b []byte) int {
	return protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b)
}

func integer(b []byte, dst *int64) int {
	v, n := protowire.ConsumeVarint(b)
	*dst = int64(v)
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

// Bounds of the time between two keep-alives.
const (
	MinRenew = time.Second
	MaxRenew = time.Minute
)

// Renewal returns the time between two keep-alives, from MinRenew to MaxRenew
// and up to half of a lease of two seconds or more. sane says whether the grant
// makes sense: a lease, and a renewal within it. Where it does not, a third of
// the lease counts, of the wanted one where none was granted.
func (a Ack) Renewal(wanted time.Duration) (every time.Duration, sane bool) {
	sane = a.Lease > 0 && a.Renew > 0 && a.Renew < a.Lease
	lease, renew := millis(a.Lease), millis(a.Renew)
	if a.Lease <= 0 {
		lease = wanted
	}
	if !sane {
		renew = lease / 3
	}
	return max(MinRenew, min(renew, lease/2, MaxRenew)), sane
}

// millis returns a duration without overflow.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

package snapshot

import (
	"maps"
	"math"
	"slices"

	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of loadplane.v1 are appended here field by field, so that equal
// content always gives equal bytes and a worker is encoded once for all
// readers. The numbers are those of proto/loadplane/v1; a test decodes the
// bytes with the generated code and compares.

type encoder []byte

func (b *encoder) uint(num protowire.Number, v uint64) {
	if v != 0 {
		b.known(num, v)
	}
}

// known appends a varint that is present although it may be 0.
func (b *encoder) known(num protowire.Number, v uint64) {
	*b = protowire.AppendTag(*b, num, protowire.VarintType)
	*b = protowire.AppendVarint(*b, v)
}

func (b *encoder) fixed(num protowire.Number, v uint64) {
	*b = protowire.AppendTag(*b, num, protowire.Fixed64Type)
	*b = protowire.AppendFixed64(*b, v)
}

func (b *encoder) float(num protowire.Number, v float64) { b.fixed(num, math.Float64bits(v)) }

// number appends a known number of a rank or an aggregate, which is a float or
// a count.
func (b *encoder) number(num uint8, isFloat bool, count int64, float float64) {
	if isFloat {
		b.float(protowire.Number(num), float)
	} else {
		b.known(protowire.Number(num), uint64(count))
	}
}

func (b *encoder) text(num protowire.Number, v string) {
	if v != "" {
		b.element(num, v)
	}
}

// element appends a string that is present although it may be empty.
func (b *encoder) element(num protowire.Number, v string) {
	*b = protowire.AppendTag(*b, num, protowire.BytesType)
	*b = protowire.AppendString(*b, v)
}

func (b *encoder) message(num protowire.Number, m []byte) {
	*b = protowire.AppendTag(*b, num, protowire.BytesType)
	*b = protowire.AppendBytes(*b, m)
}

func (b *encoder) bool(num protowire.Number, v bool) {
	if v {
		b.known(num, 1)
	}
}

// encodeContent returns a Worker message without row and content_hash: the
// bytes that the content hash is over.
func encodeContent(e *store.Entry) []byte {
	w := e.Worker
	b := make(encoder, 0, 256+160*len(e.Ranks))
	b.text(2, w.ID)
	b.text(3, w.URL)
	b.uint(4, uint64(w.Role))
	for _, m := range w.Models {
		b.element(5, m)
	}
	b.text(6, w.Zone)
	for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
		var label encoder
		label.element(1, k)
		label.element(2, w.Labels[k])
		b.message(7, label)
	}
	b.bool(8, w.Draining)
	b.uint(9, uint64(w.Dialect))
	if e.Load != nil {
		b.text(10, e.Load.Source)
		b.uint(11, uint64(e.Load.Status))
	}
	b.uint(12, uint64(e.Freshness))
	b.text(13, string(e.Reason))
	if e.Aggregate != nil {
		b.message(15, encodeAggregate(e.Aggregate))
	}
	for i := range e.Ranks {
		b.message(fieldRanks, encodeRank(&e.Ranks[i]))
	}
	for _, f := range e.Flags.Words() {
		b.element(17, f)
	}
	b.bool(18, e.Partial)
	b.uint(19, uint64(w.Interval.Milliseconds()))
	return b
}

// encodeWorker completes a Worker message.
func encodeWorker(row uint32, content []byte, hash uint64) []byte {
	b := make(encoder, 0, len(content)+16)
	b.uint(1, uint64(row))
	b = append(b, content...)
	b.fixed(14, hash)
	return b
}

// fieldRanks is the field ranks of a Worker message.
const fieldRanks protowire.Number = 16

// withoutRanks returns a Worker message without its ranks.
func withoutRanks(worker []byte) []byte {
	var kept encoder
	for b := worker; len(b) > 0; {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return worker // never of what encodeWorker returns
		}
		if num != fieldRanks {
			kept = append(kept, b[:n]...)
		}
		b = b[n:]
	}
	return kept
}

func encodeRank(r *store.Rank) []byte {
	var b encoder
	b.uint(1, uint64(r.DPRank))
	for i, info := range store.Fields {
		if f := store.Field(i); r.Has(f) {
			count, _ := r.Count(f)
			float, _ := r.Float(f)
			b.number(info.Number, info.Float, count, float)
		}
	}
	return b
}

func encodeAggregate(a *store.Aggregate) []byte {
	var b encoder
	b.known(1, uint64(a.Ranks))
	for i, info := range store.Sums {
		if s := store.Sum(i); a.Has(s) {
			count, _ := a.Count(s)
			float, _ := a.Float(s)
			b.number(info.Number, info.Float, count, float)
		}
	}
	if a.HottestBy != "" {
		b.known(18, uint64(a.HottestRank))
		b.element(19, a.HottestBy)
	}
	return b
}

func encodeReceipt(l *store.Live) []byte {
	var b encoder
	b.uint(1, uint64(l.Row))
	b.uint(2, l.Sequence)
	b.uint(3, l.Received.Milliseconds())
	b.uint(4, l.ValidUntil.Milliseconds())
	if l.OldestSampleUnixMs >= 0 {
		b.known(5, uint64(l.OldestSampleUnixMs))
	}
	if l.ReportUnixMs >= 0 {
		b.known(6, uint64(l.ReportUnixMs))
	}
	b.text(7, l.LastError)
	return b
}

func encodePool(p *Pool) []byte {
	var key encoder
	key.text(1, p.Key.Model)
	key.uint(2, uint64(p.Key.Role))
	var b encoder
	b.message(1, key)
	for i, n := range []int{p.Workers, p.Fresh, p.Stale, p.Missing, p.Unreachable} {
		b.known(protowire.Number(2+i), uint64(n))
	}
	if c, ok := p.Coverage(); ok {
		b.float(7, c)
	}
	if p.Aggregate != nil {
		b.message(8, encodeAggregate(p.Aggregate))
	}
	if p.HottestWorker != "" {
		b.element(9, p.HottestWorker)
		b.known(10, uint64(p.HottestRank))
	}
	if p.TokenUsageImbalance >= 0 {
		b.float(11, p.TokenUsageImbalance)
	}
	if p.RequestImbalance >= 0 {
		b.float(12, p.RequestImbalance)
	}
	b.known(13, uint64(p.Expected))
	b.known(14, uint64(p.Heard))
	return b
}

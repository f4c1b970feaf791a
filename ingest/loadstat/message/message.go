// Package message reads the load that a rank of an engine publishes: a topic, a
// sequence and a msgpack array.
package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// tag is the first element of the array.
const tag = "LoadStat"

// The elements of the array, by place. Those up to atCapacity have to be there;
// later ones were appended by newer engines.
const (
	atRunning = 1 + iota
	atWaiting
	atUsed
	atCapacity
	atRank
	atWaitingTokens
	atTotal
	atMaxRunning
	atPrefillTokens
	atPrefillBusy

	knownElements
	minElements = atCapacity + 1
)

// counts are the elements that are counts of a rank.
var counts = [knownElements]struct {
	field store.Field
	is    bool
}{
	atRunning:       {store.NumRunningReqs, true},
	atWaiting:       {store.NumWaitingReqs, true},
	atUsed:          {store.NumUsedTokens, true},
	atCapacity:      {store.MaxTotalNumTokens, true},
	atWaitingTokens: {store.NumWaitingUncachedTokens, true},
	atTotal:         {store.NumTotalTokens, true},
	atMaxRunning:    {store.MaxRunningRequests, true},
}

// Stat is what one rank published. Its methods are for one goroutine.
type Stat struct {
	// Sequence counts the messages of the rank's process from 0.
	Sequence int64
	// Load has the rank of the socket.
	Load ingest.RankReport
	// Claims is the rank that the message names.
	Claims ingest.Int
	// Negative counts the numbers that were below 0, which stand for unknown.
	Negative int
}

// Decoder decodes the messages of one rank. It is for one goroutine.
type Decoder struct {
	topic string
	rank  int32
	in    bytes.Reader
	dec   *msgpack.Decoder
}

// NewDecoder returns a decoder for the messages with a topic on the socket of a
// rank.
func NewDecoder(topic string, rank int32) *Decoder {
	d := &Decoder{topic: topic, rank: rank}
	d.dec = msgpack.NewDecoder(&d.in)
	return d
}

// Decode reads and checks a message: topic, eight bytes of sequence, and an
// array whose elements are "LoadStat", num_running_reqs, num_waiting_reqs,
// num_used_tokens, max_total_num_tokens (0 for unknown) and, in newer engines,
// attn_dp_rank or nil, num_waiting_uncached_tokens, num_total_tokens,
// max_running_requests, total_prefill_uncached_tokens and
// total_prefill_busy_us, as SGLang's load publisher sends them. Nil is unknown.
// It allocates nothing by what the array announces, and reads no element that
// it does not know. The refusal drops the message only.
func (d *Decoder) Decode(frames [][]byte) (*Stat, *registry.Refusal) {
	switch {
	case len(frames) != 3:
		return nil, malformed("a message has %d frames, 3 are expected", len(frames))
	case string(frames[0]) != d.topic:
		return nil, malformed("the topic is %.64q, not %.64q", frames[0], d.topic)
	case len(frames[1]) != 8:
		return nil, malformed("the sequence has %d bytes, 8 are expected", len(frames[1]))
	}
	m := &Stat{Sequence: int64(binary.BigEndian.Uint64(frames[1])), Load: ingest.RankReport{Rank: store.Rank{DPRank: d.rank}}}
	if m.Sequence < 0 {
		return nil, malformed("the sequence %d is negative", m.Sequence)
	}
	d.in.Reset(frames[2])
	n, err := d.begin()
	if err != nil {
		return nil, malformed("the load: %v", err)
	}
	for place := 1; place < min(n, knownElements); place++ {
		v, err := d.number()
		if err != nil {
			return nil, malformed("element %d of the load: %v", place, err)
		}
		m.set(place, v)
	}
	m.derive()
	if refusal := m.check(); refusal != nil {
		return nil, refusal
	}
	return m, nil
}

func malformed(format string, args ...any) *registry.Refusal {
	return ingest.Refuse(ingest.ReasonMalformed, fmt.Sprintf(format, args...))
}

// begin reads the head of the array and its tag. It returns the number of
// elements that are announced.
func (d *Decoder) begin() (int, error) {
	n, err := d.dec.DecodeArrayLen()
	if err != nil {
		return 0, err
	}
	if n < minElements {
		return 0, fmt.Errorf("the array has %d elements, at least %d are expected", max(n, 0), minElements)
	}
	size, err := d.dec.DecodeBytesLen()
	if err != nil {
		return 0, err
	}
	var name [len(tag)]byte
	if size != len(name) {
		return 0, errors.New("the tag is not " + tag)
	}
	if err := d.dec.ReadFull(name[:]); err != nil {
		return 0, err
	}
	if string(name[:]) != tag {
		return 0, errors.New("the tag is not " + tag)
	}
	return n, nil
}

// number reads a number without a fraction. It is unknown where there is nil.
func (d *Decoder) number() (ingest.Int, error) {
	c, err := d.dec.PeekCode()
	if err != nil {
		return ingest.Int{}, err
	}
	switch c {
	case msgpcode.Nil:
		return ingest.Int{}, d.dec.DecodeNil()
	case msgpcode.Uint64:
		v, err := d.dec.DecodeUint64()
		if v > math.MaxInt64 {
			return ingest.Int{}, fmt.Errorf("%d is too large", v)
		}
		return ingest.Known(int64(v)), err
	case msgpcode.Float, msgpcode.Double:
		v, err := d.dec.DecodeFloat64()
		// Written so that NaN fails.
		if !(v == math.Trunc(v) && math.Abs(v) < 1<<63) {
			return ingest.Int{}, fmt.Errorf("%g is not a whole number", v)
		}
		return ingest.Known(int64(v)), err
	}
	v, err := d.dec.DecodeInt64()
	return ingest.Known(v), err
}

// set sets the number of an element. A capacity of 0 stands for unknown.
func (m *Stat) set(place int, v ingest.Int) {
	if v.Known && v.Value < 0 {
		m.Negative++
		return
	}
	if !v.Known || (place == atCapacity && v.Value == 0) {
		return
	}
	switch {
	case counts[place].is:
		m.Load.Rank.SetCount(counts[place].field, v.Value)
	case place == atRank:
		m.Claims = v
	case place == atPrefillTokens:
		m.Load.PrefillUncachedTokens = v
	case place == atPrefillBusy:
		m.Load.PrefillBusyUs = v
	}
}

// derive adds the share of the capacity that is used.
func (m *Stat) derive() {
	used, haveUsed := m.Load.Rank.Count(store.NumUsedTokens)
	capacity, haveCapacity := m.Load.Rank.Count(store.MaxTotalNumTokens)
	if haveUsed && haveCapacity && used <= capacity {
		m.Load.Rank.SetFloat(store.TokenUsage, float64(used)/float64(capacity))
	}
}

// check holds the values against the rules of all dialects, so that a report
// cannot fail by one rank.
func (m *Stat) check() *registry.Refusal {
	_, refusal := ingest.Validate(&ingest.Report{
		Source: tag, Status: int32(store.StatusHealthy), Ranks: []ingest.RankReport{m.Load},
	}, ingest.Rules{})
	return refusal
}

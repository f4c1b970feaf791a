package frame

import (
	"encoding/binary"
	"sync"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The fields that are written by hand. Full and Delta are fields of
// WatchSnapshotsResponse.
const (
	fieldFull  protowire.Number = 16
	fieldDelta protowire.Number = 17

	fieldFullWorkers protowire.Number = 1
	fieldFullPools   protowire.Number = 2
	fieldFullChunk   protowire.Number = 3
	fieldFullChunks  protowire.Number = 4

	fieldDeltaBase         protowire.Number = 1
	fieldDeltaWorkers      protowire.Number = 2
	fieldDeltaRemoved      protowire.Number = 3
	fieldDeltaPools        protowire.Number = 4
	fieldDeltaRemovedPools protowire.Number = 5
	fieldDeltaChunk        protowire.Number = 6
	fieldDeltaChunks       protowire.Number = 7

	fieldRemovedRow protowire.Number = 1
	fieldRemovedID  protowire.Number = 2

	fieldKeyModel protowire.Number = 1
	fieldKeyRole  protowire.Number = 2
)

// Chunk is a part of an event as the field full or delta of a message. It is
// immutable and shared by all watchers.
type Chunk struct {
	bytes   []byte
	message func() (*pb.WatchSnapshotsResponse, error)
}

func newChunk(b []byte) *Chunk {
	return &Chunk{bytes: b, message: sync.OnceValues(func() (*pb.WatchSnapshotsResponse, error) {
		m := new(pb.WatchSnapshotsResponse)
		return m, proto.Unmarshal(b, m)
	})}
}

// Size returns the length of the chunk in bytes.
func (c *Chunk) Size() int { return len(c.bytes) }

// encodeEvent returns a full or a delta in chunks. What left the view comes
// before what changed, and workers before pools.
func encodeEvent(s *snapshot.Snapshot, ch Change) []*Chunk {
	e := &event{Change: ch}
	if ch.Base == 0 {
		e.full(s)
	} else {
		e.delta(s)
	}
	return e.chunks()
}

// headRoom is kept free before a body for the head of the field: a tag of two
// bytes, and a length.
const headRoom = 2 + binary.MaxVarintLen32

// event is an event in the making: the bodies of its chunks, each behind room
// for a head.
type event struct {
	Change
	bodies [][]byte
	// empty says that nothing was added to the last body.
	empty bool
}

// worker returns a worker's message at the detail of the event.
func (e *event) worker(w *snapshot.Worker) []byte {
	if e.Brief {
		return w.Brief()
	}
	return w.Encoded
}

func (e *event) full(s *snapshot.Snapshot) {
	size := 0
	for _, w := range s.Workers {
		size += fieldSize(fieldFullWorkers, len(e.worker(w)))
	}
	for _, p := range s.Pools {
		size += fieldSize(fieldFullPools, len(p.Encoded))
	}
	e.begin(size)
	for _, w := range s.Workers {
		e.add(fieldFullWorkers, e.worker(w))
	}
	for _, p := range s.Pools {
		e.add(fieldFullPools, p.Encoded)
	}
}

func (e *event) delta(s *snapshot.Snapshot) {
	e.begin(0)
	for t := range s.Removed(e.Base) {
		b := appendUint(nil, fieldRemovedRow, uint64(t.Row))
		b = protowire.AppendTag(b, fieldRemovedID, protowire.BytesType)
		e.add(fieldDeltaRemoved, protowire.AppendString(b, t.Worker.ID))
	}
	for w := range s.Changed(e.Base) {
		e.add(fieldDeltaWorkers, e.worker(w))
	}
	for k := range s.RemovedPools(e.Base) {
		e.add(fieldDeltaRemovedPools, encodeKey(k))
	}
	for p := range s.ChangedPools(e.Base) {
		e.add(fieldDeltaPools, p.Encoded)
	}
}

func encodeKey(k snapshot.PoolKey) []byte {
	var b []byte
	if k.Model != "" {
		b = protowire.AppendString(protowire.AppendTag(b, fieldKeyModel, protowire.BytesType), k.Model)
	}
	return appendUint(b, fieldKeyRole, uint64(k.Role))
}

// begin begins a chunk for about size bytes. Every chunk of a delta names the
// base.
func (e *event) begin(size int) {
	if e.Limit > 0 {
		size = min(size, e.Limit)
	}
	body := make([]byte, headRoom, headRoom+size)
	e.bodies = append(e.bodies, appendUint(body, fieldDeltaBase, e.Base))
	e.empty = true
}

// add appends a message, to a new chunk where the last is full. A message
// above the limit has a chunk to itself.
func (e *event) add(num protowire.Number, m []byte) {
	last := len(e.bodies) - 1
	filled := len(e.bodies[last]) - headRoom
	if e.Limit > 0 && !e.empty && filled+fieldSize(num, len(m)) > e.Limit {
		e.begin(e.Limit)
		last++
	}
	e.bodies[last] = append(appendHead(e.bodies[last], num, len(m)), m...)
	e.empty = false
}

// chunks numbers the bodies where there are several, and makes them fields.
func (e *event) chunks() []*Chunk {
	field, number, count := fieldFull, fieldFullChunk, fieldFullChunks
	if e.Base > 0 {
		field, number, count = fieldDelta, fieldDeltaChunk, fieldDeltaChunks
	}
	out := make([]*Chunk, len(e.bodies))
	for i, body := range e.bodies {
		if len(e.bodies) > 1 {
			body = appendUint(body, number, uint64(i))
			body = appendUint(body, count, uint64(len(e.bodies)))
		}
		head := appendHead(nil, field, len(body)-headRoom)
		begin := headRoom - len(head)
		copy(body[begin:], head)
		out[i] = newChunk(body[begin:])
	}
	return out
}

// appendUint appends a varint field; 0 is left out.
func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

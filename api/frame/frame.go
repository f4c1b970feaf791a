package frame

import (
	"slices"
	"sync"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The fields of WatchSnapshotsResponse, Full and Liveness that are written by
// hand.
const (
	fieldLiveness protowire.Number = 11
	fieldFull     protowire.Number = 16

	fieldWorkers protowire.Number = 1
	fieldPools   protowire.Number = 2
)

// Frame is one message of a watch: a head of its own, and bytes shared with
// other watchers. It is immutable and safe for concurrent use.
type Frame struct {
	// Head has the fields outside Liveness and Event, or, where Event is nil,
	// the event too.
	Head *pb.WatchSnapshotsResponse
	// Liveness is the encoded field liveness; may be empty.
	Liveness []byte
	// Event is the field full; nil where the event is another.
	Event *Event
}

// appendTo appends the whole message to dst.
func (f *Frame) appendTo(dst []byte) ([]byte, error) {
	options := proto.MarshalOptions{}
	size := options.Size(f.Head) + len(f.Liveness)
	if f.Event != nil {
		size += len(f.Event.bytes())
	}
	dst, err := options.MarshalAppend(slices.Grow(dst, size), f.Head)
	if err != nil {
		return nil, err
	}
	dst = append(dst, f.Liveness...)
	if f.Event != nil {
		dst = append(dst, f.Event.bytes()...)
	}
	return dst, nil
}

// Message returns f as a message whose event is shared: it must not be
// changed. It fails only where encoded bytes are damaged.
func (f *Frame) Message() (*pb.WatchSnapshotsResponse, error) {
	m := proto.CloneOf(f.Head)
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(f.Liveness, m); err != nil {
		return nil, err
	}
	if f.Event == nil {
		return m, nil
	}
	full, err := f.Event.message()
	if err != nil {
		return nil, err
	}
	m.Event = &pb.WatchSnapshotsResponse_Full{Full: full}
	return m, nil
}

// Event is a version as the field full of a message, built on first use and
// once. It is immutable and shared by all watchers.
type Event struct {
	version uint64
	bytes   func() []byte
	message func() (*pb.Full, error)
}

func newEvent(s *snapshot.Snapshot) *Event {
	return &Event{
		version: s.Version,
		bytes:   sync.OnceValue(func() []byte { return encodeFull(s) }),
		message: sync.OnceValues(func() (*pb.Full, error) {
			m := new(pb.WatchSnapshotsResponse)
			if err := proto.Unmarshal(encodeFull(s), m); err != nil {
				return nil, err
			}
			return m.GetFull(), nil
		}),
	}
}

func encodeFull(s *snapshot.Snapshot) []byte {
	size := 0
	for _, w := range s.Workers {
		size += fieldSize(fieldWorkers, len(w.Encoded))
	}
	for _, p := range s.Pools {
		size += fieldSize(fieldPools, len(p.Encoded))
	}
	b := appendHead(make([]byte, 0, fieldSize(fieldFull, size)), fieldFull, size)
	for _, w := range s.Workers {
		b = append(appendHead(b, fieldWorkers, len(w.Encoded)), w.Encoded...)
	}
	for _, p := range s.Pools {
		b = append(appendHead(b, fieldPools, len(p.Encoded)), p.Encoded...)
	}
	return b
}

// fieldSize returns the size of a message field with n bytes inside.
func fieldSize(num protowire.Number, n int) int {
	return protowire.SizeTag(num) + protowire.SizeBytes(n)
}

// appendHead appends what stands before the n bytes of a message field.
func appendHead(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(n))
}

// Cache keeps what watchers share: the event of the newest version, and the
// liveness blocks that end at the newest tick, by the tick that they begin
// after. The zero Cache is ready. It is safe for concurrent use.
type Cache struct {
	mu     sync.Mutex
	newest *Event
	to     uint64
	blocks map[uint64]func() []byte
}

// Full returns the event of s. A version older than the newest, which a reader
// may still hold for a moment, is not kept.
func (c *Cache) Full(s *snapshot.Snapshot) *Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest != nil && c.newest.version == s.Version {
		return c.newest
	}
	e := newEvent(s)
	if c.newest == nil || c.newest.version < s.Version {
		c.newest = e
	}
	return e
}

// Liveness returns the liveness field with the receipts of v admitted after
// tick from; 0 for all. It must not be changed.
func (c *Cache) Liveness(v *snapshot.View, from uint64) []byte { return c.block(v, from)() }

func (c *Cache) block(v *snapshot.View, from uint64) func() []byte {
	build := func() []byte { return encodeLiveness(v.Receipts, from) }
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.Tick < c.to {
		return build
	}
	if c.blocks == nil || v.Tick > c.to {
		c.to, c.blocks = v.Tick, make(map[uint64]func() []byte)
	}
	if b, ok := c.blocks[from]; ok {
		return b
	}
	b := sync.OnceValue(build)
	c.blocks[from] = b
	return b
}

// encodeLiveness returns nil where there are no receipts.
func encodeLiveness(receipts []*snapshot.Receipt, from uint64) []byte {
	size := 0
	for r := range after(receipts, from) {
		size += fieldSize(fieldWorkers, len(r.Encoded))
	}
	if size == 0 {
		return nil
	}
	b := appendHead(make([]byte, 0, fieldSize(fieldLiveness, size)), fieldLiveness, size)
	for r := range after(receipts, from) {
		b = append(appendHead(b, fieldWorkers, len(r.Encoded)), r.Encoded...)
	}
	return b
}

// after yields the receipts that were admitted after tick from.
func after(receipts []*snapshot.Receipt, from uint64) func(yield func(*snapshot.Receipt) bool) {
	return func(yield func(*snapshot.Receipt) bool) {
		for _, r := range receipts {
			if r != nil && r.Tick > from && !yield(r) {
				return
			}
		}
	}
}

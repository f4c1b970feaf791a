package frame

import (
	"slices"
	"sync"
	"sync/atomic"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The field liveness of WatchSnapshotsResponse, and its workers.
const (
	fieldLiveness protowire.Number = 11
	fieldReceipts protowire.Number = 1
)

// Frame is one message of a watch: a head of its own, and bytes shared with
// other watchers. It is immutable and safe for concurrent use.
type Frame struct {
	// Head has the fields outside Liveness and Event, or, where Event is nil,
	// the event too.
	Head *pb.WatchSnapshotsResponse
	// Liveness is the encoded field liveness; may be empty.
	Liveness []byte
	// Event is the encoded field full or delta; nil where the event is
	// another.
	Event *Chunk
}

// appendTo appends the whole message to dst.
func (f *Frame) appendTo(dst []byte) ([]byte, error) {
	options := proto.MarshalOptions{}
	size := options.Size(f.Head) + len(f.Liveness)
	if f.Event != nil {
		size += len(f.Event.bytes)
	}
	dst, err := options.MarshalAppend(slices.Grow(dst, size), f.Head)
	if err != nil {
		return nil, err
	}
	dst = append(dst, f.Liveness...)
	if f.Event != nil {
		dst = append(dst, f.Event.bytes...)
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
	shared, err := f.Event.message()
	if err != nil {
		return nil, err
	}
	m.Event = shared.Event
	return m, nil
}

// maxShared bounds the events of one version, and the liveness blocks of one
// tick, that are kept: readers that resume may name any base.
const maxShared = 64

// Cache keeps what watchers share: the events that lead to the newest
// version, and the liveness blocks that end at the newest tick, by where they
// begin. What leads to an older version or tick is dropped with the first
// request for a newer one. The zero Cache is ready. It is safe for concurrent
// use.
type Cache struct {
	events shared[change, []*Chunk]
	blocks shared[uint64, []byte]
	fulls  atomic.Uint64
	deltas atomic.Uint64
}

// change names an event that leads to a version.
type change struct {
	// base is the version that a delta is against; 0 for a full.
	base uint64
	// limit is the size at which the event is cut in chunks.
	limit int
}

// Event returns the event that leads from version base of s to s, a full for
// 0, in chunks of about limit bytes; one chunk for a limit of 0. A version
// older than the newest, which a reader may still hold for a moment, is not
// kept.
func (c *Cache) Event(s *snapshot.Snapshot, base uint64, limit int) []*Chunk {
	ch := change{base, limit}
	return c.events.get(s.Version, ch, func() []*Chunk {
		if base == 0 {
			c.fulls.Add(1)
		} else {
			c.deltas.Add(1)
		}
		return encodeEvent(s, ch)
	})
}

// Encoded returns how many fulls and deltas were encoded.
func (c *Cache) Encoded() (fulls, deltas uint64) { return c.fulls.Load(), c.deltas.Load() }

// Liveness returns the liveness field with the receipts of v admitted after
// tick from; 0 for all. It must not be changed.
func (c *Cache) Liveness(v *snapshot.View, from uint64) []byte {
	return c.blocks.get(v.Tick, from, func() []byte { return encodeLiveness(v.Receipts, from) })
}

// shared keeps what was built for the newest number, each once. The zero
// shared is ready. It is safe for concurrent use.
type shared[K comparable, V any] struct {
	mu     sync.Mutex
	newest uint64
	kept   map[K]func() V
}

// get returns what build returns, for number n.
func (s *shared[K, V]) get(n uint64, key K, build func() V) V { return s.find(n, key, build)() }

func (s *shared[K, V]) find(n uint64, key K, build func() V) func() V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < s.newest {
		return build
	}
	if s.kept == nil || n > s.newest {
		s.newest, s.kept = n, make(map[K]func() V)
	}
	v, ok := s.kept[key]
	if !ok && len(s.kept) >= maxShared {
		return build
	}
	if !ok {
		v = sync.OnceValue(build)
		s.kept[key] = v
	}
	return v
}

// encodeLiveness returns nil where there are no receipts.
func encodeLiveness(receipts []*snapshot.Receipt, from uint64) []byte {
	size := 0
	for r := range after(receipts, from) {
		size += fieldSize(fieldReceipts, len(r.Encoded))
	}
	if size == 0 {
		return nil
	}
	b := appendHead(make([]byte, 0, fieldSize(fieldLiveness, size)), fieldLiveness, size)
	for r := range after(receipts, from) {
		b = append(appendHead(b, fieldReceipts, len(r.Encoded)), r.Encoded...)
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

// fieldSize returns the size of a message field with n bytes inside.
func fieldSize(num protowire.Number, n int) int {
	return protowire.SizeTag(num) + protowire.SizeBytes(n)
}

// appendHead appends what stands before the n bytes of a message field.
func appendHead(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(n))
}

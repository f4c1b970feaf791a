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

// Cache keeps what the watchers of one filter share: the events that lead to
// the newest version, and the liveness blocks that end at the newest tick, by
// where they begin. What leads to an older version or tick is dropped with the
// first request for a newer one. The zero Cache is ready; its fields must be
// set before it is used. It is safe for concurrent use.
type Cache struct {
	// Counts takes what is encoded; nil counts nothing.
	Counts *Counts
	// Budget bounds what is kept; nil bounds nothing.
	Budget *Budget

	events shared[Change, []*Chunk]
	blocks shared[Since, []byte]
}

// Counts counts what was encoded for all caches that share it. The zero Counts
// is ready. It is safe for concurrent use.
type Counts struct{ fulls, deltas atomic.Uint64 }

// Encoded returns how many fulls and deltas were encoded.
func (c *Counts) Encoded() (fulls, deltas uint64) { return c.fulls.Load(), c.deltas.Load() }

func (c *Counts) count(base uint64) {
	switch {
	case c == nil:
	case base == 0:
		c.fulls.Add(1)
	default:
		c.deltas.Add(1)
	}
}

// Budget bounds the bytes that caches keep together. It is safe for concurrent
// use.
type Budget struct {
	most int64
	used atomic.Int64
}

// NewBudget returns a budget of some bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most} }

// Used returns the bytes that are kept.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) add(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

func (b *Budget) spent() bool { return b != nil && b.used.Load() >= b.most }

// Change names an event that leads to a version. It is a plain value.
type Change struct {
	// Base is the version that a delta is against; 0 for a full.
	Base uint64
	// Limit is the size at which the event is cut in chunks, bytes; 0 for
	// never.
	Limit int
	// Brief leaves out the ranks.
	Brief bool
}

// Change returns the event that leads to s by ch. One to a version older than
// the newest, which a reader may still hold for a moment, is not kept.
func (c *Cache) Change(s *snapshot.Snapshot, ch Change) []*Chunk {
	return c.events.get(c.Budget, place[Change]{s.Version, ch}, func() ([]*Chunk, int) {
		c.Counts.count(ch.Base)
		chunks, size := encodeEvent(s, ch), 0
		for _, chunk := range chunks {
			size += chunk.Size()
		}
		return chunks, size
	})
}

// Since says which receipts a reader lacks. It is a plain value.
type Since struct {
	// Tick is the one after which they were admitted; 0 for all.
	Tick uint64
	// Entered is the version after which a worker changed: it may have entered
	// the filter since, with a receipt from before. 0 for none.
	Entered uint64
}

// Receipts returns the liveness field with the receipts of v that a reader
// lacks. It must not be changed.
func (c *Cache) Receipts(v *snapshot.View, since Since) []byte {
	return c.blocks.get(c.Budget, place[Since]{v.Tick, since}, func() ([]byte, int) {
		b := encodeLiveness(v, since)
		return b, len(b)
	})
}

// Keep says whether anything is kept from now on, as it is at first. Where
// nothing is, what was kept is forgotten.
func (c *Cache) Keep(on bool) {
	c.events.keepAny(c.Budget, on)
	c.blocks.keepAny(c.Budget, on)
}

// place says where something is kept: for which number, and by which key.
type place[K comparable] struct {
	number uint64
	key    K
}

// shared keeps what was built for the newest number, each once. The zero
// shared is ready. It is safe for concurrent use.
type shared[K comparable, V any] struct {
	mu     sync.Mutex
	off    bool // nothing is kept
	newest uint64
	kept   map[K]func() V
	size   int64
}

// get returns what build returns, with its size in bytes, for a place.
func (s *shared[K, V]) get(b *Budget, at place[K], build func() (V, int)) V {
	return s.find(b, at, build)()
}

func (s *shared[K, V]) find(b *Budget, at place[K], build func() (V, int)) func() V {
	unshared := func() V { v, _ := build(); return v }
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off || at.number < s.newest {
		return unshared
	}
	if s.kept == nil || at.number > s.newest {
		b.add(-s.size)
		s.newest, s.kept, s.size = at.number, make(map[K]func() V), 0
	}
	v, ok := s.kept[at.key]
	if !ok && (len(s.kept) >= maxShared || b.spent()) {
		return unshared
	}
	if !ok {
		v = sync.OnceValue(func() V {
			v, size := build()
			s.keep(b, at.number, int64(size))
			return v
		})
		s.kept[at.key] = v
	}
	return v
}

// keep counts what was built for a number, unless that is forgotten already.
func (s *shared[K, V]) keep(b *Budget, number uint64, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.off && number == s.newest {
		s.size += size
		b.add(size)
	}
}

func (s *shared[K, V]) keepAny(b *Budget, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off = !on; s.off {
		b.add(-s.size)
		s.newest, s.kept, s.size = 0, nil, 0
	}
}

// encodeLiveness returns nil where there are no receipts.
func encodeLiveness(v *snapshot.View, since Since) []byte {
	size := 0
	for r := range v.Lacking(since.Tick, since.Entered) {
		size += fieldSize(fieldReceipts, len(v.Receipts[r].Encoded))
	}
	if size == 0 {
		return nil
	}
	b := appendHead(make([]byte, 0, fieldSize(fieldLiveness, size)), fieldLiveness, size)
	for r := range v.Lacking(since.Tick, since.Entered) {
		encoded := v.Receipts[r].Encoded
		b = append(appendHead(b, fieldReceipts, len(encoded)), encoded...)
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

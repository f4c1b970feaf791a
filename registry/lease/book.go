package lease

import (
	"container/heap"
	"crypto/rand"
	"encoding/hex"
	"time"
)

// idBytes is the length of the secret of a lease.
const idBytes = 16

// Lease is one that is held. Its fields are changed by its Book alone, so it is
// not safe for concurrent use without what guards that.
type Lease struct {
	// ID is its secret name: 128 random bits in hexadecimal.
	ID string
	// Holder is what the lease is for.
	Holder string
	// Grant is what is granted now.
	Grant Grant
	// Due is when it ends unless it is renewed.
	Due time.Time

	wish    Wish
	renewed time.Time
	// state is how it counts in the load, until when it is fresh, and streamed
	// says that a stream has spoken by it.
	state    state
	until    time.Time
	streamed bool
	changed  chan struct{}
	// place is that in the queue.
	place int
}

// Changed returns a channel that closes when the grant changes, or when the
// lease ends.
func (l *Lease) Changed() <-chan struct{} { return l.changed }

// Book keeps leases, one for each holder. It is not safe for concurrent use;
// the channels that it hands out are.
type Book struct {
	limits  Limits
	byID    map[string]*Lease
	holders map[string]*Lease
	queue   queue
	// rates are the sums of what is wanted, as microrate, by state, and step
	// the load that is granted by.
	rates [states]int64
	step  int
	// fades are the leases that became fresh, the first one first.
	fades []fading
}

// NewBook returns an empty book.
func NewBook(limits Limits) *Book {
	limits.MaxInterval = min(limits.MaxInterval, MaxTTL/perTTL)
	return &Book{limits: limits, byID: make(map[string]*Lease), holders: make(map[string]*Lease)}
}

// Len returns the number of leases.
func (b *Book) Len() int { return len(b.byID) }

// Get returns the lease of a name; nil for none.
func (b *Book) Get(id string) *Lease { return b.byID[id] }

// Of returns the lease of a holder; nil for none.
func (b *Book) Of(holder string) *Lease { return b.holders[holder] }

// Load returns by how much intervals are raised; 1 for not at all.
func (b *Book) Load() float64 { return factor(b.step) }

// Begin gives a holder a new lease in the place of the one that it has, if
// any.
func (b *Book) Begin(holder string, w Wish, now time.Time) *Lease {
	if old := b.holders[holder]; old != nil {
		b.End(old)
	}
	l := &Lease{ID: newID(), Holder: holder, wish: w, changed: make(chan struct{})}
	b.byID[l.ID], b.holders[holder] = l, l
	b.rates[idle] += b.wants(l)
	b.freshen(l, now)
	l.set(b.limits.grant(w, b.step), now)
	heap.Push(&b.queue, l)
	return l
}

// Renew lets a lease last anew, by the wish as it is now.
func (b *Book) Renew(l *Lease, w Wish, now time.Time) {
	w.Brief = w.Brief && !l.streamed
	b.rates[l.state] -= b.wants(l)
	l.wish = w
	b.rates[l.state] += b.wants(l)
	b.put(l, b.limits.grant(w, b.step), now)
}

// put gives a lease a grant from a renewal on.
func (b *Book) put(l *Lease, g Grant, renewed time.Time) {
	l.set(g, renewed)
	heap.Fix(&b.queue, l.place)
}

// End takes a lease out of the book.
func (b *Book) End(l *Lease) {
	if b.byID[l.ID] != l {
		return
	}
	b.rates[l.state] -= b.wants(l)
	delete(b.byID, l.ID)
	delete(b.holders, l.Holder)
	heap.Remove(&b.queue, l.place)
	close(l.changed)
}

// Next returns the lease that is the first to end; nil for none.
func (b *Book) Next() *Lease {
	if len(b.queue) == 0 {
		return nil
	}
	return b.queue[0]
}

// Balance makes the grants those of the load as it is now, and returns the
// leases whose interval it changed. The sum of the granted rates is within
// the limit unless all intervals are the longest, but for leases without a
// stream, which hardly count. It is to be called after a lease began, was
// renewed or ended.
func (b *Book) Balance() (changed []*Lease) {
	step := b.next()
	if step == b.step {
		return nil
	}
	b.step = step
	for _, l := range b.queue {
		g := b.limits.grant(l.wish, step)
		if g.Interval == l.Grant.Interval {
			continue
		}
		// The reporter may rely on the life that it was told.
		g = withTTL(g.Interval, max(g.TTL, l.Grant.TTL))
		l.set(g, l.renewed)
		changed = append(changed, l)
	}
	heap.Init(&b.queue)
	return changed
}

// next returns the step that the load needs. A load that is hardly below the
// step stays at it.
func (b *Book) next() int {
	load := b.wanted() / 1e6 / b.limits.MaxRate
	if up := steps(load); up > b.step {
		return up
	}
	return min(b.step, steps(load*margin))
}

func (b *Book) wants(l *Lease) int64 { return microrate(b.limits.clamp(l.wish.Interval)) }

// set gives a lease a grant from a renewal on, and tells of it.
func (l *Lease) set(g Grant, renewed time.Time) {
	if g != l.Grant && l.Grant != (Grant{}) {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.Grant, l.renewed, l.Due = g, renewed, renewed.Add(g.TTL)
}

// newID returns a name that nobody guesses.
func newID() string {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// queue is a heap of leases by when they end.
type queue []*Lease

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].Due.Before(q[j].Due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push adds a *Lease at the end.
func (q *queue) Push(x any) {
	l, ok := x.(*Lease)
	if !ok {
		return
	}
	l.place = len(*q)
	*q = append(*q, l)
}

// Pop takes the last one out.
func (q *queue) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return l
}

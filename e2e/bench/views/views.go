// Package views measures what a version costs before it is sent: the view,
// the bytes of its events, and, for comparison, proto.Marshal of the same
// messages. It needs no sockets.
package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/loadplane/loadplane/api/frame"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/proto"
)

const (
	settle = time.Millisecond
	// maxChunk is the size at which the API cuts an event.
	maxChunk = 2 << 20
)

// Spec says what to measure. It is a plain value.
type Spec struct {
	// Workers and Ranks are the size of the view; a hundredth of the workers,
	// at least one, changes for a delta.
	Workers, Ranks int
	// Rounds is how often each thing is timed.
	Rounds int
}

// Result has the medians. It is a plain value.
type Result struct {
	Full, Delta Event
	// Cold is the time of a view and its full when nothing was encoded
	// before.
	Cold time.Duration
	// HeapPerWorker is what the store and the view hold, bytes a worker.
	HeapPerWorker float64
}

// Event is what one event costs. It is a plain value.
type Event struct {
	Bytes, Chunks int
	// First is the time of the view and the event's bytes together, which the
	// first reader of a version waits for. Compose is that of the bytes alone,
	// and Marshal that of proto.Marshal of the same event.
	First, Compose, Marshal time.Duration
}

// bench is a running store with its readers. It is for one goroutine.
type bench struct {
	spec     Spec
	clock    *store.Clock
	store    *store.Store
	views    *snapshot.Builder
	slots    []*store.Slot
	sequence uint64
	// first is the slot from which the next change begins.
	first int
}

// Run measures. It blocks until ctx ends at the latest.
func Run(ctx context.Context, spec Spec) (Result, error) {
	before := heap()
	b, err := newBench(spec)
	if err != nil {
		return Result{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- b.store.Run(ctx) }()
	r, err := b.measure(ctx, before)
	stop()
	return r, errors.Join(err, <-stopped)
}

func newBench(spec Spec) (*bench, error) {
	b := &bench{spec: spec, clock: store.NewClock()}
	var err error
	b.store, err = store.New(store.Options{
		Lineage: "bench", Epoch: 1, Clock: b.clock, StaleAfter: time.Hour, Settle: settle, ReportInterval: time.Second,
		Discovery: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	b.views = snapshot.New(b.store)
	d := store.Discovery{Synced: true}
	for i := range spec.Workers {
		origin := fmt.Sprintf("10.%d.%d.%d:30000", i>>16, i>>8&255, i&255)
		slot := b.store.NewSlot(&store.Worker{
			ID: "http://" + origin, URL: "http://" + origin, Origin: origin, Role: store.RoleRegular,
			Models: []string{"bench-model"}, Dialect: store.DialectPush, Interval: time.Second, DiscoveredBy: "file",
		})
		slot.Bind(store.Stream{Source: source(i), Peer: origin, Generation: 1})
		d.Added = append(d.Added, slot)
	}
	b.slots = d.Added
	b.store.Apply(d)
	return b, nil
}

func source(i int) string { return fmt.Sprintf("0d9f8c1e-5b7a-4c3d-9e2f-%012d", i) }

func (b *bench) measure(ctx context.Context, before uint64) (r Result, err error) {
	if err := b.change(ctx, b.spec.Workers); err != nil {
		return r, err
	}
	b.views.Current()
	r.HeapPerWorker = float64(heap()-before) / float64(b.spec.Workers)
	var full, delta times
	var cold []time.Duration
	for range b.spec.Rounds {
		if err := errors.Join(b.round(ctx, &full, true), b.round(ctx, &delta, false)); err != nil {
			return r, err
		}
		cold = append(cold, b.cold())
	}
	r.Full, r.Delta, r.Cold = full.event(), delta.event(), median(cold)
	return r, nil
}

// times are those of one event over the rounds.
type times struct {
	bytes, chunks           int
	first, compose, marshal []time.Duration
}

func (t *times) event() Event {
	return Event{
		Bytes: t.bytes, Chunks: t.chunks,
		First: median(t.first), Compose: median(t.compose), Marshal: median(t.marshal),
	}
}

// round changes a hundredth of the workers and times what follows from it.
func (b *bench) round(ctx context.Context, t *times, full bool) error {
	v, _ := b.views.Current()
	base := v.Version
	if err := b.change(ctx, max(1, b.spec.Workers/100)); err != nil {
		return err
	}
	if full {
		base = 0
	}
	began := time.Now()
	chunks := b.event(base, maxChunk)
	t.first = append(t.first, time.Since(began))
	began = time.Now()
	b.event(base, maxChunk)
	t.compose = append(t.compose, time.Since(began))
	t.bytes, t.chunks = 0, len(chunks)
	for _, c := range chunks {
		t.bytes += c.Size()
	}
	took, err := b.marshal(base)
	t.marshal = append(t.marshal, took)
	return err
}

// change reports other values for n workers and waits for the commit of all.
func (b *bench) change(ctx context.Context, n int) error {
	state, stale := b.store.Current()
	base := state.Version
	b.sequence++
	for i := range n {
		at := (b.first + i) % len(b.slots)
		b.slots[at].Offer(1, b.load(at))
	}
	b.first = (b.first + n) % len(b.slots)
	for {
		changed := 0
		for i, e := range state.Entries {
			if e.Version > base && state.Live[i] != nil && state.Live[i].Sequence == b.sequence {
				changed++
			}
		}
		if changed == n {
			return nil
		}
		select {
		case <-stale:
			state, stale = b.store.Current()
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workers changed: %w", changed, n, ctx.Err())
		}
	}
}

func (b *bench) load(i int) *store.Load {
	l := &store.Load{
		Source: source(i), Sequence: b.sequence, Status: store.StatusHealthy, ReportUnixMs: 1_790_000_000_000,
		Received: b.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
	for rank := range b.spec.Ranks {
		r := store.Rank{DPRank: int32(rank)}
		for f, v := range map[store.Field]int64{
			store.NumRunningReqs: 5, store.NumWaitingReqs: int64(b.sequence), store.NumWaitingUncachedTokens: 5120,
			store.NumUsedTokens: 210_000, store.NumTotalTokens: 230_000, store.MaxTotalNumTokens: 500_000,
			store.MaxRunningRequests: 256,
		} {
			r.SetCount(f, v)
		}
		for f, v := range map[store.Field]float64{
			store.TokenUsage: 0.42, store.GenThroughput: 1812.5, store.CacheHitRate: 0.61, store.Utilization: 0.77,
			store.PrefillThroughput: 9043.25,
		} {
			r.SetFloat(f, v)
		}
		l.Ranks = append(l.Ranks, r)
		l.Samples = append(l.Samples, store.Sample{
			TimeUnixMs: 1_789_999_999_990, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1,
		})
	}
	return l
}

// event builds the newest view, where nobody did, and the event that leads to
// it, always.
func (b *bench) event(base uint64, limit int) []*frame.Chunk {
	v, _ := b.views.Current()
	var unshared frame.Cache
	return unshared.Change(v.Snapshot, frame.Change{Base: base, Limit: limit})
}

// cold times a view and a full when nothing is encoded yet.
func (b *bench) cold() time.Duration {
	began := time.Now()
	v, _ := snapshot.New(b.store).Current()
	var shared frame.Cache
	shared.Change(v.Snapshot, frame.Change{Limit: maxChunk})
	return time.Since(began)
}

// marshal times proto.Marshal of an event as one message.
func (b *bench) marshal(base uint64) (time.Duration, error) {
	f := frame.Frame{Head: &pb.WatchSnapshotsResponse{}, Event: b.event(base, 0)[0]}
	m, err := f.Message()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	_, err = proto.Marshal(m)
	return time.Since(began), err
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

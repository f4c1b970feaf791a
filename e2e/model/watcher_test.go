package model

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// history remembers the content of every version that anybody saw, and
// counts what happened. It is safe for concurrent use.
type history struct {
	seed   maphash.Seed
	mu     sync.Mutex
	seen   map[versionName]content
	counts map[string]int
}

func (h *history) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

type versionName struct {
	lineage        string
	epoch, version uint64
}

type content struct {
	digest, sum uint64
	warming     bool
	by          string
}

func nameOf(c *pb.Cursor) versionName {
	return versionName{c.GetLineage(), c.GetEpoch(), c.GetVersion()}
}

// sighting is the whole content of a version as somebody holds it.
type sighting struct {
	by      string
	name    versionName
	digest  uint64
	warming bool
	workers []*pb.Worker
	pools   []*pb.Pool
}

// note compares a sighting with those before it: one version has one digest
// and one content, whoever has it and in whatever way it came.
func (h *history) note(s *sighting) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.Full{Workers: s.workers, Pools: s.pools})
	if err != nil {
		return err
	}
	got := content{s.digest, maphash.Bytes(h.seed, b), s.warming, s.by}
	h.mu.Lock()
	defer h.mu.Unlock()
	first, known := h.seen[s.name]
	if !known {
		h.seen[s.name] = got
		return nil
	}
	if first.digest != got.digest || first.sum != got.sum || first.warming != got.warming {
		return fmt.Errorf("I-03: %v is another content for %s (digest %x) than for %s (digest %x): %v",
			s.name, got.by, got.digest, first.by, first.digest, s.workers)
	}
	return nil
}

// watcher is a client that keeps its replica across streams. Its reading
// goroutine owns it while a stream is open; mu is for the rest.
type watcher struct {
	name     string
	fullOnly bool
	history  *history

	mu      sync.Mutex
	replica client.Replica
	cursor  *pb.Cursor // sent when the stream was opened
	count   int        // messages of the stream
	last    versionName
	first   string // kind of the first message
	base    uint64 // of the first message
	lag     time.Duration
	heard   map[identity]uint64
	broken  error
	ended   bool
	hold    chan struct{}
	// readOnAt is when it last read on after a stop, spaced the interval
	// between data messages that the plane granted last.
	readOnAt time.Time
	spaced   time.Duration
	// excused says that the plane may have ended the stream: the reader
	// stopped for a while, or the plane did.
	excused bool
	close   func()
}

// identity is a source of a worker.
type identity struct {
	lineage string
	row     uint32
	source  string
}

// open begins a stream with a cursor; nil asks for a full.
func (w *watcher) open(p *plane, cursor *pb.Cursor) error {
	w.readOn()
	c, closeIdle := p.watcherClient()
	ctx, cancel := context.WithCancel(context.Background())
	w.cursor, w.count, w.ended, w.excused, w.first, w.lag = cursor, 0, false, false, "", 0
	w.spaced, w.readOnAt = 0, time.Time{}
	s, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{Resume: cursor, FullOnly: w.fullOnly})
	if err != nil {
		cancel()
		return err
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for w.wait(); s.Receive(); w.wait() {
			w.take(s.Msg())
		}
		w.mu.Lock()
		w.ended = true
		w.mu.Unlock()
	})
	w.close = func() {
		w.readOn()
		cancel()
		reading.Wait()
		_ = s.Close()
		closeIdle()
		w.close = nil
	}
	return nil
}

// wait holds the reading while the reader is stopped.
func (w *watcher) wait() {
	w.mu.Lock()
	hold := w.hold
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
}

// stopReading stops the reader after the message that it may wait for.
func (w *watcher) stopReading() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.close != nil && w.hold == nil {
		w.hold, w.excused = make(chan struct{}), true
	}
}

func (w *watcher) readOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hold != nil {
		close(w.hold)
		w.hold = nil
		w.readOnAt = time.Now()
	}
}

// current says that the watcher is due every version at once: the plane gives
// a slow reader more time between two, and tells so with the next message.
func (w *watcher) current() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spaced == 0 && time.Since(w.readOnAt) > heartbeat+settle
}

// take applies a message and checks what holds for every one.
func (w *watcher) take(m *pb.WatchSnapshotsResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	before := w.replica.View()
	view, err := w.replica.Apply(m, now)
	if err == nil {
		err = w.check(m, before, view)
	}
	if err != nil && w.broken == nil {
		w.broken = fmt.Errorf("%s, message %d (%s of version %d): %w", w.name, w.count, client.EventName(m), m.GetCursor().GetVersion(), err)
	}
	if w.count == 0 {
		w.first, w.base = client.EventName(m), m.GetDelta().GetBaseVersion()
	}
	w.last = nameOf(m.GetCursor())
	w.spaced = time.Duration(m.GetMinIntervalMs()) * time.Millisecond
	w.lag = max(w.lag, now.Sub(time.UnixMilli(m.GetServerUnixMs())))
	w.count++
}

func (w *watcher) check(m *pb.WatchSnapshotsResponse, before, view *client.View) error {
	if err := w.inOrder(m); err != nil {
		return err
	}
	if d := m.GetDelta(); d != nil && m.GetCursor().GetVersion() > d.GetBaseVersion()+1 {
		w.history.count("delta over several versions")
	}
	if view == nil {
		return fmt.Errorf("I-09: no view after a message")
	}
	held := nameOf(&pb.Cursor{Lineage: view.Lineage(), Epoch: view.Epoch(), Version: view.Version()})
	seen := &sighting{name: held, by: w.name + " by a " + client.EventName(m), digest: view.Digest(), warming: view.Warming(), workers: view.Workers(), pools: view.Pools()}
	switch full := m.GetFull(); {
	case full != nil:
		seen.name, seen.digest, seen.warming = nameOf(m.GetCursor()), m.GetDigest(), m.GetWarming()
		seen.workers, seen.pools = full.GetWorkers(), full.GetPools()
	case m.GetDelta() == nil:
		seen = nil // nothing but the receipts moved
	}
	if seen != nil {
		if err := w.history.note(seen); err != nil {
			return err
		}
	}
	if before != nil && before.Lineage() != m.GetCursor().GetLineage() {
		return w.history.adoption(before, view, m)
	}
	if held != nameOf(m.GetCursor()) {
		return fmt.Errorf("I-01: the view is %v after a message of %v", held, m.GetCursor())
	}
	return w.sequences(view)
}

// inOrder checks I-01: a full or a delta rises, a heartbeat repeats.
func (w *watcher) inOrder(m *pb.WatchSnapshotsResponse) error {
	name := nameOf(m.GetCursor())
	if w.count == 0 {
		return nil // judged against the cursor by opened
	}
	if name.lineage != w.last.lineage || name.epoch != w.last.epoch {
		return fmt.Errorf("I-01: a stream went from %v to %v", w.last, name)
	}
	rises := m.GetFull() != nil || m.GetDelta() != nil
	if rises && name.version <= w.last.version || !rises && name.version != w.last.version {
		return fmt.Errorf("I-01: %s of version %d after version %d", client.EventName(m), name.version, w.last.version)
	}
	if d := m.GetDelta(); d != nil && d.GetBaseVersion() != w.last.version {
		return fmt.Errorf("I-04: a delta against %d after version %d", d.GetBaseVersion(), w.last.version)
	}
	return nil
}

// adoption checks I-09 with the rule of lineages: another one takes the place
// of a view exactly when it is not warming or has at least as many fresh
// workers as the view has valid ones.
func (h *history) adoption(before, after *client.View, m *pb.WatchSnapshotsResponse) error {
	if m.GetFull() == nil {
		return nil // told of the candidate, which is not seen from outside
	}
	fresh := 0
	for _, w := range m.GetFull().GetWorkers() {
		if w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH {
			fresh++
		}
	}
	h.count(fmt.Sprintf("other lineage, warming %v", m.GetWarming()))
	fit := !m.GetWarming() || fresh >= before.CountValid(time.Now())
	if adopted := after.Lineage() == m.GetCursor().GetLineage(); adopted != fit {
		return fmt.Errorf("I-09: a view of %d workers, warming %v, adopted %v, fit %v",
			len(m.GetFull().GetWorkers()), m.GetWarming(), adopted, fit)
	}
	return nil
}

// sequences checks I-08: those of one source never fall.
func (w *watcher) sequences(view *client.View) error {
	for _, worker := range view.Workers() {
		r := view.Receipt(worker)
		if r == nil {
			continue
		}
		id := identity{view.Lineage(), worker.GetRow(), worker.GetSourceInstanceId()}
		if r.GetSequenceId() < w.heard[id] {
			return fmt.Errorf("I-08: %s went from sequence %d to %d", worker.GetWorkerId(), w.heard[id], r.GetSequenceId())
		}
		w.heard[id] = r.GetSequenceId()
	}
	return nil
}

// opened checks I-14: what a stream began with against the cursor and the
// history that the plane can tell from.
func (w *watcher) opened(want *world, current versionName) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	cursor, expect := nameOf(w.cursor), "full"
	held := w.cursor != nil && cursor.lineage == current.lineage && cursor.epoch == current.epoch && w.cursor.GetFilterHash() == 0
	switch {
	case !held || cursor.version == 0 || cursor.version > want.version:
	case cursor.version < want.horizon:
		w.history.count("resumed past the horizon")
	case cursor.version == want.version:
		expect = "heartbeat"
	case !w.fullOnly:
		expect = "delta"
	}
	if w.first != expect || expect == "delta" && w.base != cursor.version {
		return fmt.Errorf("I-14: %s resumed %v at version %d, horizon %d, and got a %q against %d, want a %s",
			w.name, w.cursor, want.version, want.horizon, w.first, w.base, expect)
	}
	w.history.count("opened by " + expect)
	return nil
}

// at returns what the watcher holds, and the first thing that was wrong.
func (w *watcher) at() (view *client.View, lag time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replica.View(), w.lag, w.broken
}

// cut says that the plane ended the stream, and whether it may have.
func (w *watcher) cut() (cut, excused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.close != nil && w.ended, w.excused
}

// reads says that a stream is open and being read.
func (w *watcher) reads() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.close != nil && !w.ended && w.hold == nil
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

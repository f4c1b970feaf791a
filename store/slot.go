package store

import "sync"

// Slot is where writers leave what they know of one worker; the newest value
// wins. A slot is of one identity of a worker: a worker whose identity
// changed gets a new one. All methods are safe for concurrent use and return
// at once.
type Slot struct {
	store  *Store
	row    uint32
	worker *Worker

	mu     sync.Mutex
	queued bool // waits in the store's dirty list
	// generation is the bound one; load waits for the next commit and is of
	// this generation.
	generation uint64
	load       *Load
	stream     *Stream // not yet committed
	diag       Diagnostics
	diagDirty  bool
	history    history
	// source and peer are those of the last binding.
	source, peer string
	note         Reason
	noteDirty    bool
}

// Row returns the worker's row number.
func (sl *Slot) Row() uint32 { return sl.row }

// Bind records the stream that may offer loads from now on. Loads of other
// generations are ignored; one that waits for a commit stays only if it is of
// the same source.
func (sl *Slot) Bind(st Stream) {
	st.Row = sl.row
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.generation = st.Generation
	if sl.load != nil && sl.load.Source != st.Source {
		sl.load = nil
	}
	sl.stream = &st
	sl.bound(&st)
	sl.mark()
}

// bound records what a binding changes. sl.mu is held.
func (sl *Slot) bound(st *Stream) {
	switch {
	case st.Peer == "" && sl.peer != "":
		sl.record(Happening{Event: EventStreamEnded, Detail: "peer " + sl.peer})
	case st.Peer != "" && sl.source != "" && st.Source != sl.source:
		sl.record(Happening{Event: EventSourceChanged, Detail: sl.source + " to " + st.Source + ", peer " + st.Peer})
	case st.Peer != "":
		sl.record(Happening{Event: EventBound, Detail: "source " + st.Source + ", peer " + st.Peer})
	}
	sl.source, sl.peer = st.Source, st.Peer
}

// Happen records what happened to the worker, now. What is kept is bounded: the
// last 32, the same in a row counted as one.
func (sl *Slot) Happen(event Event, reason Reason, detail string) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.record(Happening{Event: event, Reason: reason, Detail: detail})
	sl.mark()
}

// record adds to the diagnostics, now. sl.mu is held.
func (sl *Slot) record(h Happening) {
	h.At = sl.store.opts.Clock.Now()
	sl.history.add(h)
	sl.diagDirty = true
}

// recall returns the diagnostics with what a commit made of the worker.
func (sl *Slot) recall(list []Happening) *Diagnostics {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	for _, h := range list {
		sl.history.add(h)
	}
	return sl.diagnostics()
}

// diagnostics returns the row to commit. sl.mu is held.
func (sl *Slot) diagnostics() *Diagnostics {
	diag := sl.diag
	diag.Row, diag.Happenings = sl.row, sl.history.share()
	return &diag
}

// Offer leaves a report for the next commit. It is ignored unless generation
// is the bound one and its sequence is above the one that waits.
func (sl *Slot) Offer(generation uint64, l *Load) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if generation != sl.generation || (sl.load != nil && l.Sequence <= sl.load.Sequence) {
		sl.store.metrics.ignored.Inc()
		return
	}
	if sl.load != nil {
		sl.store.metrics.conflated.Inc()
	}
	sl.load = l
	sl.mark()
}

// Note sets the reason that is shown while the worker is missing, such as
// trouble with its registration; ReasonNoEngine takes it out of coverage. An
// empty reason stands for ReasonNoReport.
func (sl *Slot) Note(r Reason) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.note == r {
		return
	}
	sl.note, sl.noteDirty = r, true
	sl.mark()
}

// Diagnose changes the worker's diagnostics; Row and Happenings are not for it.
func (sl *Slot) Diagnose(change func(*Diagnostics)) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	change(&sl.diag)
	sl.diagDirty = true
	sl.mark()
}

// mark queues the slot for the next commit. sl.mu is held.
func (sl *Slot) mark() {
	if !sl.queued {
		sl.queued = true
		sl.store.enqueue(sl)
	}
}

// taken is what a commit took out of a slot.
type taken struct {
	load   *Load
	stream *Stream
	diag   *Diagnostics
	note   *Reason
}

// take empties the slot.
func (sl *Slot) take() taken {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	t := taken{load: sl.load, stream: sl.stream}
	sl.load, sl.stream, sl.queued = nil, nil, false
	if sl.diagDirty {
		t.diag, sl.diagDirty = sl.diagnostics(), false
	}
	if sl.noteDirty {
		reason := sl.note
		t.note, sl.noteDirty = &reason, false
	}
	return t
}

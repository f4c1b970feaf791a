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
	note       Reason
	noteDirty  bool
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
	sl.mark()
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

// Diagnose changes the worker's diagnostics.
func (sl *Slot) Diagnose(change func(*Diagnostics)) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	change(&sl.diag)
	sl.diag.Row = sl.row
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
		diag := sl.diag
		t.diag, sl.diagDirty = &diag, false
	}
	if sl.noteDirty {
		reason := sl.note
		t.note, sl.noteDirty = &reason, false
	}
	return t
}

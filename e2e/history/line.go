package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Line is one line of a history. Exactly one of Report, Open, Message and
// Quiet is set.
type Line struct {
	// At is when it happened, nanoseconds since the recording began.
	At      int64    `json:"at"`
	Report  *Report  `json:"report,omitempty"`
	Open    *Open    `json:"open,omitempty"`
	Message *Message `json:"message,omitempty"`
	Quiet   *Quiet   `json:"quiet,omitempty"`
}

// Report is a report that an engine sent.
type Report struct {
	// Worker is the id of the worker that the report is of.
	Worker string `json:"worker"`
	// Source is the instance of the engine process.
	Source string `json:"source"`
	// Sequence is the report's number within its source.
	Sequence uint64 `json:"sequence"`
}

// Cursor names a state of the view.
type Cursor struct {
	Lineage string `json:"lineage"`
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
}

// Open is a watch that a client opened.
type Open struct {
	// Client names the watcher, Stream numbers its watches.
	Client string `json:"client"`
	Stream int    `json:"stream"`
	// Resume is the cursor that it asked to continue from; nil for none.
	Resume *Cursor `json:"resume,omitempty"`
}

// The events of a Message.
const (
	EventFull      = "full"
	EventDelta     = "delta"
	EventHeartbeat = "heartbeat"
	EventGoAway    = "go_away"
)

// Message is a message that a watcher received.
type Message struct {
	// Client and Stream are those of the Open before it.
	Client string `json:"client"`
	Stream int    `json:"stream"`
	Cursor
	// Event is one of the constants.
	Event string `json:"event"`
	// Base is the version that a delta is against.
	Base uint64 `json:"base,omitempty"`
	// Chunk and Chunks say which part of an event it is; of a chunk but the
	// last, no field below counts.
	Chunk  uint32 `json:"chunk,omitempty"`
	Chunks uint32 `json:"chunks,omitempty"`
	// Digest is what the message says that the content hashes sum to, Sum what
	// they sum to after the message was applied.
	Digest uint64 `json:"digest"`
	Sum    uint64 `json:"sum"`
	// Workers is the number of workers after the message.
	Workers int `json:"workers"`
	// Receipts are those that came with the message, by worker.
	Receipts map[string]Receipt `json:"receipts,omitempty"`
	// Gone are the workers that the message took out.
	Gone []string `json:"gone,omitempty"`
	// Fresh is the number of workers that the content calls fresh, Valid how
	// many of them are not past their validity at the server's clock.
	Fresh int `json:"fresh"`
	Valid int `json:"valid"`
	// OverdueMs is for how long the fresh worker that is longest past its
	// validity has been, at the server's clock; 0 for none.
	OverdueMs uint64 `json:"overdue_ms,omitempty"`
	// ServerClockMs is the server's clock when the message was sent.
	ServerClockMs uint64 `json:"server_clock_ms"`
}

// Receipt names the report that a view has of a worker.
type Receipt struct {
	Source   string `json:"source"`
	Sequence uint64 `json:"sequence"`
}

// Quiet says that from From until the line nothing was disturbed, so that
// every report sent since then, except in the last Within, is visible to the
// watchers that are connected, unless a later one is.
type Quiet struct {
	// From and Within are nanoseconds; From is counted as Line.At is.
	From   int64 `json:"from"`
	Within int64 `json:"within"`
}

// Recorder writes a history. It is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu  sync.Mutex
	out *bufio.Writer
	enc *json.Encoder
	err error
}

// NewRecorder returns a recorder whose time begins now. It buffers: Flush
// writes the rest.
func NewRecorder(w io.Writer) *Recorder {
	out := bufio.NewWriterSize(w, 64<<10)
	return &Recorder{start: time.Now(), out: out, enc: json.NewEncoder(out)}
}

// Report records a report that is being sent.
func (r *Recorder) Report(report Report) { r.add(Line{Report: &report}) }

// Quiet records that since from nothing was disturbed, and that reports are
// visible within a time.
func (r *Recorder) Quiet(from time.Time, within time.Duration) {
	r.add(Line{Quiet: &Quiet{From: from.Sub(r.start).Nanoseconds(), Within: within.Nanoseconds()}})
}

func (r *Recorder) add(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.At = time.Since(r.start).Nanoseconds()
	if r.err == nil {
		r.err = r.enc.Encode(l)
	}
}

// Flush writes what is buffered and returns the first error of all writes.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.out.Flush(); r.err == nil {
		r.err = err
	}
	return r.err
}

// Read calls yield for every line of a history. An error names the line.
func Read(from io.Reader, yield func(Line)) error {
	dec := json.NewDecoder(from)
	dec.DisallowUnknownFields()
	for n := 1; ; n++ {
		var l Line
		switch err := dec.Decode(&l); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("history: line %d: %w", n, err)
		case l.kinds() != 1:
			return fmt.Errorf("history: line %d says %d things, not one", n, l.kinds())
		}
		yield(l)
	}
}

func (l *Line) kinds() int {
	n := 0
	for _, is := range []bool{l.Report != nil, l.Open != nil, l.Message != nil, l.Quiet != nil} {
		if is {
			n++
		}
	}
	return n
}

package frame

import (
	"net/http"
	"sync"
	"time"
)

// maxJoined is the largest message whose prefix and payload are copied into
// one write; above it a second write costs less than the copy.
const maxJoined = 64 << 10

// Buffers are reused by the writers that share them. The zero Buffers is
// ready. It is safe for concurrent use.
type Buffers struct{ pool sync.Pool }

func (b *Buffers) get() *[]byte {
	if kept, ok := b.pool.Get().(*[]byte); ok {
		return kept
	}
	return new([]byte)
}

func (b *Buffers) put(buffer *[]byte) {
	*buffer = (*buffer)[:0]
	b.pool.Put(buffer)
}

// Writer joins the writes of a message until it is flushed, keeps the first
// error, and sets the deadlines of one request. It is for one goroutine.
type Writer struct {
	http.ResponseWriter
	control *http.ResponseController
	buffers *Buffers
	pending *[]byte
	// timeout is the time that a stream has to send one message; 0 where the
	// answer is no stream.
	timeout time.Duration
	// rolling says that each part of the answer has timeout to itself.
	rolling bool
	// armed says that a message of a stream is on its way.
	armed bool
	// deadline is the one in force for writes; zero for none.
	deadline time.Time
	sent     int
	err      error
	// atFinish is called when the answer was written.
	atFinish []func()
}

// NewWriter returns a writer for the answer to one request.
func NewWriter(w http.ResponseWriter, buffers *Buffers) *Writer {
	return &Writer{ResponseWriter: w, control: http.NewResponseController(w), buffers: buffers}
}

// Unwrap lets an http.ResponseController reach the server's own writer.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write keeps p until the next flush, or until more is kept than is joined.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.kept()+len(p) > maxJoined {
		w.push()
		return len(p), w.pass(p)
	}
	if w.pending == nil {
		w.pending = w.buffers.get()
	}
	*w.pending = append(*w.pending, p...)
	return len(p), nil
}

func (w *Writer) kept() int {
	if w.pending == nil {
		return 0
	}
	return len(*w.pending)
}

// push writes what is kept.
func (w *Writer) push() {
	if w.pending == nil {
		return
	}
	_ = w.pass(*w.pending)
	w.buffers.put(w.pending)
	w.pending = nil
}

// pass hands p to the server, in parts where each has its own deadline.
func (w *Writer) pass(p []byte) error {
	for len(p) > 0 && w.err == nil {
		part := p
		if w.rolling {
			part, w.armed = p[:min(len(p), maxJoined)], false
		}
		if w.arm(); w.err == nil {
			var n int
			n, w.err = w.ResponseWriter.Write(part)
			w.sent += n
		}
		p = p[len(part):]
	}
	return w.err
}

// Flush writes what is kept and sends it. Its error is kept for the next
// Write.
func (w *Writer) Flush() {
	w.push()
	w.arm()
	if err := w.control.Flush(); w.err == nil {
		w.err = err
	}
	w.armed = false
	if w.timeout > 0 && w.err == nil {
		// A server ends the stream at the deadline even when nothing is being
		// written.
		w.unlimited()
	}
}

// arm gives a message of a stream its deadline, once.
func (w *Writer) arm() {
	if w.timeout > 0 && !w.armed && w.err == nil {
		w.armed = true
		w.within(w.timeout)
	}
}

// AtFinish has Finish call f after what the handler left was written.
func (w *Writer) AtFinish(f func()) { w.atFinish = append(w.atFinish, f) }

// Finish writes what a handler left without flushing. It is called once.
func (w *Writer) Finish() {
	w.push()
	for _, f := range w.atFinish {
		f()
	}
}

// Sent returns how many bytes were handed to the server.
func (w *Writer) Sent() int { return w.sent }

// Err returns the first error of a write or a flush; nil while all went well.
func (w *Writer) Err() error { return w.err }

// Limit bounds the reading of the request and the writing of the answer.
// Servers that cannot do it are not an error.
func (w *Writer) Limit(read, write time.Duration) {
	now := time.Now()
	_ = w.control.SetReadDeadline(now.Add(read))
	w.within(write)
}

// Stream lifts both limits: the request was read, and from now on each
// message has timeout to itself.
func (w *Writer) Stream(timeout time.Duration) {
	_ = w.control.SetReadDeadline(time.Time{})
	w.unlimited()
	w.timeout = timeout
}

// Roll lifts both limits, and gives each part of the answer of up to 64 KiB
// timeout to itself: a reader may be slow, and not stand still.
func (w *Writer) Roll(timeout time.Duration) {
	w.Stream(timeout)
	w.rolling = true
}

func (w *Writer) within(d time.Duration) {
	w.deadline = time.Now().Add(d)
	_ = w.control.SetWriteDeadline(w.deadline)
}

func (w *Writer) unlimited() {
	w.deadline = time.Time{}
	_ = w.control.SetWriteDeadline(time.Time{})
}

// Late says whether the deadline for writes has passed.
func (w *Writer) Late() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

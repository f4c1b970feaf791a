// Package logqueue lets a log hold up nobody that writes to it.
package logqueue

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// Lines bounds the log lines that wait to be written.
	Lines = 1024
	// Grace is how long the end of a command waits for lines to be written.
	Grace = time.Second
)

// Through runs a command with a logger that never waits for out: lines go into a
// queue that is written to out meanwhile. newLogger makes loggers for what they
// write to. After a line the log is told how many have been dropped, where some
// were. The error is the command's. Where out still blocks after the grace, its
// goroutine is left behind.
func Through(out io.Writer, newLogger func(io.Writer) *slog.Logger, command func(*slog.Logger) error) error {
	q := &queue{lines: make(chan []byte, Lines), ended: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.run(out, newLogger(out))
	}()
	err := command(newLogger(q))
	close(q.ended)
	select {
	case <-done:
	case <-time.After(Grace):
	}
	return err
}

// queue takes log lines without ever waiting for their reader: where too
// many wait, further ones are dropped and counted. It is safe for concurrent
// use; run may be called once.
type queue struct {
	lines   chan []byte
	dropped atomic.Uint64
	// ended closes when no more lines are expected.
	ended chan struct{}
}

// Write takes a line. It never fails.
func (q *queue) Write(line []byte) (int, error) {
	select {
	case q.lines <- bytes.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// run writes lines to out until the queue has ended and is empty.
func (q *queue) run(out io.Writer, log *slog.Logger) {
	for ended := q.ended; ; {
		select {
		case line := <-q.lines:
			_, _ = out.Write(line) // There is nobody to tell.
			if n := q.dropped.Swap(0); n > 0 {
				log.Warn("log lines dropped, since nobody read them in time", "lines", n)
			}
		case <-ended:
			ended = nil
		}
		if ended == nil && len(q.lines) == 0 {
			return
		}
	}
}

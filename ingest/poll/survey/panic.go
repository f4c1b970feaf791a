package survey

import (
	"fmt"
	"runtime/debug"
)

// Panic is the error of what was read when the code that reads panicked. It is
// immutable.
type Panic struct {
	// Value is what the code panicked with, Stack where.
	Value, Stack string
}

// NewPanic makes an error of what recover returned, with the stack of the
// caller.
func NewPanic(v any) *Panic { return &Panic{fmt.Sprint(v), string(debug.Stack())} }

// Error says what the code panicked with.
func (p *Panic) Error() string { return "the reader panicked: " + p.Value }

// Safely runs what reads the page. A panic is a reason like others.
func (p *Page) Safely(read func()) {
	defer func() {
		if v := recover(); v != nil {
			p.Fail(ReasonReaderPanic, NewPanic(v))
		}
	}()
	read()
}

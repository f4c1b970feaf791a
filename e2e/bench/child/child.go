// Package child starts processes of this program and asks them questions, one
// JSON value each way.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// Word is the first argument of a process that this one started; its role is
// the second.
const Word = "child"

// Unpinned leaves a process on all cores.
const Unpinned = -1

// stopWithin bounds the end of a child.
const stopWithin = 20 * time.Second

// question goes to a child, answer comes back; one line each.
type question struct {
	Do  string          `json:"do"`
	Arg json.RawMessage `json:"arg,omitempty"`
}

type answer struct {
	Error string          `json:"error,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Process is a child that answers questions. It is for one goroutine.
type Process struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	ask  *json.Encoder
	hear *json.Decoder
}

// Start starts this program as a child, on one core, which needs
// taskset, where core is not Unpinned. It is killed when ctx ends.
func Start(ctx context.Context, role string, core int) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{self, Word, role}
	if core != Unpinned {
		args = append([]string{"taskset", "-c", strconv.Itoa(core)}, args...)
	}
	c := &Process{role: role, cmd: exec.CommandContext(ctx, args[0], args[1:]...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.WaitDelay = stopWithin
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.ask, c.hear = json.NewEncoder(c.in), json.NewDecoder(out)
	return c, c.cmd.Start()
}

// Do asks a child and waits for what it says; value may be nil.
func (c *Process) Do(what string, arg, value any) error {
	raw, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	if err := c.ask.Encode(question{what, raw}); err != nil {
		return fmt.Errorf("%s: %s: %w", c.role, what, err)
	}
	var a answer
	if err := c.hear.Decode(&a); err != nil {
		return fmt.Errorf("%s: %s: %w", c.role, what, err)
	}
	if a.Error != "" {
		return fmt.Errorf("%s: %s: %s", c.role, what, a.Error)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(a.Value, value)
}

// Stop ends a child and waits for it.
func (c *Process) Stop() {
	_ = c.in.Close()
	late := time.AfterFunc(stopWithin, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	_ = c.cmd.Wait() // What it failed at was in an answer.
}

// Role answers one kind of question.
type Role func(arg json.RawMessage) (any, error)

// Takes makes a role of a function with an argument.
func Takes[A, R any](fn func(A) (R, error)) Role {
	return func(arg json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(arg, &a); err != nil {
			return nil, err
		}
		return fn(a)
	}
}

// Does makes a role of a function that returns no value.
func Does[A any](fn func(A) error) Role {
	return Takes(func(a A) (any, error) { return nil, fn(a) })
}

// Nothing is the argument of a question that has none.
type Nothing struct{}

// Serve answers the questions that come in until in ends.
func Serve(roles map[string]Role, in io.Reader, out io.Writer) error {
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q question
		if err := questions.Decode(&q); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := answers.Encode(reply(roles, q)); err != nil {
			return err
		}
	}
}

func reply(roles map[string]Role, q question) (a answer) {
	fn, ok := roles[q.Do]
	if !ok {
		return answer{Error: "unknown question"}
	}
	value, err := fn(q.Arg)
	if err == nil {
		a.Value, err = json.Marshal(value)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

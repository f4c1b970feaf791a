package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// screen collects what a command writes and lets others wait for a text. It
// is safe for concurrent use.
type screen struct {
	mu      sync.Mutex
	b       bytes.Buffer
	changed chan struct{}
}

func newScreen() *screen { return &screen{changed: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.b.Write(p)
}

func (s *screen) now() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String(), s.changed
}

func (s *screen) String() string {
	text, _ := s.now()
	return text
}

// await waits until good accepts the text.
func (s *screen) await(ctx context.Context, t *testing.T, good func(string) bool) string {
	t.Helper()
	for {
		text, changed := s.now()
		if good(text) {
			return text
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("it never came; there was:\n%s", text)
		}
	}
}

// command is a command line in the test's process.
type command struct {
	out, err *screen
	code     chan int
	stop     context.CancelFunc
}

func start(t *testing.T, environ []string, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &command{newScreen(), newScreen(), make(chan int, 1), cancel}
	go func() {
		c.code <- (&app{out: c.out, err: c.err, environ: environ}).run(ctx, args)
	}()
	t.Cleanup(func() { c.stop(); c.wait(t) })
	return c
}

// wait returns the exit code; it can be called again.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-c.code:
		c.code <- code
		return code
	case <-time.After(20 * time.Second):
		t.Fatalf("the command does not end; it wrote:\n%s\n%s", c.out, c.err)
		return -1
	}
}

// run runs a command line to its end.
func run(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	c := start(t, nil, args...)
	code = c.wait(t)
	return code, c.out.String(), c.err.String()
}

// soon bounds a wait in a test.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// requireWidth fails for lines wider than a terminal.
func requireWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

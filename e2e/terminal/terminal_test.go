package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// program is the path of the built binary.
var program string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loadplane-terminal")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "loadplane")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/loadplane").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		return 1
	}
	return m.Run()
}

// limit bounds every wait.
const limit = 30 * time.Second

// terminal is a program in a pseudo terminal, with an emulator behind it.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	file *os.File
	// mode is the terminal's mode before the program began.
	mode *unix.Termios

	mu       sync.Mutex
	emulator *vt.Emulator
	raw      strings.Builder
	changed  chan struct{}

	// ended closes when the program ended; drain when all that it wrote was read.
	ended, drain chan struct{}
	err          error
}

// size is that of a terminal.
type size struct{ columns, rows int }

var (
	small = size{80, 24}
	large = size{200, 50}
)

// open runs the program in a terminal, and ends it with the test.
func open(t *testing.T, s size, environ []string, args ...string) *terminal {
	t.Helper()
	file, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{
		t: t, file: file, emulator: vt.NewEmulator(s.columns, s.rows), changed: make(chan struct{}), ended: make(chan struct{}), drain: make(chan struct{}),
		cmd: exec.Command(program, args...),
	}
	if err := pty.Setsize(file, &pty.Winsize{Rows: uint16(s.rows), Cols: uint16(s.columns)}); err != nil {
		t.Fatal(err)
	}
	x.mode = x.termios()
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.Env = append(os.Environ(), append([]string{"TERM=xterm-256color", "COLORTERM=", "NO_COLOR="}, environ...)...)
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go x.read()
	go x.answer(answered)
	go func() {
		x.err = x.cmd.Wait()
		_ = tty.Close()
		close(x.ended)
	}()
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		<-x.ended
		_ = x.file.Close()
		<-x.drain
		// The emulator's own Close may not be called beside its Read.
		if c, ok := x.emulator.InputPipe().(io.Closer); ok {
			_ = c.Close()
			<-answered
		}
	})
	return x
}

// read feeds the emulator with what the program writes.
func (x *terminal) read() {
	defer close(x.drain)
	buf := make([]byte, 64<<10)
	for {
		n, err := x.file.Read(buf)
		x.mu.Lock()
		x.raw.Write(buf[:n])
		_, _ = x.emulator.Write(buf[:n])
		close(x.changed)
		x.changed = make(chan struct{})
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// answer sends what the emulator answers to the program's questions.
func (x *terminal) answer(done chan<- struct{}) {
	defer close(done)
	_, _ = io.Copy(x.file, x.emulator)
}

func (x *terminal) termios() *unix.Termios {
	x.t.Helper()
	mode, err := unix.IoctlGetTermios(int(x.file.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return mode
}

// keys types.
func (x *terminal) keys(keys ...string) {
	x.t.Helper()
	for _, k := range keys {
		if _, err := x.file.WriteString(k); err != nil {
			x.t.Fatal(err)
		}
	}
}

// The keys that have no letter.
const (
	enter  = "\r"
	escape = "\x1b"
	down   = "\x1b[B"
)

// resize makes the terminal another size.
func (x *terminal) resize(s size) {
	x.t.Helper()
	x.mu.Lock()
	x.emulator.Resize(s.columns, s.rows)
	x.mu.Unlock()
	if err := pty.Setsize(x.file, &pty.Winsize{Rows: uint16(s.rows), Cols: uint16(s.columns)}); err != nil {
		x.t.Fatal(err)
	}
}

// lines returns what is on the screen, without blanks at the ends of lines.
func (x *terminal) lines() ([]string, <-chan struct{}) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]string, x.emulator.Height())
	for y := range out {
		var b strings.Builder
		for i := 0; i < x.emulator.Width(); i++ {
			c := x.emulator.CellAt(i, y)
			switch {
			case c == nil || c.Content == "":
				b.WriteByte(' ')
			default:
				b.WriteString(c.Content)
				i += max(1, c.Width) - 1
			}
		}
		out[y] = strings.TrimRight(b.String(), " ")
	}
	return out, x.changed
}

// until waits until the screen is as wanted, and returns it.
func (x *terminal) until(what string, ok func(lines []string) bool) []string {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		lines, changed := x.lines()
		if ok(lines) {
			return lines
		}
		select {
		case <-changed:
		case <-ctx.Done():
			x.t.Fatalf("never came: %s; the screen is\n%s", what, strings.Join(lines, "\n"))
		}
	}
}

// shows waits for a text anywhere on the screen.
func (x *terminal) shows(text string) []string {
	x.t.Helper()
	return x.until(fmt.Sprintf("%q", text), func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), text) })
}

// wait waits for the program's end and returns its exit code.
func (x *terminal) wait() int {
	x.t.Helper()
	select {
	case <-x.ended:
	case <-time.After(limit):
		lines, _ := x.lines()
		x.t.Fatalf("it still runs:\n%s", strings.Join(lines, "\n"))
	}
	var exit *exec.ExitError
	if errors.As(x.err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// keep writes a transcript to the folder of artefacts.
func keep(t *testing.T, name string, lines []string) {
	t.Helper()
	dir := os.Getenv("ARTIFACTS")
	if dir == "" {
		dir = t.ArtifactDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// requireWidth fails for lines of plain output that are too wide.
func requireWidth(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := ansi.StringWidth(strings.TrimRight(line, "\r\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// plane is a demo with its engines, whose API stays on one port.
type plane struct {
	t    *testing.T
	args []string
	url  string
	cmd  *exec.Cmd
}

// demo starts a plane with engines.
func demo(t *testing.T, args ...string) *plane {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	p := &plane{t: t, url: "http://" + address}
	p.args = append([]string{"demo", "--log-level=error", "--api-listen=" + address, "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"}, args...)
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *plane) start() {
	p.t.Helper()
	p.cmd = exec.Command(program, p.args...)
	p.cmd.Stderr = p.t.Output()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

package terminal

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mixedFleet is the demo that most screens show.
var mixedFleet = []string{"--mixed", "--engines=11", "--ranks=4"}

// top opens the live screen of a plane and waits until it shows all workers.
func top(t *testing.T, p *plane, s size, environ []string, args ...string) *terminal {
	t.Helper()
	x := open(t, s, environ, append([]string{"top", "--server=" + p.url}, args...)...)
	x.shows("11 workers: 11 fresh")
	return x
}

// table returns the lines below the heads of the table of workers.
func table(lines []string) (head string, rows []string) {
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, " WORKER") })
	if i < 0 {
		return "", nil
	}
	for _, l := range lines[i+1 : len(lines)-1] {
		if l != "" {
			rows = append(rows, l)
		}
	}
	return lines[i], rows
}

// usages returns the shares in use of the workers, -1 where it is unknown.
func usages(rows []string) (out []int) {
	for _, r := range rows {
		if m := regexp.MustCompile(` (\d+)% [█░]`).FindStringSubmatch(r); m != nil {
			n, _ := strconv.Atoi(m[1])
			out = append(out, n)
		} else {
			out = append(out, -1)
		}
	}
	return out
}

// hottestFirst says that a table is sorted by usage and shows some.
func hottestFirst(lines []string) bool {
	_, rows := table(lines)
	u := usages(rows)
	return len(u) > 1 && u[0] > 0 && slices.IsSortedFunc(u, func(a, b int) int { return b - a })
}

// frame fails for a screen that is not laid out as it should be.
func frame(t *testing.T, lines []string, s size) {
	t.Helper()
	text := strings.Join(lines, "\n")
	if len(lines) != s.rows || !strings.HasPrefix(lines[0], "loadplane top  ") || !strings.Contains(lines[1], " workers: ") || !strings.HasSuffix(lines[s.rows-1], "q quit") {
		t.Errorf("header or footer are missing in\n%s", text)
	}
	requireWidth(t, text, s.columns)
	_, rows := table(lines)
	for _, r := range rows {
		if r[0] != ' ' && r[0] != '>' {
			t.Errorf("a line that is too long: %s", r)
		}
	}
}

// The live screen at two sizes: the hottest worker first, sorted, filtered, a
// worker opened, help, and the terminal as it was after the end.
func TestTop(t *testing.T) {
	p := demo(t, mixedFleet...)
	for name, s := range map[string]size{"80x24": small, "200x50": large} {
		t.Run(name, func(t *testing.T) {
			x := top(t, p, s, nil)
			shot := func(name string, lines []string) {
				t.Helper()
				frame(t, lines, s)
				keep(t, "top-"+strconv.Itoa(s.columns)+"x"+strconv.Itoa(s.rows)+"-"+name+".txt", lines)
			}
			lines := x.until("the hottest worker first", hottestFirst)
			if !strings.Contains(lines[0], " LIVE ") || !strings.Contains(strings.Join(lines, "\n"), "sim-model") {
				t.Errorf("no live screen with pools:\n%s", strings.Join(lines, "\n"))
			}
			if strip := strings.Contains(strings.Join(lines, "\n"), "TENTHS OF EACH RANK"); strip != (s == large) {
				t.Errorf("the strip of ranks is shown: %v", strip)
			}
			shot("usage", lines)

			x.keys("r")
			x.until("the coolest worker first", func(lines []string) bool {
				_, rows := table(lines)
				u := slices.DeleteFunc(usages(rows), func(n int) bool { return n < 0 })
				return len(u) > 1 && slices.IsSorted(u)
			})
			x.keys("N")
			lines = x.until("sorted by name", func(lines []string) bool {
				head, rows := table(lines)
				return strings.Contains(head, "WORKER↑") && slices.IsSortedFunc(rows, func(a, b string) int { return strings.Compare(a[1:], b[1:]) })
			})
			shot("name", lines)

			x.keys("/", "prefill")
			x.shows("filter: prefill")
			x.keys(enter)
			lines = x.shows("2 of 11 by name")
			if _, rows := table(lines); len(rows) != 2 || !strings.Contains(rows[0], " prefill ") || !strings.Contains(rows[1], " prefill ") {
				t.Errorf("the filter shows %q", rows)
			}
			shot("filter", lines)

			_, rows := table(lines)
			second := strings.Fields(rows[1][1:])[0]
			x.keys(down)
			x.until("the cursor on the second", func(lines []string) bool {
				_, rows := table(lines)
				return len(rows) == 2 && strings.HasPrefix(rows[1], ">"+second)
			})
			x.keys(enter)
			x.shows("worker http://" + second)
			x.shows("dp3")
			lines = x.until("an answer for the checks", func(lines []string) bool {
				text := strings.Join(lines, "\n")
				return !strings.Contains(text, "no answer yet") && (strings.Contains(text, "CHECKS") || s == small)
			})
			shot("worker", lines)
			x.keys("c")
			lines = x.until("the checks", func(lines []string) bool { return strings.Contains(lines[2], "CHECKS") || s == large })
			shot("checks", lines)

			x.keys("?")
			shot("help", x.shows("sort by letter"))
			x.keys(escape)
			x.shows("worker http://" + second)
			x.keys(escape)
			x.shows("2 of 11 by name")
			x.keys(escape)
			x.shows("11 of 11 by name")
			x.restored()
		})
	}
}

// restored quits, and wants the terminal as it was.
func (x *terminal) restored() {
	x.t.Helper()
	x.mu.Lock()
	if !x.emulator.IsAltScreen() || !x.emulator.CursorHidden() {
		x.t.Error("the screen is not one of its own, or has a cursor")
	}
	x.mu.Unlock()
	if raw := x.termios(); raw.Lflag&(unix.ICANON|unix.ECHO) != 0 {
		x.t.Error("the terminal is not raw while it runs")
	}
	x.keys("q")
	if code := x.wait(); code != 0 {
		x.t.Errorf("exit %d", code)
	}
	x.until("the screen that was there before", func([]string) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return !x.emulator.IsAltScreen() && !x.emulator.CursorHidden()
	})
	if mode := x.termios(); *mode != *x.mode {
		x.t.Errorf("the terminal's mode is %+v, was %+v", mode, x.mode)
	}
}

// The screen follows the size of the terminal, also to one that is tiny.
func TestTopResized(t *testing.T) {
	p := demo(t, mixedFleet...)
	x := top(t, p, small, nil)
	for _, s := range []size{large, {40, 12}, {120, 30}, {7, 3}, small} {
		x.resize(s)
		lines := x.until("a frame of the new size", func(lines []string) bool {
			return strings.HasPrefix(lines[0], "loadpl") && strings.HasPrefix(lines[s.rows-1], "11 of ")
		})
		requireWidth(t, strings.Join(lines, "\n"), s.columns)
		if s.columns >= 80 {
			frame(t, x.until("the hottest worker first", hottestFirst), s)
		}
	}
	x.restored()
}

// A plane that is killed leaves its last view with a clear sign, its workers
// turn stale by themselves, and the screen is live again once it is back.
func TestTopLosesThePlane(t *testing.T) {
	p := demo(t, mixedFleet...)
	x := top(t, p, small, nil)
	p.kill()
	lines := x.shows("STREAM LOST at ")
	if !strings.Contains(lines[0], " LOST ") || !strings.Contains(lines[2], "next try within") {
		t.Errorf("the header is\n%s", strings.Join(lines[:4], "\n"))
	}
	lines = x.shows("0 fresh 11 stale")
	if !strings.Contains(strings.Join(lines, "\n"), "0/7/7") {
		t.Errorf("pools still have fresh workers:\n%s", strings.Join(lines, "\n"))
	}
	frame(t, lines, small)
	keep(t, "top-80x24-lost.txt", lines)
	p.start()
	lines = x.until("the plane again", func(lines []string) bool {
		return strings.Contains(lines[0], " LIVE ") && strings.Contains(lines[1], "11 fresh 0 stale") && !strings.Contains(lines[2], "LOST")
	})
	keep(t, "top-80x24-back.txt", lines)
	x.restored()
}

// A plane that is not there from the start gives a screen that says so, and
// Ctrl-C leaves it.
func TestTopWithoutAPlane(t *testing.T) {
	x := open(t, small, nil, "top", "--server=http://127.0.0.1:1")
	lines := x.shows("STREAM LOST at ")
	if !strings.Contains(strings.Join(lines, "\n"), "no view yet") {
		t.Errorf("the screen is\n%s", strings.Join(lines, "\n"))
	}
	x.keys("\x03")
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Colours are left out where they are not wanted; nothing else is.
func TestTopWithoutColours(t *testing.T) {
	p := demo(t, mixedFleet...)
	for _, c := range []struct {
		name    string
		environ []string
		colours bool
	}{
		{"colours", nil, true},
		{"NO_COLOR", []string{"NO_COLOR=1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := top(t, p, small, c.environ)
			x.until("the hottest worker first", hottestFirst)
			x.mu.Lock()
			raw := x.raw.String()
			x.mu.Unlock()
			if got := regexp.MustCompile(`\x1b\[[0-9;]*[34][0-7]m`).MatchString(raw); got != c.colours {
				t.Errorf("colours: %v, want %v", got, c.colours)
			}
			x.restored()
		})
	}
}

// SIGTERM ends the screen as q does.
func TestTopTerminated(t *testing.T) {
	p := demo(t, mixedFleet...)
	x := top(t, p, small, nil)
	if err := x.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	x.until("the screen that was there before", func([]string) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return !x.emulator.IsAltScreen() && !x.emulator.CursorHidden()
	})
	if mode := x.termios(); *mode != *x.mode {
		t.Errorf("the terminal's mode is %+v, was %+v", mode, x.mode)
	}
}

// A plane that wants a token shows its view to who has it, and the others what
// is wrong.
func TestTopWithAToken(t *testing.T) {
	file := func(name, token string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := file("token", "right")
	p := demo(t, append([]string{"--api-token-file=" + token}, mixedFleet...)...)
	top(t, p, small, nil, "--token-file="+token).restored()
	x := open(t, large, nil, "top", "--server="+p.url, "--token-file="+file("wrong", "wrong"))
	lines := x.shows("does not accept the token")
	if !strings.Contains(lines[2], "next try within 30s") {
		t.Errorf("%s", lines[2])
	}
	x.keys("q")
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

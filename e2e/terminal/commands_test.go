package terminal

import (
	"regexp"
	"strings"
	"testing"
)

// output runs a command in a terminal to its end, wants an exit code, and
// returns what it wrote.
func output(t *testing.T, s size, code int, args ...string) string {
	t.Helper()
	x := open(t, s, nil, args...)
	got := x.wait()
	x.drained()
	text := x.written()
	if got != code {
		t.Fatalf("%v: exit %d:\n%s", args, got, text)
	}
	return text
}

// written is what the program wrote, in lines.
func (x *terminal) written() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.ReplaceAll(x.raw.String(), "\r\n", "\n")
}

// drained waits until all that the program wrote was read.
func (x *terminal) drained() {
	x.t.Helper()
	select {
	case <-x.drain:
	case <-x.t.Context().Done():
	}
}

// What the commands print for people fits a terminal of 80 columns.
func TestCommandsIn80Columns(t *testing.T) {
	p := demo(t, mixedFleet...)
	top(t, p, small, nil).restored()
	server := "--server=" + p.url
	snapshot := output(t, small, 0, "snapshot", server)
	worker := regexp.MustCompile(`(?m)^127\.0\.0\.1:\d+`).FindString(snapshot)
	if worker == "" {
		t.Fatalf("no worker in\n%s", snapshot)
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"snapshot", " WAIT ", []string{"snapshot", server}},
		{"workers", " DIALECT ", []string{"workers", "list", server}},
		{"workers-wide", " columns have no room for ", []string{"workers", "list", "-o", "wide", server}},
		{"explain", worker, []string{"explain", "http://" + worker, server}},
		{"pick", "127.0.0.1:", []string{"pick", server, "--no-credit", "--model=sim-model", "--role=decode"}},
		{"probe", "dialect", []string{"probe", "http://" + worker}},
		{"once", " USAGE", []string{"top", "--once", server}},
		{"once-filtered", " prefill ", []string{"top", "--once", server, "--role=prefill", "--sort=name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := output(t, small, 0, c.args...)
			requireWidth(t, text, small.columns)
			if !strings.Contains(text, c.want) || strings.Contains(text, "\x1b[?1049h") {
				t.Errorf("no %q in\n%s", c.want, text)
			}
			keep(t, c.name+"-80.txt", strings.Split("$ loadplane "+strings.Join(c.args, " ")+"\n"+text, "\n"))
		})
	}
}

// A watch is followed until Ctrl-C.
func TestWatchIn80Columns(t *testing.T) {
	p := demo(t, mixedFleet...)
	top(t, p, small, nil).restored()
	x := open(t, small, nil, "watch", "--server="+p.url)
	x.until("five changes", func([]string) bool { return strings.Count(x.written(), " delta ") >= 5 })
	x.keys("\x03")
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	x.drained()
	requireWidth(t, strings.ReplaceAll(x.written(), "^C", ""), small.columns)
	keep(t, "watch-80.txt", strings.Split(x.written(), "\n"))
}

// Without a plane --once fails, and says what to do.
func TestOnceWithoutAPlane(t *testing.T) {
	text := output(t, small, 1, "top", "--once", "--server=http://127.0.0.1:1")
	if !strings.Contains(text, "nothing listens at") || strings.Contains(text, " WORKER ") {
		t.Errorf("%s", text)
	}
	if text := output(t, small, 2, "top", "--sort=nothing"); !strings.Contains(text, "--sort") {
		t.Errorf("%s", text)
	}
}

package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"connectrpc.com/connect"
	"github.com/charmbracelet/x/ansi"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/top/sheet"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/spf13/pflag"
)

// began is when the views of the tests arrive.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// viewOf returns a view of workers, each heard 200 ms before it arrived.
func viewOf(t *testing.T, warming bool, workers ...*pb.Worker) *client.View {
	t.Helper()
	full := &pb.Full{Workers: workers, Pools: []*pb.Pool{{Key: &pb.PoolKey{Model: "m", Role: pb.Role_ROLE_REGULAR}, Expected: new(uint32(len(workers)))}}}
	m := &pb.WatchSnapshotsResponse{
		Cursor: &pb.Cursor{Lineage: "0123456789abcdef", Epoch: 1, Version: 7}, ServerClockMs: 1200, StaleAfterMs: 3000, ServerId: "s", Warming: warming,
		Liveness: &pb.Liveness{}, Event: &pb.WatchSnapshotsResponse_Full{Full: full},
	}
	for i, w := range workers {
		w.Row = uint32(i + 1)
		m.Liveness.Workers = append(m.Liveness.Workers, &pb.WorkerLiveness{Row: w.GetRow(), SequenceId: 1, ReceivedMs: 1000, ValidUntilMs: 4000})
	}
	v, err := new(client.Replica).Apply(m, began)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// load is a fresh plain worker with one rank.
func load(id string, usage float64) *pb.Worker {
	return &pb.Worker{
		WorkerId: id, Role: pb.Role_ROLE_REGULAR, Models: []string{"m"}, Freshness: pb.Freshness_FRESHNESS_FRESH,
		Aggregate: &pb.Aggregate{WeightedTokenUsage: &usage, MaxRankTokenUsage: &usage}, Ranks: []*pb.RankLoad{{TokenUsage: &usage}},
	}
}

// connected is the status of a watch that has just brought a message.
func connected() client.Status {
	return client.Status{Address: "http://plane", Since: began, LastMessage: began}
}

// started returns a model with a view of n workers w00, w01, ..., the first of
// which are the least loaded.
func started(t *testing.T, n int) *model {
	t.Helper()
	var workers []*pb.Worker
	for i := range n {
		workers = append(workers, load(fmt.Sprintf("w%02d", i), float64(i)/100))
	}
	c, err := flagsOf(t).choice()
	if err != nil {
		t.Fatal(err)
	}
	m := newModel("http://plane", c, "")
	m.Update(news{view: viewOf(t, false, workers...), status: connected(), now: began})
	return m
}

// flagsOf parses flags.
func flagsOf(t *testing.T, args ...string) Flags {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// press types keys: names of special ones, else a text of one key.
func press(m *model, keys ...string) (cmd tea.Cmd) {
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "backspace": tea.KeyBackspace, "down": tea.KeyDown, "up": tea.KeyUp,
		"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome, "end": tea.KeyEnd, "left": tea.KeyLeft, "f1": tea.KeyF1,
	}
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k}
		if code, ok := special[k]; ok {
			msg = tea.KeyPressMsg{Code: code}
		} else if letter, ok := strings.CutPrefix(k, "ctrl+"); ok {
			msg = tea.KeyPressMsg{Code: rune(letter[0]), Mod: tea.ModCtrl}
		} else {
			msg.Code, _ = utf8.DecodeRuneInString(k)
		}
		_, cmd = m.Update(msg)
	}
	return cmd
}

// screen is what is shown, without escapes.
func screen(m *model) string { return ansi.Strip(m.View().Content) }

// shown are the workers of the table, the cursor marked.
func shown(m *model) string {
	var out []string
	for line := range strings.Lines(screen(m)) {
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(strings.TrimPrefix(word, ">"), "w0") {
				out = append(out, word)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestKeysOfTheTable(t *testing.T) {
	for _, c := range []struct {
		name, keys, want string
	}{
		{"at first the hottest is first and chosen", "", ">w04 w03 w02 w01 w00"},
		{"down", "j down", "w04 w03 >w02 w01 w00"},
		{"up", "j j k up", ">w04 w03 w02 w01 w00"},
		{"not below the last", "pgdown j", "w04 w03 w02 w01 >w00"},
		{"not above the first", "end pgup k", ">w04 w03 w02 w01 w00"},
		{"last and first", "G g", ">w04 w03 w02 w01 w00"},
		{"home and end", "home end", "w04 w03 w02 w01 >w00"},
		{"the cursor stays on its worker", "j r", "w00 w01 w02 >w03 w04"},
		{"by a letter", "N", "w00 w01 w02 w03 >w04"},
		{"by a letter twice", "N N", ">w04 w03 w02 w01 w00"},
		{"the next column, by max", "s", ">w04 w03 w02 w01 w00"},
		{"all columns around", "s s s s s s s s s s", ">w04 w03 w02 w01 w00"},
		{"a letter of no column", "Z", ">w04 w03 w02 w01 w00"},
		{"a filter", "/ 0 2 enter", ">w02"},
		{"a filter takes the letters of keys", "/ q r j enter", ""},
		{"a filter is undone", "/ 0 2 esc", "w04 w03 >w02 w01 w00"},
		{"a filter is cleared", "/ 0 2 enter esc", "w04 w03 >w02 w01 w00"},
		{"a second filter is undone to the first", "/ 0 enter / 2 esc", "w04 w03 >w02 w01 w00"},
		{"the first filter is that of before", "/ 2 enter / 9 esc", ">w02"},
		{"the next column is not reversed", "r s", ">w04 w03 w02 w01 w00"},
		{"backspace", "/ 0 2 backspace enter", "w04 w03 >w02 w01 w00"},
		{"backspace on nothing", "/ backspace enter", ">w04 w03 w02 w01 w00"},
		{"ctrl+u", "/ 9 9 ctrl+u enter", ">w04 w03 w02 w01 w00"},
		{"opened and back", "j enter esc", "w04 >w03 w02 w01 w00"},
		{"help and back", "? esc", ">w04 w03 w02 w01 w00"},
		{"help by another key, and away by it", "f1 h", ">w04 w03 w02 w01 w00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := started(t, 5)
			press(m, strings.Fields(c.keys)...)
			if got := shown(m); got != c.want {
				t.Errorf("%s, want %s\n%s", got, c.want, screen(m))
			}
		})
	}
}

// Help goes back to where it was asked for.
func TestHelpGoesBack(t *testing.T) {
	m := started(t, 2)
	press(m, "enter", "?")
	if s := screen(m); !strings.Contains(s, "KEYS") {
		t.Errorf("no help:\n%s", s)
	}
	press(m, "esc")
	if s := screen(m); !strings.Contains(s, "worker w01") {
		t.Errorf("not the worker:\n%s", s)
	}
}

// The end of a page is the last that can be scrolled to.
func TestPagesAreNotScrolledBeyond(t *testing.T) {
	m := started(t, 1)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 10})
	press(m, "?", "end")
	end := screen(m)
	press(m, "j")
	if screen(m) != end {
		t.Errorf("there is more below the end:\n%s", screen(m))
	}
	press(m, "k")
	if screen(m) == end {
		t.Error("a line up from the end shows the same")
	}
}

func TestFilterIsBounded(t *testing.T) {
	m := started(t, 1)
	press(m, "/")
	for range maxFilter + 9 {
		press(m, "x")
	}
	if m.filter != strings.Repeat("x", maxFilter) {
		t.Errorf("%d characters", len(m.filter))
	}
	if s := screen(m); !strings.Contains(s, "no worker matches the filter") {
		t.Errorf("it does not say why nothing is shown:\n%s", s)
	}
}

// A large screen has the checks beside the worker, a small one below.
func TestChecksAreBeside(t *testing.T) {
	for width, want := range map[int]bool{159: false, 160: true} {
		m := started(t, 1)
		m.Update(tea.WindowSizeMsg{Width: width, Height: 60})
		press(m, "enter")
		beside := false
		for line := range strings.Lines(screen(m)) {
			beside = beside || strings.HasPrefix(line, "worker w00") && strings.Contains(line, sheet.ChecksHead)
		}
		if beside != want || !strings.Contains(screen(m), sheet.ChecksHead) {
			t.Errorf("%d columns: beside %v\n%s", width, beside, screen(m))
		}
	}
}

func TestQuit(t *testing.T) {
	for _, keys := range []string{"q", "ctrl+c", "enter q", "? q", "/ ctrl+c"} {
		cmd := press(started(t, 2), strings.Fields(keys)...)
		if cmd == nil {
			t.Errorf("%s does nothing", keys)
		} else if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%s does not quit", keys)
		}
	}
	if cmd := press(started(t, 2), "ctrl+z"); cmd == nil {
		t.Error("it cannot be suspended")
	}
}

// A worker that leaves the view gives the cursor to the one in its place, and
// its page says so.
func TestAWorkerLeaves(t *testing.T) {
	without := func(m *model) {
		m.Update(news{view: viewOf(t, false, load("w00", 0), load("w01", 0.1), load("w03", 0.3)), status: connected(), now: began})
	}
	m := started(t, 4)
	press(m, "j")
	without(m)
	if got := shown(m); got != "w03 >w01 w00" {
		t.Errorf("%s", got)
	}
	m = started(t, 4)
	press(m, "j", "enter")
	without(m)
	if !strings.Contains(screen(m), "no longer in the view") {
		t.Errorf("%s", screen(m))
	}
	press(m, "esc")
	if got := shown(m); got != "w03 >w01 w00" {
		t.Errorf("%s", got)
	}
}

// Rows that do not fit are scrolled to.
func TestScroll(t *testing.T) {
	m := started(t, 10)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 12})
	room := m.listRoom()
	if n := len(strings.Fields(shown(m))); n != room || room >= 10 {
		t.Fatalf("%d workers are shown, there is room for %d\n%s", n, room, screen(m))
	}
	press(m, "end")
	if got := shown(m); !strings.HasSuffix(got, ">w00") {
		t.Errorf("%s", got)
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 40})
	if got := shown(m); !strings.HasPrefix(got, "w09") || len(strings.Fields(got)) != 10 {
		t.Errorf("a larger screen shows %s", got)
	}
	press(m, "home")
	if got := shown(m); !strings.HasPrefix(got, ">w09") {
		t.Errorf("%s", got)
	}
}

func TestStates(t *testing.T) {
	lost := client.Status{Since: began, LastMessage: began, LastError: errors.New("http://plane: gone"), LastCause: client.CauseUnreachable, Ended: map[client.Cause]uint64{client.CauseUnreachable: 3}}
	refused := lost
	refused.LastCause = client.CauseRefused
	for _, c := range []struct {
		name    string
		view    bool
		status  client.Status
		after   time.Duration
		want    []string
		without string
	}{
		{"connecting", false, client.Status{Since: began}, 0, []string{" CONNECTING ", "no view yet"}, "LOST"},
		{"live", true, connected(), 2 * time.Second, []string{" LIVE ", " age 2.0s ", "01234567/7"}, "WARMING"},
		{"old", true, connected(), 3 * time.Second, []string{" OLD ", "NOTHING HEARD for 3.0s", "1 stale"}, "LOST"},
		{"lost", true, lost, 12 * time.Second, []string{" LOST ", "STREAM LOST at 03:04:05, 12s ago; tried 3 times, next try within 5s: advice"}, "LIVE"},
		{"never there", false, lost, 0, []string{" LOST ", "no view yet"}, "LIVE"},
		{"refused", true, refused, 0, []string{"next try within 30s"}, "LIVE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := started(t, 0)
			m.width = 120
			m.advise = func(error) error { return errors.New("advice") }
			var v *client.View
			if c.view {
				v = viewOf(t, false, load("w00", 0.5))
			}
			m.Update(news{view: v, status: c.status, now: began.Add(c.after)})
			for _, want := range c.want {
				if !strings.Contains(screen(m), want) {
					t.Errorf("no %q in\n%s", want, screen(m))
				}
			}
			if strings.Contains(screen(m), c.without) {
				t.Errorf("%q in\n%s", c.without, screen(m))
			}
		})
	}
	m := started(t, 0)
	m.Update(news{view: viewOf(t, true), status: connected(), now: began})
	if s := screen(m); !strings.Contains(s, "WARMING") || !strings.Contains(s, "knows no worker") {
		t.Errorf("%s", s)
	}
}

// The checks are asked for when a worker is opened, when it is another than it
// was, and when the user wants it; not when only its load changed.
func TestChecks(t *testing.T) {
	m := started(t, 1)
	asked := 0
	m.ask = func(_ context.Context, id string) (*pb.ExplainWorkerResponse, error) {
		asked++
		if id != "w00" {
			t.Errorf("asked for %q", id)
		}
		return &pb.ExplainWorkerResponse{
			Summary: "all is well", ServerClockMs: 5000,
			Checks: []*pb.Check{
				{Name: "lease", Value: "4s left", Limit: new("15s"), Verdict: pb.Verdict_VERDICT_OK},
				{Name: "last_report", Value: "9s ago", Limit: new("below 3s"), Verdict: pb.Verdict_VERDICT_FAIL, Advice: new("look at the engine"), Reason: new("age")},
				{Name: "x\x1b[2J", Value: "y\n\u202e", Verdict: pb.Verdict_VERDICT_UNKNOWN},
			},
			Diagnostics: []*pb.Diagnostic{{AtMs: 2000, Event: "refused", Reason: new("sequence_jump"), Count: 3}},
		}, nil
	}
	step := func(cmd tea.Cmd, want int) {
		t.Helper()
		if cmd != nil {
			m.Update(cmd())
		}
		if asked != want {
			t.Errorf("asked %d times, want %d", asked, want)
		}
	}
	m.height = 40
	cmd := press(m, "enter")
	if !strings.Contains(screen(m), "CHECKS  asked, no answer yet") {
		t.Errorf("%s", screen(m))
	}
	step(cmd, 1)
	for _, want := range []string{
		"all is well", "OK   lease          4s left\n", "FAIL last_report    9s ago  (limit below 3s)  [age]", "-> look at the engine", "?    x?[2J", "3.0s ago  3x refused sequence_jump",
	} {
		if !strings.Contains(screen(m), want) {
			t.Errorf("no %q in\n%s", want, screen(m))
		}
	}
	_, cmd = m.Update(news{view: viewOf(t, false, load("w00", 0.9)), status: connected(), now: began})
	step(cmd, 1)
	stale := load("w00", 0.9)
	stale.Freshness, stale.FreshnessReason = pb.Freshness_FRESHNESS_STALE, "age"
	_, cmd = m.Update(news{view: viewOf(t, false, stale), status: connected(), now: began})
	step(cmd, 2)
	step(press(m, "u"), 3)
}

func TestChecksThatCannotBeHad(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{connect.NewError(connect.CodeUnimplemented, errors.New("no")), "this plane does not explain workers"},
		{connect.NewError(connect.CodeNotFound, errors.New("no such\x1b worker")), "could not be had: not_found: no such? worker"},
	} {
		m := started(t, 1)
		m.ask = func(context.Context, string) (*pb.ExplainWorkerResponse, error) { return nil, c.err }
		m.Update(press(m, "enter")())
		if !strings.Contains(screen(m), c.want) {
			t.Errorf("no %q in\n%s", c.want, screen(m))
		}
	}
	m := started(t, 1)
	press(m, "enter")
	m.Update(answer("another", "wrong"))
	if strings.Contains(screen(m), "wrong") {
		t.Error("an answer for another worker is shown")
	}
}

// Every page at every size has lines of at most the width, as many as the
// height, and nothing of what a hostile name wants.
func TestEverySize(t *testing.T) {
	evil := load("w\x1b]0;title\x07\u202e"+strings.Repeat("模", 400), 0.5)
	evil.Models, evil.Labels, evil.SourceInstanceId = []string{"\x1b[31m" + strings.Repeat("m", 999)}, map[string]string{"k\n": "v\x9b"}, "i\r"
	for range 150 {
		evil.Ranks = append(evil.Ranks, &pb.RankLoad{DpRank: 4095, TokenUsage: new(0.5)})
	}
	for _, keys := range []string{"", "/ x", "enter", "enter c", "?"} {
		m := started(t, 0)
		m.ask = func(context.Context, string) (*pb.ExplainWorkerResponse, error) {
			return answer("", strings.Repeat("long ", 99)).Checks, nil
		}
		m.Update(news{view: viewOf(t, false, evil), status: client.Status{Since: began, LastError: errors.New("bad\n\x1b[2J")}, now: began})
		for _, k := range strings.Fields(keys) {
			if cmd := press(m, k); k == "enter" && cmd != nil {
				m.Update(cmd())
			}
		}
		for width := 1; width <= 230; width += 7 {
			for _, height := range []int{1, 2, 5, 24, 60} {
				m.Update(tea.WindowSizeMsg{Width: width, Height: height})
				content := m.View().Content
				text := ansi.Strip(content)
				lines := strings.Split(text, "\n")
				if len(lines) != height || strings.ContainsAny(text, "\x1b\x07\r\u202e\u009b") || strings.Contains(content, "title\x07") || strings.Contains(content, "\x1b[2J") {
					t.Fatalf("%q at %dx%d: %d lines:\n%q", keys, width, height, len(lines), text)
				}
				for _, l := range lines {
					if ansi.StringWidth(l) > width {
						t.Fatalf("%q at %dx%d: a line of %d: %q", keys, width, height, ansi.StringWidth(l), l)
					}
				}
			}
		}
	}
}

// FuzzKeys: no keys and no size break the screen.
func FuzzKeys(f *testing.F) {
	f.Add("jjs/ab\x00r", 80, 24)
	f.Add("/模\x1b", 1, 1)
	f.Fuzz(func(t *testing.T, keys string, width, height int) {
		m := started(t, 3)
		m.Update(tea.WindowSizeMsg{Width: width % 300, Height: height % 100})
		for _, k := range keys {
			m.Update(tea.KeyPressMsg{Code: k, Text: string(k)})
			m.Update(tea.PasteMsg{Content: string(k) + "\x1b\n"})
			switch k % 4 {
			case 0:
				m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
			case 1:
				m.Update(tea.KeyPressMsg{Code: tea.KeyEscape})
			}
		}
		lines := strings.Split(screen(m), "\n")
		if len(lines) != m.height || strings.ContainsRune(strings.Join(lines, ""), '\x1b') {
			t.Fatalf("%d lines of %d", len(lines), m.height)
		}
		for _, l := range lines {
			if ansi.StringWidth(l) > m.width {
				t.Fatalf("%d columns: %q", m.width, l)
			}
		}
	})
}

func TestFlags(t *testing.T) {
	for _, c := range []struct{ name, arg, want string }{
		{"no such column", "--sort=nothing", `--sort: "nothing" is not one of name, state, `},
		{"no such role", "--role=both", `--role: "both" is not one of`},
		{"no terminal", "--sort=name", "--once prints the view once"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Run(t.Context(), nil, flagsOf(t, c.arg), Terminal{})
			var usage *remote.UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("a dumb terminal", func(t *testing.T) {
		err := Run(t.Context(), &remote.Client{}, flagsOf(t), Terminal{Out: t.Output(), Is: true, Environ: []string{"HOME=/", "TERM=dumb"}})
		var usage *remote.UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), "TERM=dumb") || !strings.Contains(err.Error(), "--once") {
			t.Errorf("%v", err)
		}
	})
	f, err := flagsOf(t, "--role=prefill,decode", "--model=a", "--zone=z", "--model=b").selection()
	if err != nil || fmt.Sprint(f.GetRoles(), f.GetModels(), f.GetZones()) != "[ROLE_PREFILL ROLE_DECODE] [a b] [z]" {
		t.Errorf("%v, %v", f, err)
	}
	if c, err := flagsOf(t, "--reverse", "--sort=age", "--filter=A b").choice(); err != nil || !c.Reverse || c.By.Name != "age" || fmt.Sprint(c.Filter) != "[a b]" {
		t.Errorf("%+v, %v", c, err)
	}
	if f, err := flagsOf(t).selection(); f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
}

// A frame of text has lines of at most 80 columns and no escapes.
func TestFrame(t *testing.T) {
	v := viewOf(t, true, load("w00", 0.2), load("w01\x1b[2J"+strings.Repeat("模", 99), 0.5))
	c, err := flagsOf(t, "--sort=usage").choice()
	if err != nil {
		t.Fatal(err)
	}
	text := frame("http://plane/"+strings.Repeat("x", 200), v, began, c)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, l := range lines {
		if ansi.StringWidth(l) > 80 || strings.ContainsAny(l, "\x1b\r") {
			t.Errorf("%q", l)
		}
	}
	if !strings.HasPrefix(lines[0], "01234567/7  WARMING  http://plane/") || !strings.HasPrefix(lines[len(lines)-1], "w00 ") {
		t.Errorf("%s", text)
	}
	c.Filter = []string{"w00"}
	if got := frame("http://plane", v, began, c); strings.Contains(got, "w01") || !strings.Contains(got, "2 workers") {
		t.Errorf("%s", got)
	}
}

// A watcher that has nothing new is shown once a tick, so that ages move.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := client.NewWatcher(client.Options{Addresses: []string{"http://127.0.0.1:1"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		var at []time.Duration
		start := time.Now()
		feed(ctx, w, func(msg tea.Msg) {
			if n, ok := msg.(news); !ok || n.view != nil || n.status.Connected() {
				t.Errorf("%+v", msg)
			}
			at = append(at, time.Since(start))
		})
		if len(at) < 10 || len(at) > 13 || at[0] != 0 {
			t.Errorf("shown at %v", at)
		}
	})
}

// answer is one with a summary.
func answer(worker, summary string) sheet.Answer {
	return sheet.Answer{Worker: worker, Checks: &pb.ExplainWorkerResponse{Summary: summary}}
}

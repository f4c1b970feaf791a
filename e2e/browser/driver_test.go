package browser

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// missing is what a machine lacks to run a browser.
type missing string

func (m missing) Error() string { return string(m) }

// need fails the test with an error, or skips it where something is missing,
// unless BROWSER is "required".
func need(t *testing.T, err error) {
	t.Helper()
	var m missing
	if errors.As(err, &m) && os.Getenv("BROWSER") != "required" {
		t.Skip(m)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// driver is the program that drives the browser. One serves all tests. All
// methods are safe for concurrent use.
type driver struct {
	once    sync.Once
	failure error
	cmd     *exec.Cmd
	errors  strings.Builder

	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
}

var chromium driver

// start starts the browser with the first page that is wanted.
func (d *driver) start() error {
	d.once.Do(func() { d.failure = d.launch() })
	return d.failure
}

func (d *driver) launch() error {
	binary := os.Getenv("CHROMIUM")
	if binary == "" {
		binary = "/usr/bin/chromium"
	}
	if _, err := exec.LookPath(binary); err != nil {
		return missing("no " + binary + " (package chromium, or name one by CHROMIUM)")
	}
	if _, err := exec.LookPath("node"); err != nil {
		return missing("no node")
	}
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		return missing("no node_modules: npm ci was not run in e2e/browser")
	}
	cmd := exec.Command("node", "driver.mjs")
	cmd.Stderr = &d.errors
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd, d.in, d.out = cmd, in, bufio.NewReader(out)
	if _, err := d.read(); err != nil {
		d.stop()
		return fmt.Errorf("%w: %s", err, d.errors.String())
	}
	return nil
}

// stop ends the browser, if there is one.
func (d *driver) stop() {
	if d.cmd != nil {
		_ = d.in.Close()
		_ = d.cmd.Wait()
		d.cmd = nil
	}
}

// step is what the driver is told, with the fields that the step takes.
type step struct {
	Do       string   `json:"do"`
	Page     int      `json:"page,omitempty"`
	URL      string   `json:"url,omitempty"`
	Width    int      `json:"width,omitempty"`
	Height   int      `json:"height,omitempty"`
	Scheme   string   `json:"scheme,omitempty"`
	Code     string   `json:"code,omitempty"`
	Keys     []string `json:"keys,omitempty"`
	Text     string   `json:"text,omitempty"`
	Selector string   `json:"selector,omitempty"`
	Path     string   `json:"path,omitempty"`
	Whole    bool     `json:"whole,omitempty"`
	// Limit is in milliseconds.
	Limit int64 `json:"limit"`
}

func (d *driver) do(s step) (json.RawMessage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if _, err := d.in.Write(append(text, '\n')); err != nil {
		return nil, err
	}
	return d.read()
}

func (d *driver) read() (json.RawMessage, error) {
	line, err := d.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the driver ended: %w", err)
	}
	var answer struct {
		Value json.RawMessage
		Error string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Value, nil
}

// page is an open page in a profile of its own.
type page struct {
	t  *testing.T
	id int
	// status and headers are those of the document.
	status  int
	headers map[string]string
}

// screen is how a page is shown.
type screen struct {
	width, height int
	scheme        string
}

var desk = screen{1280, 800, "light"}

// open opens the page of a plane at host:port, with a path.
func open(t *testing.T, address string, s screen) *page {
	t.Helper()
	need(t, chromium.start())
	value, err := chromium.do(step{Do: "open", URL: "http://" + address + "/", Width: s.width, Height: s.height, Scheme: s.scheme})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Page, Status int
		Headers      map[string]string
	}
	if err := json.Unmarshal(value, &got); err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, id: got.Page, status: got.Status, headers: got.Headers}
	t.Cleanup(func() { _, _ = chromium.do(step{Do: "close", Page: p.id}) })
	return p
}

// do takes a step and leaves its result in to, unless that is nil.
func (p *page) do(s step, to any) {
	p.t.Helper()
	s.Page = p.id
	if s.Limit == 0 {
		s.Limit = limit.Milliseconds()
	}
	value, err := chromium.do(s)
	if err == nil && to != nil {
		err = json.Unmarshal(value, to)
	}
	if err != nil {
		p.t.Fatalf("%s %s%s%v: %v\n%s", s.Do, s.Code, s.Selector, s.Keys, err, p.text())
	}
}

// text is what the page shows, for the message of a failure.
func (p *page) text() string {
	value, err := chromium.do(step{Do: "eval", Page: p.id, Limit: 5000, Code: `JSON.stringify(document.documentElement.dataset) + "\n" + document.body.innerText.slice(0, 1500)`})
	var text string
	if err != nil || json.Unmarshal(value, &text) != nil {
		return "the page says nothing"
	}
	return text
}

// eval leaves the value of an expression in to.
func (p *page) eval(code string, to any) {
	p.t.Helper()
	p.do(step{Do: "eval", Code: code}, to)
}

// until waits for an expression to be true.
func (p *page) until(code string) {
	p.t.Helper()
	p.do(step{Do: "wait", Code: code}, nil)
}

// untilState waits for the page to say one of some states of its stream.
func (p *page) untilState(states ...string) {
	p.t.Helper()
	p.until(quote(states) + `.includes(document.documentElement.dataset.state)`)
}

func (p *page) press(keys ...string) {
	p.t.Helper()
	p.do(step{Do: "press", Keys: keys}, nil)
}

func (p *page) shot(path string) {
	p.t.Helper()
	p.do(step{Do: "shot", Path: path}, nil)
}

// happened is what a page did that it should not.
type happened struct {
	Dialogs, Errors, Console, Foreign, Violations []string
}

func (p *page) happened() (h happened) {
	p.t.Helper()
	p.do(step{Do: "happened"}, &h)
	return h
}

// requireQuiet fails the test if the page ran into an error, asked another
// host, or did what its policy forbids. Failed requests that a test makes happen
// are told by a part of their message.
func (p *page) requireQuiet(expected ...string) {
	p.t.Helper()
	h := p.happened()
	if len(h.Dialogs)+len(h.Errors)+len(h.Foreign)+len(h.Violations) > 0 {
		p.t.Errorf("the page did: %+v", h)
	}
	for _, line := range h.Console {
		if !containsAny(line, expected) {
			p.t.Errorf("the console says %q", line)
		}
	}
}

func containsAny(text string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// quote writes a value as JavaScript.
func quote(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// artefacts is the folder that what a test leaves behind goes to: ARTIFACTS, or
// that of the test, which go test -artifacts keeps.
func artefacts(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ARTIFACTS")
	if dir == "" {
		return t.ArtifactDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// leave logs what was measured, and keeps it as JSON in an artefact.
func leave(t *testing.T, name string, measured any) {
	t.Helper()
	text, err := json.MarshalIndent(measured, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", name, text)
	if err := os.WriteFile(artefacts(t)+"/"+name, append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

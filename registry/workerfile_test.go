package registry

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestParseWorkersFile(t *testing.T) {
	got, err := parseWorkers([]byte(`
workers:
  - url: http://a:1/
  - url: https://b
    id: w2
    role: decode
    model: [m2, m1]
    zone: z
    dialect: none
    peers: 10.0.0.0/8
    label: {team: x}
    draining: true
    token_file: /t
    ca_file: /c
    interval: 2s
    max_running: 2147483648
    reporter_port: 7410
`))
	want := []WorkerSpec{
		{ID: "http://a:1", URL: "http://a:1", Origin: "a:1"},
		{
			ID: "w2", URL: "https://b", Origin: "b:443", Role: store.RoleDecode, Models: []string{"m1", "m2"}, Zone: "z",
			Dialect: store.DialectNone, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			Labels: map[string]string{"team": "x"}, Draining: true, TokenFile: "/t", CAFile: "/c", Interval: 2 * time.Second,
			MaxRunning: 1 << 31, ReporterPort: 7410,
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseWorkersFileRefuses(t *testing.T) {
	for text, mention := range map[string]string{
		"":                     "empty",
		"# nothing":            "empty",
		"{}":                   "no list",
		"workers:":             "no list",
		"workers: 5":           "workers file",
		"workers: [":           "workers file",
		"worker: []":           "worker",
		"workers: [{}]":        "item 1: url",
		"workers: [http://a]":  "workers file",
		"workers: []\n---\nx":  "more than one document",
		"{workers: [], x: 1}":  "x",
		"workers: []\nworkers": "workers file",
		"workers: [{url: 'http://a:1', colour: red}]":                  "colour",
		"workers: [{url: 'http://a:1', role: x}]":                      "item 1: role",
		"workers: [{url: 'http://a:1', draining: maybe}]":              "item 1: draining: not true or false",
		"workers: [{url: 'http://a:1', dialect: nosuch}]":              `"nosuch" is not supported`,
		"workers: [{url: 'http://a:1', reporter_port: 70000}]":         "item 1: reporter_port",
		"workers: [{url: 'http://a:1', label: {reporter_port: x}}]":    "not a port",
		"workers: [{url: 'http://a:1'}, {url: 'http://A:1'}]":          "listed twice",
		"workers: [{url: 'http://a:1', model: ['']}]":                  "item 1: model",
		"workers: [{url: 'http://a:1', peers: [x]}]":                   "item 1: peers",
		"workers: [{url: 'http://a:1', label: {'': x}}]":               "item 1: label",
		"workers: [{url: 'http://a:1', label: {a: \"\\u202e\"}}]":      "printable",
		"workers: [{url: 'http://a:1', url: 'http://b:1'}]":            "workers file",
		"workers: [{url: 'http://a:1', interval: soon}]":               "duration",
		"workers: [{url: 'http://a:1', max_running: -1}]":              "item 1: max_running",
		"workers: [{url: 'http://a:1', max_running: 1e3}]":             "whole number",
		"workers: [{url: 'http://a:1', zone: \"" + longZone() + "\"}]": "longer",
	} {
		got, err := parseWorkers([]byte(text))
		if err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%.60q: got %v, %v, want an error that mentions %q", text, got, err, mention)
			continue
		}
		for _, word := range []string{"registry.", "!!", "unmarshal", "type "} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%.60q: the error says %q: %v", text, word, err)
			}
		}
	}
	if got, err := parseWorkers([]byte("workers: []")); err != nil || len(got) != 0 {
		t.Errorf("an empty list: %v, %v", got, err)
	}
}

// TestWorkersFileNamesTheMistake has the errors whole, but for the end.
func TestWorkersFileNamesTheMistake(t *testing.T) {
	const known = " (known: ca_file, dialect, draining, id, interval, label, max_running, model, peers, reporter_port, role, token_file, url, zone)"
	for _, c := range []struct{ name, text, want string }{
		{"a letter too many", "workers: [{url: 'http://a:1', labels: {a: b}}]", "item 1: unknown key labels; did you mean label?" + known},
		{"capitals", "workers: [{url: 'http://a:1'}, {URL: 'http://b:1'}]", "item 2: unknown key URL; did you mean url?" + known},
		{"hyphen", "workers: [{url: 'http://a:1', max-running: 3}]", "item 1: unknown key max-running; did you mean max_running?" + known},
		{"like none", "workers: [{url: 'http://a:1', colour: red}]", "item 1: unknown key colour" + known},
		{"empty", "workers: [{url: 'http://a:1', '': red}]", "item 1: unknown key \"\"" + known},
		{"not printable", `workers: [{"u\u202erl": 'http://a:1'}]`, `item 1: unknown key "u\u202erl"` + known},
		{"no text", "workers: [{[url]: 'http://a:1'}]", "item 1: unknown key \"\"" + known},
		{"merged", "workers: [{url: 'http://a:1', <<: {zones: a}}]", "item 1: unknown key zones; did you mean zone?" + known},
		{"of the file", "worker: []", "unknown key worker; did you mean workers? (known: workers)"},
		{"twice", "workers: [{url: 'http://a:1', url: 'http://b:1'}]", "item 1: key url is there twice"},
		{"an item that is a text", "workers: ['http://a:1']", "item 1: not a mapping with the keys ca_file,"},
		{"an empty item", "workers:\n  -\n", "item 1: not a mapping with the keys ca_file,"},
		{"the list in itself", "workers: &a [*a]", "item 1: not a mapping with the keys ca_file,"},
		{"no list", "workers: {url: 'http://a:1'}", "workers is not a list"},
		{"a list alone", "- url: http://a:1", "not a mapping with the keys workers"},
		{"labels as a list", "workers: [{url: 'http://a:1', label: [a]}]", "item 1: label: not a mapping of texts"},
		{"a list of ports", "workers: [{url: 'http://a:1', reporter_port: [1]}]", "item 1: reporter_port: not a port"},
		{"a label in itself", "workers: [{url: 'http://a:1', label: &a {x: *a}}]", "item 1: label: not a mapping of texts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := parseWorkers([]byte(c.text)); err == nil || !strings.HasPrefix(err.Error(), "workers file: "+c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

// TestWorkersFileMerges: what an item says itself goes before what it takes
// over, and what is named first before the rest.
func TestWorkersFileMerges(t *testing.T) {
	got, err := parseWorkers([]byte(`
workers:
  - &a {url: 'http://a:1', zone: a, role: decode}
  - {<<: [{model: m, zone: c}, *a], url: 'http://b:1'}
  - &loop {url: 'http://c:1', <<: *loop}
  - <<: *a
    url: http://d:1
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"http://a:1 a decode []", "http://b:1 c decode [m]", "http://c:1   []", "http://d:1 a decode []"}
	if len(got) != len(want) {
		t.Fatalf("%d items", len(got))
	}
	for i, s := range got {
		if text := fmt.Sprintf("%s %s %s %s", s.URL, s.Zone, s.Role, s.Models); text != want[i] {
			t.Errorf("item %d is %q, want %q", i+1, text, want[i])
		}
	}
}

func longZone() string { return strings.Repeat("z", maxZoneBytes+1) }

func TestWorkersFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	writeFile(t, path, "workers: []\n#"+strings.Repeat("x", maxFileBytes))
	if _, err := egress.ReadBounded(path, maxFileBytes); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Error(err)
	}
}

func FuzzParseWorkers(f *testing.F) {
	f.Add([]byte("workers: [{url: 'http://a:1', model: [a], peers: ::1, label: {a: b}}]"))
	f.Add([]byte("workers: [&a {url: http://b}, *a]"))
	f.Add([]byte("workers: [&a {url: http://b, <<: [*a, {zone: z}]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		specs, err := parseWorkers(data)
		if err != nil {
			return
		}
		for _, s := range specs {
			if s.ID == "" || s.Origin == "" || s.URL == "" {
				t.Fatalf("%q gave %+v", data, s)
			}
		}
	})
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// filePlane is a store and registry over a real workers file in real time.
type filePlane struct {
	*Registry
	t  *testing.T
	st *store.Store
}

func runWithFile(t *testing.T, path string) *filePlane {
	t.Helper()
	st := newStore(t)
	opts := testOptions(st)
	opts.WorkersFile = path
	p := &filePlane{Registry: newRegistry(t, opts), t: t, st: st}
	ctx, stop := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() { _ = st.Run(ctx) })
	both.Go(func() { _ = p.Run(ctx) })
	t.Cleanup(func() { stop(); both.Wait() })
	return p
}

// want waits until the store has these workers.
func (p *filePlane) want(ids ...string) {
	p.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		st, stale := p.st.Current()
		var got []string
		for _, e := range st.Entries {
			got = append(got, e.Worker.ID)
		}
		if strings.Join(got, " ") == strings.Join(ids, " ") {
			return
		}
		select {
		case <-stale:
		case <-limit:
			p.t.Fatalf("workers %v, want %v", got, ids)
		}
	}
}

func list(hosts ...string) string {
	text := "workers:\n"
	for _, h := range hosts {
		text += "  - {url: 'http://" + h + ":1', dialect: none}\n"
	}
	if len(hosts) == 0 {
		text = "workers: []\n"
	}
	return text
}

// TestFileReloads: written in place, renamed over, emptied by an empty list,
// and created again after a removal.
func TestFileReloads(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "w.yaml")
	writeFile(t, path, list("a"))
	p := runWithFile(t, path)
	p.want("http://a:1")
	writeFile(t, path, list("a", "b"))
	p.want("http://a:1", "http://b:1")
	writeFile(t, path+".new", list("c"))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	p.want("http://c:1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, list("d"))
	p.want("http://d:1")
	writeFile(t, path, list())
	p.want()
}

// TestFileSymlinkSwap replaces the folder behind a symlink, as Kubernetes
// does for mounted maps.
func TestFileSymlinkSwap(t *testing.T) {
	dir := t.TempDir()
	publish := func(version, text string) {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, version, "w.yaml"), text)
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("..v1", list("a"))
	if err := os.Symlink(filepath.Join("..data", "w.yaml"), filepath.Join(dir, "w.yaml")); err != nil {
		t.Fatal(err)
	}
	p := runWithFile(t, filepath.Join(dir, "w.yaml"))
	p.want("http://a:1")
	for _, v := range []string{"b", "c"} {
		publish("..v-"+v, list(v))
		p.want("http://" + v + ":1")
	}
	writeFile(t, filepath.Join(dir, "..v-c", "w.yaml"), list("d"))
	p.want("http://d:1")
}

// TestBrokenFileKeepsTheLastList: no removal and no new version come of a
// file that cannot be used.
func TestBrokenFileKeepsTheLastList(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.WorkersFile = filepath.Join(t.TempDir(), "w.yaml")
		writeFile(t, o.WorkersFile, list("a", "b"))
	}, func(p *plane) {
		path := p.opts.WorkersFile
		p.reconcile(func(*worker, time.Duration) {})
		ctx, stop := context.WithCancel(p.t.Context())
		done := make(chan error)
		go func() { done <- p.st.Run(ctx) }()
		p.close = func() { stop(); <-done }
		p.settle()
		before, _ := p.st.Current()
		for i, text := range []string{"", list("a") + "  - {url: 'http://b:1', role: nosuch}\n", "workers:", "\x00"} {
			writeFile(t, path, text)
			if p.reload() {
				t.Errorf("%q replaced the list", text)
			}
			p.reconcile(func(*worker, time.Duration) {})
			p.settle()
			if after, _ := p.st.Current(); after.Version != before.Version || len(after.Entries) != 2 {
				t.Errorf("%q: version %d -> %d, %d workers", text, before.Version, after.Version, len(after.Entries))
			}
			if p.st.DiscoveryError() == "" || testutil.ToFloat64(p.metrics.fileErrors) != float64(i+1) || testutil.ToFloat64(p.metrics.fileFailing) != 1 {
				t.Errorf("%q: error %v, counted %v", text, p.st.DiscoveryError(), testutil.ToFloat64(p.metrics.fileErrors))
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if p.reload() || p.st.DiscoveryError() == "" {
			t.Error("a missing file is no error")
		}
		writeFile(t, path, list("a"))
		if !p.reload() || p.st.DiscoveryError() != "" || testutil.ToFloat64(p.metrics.fileFailing) != 0 {
			t.Errorf("the good file was not used: %v", p.st.DiscoveryError())
		}
	})
}

func TestFileWithAnIntervalTooLongIsNotUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	writeFile(t, path, "workers: [{url: 'http://a:1', interval: 1m}]")
	opts := testOptions(newStore(t))
	opts.WorkersFile = path
	if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "lease") {
		t.Error(err)
	}
}

// A pipe that nobody writes to is refused at once.
func TestWorkersFileMustBeAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no named pipes here:", err)
	}
	if _, err := egress.ReadBounded(path, maxFileBytes); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe as workers file: %v", err)
	}
}

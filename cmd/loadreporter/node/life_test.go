package node

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/registry"
)

func TestParseLife(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	l, err := parseLife([]byte(`{"source_instance_id":"a","process_start_time_seconds":1.5}`), now.Add(-time.Second), now)
	if want := (source.Life{Source: "a", Process: 1.5, Taken: now.Add(-time.Second)}); err != nil || l != want {
		t.Errorf("%+v, %v", l, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "no object": "1", "no name": `{}`,
		"a long name":  `{"source_instance_id":"` + strings.Repeat("a", 129) + `"}`,
		"a past start": `{"source_instance_id":"a","process_start_time_seconds":-1}`,
	} {
		if l, err := parseLife([]byte(text), now, now); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	for name, taken := range map[string]time.Time{
		"no time": {}, "1970": time.UnixMilli(0), "the future": now.Add(time.Millisecond),
	} {
		if l, err := parseLife([]byte(`{"source_instance_id":"a"}`), taken, now); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func FuzzParseLife(f *testing.F) {
	f.Add([]byte(`{"source_instance_id":"a","process_start_time_seconds":1.5}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		now := time.UnixMilli(1_800_000_000_000)
		l, err := parseLife(text, now, now)
		if err == nil && (l.Source == "" || len(l.Source) > maxLifeBytes || l.Process < 0 || l.Taken.After(now)) {
			t.Fatalf("%q is %+v", text, l)
		}
	})
}

// What is noted of a life is its last sample too, however often it is noted.
func TestWriteLife(t *testing.T) {
	file := filepath.Join(t.TempDir(), "life")
	first := source.Life{Source: "a", Process: 1.5, Taken: time.Now().Add(-time.Hour).Truncate(time.Millisecond)}
	later, other := first, source.Life{Source: "b", Taken: first.Taken}
	later.Taken = first.Taken.Add(time.Minute)
	before := source.Life{}
	for _, l := range []source.Life{first, later, other} {
		if err := write(file, before, l); err != nil {
			t.Fatal(err)
		}
		read, err := readLife(file)
		if err != nil || read.Source != l.Source || read.Process != l.Process || read.Taken.Sub(l.Taken).Abs() > time.Millisecond {
			t.Errorf("%+v, %v after %+v", read, err, l)
		}
		before = l
	}
	if err := write(file, before, source.Life{}); err != nil {
		t.Error(err)
	}
	if _, err := readLife(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// loaded is a node of an engine that can be reached, and whose page does not
// tell one process from the next.
func loaded(t *testing.T, url string) *Node {
	opts := options(t)
	src, err := source.New(source.Options{Target: registry.Target{URL: url}, Logger: opts.Logger})
	if err != nil {
		t.Fatal(err)
	}
	opts.Source = src
	return newNode(t, opts)
}

// run runs a node until it has a sample, and returns the source of it.
func run(t *testing.T, n *Node, file string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, Start{LifeFile: file}) }()
	for {
		s, next := n.opts.Source.Latest()
		if len(s.Ranks) > 0 {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			return s.Source
		}
		<-next
	}
}

// A reporter that goes on in the place of another names the engine process as
// that one did.
func TestLifeIsTakenOver(t *testing.T) {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/loads" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"timestamp":"2026-08-01T00:00:00Z","loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":0}]}`))
	}))
	defer e.Close()
	file := filepath.Join(t.TempDir(), "life")
	first := run(t, loaded(t, e.URL), file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info, err)
	}
	if next := run(t, loaded(t, e.URL), file); next != first {
		t.Errorf("source %q after %q", next, first)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if next := run(t, loaded(t, e.URL), file); next == first {
		t.Error("a file that cannot be read is taken over")
	}
	if err := write(file, source.Life{}, source.Life{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	if err := write(file, source.Life{}, source.Life{}); err != nil {
		t.Errorf("%v of a file that is gone", err)
	}
	if err := write(filepath.Join(file, "x"), source.Life{}, source.Life{Source: "a", Taken: time.Now()}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v of a folder that is not there", err)
	}
}

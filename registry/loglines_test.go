package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
)

// logged is what these tests read of a line.
type logged struct {
	Level, Msg, Error, Reason string
	Times, Refused, Unlogged  int
}

// readLog returns the lines with one of the messages, in order.
func readLog(t *testing.T, out *bytes.Buffer, messages ...string) (lines []logged) {
	t.Helper()
	for text := range strings.Lines(out.String()) {
		var l logged
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for _, m := range messages {
			if l.Msg == m {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

func TestBrokenWorkersFileIsToldOnceAMinute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("workers: []\n")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		opts := testOptions(newStore(t))
		opts.WorkersFile, opts.Logger = path, slog.New(slog.NewJSONHandler(&out, nil))
		r := newRegistry(t, opts)
		pass := func(d time.Duration) {
			for range d / recheckFile {
				r.reload()
				<-time.After(recheckFile)
			}
		}
		write("workers: [{role: prefill}]\n")
		pass(5 * time.Minute)
		write("workers: [")
		pass(30 * time.Second)
		write("workers: []\n")
		pass(time.Minute)
		const failed, again = "workers file not used, last list kept", "workers file used again"
		lines := readLog(t, &out, failed, again)
		times := 0
		for _, l := range lines[:5] {
			times += l.Times
		}
		if len(lines) != 7 || times != 1+4*12 || lines[5].Error == lines[4].Error || lines[6].Msg != again {
			t.Errorf("%d times in the first five of %+v", times, lines)
		}
	})
}

func TestEnginesThatComeTooEarlyAreToldTogether(t *testing.T) {
	var out bytes.Buffer
	sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&out, nil)) }, func(p *plane, a, b *teller) {
		const early = 40
		for i := range early {
			c := claim("s1")
			c.Addr = fmt.Sprintf("http://10.0.0.1:%d", 1000+i)
			if _, err := p.Bind(c, p.load("s1", 1)); err == nil {
				t.Fatal("bound before discovery is complete")
			}
			p.after(time.Second)
		}
		if n := p.refusals(ReasonNotSynced); n != early {
			t.Errorf("%v are counted", n)
		}
		lines := readLog(t, &out, "report or stream refused")
		if len(lines) != 1 || lines[0].Reason != string(ReasonNotSynced) || lines[0].Level != "INFO" {
			t.Errorf("refusals: %+v", lines)
		}
		p.list(a, testWorker)
		p.list(b)
		lines = readLog(t, &out, "discovery is complete, engines that came too early are taken now")
		if len(lines) != 1 || lines[0].Refused != early {
			t.Errorf("at the end: %+v", lines)
		}
	})
}

func TestRoundsOfDiscoveryAreSampled(t *testing.T) {
	var out bytes.Buffer
	sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&out, nil)) }, func(p *plane, a, b *teller) {
		p.list(b)
		for i := range 300 {
			p.list(a, fmt.Sprintf("http://10.0.0.1:%d", 1000+i%2))
		}
		if n := len(readLog(t, &out, "workers discovered")); n < 16 || n > 40 {
			t.Errorf("%d lines of 300 rounds", n)
		}
	})
}

func TestClashesAreFewLines(t *testing.T) {
	var out bytes.Buffer
	sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&out, nil)) }, func(p *plane, a, b *teller) {
		var first, second []string
		for i := range 100 {
			first = append(first, fmt.Sprintf("http://10.0.0.1:%d,id=w%d", 1000+i, i))
			second = append(second, fmt.Sprintf("http://10.0.0.2:%d,id=w%d", 1000+i, i))
		}
		p.list(a, first...)
		p.list(b, second...)
		if n := len(readLog(t, &out, "worker ignored, a source that wins names another one so")); n != maxListLines {
			t.Errorf("%d lines of 100 clashes", n)
		}
	})
}

func TestChangesOfTheDialectAreSampled(t *testing.T) {
	var out bytes.Buffer
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Logger = []string{testWorker}, slog.New(slog.NewJSONHandler(&out, nil))
	}, func(p *plane) {
		p.run()
		w := p.workers[testWorker]
		for range 120 {
			w.silent(store.DialectMonitor)
			p.after(time.Second)
		}
		if n := len(readLog(t, &out, "engine is silent")); n < 8 || n > 11 {
			t.Errorf("%d lines in two minutes", n)
		}
	})
}

func TestChangesOfAllWaysAtOnceAreFewLines(t *testing.T) {
	var out bytes.Buffer
	inBubbleWith(t, func(o *Options) {
		o.Logger = slog.New(slog.NewJSONHandler(&out, nil))
		for i := range 1000 {
			o.Workers = append(o.Workers, fmt.Sprintf("http://192.0.2.1:%d,dialect=none", 1+i))
		}
	}, func(p *plane) {
		p.run()
		flip := func(way Way) {
			for _, w := range p.workers {
				w.show(way)
			}
		}
		flip(Way{State: StateRegistered})
		flip(Way{State: StatePending}) // Not told at this level, so it takes no room.
		p.after(10 * time.Second)
		flip(Way{State: StateRegistered})
		lines := readLog(t, &out, "registration changed")
		if n, most := len(lines), wayBurst+10*wayLines; n != most {
			t.Errorf("%d lines for 2,000 changes in 10 s, want %d", n, most)
		}
		if got := lines[wayBurst].Unlogged; got != 1000-wayBurst {
			t.Errorf("%d changes without a line, want %d", got, 1000-wayBurst)
		}
	})
}

func TestWorkersFileErrorNamesTheSetting(t *testing.T) {
	opts := testOptions(newStore(t))
	opts.WorkersFile = filepath.Join(t.TempDir(), "none.yaml")
	if _, err := New(opts); err == nil || !strings.Contains(err.Error(), "--workers-file") || !strings.Contains(err.Error(), "workers_file") {
		t.Errorf("error %v", err)
	}
}

// A fault is told of when it is another, and once a minute while it stays.
func TestLasting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lasting
		tell := func(text string, want int) {
			t.Helper()
			if times, told := l.tell(text); times != want || told != (want > 0) {
				t.Errorf("%s: told %v, %d times, want %d", text, told, times, want)
			}
		}
		if l.over() {
			t.Error("a fault ended that never was")
		}
		tell("a", 1)
		<-time.After(time.Second)
		tell("a", 0)
		tell("a", 0)
		tell("b", 3)
		<-time.After(remindEach)
		tell("b", 1)
		tell("b", 0)
		if !l.over() || l.over() {
			t.Error("the fault did not end once")
		}
		tell("b", 1)
	})
}

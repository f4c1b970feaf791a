package kube

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// listing is one line of kubelist: what discovery hands to the registry.
type listing struct {
	Workers []listed `json:"workers"`
	// Error says why there is no new list.
	Error string `json:"error"`
}

type listed struct {
	ID           string            `json:"id"`
	URL          string            `json:"url"`
	UID          string            `json:"uid"`
	Role         string            `json:"role"`
	Models       []string          `json:"models"`
	Zone         string            `json:"zone"`
	Labels       map[string]string `json:"labels"`
	ReporterPort int               `json:"reporter_port"`
	Draining     bool              `json:"draining"`
	NoEngine     bool              `json:"no_engine"`
	Guarded      bool              `json:"guarded"`
}

// has says that the list has these workers and no other.
func (l listing) has(ids ...string) bool {
	for _, id := range ids {
		if l.find(id) == nil {
			return false
		}
	}
	return l.Error == "" && len(l.Workers) == len(ids)
}

func (l listing) find(id string) *listed {
	for i := range l.Workers {
		if l.Workers[i].ID == id {
			return &l.Workers[i]
		}
	}
	return nil
}

// lister is a running kubelist.
type lister struct {
	t    *testing.T
	cmd  *exec.Cmd
	said output
	// lines has every listing, until the process ends.
	lines chan listing
	last  listing
	// empty counts listings without an error that had no worker.
	empty int
}

// list starts discovery in a process of its own, which ends with the test.
func list(t *testing.T, a access, args ...string) *lister {
	t.Helper()
	args = append([]string{"--kubeconfig", a.kubeconfig, "--namespaces", engineNS}, args...)
	l := &lister{t: t, cmd: exec.Command(filepath.Join(bin, "kubelist"), args...), lines: make(chan listing, 10_000)}
	l.cmd.Stderr = &l.said
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.pump(out)
		_ = l.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		<-done
	})
	return l
}

func (l *lister) pump(out io.Reader) {
	defer close(l.lines)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var v listing
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			v.Error = "not a listing: " + lines.Text()
		}
		l.lines <- v
	}
}

// await returns the next listing that match accepts.
func (l *lister) await(what string, match func(listing) bool) listing {
	l.t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case v, ok := <-l.lines:
			if !ok {
				l.t.Fatalf("%s: discovery ended; it said:\n%s", what, l.said.tail())
			}
			l.last = v
			if v.Error == "" && len(v.Workers) == 0 {
				l.empty++
			}
			if match(v) {
				return v
			}
		case <-limit:
			l.t.Fatalf("%s: not listed; last %+v; it said:\n%s", what, l.last, l.said.tail())
		}
	}
}

// awaitList waits for a list of these workers and no other.
func (l *lister) awaitList(ids ...string) listing {
	l.t.Helper()
	return l.await(strings.Join(ids, " "), func(v listing) bool { return v.has(ids...) })
}

// awaitError waits until discovery says why it has no list, in words that
// contain all parts.
func (l *lister) awaitError(parts ...string) listing {
	l.t.Helper()
	return l.await("an error with "+strings.Join(parts, ", "), func(v listing) bool {
		for _, part := range parts {
			if !strings.Contains(v.Error, part) {
				return false
			}
		}
		return v.Error != ""
	})
}

// noneEmpty fails the test if a list so far had no worker at all.
func (l *lister) noneEmpty() {
	l.t.Helper()
	if l.empty > 0 {
		l.t.Errorf("%d lists without a worker", l.empty)
	}
}

// peakMiB is the most memory that the process had.
func (l *lister) peakMiB() int { return peakMiB(l.t, l.cmd.Process.Pid) }

// peakMiB is the most memory that a process had resident, in MiB.
func peakMiB(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

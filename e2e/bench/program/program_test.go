package program

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	cpu, err := parseCPU("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 1 0")
	if err != nil || cpu != 1750*time.Millisecond {
		t.Errorf("CPU %v, %v", cpu, err)
	}
	for _, bad := range []string{"", "7 (a) S 1 2", "7 (a) S 1 2 3 4 5 6 7 8 9 10 x 25", "7 (a) S 1 2 3 4 5 6 7 8 9 10 1 x"} {
		if _, err := parseCPU(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	const status = "Name:\tx\nVmHWM:\t   30000 kB\nVmRSS:\t   20000 kB\nVmBad:\t kB\n"
	if n, err := parseKiB(status, "VmHWM"); err != nil || n != 30000<<10 {
		t.Errorf("VmHWM %d, %v", n, err)
	}
	for _, key := range []string{"VmSwap", "VmBad"} {
		if _, err := parseKiB(status, key); err == nil {
			t.Errorf("%s was read", key)
		}
	}
}

// The system knows of this process what it knows of others.
func TestUsage(t *testing.T) {
	u, err := usageOf(os.Getpid())
	if err != nil || u.Resident < 1<<20 || u.Peak < u.Resident {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := usageOf(1 << 30); err == nil {
		t.Error("a process that cannot be")
	}
}

// A command is followed from its addresses to its end. A script stands for it.
func TestProgram(t *testing.T) {
	script := filepath.Join(t.TempDir(), "command")
	text := `#!/bin/sh
sleep 60 >/dev/null 2>&1 &
trap 'kill $!; exit 0' TERM
echo no JSON >&2
echo '{"msg":"listening","listener":"api","address":"127.0.0.1:1"}' >&2
echo '{"msg":"load reporter started","listen":"127.0.0.1:2"}' >&2
wait
`
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := Start(ctx, child.Unpinned, script)
	if err != nil {
		t.Fatal(err)
	}
	for listener, want := range map[string]string{"api": "127.0.0.1:1", "http": "127.0.0.1:2"} {
		if got, err := p.Address(ctx, listener); err != nil || got != want {
			t.Errorf("%s is %q, %v", listener, got, err)
		}
	}
	if u, err := p.Usage(); err != nil || u.Resident == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(p.Log(), "no JSON") {
		t.Errorf("the log is %q", p.Log())
	}
	if _, err := p.Address(ctx, "ingest"); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("got %v", err)
	}
}

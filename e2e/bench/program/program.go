// Package program builds commands of the product, runs them as processes, and
// reads from the system what they use.
package program

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
)

const (
	module = "github.com/loadplane/loadplane"
	// tick is the unit of the CPU times in /proc, which Linux has had the same
	// on all machines for user space.
	tick = 10 * time.Millisecond
	// stopWithin bounds the end of a process.
	stopWithin = 20 * time.Second
	// keptLines is how much of a log an error has.
	keptLines = 20
)

// Build builds a command of the product into a folder, as a release is built,
// and returns its path.
func Build(ctx context.Context, dir, command string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", module, err)
	}
	path := filepath.Join(dir, command)
	build := exec.CommandContext(ctx, "go", "-C", strings.TrimSpace(string(root)), "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+command)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", command, err, bytes.TrimSpace(out))
	}
	return path, nil
}

// Program is a running process of a command that logs JSON. It is for one
// goroutine.
type Program struct {
	cmd  *exec.Cmd
	read chan struct{} // closes at the end of the log

	mu        sync.Mutex
	addresses map[string]string
	bound     chan struct{} // closes at the next address
	last      []string
}

// Start starts a command on a core, or on all where it is child.Unpinned, which
// otherwise needs taskset. It is killed when ctx ends.
func Start(ctx context.Context, core int, path string, args ...string) (*Program, error) {
	line := append(append([]string{path}, args...), "--log-format=json")
	if core != child.Unpinned {
		line = append([]string{"taskset", "-c", strconv.Itoa(core)}, line...)
	}
	p := &Program{
		cmd: exec.CommandContext(ctx, line[0], line[1:]...), read: make(chan struct{}),
		addresses: map[string]string{}, bound: make(chan struct{}),
	}
	p.cmd.WaitDelay = stopWithin
	log, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.read)
		p.follow(log)
	}()
	return p, nil
}

// follow reads the log for addresses.
func (p *Program) follow(log io.Reader) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.take(lines.Bytes())
	}
	_, _ = io.Copy(io.Discard, log) // so that a line too long blocks nothing
}

func (p *Program) take(line []byte) {
	var l struct{ Msg, Listen, Listener, Address string }
	_ = json.Unmarshal(line, &l) // Other lines have no address.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = append(p.last, string(line))
	p.last = p.last[max(0, len(p.last)-keptLines):]
	switch l.Msg {
	case "listening":
		p.addresses[l.Listener] = l.Address
	case "load reporter started":
		p.addresses["http"] = l.Listen
	default:
		return
	}
	close(p.bound)
	p.bound = make(chan struct{})
}

// Address waits for the host:port of a listener: http of a load reporter; api,
// ingest or ops of a plane.
func (p *Program) Address(ctx context.Context, listener string) (string, error) {
	for {
		p.mu.Lock()
		address, bound := p.addresses[listener], p.bound
		p.mu.Unlock()
		if address != "" {
			return address, nil
		}
		select {
		case <-bound:
		case <-p.read:
			return "", fmt.Errorf("the command ended: %s", p.Log())
		case <-ctx.Done():
			return "", fmt.Errorf("no listener %s: %w", listener, ctx.Err())
		}
	}
}

// Log returns the last lines of the log.
func (p *Program) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.last, "\n")
}

// Stop ends the process in order and waits for it.
func (p *Program) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(stopWithin, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.read
	return p.cmd.Wait()
}

// Usage is what a process uses. It is a plain value.
type Usage struct {
	// CPU is user and system time since the start, in steps of 10 ms.
	CPU time.Duration
	// Resident is what the process has in memory, Peak the most that it ever
	// had, bytes.
	Resident, Peak uint64
	// At is when, on the wall clock.
	At time.Time
}

// Usage asks the system what the process uses.
func (p *Program) Usage() (Usage, error) { return usageOf(p.cmd.Process.Pid) }

func usageOf(pid int) (u Usage, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	u.At = time.Now()
	if u.CPU, err = parseCPU(string(stat)); err != nil {
		return u, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	u.Resident, err = parseKiB(string(status), "VmRSS")
	if err != nil {
		return u, err
	}
	u.Peak, err = parseKiB(string(status), "VmHWM")
	return u, err
}

// parseCPU adds fields 14 and 15 of a stat file; the name in field 2 may have
// blanks and parentheses.
func parseCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, errors.New("the stat file is too short")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, err
}

// parseKiB returns a value of a status file in bytes.
func parseKiB(status, key string) (uint64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("the status file has no %s", key)
}

package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const maxWorkers = 100_000

// Kind names a server.
type Kind string

// The servers.
const (
	// Plane is the whole line.
	Plane Kind = "plane"
	// Stock is grpc-go and protobuf-go with default options; it decodes only.
	Stock Kind = "stock"
	// Tuned has the plane's decoder and server options; it decodes only.
	Tuned Kind = "tuned"
	// Polling is the whole line with the poll dialect.
	Polling Kind = "polling"
	// Parsed polls by net/http, has prometheus/common parse the page, and reads
	// the values of load.
	Parsed Kind = "prometheus/common"
	// Transfer polls by the plane's client and drops the page.
	Transfer Kind = "transfer"
)

// Spec says what to open. It is a plain value.
type Spec struct {
	Kind Kind
	// WorkersFile lists the plane's workers.
	WorkersFile string
	// Interval is the report interval that the plane grants, or the one at
	// which engines are polled; 0 for again at once, which the plane has not.
	Interval time.Duration
	// URLs are the engines that a bare poller polls.
	URLs []string
}

// Addresses are host:port. It is a plain value.
type Addresses struct{ Ingest, API string }

// Process is a running server. It is for one goroutine.
type Process struct {
	Addresses Addresses

	ctx   context.Context
	stop  context.CancelFunc
	runs  sync.WaitGroup
	plane *plane
	count func() uint64
	// failed counts the polls of a bare poller that failed; failure says how
	// the first did.
	failed  atomic.Uint64
	failure atomic.Pointer[string]
	out     *os.File // of the profile
}

// Open starts a server on free ports of 127.0.0.1. Close stops it.
func Open(spec Spec) (*Process, error) {
	p := &Process{}
	p.ctx, p.stop = context.WithCancel(context.Background())
	var err error
	switch spec.Kind {
	case Plane, Polling:
		err = openPlane(p, spec)
	case Stock:
		err = openStock(p)
	case Tuned:
		err = openTuned(p)
	case Parsed, Transfer:
		openPolls(p, spec)
	default:
		err = fmt.Errorf("there is no server %q", spec.Kind)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close stops the server.
func (p *Process) Close() {
	p.stop()
	p.runs.Wait()
}

func (p *Process) start(run func(context.Context) error) {
	p.runs.Go(func() {
		if err := run(p.ctx); err != nil && p.ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "bench: the server stopped:", err)
			p.stop()
		}
	})
}

func (p *Process) ingest(serve func(context.Context, net.Listener) error) error {
	return p.listen(&p.Addresses.Ingest, serve)
}

func (p *Process) listen(addr *string, serve func(context.Context, net.Listener) error) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	*addr = ln.Addr().String()
	p.start(func(ctx context.Context) error { return serve(ctx, ln) })
	return nil
}

// Await waits until the plane lists a number of workers and has heard a number
// of them; other servers wait for as many reports as are to be heard.
func (p *Process) Await(ctx context.Context, listed, heard int) error {
	if p.plane != nil {
		return p.plane.await(ctx, listed, heard)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.count() < uint64(heard) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d reports came: %w", p.count(), heard, ctx.Err())
		}
	}
	return nil
}

// Usage is what a process used since it began. It is a plain value.
type Usage struct {
	// Reports were accepted, Refused were not.
	Reports, Refused uint64
	// Failure is how the first poll of a bare poller failed; empty for none.
	Failure string
	// CPU is user and system time.
	CPU time.Duration
	// Mallocs counts heap objects.
	Mallocs uint64
	// At is when, on the wall clock.
	At time.Time
	// Goroutines and Sockets are how many there are now.
	Goroutines, Sockets int
}

// Usage reads the counters.
func (p *Process) Usage() Usage {
	u := Usage{At: time.Now(), Reports: p.count(), CPU: cpu(), Goroutines: runtime.NumGoroutine(), Sockets: sockets()}
	u.Refused = p.failed.Load()
	if text := p.failure.Load(); text != nil {
		u.Failure = *text
	}
	if p.plane != nil {
		u.Refused = p.plane.refused()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Mallocs = m.Mallocs
	return u
}

// sockets counts the sockets of this process; 0 where the system does not say.
func sockets() (n int) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	for _, f := range files {
		to, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

func cpu() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// Memory is what a process holds, in bytes. It is a plain value.
type Memory struct {
	// Heap is what is reachable; Stacks are those of goroutines; Resident is
	// what the system counts.
	Heap, Stacks, Resident uint64
}

// ReadMemory collects garbage first.
func ReadMemory() Memory {
	debug.FreeOSMemory()
	debug.FreeOSMemory() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Memory{Heap: m.HeapAlloc, Stacks: m.StackInuse, Resident: resident()}
}

func resident() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// Profile begins to write a CPU profile, or ends it where path is empty.
func (p *Process) Profile(path string) (err error) {
	if path == "" {
		pprof.StopCPUProfile()
		return p.out.Close()
	}
	if p.out, err = os.Create(path); err != nil {
		return err
	}
	return pprof.StartCPUProfile(p.out)
}

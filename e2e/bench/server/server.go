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
)

// Spec says what to open. It is a plain value.
type Spec struct {
	Kind Kind
	// WorkersFile lists the plane's workers.
	WorkersFile string
	// Interval is the report interval that the plane grants.
	Interval time.Duration
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
	out   *os.File // of the profile
}

// Open starts a server on free ports of 127.0.0.1. Close stops it.
func Open(spec Spec) (*Process, error) {
	p := &Process{}
	p.ctx, p.stop = context.WithCancel(context.Background())
	var err error
	switch spec.Kind {
	case Plane:
		err = openPlane(p, spec)
	case Stock:
		err = openStock(p)
	case Tuned:
		err = openTuned(p)
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

// Await waits until the plane lists n workers and, where heard is set, has
// heard all of them; other servers wait for n reports.
func (p *Process) Await(ctx context.Context, n int, heard bool) error {
	if p.plane != nil {
		return p.plane.await(ctx, n, heard)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for heard && p.count() < uint64(n) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d reports came: %w", p.count(), n, ctx.Err())
		}
	}
	return nil
}

// Usage is what a process used since it began. It is a plain value.
type Usage struct {
	// Reports were accepted, Refused were not.
	Reports, Refused uint64
	// CPU is user and system time.
	CPU time.Duration
	// Mallocs counts heap objects.
	Mallocs uint64
	// At is when, on the wall clock.
	At time.Time
}

// Usage reads the counters.
func (p *Process) Usage() Usage {
	u := Usage{At: time.Now(), Reports: p.count(), CPU: cpu()}
	if p.plane != nil {
		u.Refused = p.plane.metrics.sum("loadplane_push_reports_refused_total")
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Mallocs = m.Mallocs
	return u
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

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	reportPath = "/router.loadmonitor.v1.LoadMonitorService/Report"
	// batchBytes bounds what a saturated engine writes at once, and
	// batchReports the reports in it.
	batchBytes   = 16 << 10
	batchReports = 64
	// dials is how many connections are opened at a time.
	dials = 64
	// lease is what the engines grant; renewals come once a minute.
	lease = time.Hour
	// MaxTime is the longest time that a histogram of microseconds takes.
	MaxTime = 60_000_000
)

// engine is one stream of reports. It is for one goroutine at a time.
type engine struct {
	report *report
	conn   *conn
	buf    []byte
}

// Fleet is a number of engines on addresses of their own, 127.x.y.z, with one
// HTTP port. Its methods are for one goroutine.
type Fleet struct {
	ln      net.Listener
	engines []*engine
	lives   int

	sent    atomic.Uint64
	senders sync.WaitGroup
	stop    atomic.Bool
	late    *hdrhistogram.Histogram
}

// NewFleet binds the port on which the engines are asked to report. Close
// gives it back.
func NewFleet() (*Fleet, error) {
	ln, err := net.Listen("tcp4", "0.0.0.0:0") // for all addresses of the loopback net
	if err != nil {
		return nil, err
	}
	return &Fleet{ln: ln, late: newHistogram()}, nil
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, MaxTime, 3) }

// Serve answers registrations until Close.
func (f *Fleet) Serve() error {
	grant := fmt.Sprintf(`{"status":"reporting","lease_ttl_ms":%d,"renew_after_ms":%d}`, lease.Milliseconds(), lease.Milliseconds()/3)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/start_reporting", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(grant))
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	if err := srv.Serve(f.ln); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Port is the port of the engines' origins.
func (f *Fleet) Port() int { return portOf(f.ln) }

func portOf(ln net.Listener) int {
	addr, err := netip.ParseAddrPort(ln.Addr().String())
	if err != nil {
		return 0
	}
	return int(addr.Port())
}

// Host returns the address of engine i, below 16 million.
func Host(i int) netip.Addr {
	i++
	return netip.AddrFrom4([4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)})
}

// Origin returns the base URL of engine i.
func Origin(i, port int) string {
	return "http://" + netip.AddrPortFrom(Host(i), uint16(port)).String()
}

// Connect opens n streams of engines with a number of ranks to a server, each
// on a connection of its own, and sends one report on each.
func (f *Fleet) Connect(ctx context.Context, server string, n, ranks int) error {
	f.lives++
	f.engines = make([]*engine, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(dials)
	for i := range n {
		group.Go(func() (err error) {
			f.engines[i], err = f.open(ctx, server, i, ranks)
			return err
		})
	}
	return group.Wait()
}

func (f *Fleet) open(ctx context.Context, server string, i, ranks int) (*engine, error) {
	r, err := newReport(Identity{
		Addr: Origin(i, f.Port()), Source: fmt.Sprintf("0d9f8c1e-5b7a-4c3d-%04d-%012d", f.lives, i), Ranks: ranks,
	})
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, call{
		local: Host(i), address: server, path: reportPath, content: "application/grpc", buffer: 512,
	})
	if err != nil {
		return nil, err
	}
	e := &engine{report: r, conn: c}
	return e, f.send(e, 1, Now())
}

// send writes up to n reports as the windows admit, at least one.
func (f *Fleet) send(e *engine, n int, stamp int64) error {
	n, err := e.conn.reserve(e.report.payload(), n)
	if err != nil || n == 0 {
		return err
	}
	e.buf = e.buf[:0]
	for range n {
		e.buf = e.report.append(e.buf, stamp)
	}
	f.sent.Add(uint64(n))
	_, err = e.conn.Write(e.buf)
	return err
}

// Saturate begins to write on all streams whatever their windows admit.
func (f *Fleet) Saturate() {
	f.begin()
	for _, e := range f.engines {
		most := max(1, min(batchReports, batchBytes/len(e.report.frame)))
		f.senders.Go(func() {
			for !f.stop.Load() && f.send(e, most, Now()) == nil {
			}
		})
	}
}

// Pace begins to send at a rate in reports a second, evenly spaced and in
// turn over the engines. A report carries the time that it was due.
func (f *Fleet) Pace(rate int) {
	f.begin()
	f.late.Reset()
	f.senders.Go(func() {
		// The thread sleeps by itself: the runtime's timers have steps of a
		// millisecond.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := Now()
		for n := int64(0); !f.stop.Load(); n++ {
			due := start + n*1_000_000/int64(rate)
			sleepUntil(due)
			_ = f.late.RecordValue(min(Now()-due, MaxTime)) // It fits.
			if f.send(f.engines[int(n)%len(f.engines)], 1, due) != nil {
				return
			}
		}
	})
}

func (f *Fleet) begin() {
	f.stop.Store(false)
	for _, e := range f.engines {
		e.conn.halt(false)
	}
}

// Sent is how a fleet did.
type Sent struct {
	// Reports were written since the start.
	Reports uint64
	// LateP99 is by how much the sending of paced reports was late,
	// microseconds.
	LateP99 int64
	// Failure is what ended the first stream that ended; empty for none.
	Failure string
}

// Halt ends the sending and says how it went.
func (f *Fleet) Halt() Sent {
	f.stop.Store(true)
	for _, e := range f.engines {
		e.conn.halt(true)
	}
	f.senders.Wait()
	s := Sent{Reports: f.sent.Load(), LateP99: f.late.ValueAtQuantile(99)}
	for _, e := range f.engines {
		if err := e.conn.failure(); err != nil {
			s.Failure = err.Error()
			break
		}
	}
	return s
}

// Disconnect closes all connections.
func (f *Fleet) Disconnect() {
	for _, e := range f.engines {
		if e != nil {
			e.conn.close()
		}
	}
	f.engines = nil
}

// Close gives the port back.
func (f *Fleet) Close() error { return f.ln.Close() }

// Now is the machine's monotonic clock in microseconds. All processes of the
// machine share it.
func Now() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano() / 1000
}

func sleepUntil(due int64) {
	for left := due - Now(); left > 0; left = due - Now() {
		ts := unix.NsecToTimespec(left * 1000)
		_ = unix.Nanosleep(&ts, nil) // A signal ends it early.
	}
}

package reporter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
	"google.golang.org/protobuf/proto"
)

// What a simulated rank can hold.
const (
	// CapacityTokens is the KV cache of a rank in tokens.
	CapacityTokens = queue.CapacityTokens
	// MaxRunning is the most requests that a rank runs at once.
	MaxRunning = queue.MaxRunning
)

// staleAfter is the sample age above which an engine calls itself stale.
const staleAfter = 3 * time.Second

const (
	noSample      = "no successful load sample"
	sampleFailure = "simulated sampling failure"
)

// Errors of Register.
var (
	// ErrOwned: another origin holds the lease of the target.
	ErrOwned = errors.New("target is already owned by another worker address")
	// ErrClosed: the process has ended.
	ErrClosed = errors.New("load reporter is closing")
)

// Target is the address of one plane. It is a plain value.
type Target struct {
	IP   netip.Addr
	Port uint16
}

// String returns ip:port, an IPv6 address in brackets.
func (t Target) String() string {
	return net.JoinHostPort(t.IP.String(), strconv.Itoa(int(t.Port)))
}

// Registration asks for reports. It is a plain value.
type Registration struct {
	// Target is where to report.
	Target Target
	// Origin is the address under which the engine was asked,
	// scheme://host:port. Reports name it.
	Origin string
	// Interval is the time between reports, above 0.
	Interval time.Duration
	// Lease is how long to report unless asked again, above 0.
	Lease time.Duration
}

// Faults are what goes wrong with reports while they are true. The zero value
// is no fault. It is safe for concurrent use and must not be copied.
type Faults struct {
	// Freeze stops the values; sample times go on.
	Freeze atomic.Bool
	// Silent stops the reports; streams stay open.
	Silent atomic.Bool
	// Fail makes sampling fail.
	Fail atomic.Bool
	// ZeroCapacity makes every number of a rank zero.
	ZeroCapacity atomic.Bool
	// NaN makes the token usage of the first rank NaN.
	NaN atomic.Bool
	// Idle makes the loads zero and leaves the capacities. No work is done
	// meanwhile.
	Idle atomic.Bool
}

// Switch returns the one that a word names: freeze, silent, fail, zero_capacity,
// nan or idle. It is nil for other words.
func (f *Faults) Switch(word string) *atomic.Bool {
	switch word {
	case "freeze":
		return &f.Freeze
	case "silent":
		return &f.Silent
	case "fail":
		return &f.Fail
	case "zero_capacity":
		return &f.ZeroCapacity
	case "nan":
		return &f.NaN
	case "idle":
		return &f.Idle
	default:
		return nil
	}
}

// Config is what a Process needs. It is a plain value.
type Config struct {
	// Role, Model and Zone are what reports say of the engine; an empty zone
	// is left out.
	Role        pb.WorkerType
	Model, Zone string
	// Ranks is the number of data-parallel ranks, at least 1.
	Ranks int
	// Seed and Stream make the load repeatable.
	Seed, Stream uint64
	// NoTraffic leaves out the requests that the model makes up; those of Do are
	// served alone.
	NoTraffic bool
	// Warm begins with the load of an engine that has been at work.
	Warm bool
	// FirstSample is the time from the first registration, or the first call of
	// Sample, to the first sample.
	FirstSample time.Duration
	// Faults may change at any time. Required.
	Faults *Faults
	// Dial connects to a target. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Process is one life of an engine process. All methods are safe for
// concurrent use.
type Process struct {
	config  Config
	source  string
	started time.Time
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	sequence  uint64
	monitors  map[Target]*monitor
	model     *queue.Model
	available time.Time // of the first sample; zero until first asked
	attempted time.Time // last pull
	stepped   time.Time // model time
	sampledMs int64     // wall clock of the last good pull, Unix ms
	ranks     []*pb.RankLoad
	lastError string
	failed    bool // the last pull
	// served counts requests of Do; driven says that drive runs.
	served int
	driven bool
}

// New returns a process that nobody has registered with yet. It starts
// nothing. Close ends it.
func New(config Config) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{
		config:   config,
		source:   newSource(),
		started:  time.Now(),
		ctx:      ctx,
		cancel:   cancel,
		monitors: map[Target]*monitor{},
		model: queue.New(queue.Config{
			Role: config.Role, Ranks: config.Ranks, Seed: config.Seed, Stream: config.Stream, Quiet: config.NoTraffic,
		}),
		lastError: noSample,
	}
	if config.Warm {
		p.model.Step(queue.MaxStep)
		p.started = p.started.Add(-queue.MaxStep)
	}
	return p
}

// Close cancels all streams and returns when every goroutine has stopped.
func (p *Process) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.tasks.Wait()
}

// Source returns the source instance id.
func (p *Process) Source() string { return p.source }

// Sequence returns the sequence number of the last report, 0 before the first.
func (p *Process) Sequence() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sequence
}

// NextSequence uses up the number of the next report and returns it. It is for
// reports that the process does not build itself.
func (p *Process) NextSequence() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequence++
	return p.sequence
}

// Monitors returns the number of targets that hold a lease.
func (p *Process) Monitors() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.monitors)
}

// newSource returns a random id in the form of a version 4 UUID.
func newSource() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Register starts to report to the target or renews its lease, which then
// ends a Lease from now. The error is ErrOwned or ErrClosed.
func (p *Process) Register(r Registration) error {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.awaitLocked(now)
	if m := p.monitors[r.Target]; m != nil && m.liveLocked(now) {
		if m.origin != r.Origin {
			return ErrOwned
		}
		m.renewLocked(now, r)
		return nil
	}
	m := newMonitor(p, r)
	m.renewLocked(now, r)
	p.monitors[r.Target] = m
	p.tasks.Go(m.run)
	return nil
}

// forget takes an ended monitor out.
func (p *Process) forget(m *monitor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.monitors[m.target] == m {
		delete(p.monitors, m.target)
	}
}

// noteError keeps what a plane said as the error of the process, as engines
// do, until the next good sample.
func (p *Process) noteError(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastError = text
}

// report builds the next report for a monitor. It uses up a sequence number.
func (p *Process) report(m *monitor) *pb.LoadReport {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sampleLocked(now, p.periodLocked())
	p.sequence++
	rep := &pb.LoadReport{
		SourceInstanceId: p.source,
		SequenceId:       p.sequence,
		ReportTimeUnixMs: now.UnixMilli(),
		Worker:           m.worker(),
		Ranks:            p.ranks,
	}
	rep.Status, rep.LastError = p.judgeLocked(now)
	return rep
}

func (p *Process) judgeLocked(now time.Time) (pb.ReportStatus, *string) {
	age := time.Duration(now.UnixMilli()-p.sampledMs) * time.Millisecond
	switch {
	case len(p.ranks) == 0:
		return pb.ReportStatus_REPORT_STATUS_UNREACHABLE, proto.String(p.lastError)
	case age <= staleAfter:
		return pb.ReportStatus_REPORT_STATUS_HEALTHY, nil
	case p.lastError == "":
		text := fmt.Sprintf("load snapshot stale by %d ms", (age - staleAfter).Milliseconds())
		return pb.ReportStatus_REPORT_STATUS_STALE, &text
	default:
		return pb.ReportStatus_REPORT_STATUS_STALE, proto.String(p.lastError)
	}
}

// awaitLocked sets the time of the first sample when first asked.
func (p *Process) awaitLocked(now time.Time) {
	if p.available.IsZero() {
		p.available = now.Add(p.config.FirstSample)
	}
}

// sampleLocked pulls the load if the last pull is a period old. A failed pull
// keeps the last good ranks.
func (p *Process) sampleLocked(now time.Time, period time.Duration) {
	if now.Before(p.available) || !p.attempted.IsZero() && now.Sub(p.attempted) < period {
		return
	}
	p.attempted = now
	p.failed = p.config.Faults.Fail.Load()
	if p.failed {
		p.lastError = sampleFailure
		return
	}
	p.advanceLocked(now)
	p.sampledMs = now.UnixMilli()
	p.ranks = p.distort(p.model.Load(p.sampledMs))
	p.lastError = ""
}

// periodLocked is the shortest report interval asked for.
func (p *Process) periodLocked() time.Duration {
	period := time.Duration(math.MaxInt64)
	for _, m := range p.monitors {
		period = min(period, m.interval)
	}
	return period
}

// distort applies the faults that change values.
func (p *Process) distort(ranks []*pb.RankLoad) []*pb.RankLoad {
	idle, zero := p.config.Faults.Idle.Load(), p.config.Faults.ZeroCapacity.Load()
	for i, r := range ranks {
		if !idle && !zero {
			break
		}
		ranks[i] = &pb.RankLoad{DpRank: r.DpRank, SnapshotTimeUnixMs: r.SnapshotTimeUnixMs}
		if !zero {
			ranks[i].MaxTotalNumTokens = r.MaxTotalNumTokens
			ranks[i].MaxRunningRequests = r.MaxRunningRequests
		}
	}
	if p.config.Faults.NaN.Load() {
		ranks[0].TokenUsage = math.NaN()
	}
	return ranks
}

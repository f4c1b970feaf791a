package reporter

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Times of the engine's monitors.
const (
	connectTimeout = 3 * time.Second
	retryInitial   = 250 * time.Millisecond
	retryMax       = 5 * time.Second
)

// monitor reports to one plane while its lease lasts. ctx ends with the lease
// or with the process. The fields below changed belong to the process's mutex.
type monitor struct {
	process *Process
	target  Target
	origin  string
	ctx     context.Context
	cancel  context.CancelFunc
	// changed holds a token after a renewal.
	changed chan struct{}

	revision  uint64
	interval  time.Duration
	updatedAt time.Time
	expires   time.Time
	lease     *time.Timer
}

func newMonitor(p *Process, r Registration) *monitor {
	ctx, cancel := context.WithCancel(p.ctx)
	return &monitor{
		process: p,
		target:  r.Target,
		origin:  r.Origin,
		ctx:     ctx,
		cancel:  cancel,
		changed: make(chan struct{}, 1),
	}
}

func (m *monitor) liveLocked(now time.Time) bool {
	return m.ctx.Err() == nil && now.Before(m.expires)
}

// renewLocked gives the monitor a new revision, lease and interval.
func (m *monitor) renewLocked(now time.Time, r Registration) {
	m.revision++
	m.interval = r.Interval
	m.updatedAt = now
	m.expires = now.Add(r.Lease)
	if m.lease == nil {
		m.lease = time.AfterFunc(r.Lease, m.cancel)
		return
	}
	m.lease.Reset(r.Lease)
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// schedule is what a registration asked for last.
type schedule struct {
	revision  uint64
	interval  time.Duration
	updatedAt time.Time
}

func (m *monitor) schedule() schedule {
	m.process.mu.Lock()
	defer m.process.mu.Unlock()
	return schedule{m.revision, m.interval, m.updatedAt}
}

func (m *monitor) worker() *pb.Worker {
	c := m.process.config
	w := &pb.Worker{WorkerAddr: m.origin, WorkerType: c.Role, Model: &c.Model}
	if c.Zone != "" {
		w.Zone = &c.Zone
	}
	return w
}

// verdict is what a monitor does after its stream ended.
type verdict int

const (
	verdictEnd    verdict = iota // stop until registered again
	verdictRetry                 // reconnect after a backoff
	verdictReject                // wait for the next registration
)

// judge reads the status that a stream ended with.
func judge(err error) verdict {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return verdictRetry
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return verdictReject
	default:
		return verdictEnd
	}
}

// run reports until the lease or the process ends or the plane ends it.
func (m *monitor) run() {
	defer m.stop()
	var retry backoff
	for m.ctx.Err() == nil {
		ready, err := m.connection()
		if m.ctx.Err() != nil {
			return
		}
		if ready {
			retry = backoff{}
		}
		switch judge(err) {
		case verdictRetry:
			m.pause(retry.next())
		case verdictReject:
			m.process.noteError("router rejected report: " + status.Convert(err).Message())
			m.awaitRevision()
		case verdictEnd:
			m.process.noteError("router terminated report stream: " + status.Convert(err).Message())
			return
		}
	}
}

// pause waits for d or for the end.
func (m *monitor) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-m.ctx.Done():
	case <-timer.C:
	}
}

// backoff is the time to the next connection; the zero value is at its start.
type backoff struct {
	last time.Duration
}

// next doubles from 0.25 s to 5 s and spreads each over 0.8 to 1.2 of itself.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, retryInitial), retryMax)
	return time.Duration(float64(b.last) * (0.8 + 0.4*rand.Float64()))
}

func (m *monitor) stop() {
	m.cancel()
	m.process.forget(m)
	m.process.mu.Lock()
	defer m.process.mu.Unlock()
	m.lease.Stop()
}

// awaitRevision waits for a registration later than now, or for the end.
func (m *monitor) awaitRevision() {
	for seen := m.schedule().revision; m.schedule().revision == seen; {
		select {
		case <-m.changed:
		case <-m.ctx.Done():
			return
		}
	}
}

// connection opens one channel and one stream and reports on it until it
// ends. It says whether the channel was ready, and how it ended.
func (m *monitor) connection() (ready bool, err error) {
	conn, err := m.connect()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	stream, err := pb.NewLoadMonitorServiceClient(conn).Report(ctx)
	if err != nil {
		return true, err
	}
	c := &call{stream: stream, ended: make(chan error, 1)}
	go func() { c.ended <- stream.RecvMsg(new(emptypb.Empty)) }()
	if err := m.deliver(c); err != nil && !errors.Is(err, io.EOF) {
		cancel() // not sent, and the stream may still be open
	}
	return true, <-c.ended
}

// call is one open stream; ended gets its status once.
type call struct {
	stream grpc.ClientStreamingClient[pb.LoadReport, emptypb.Empty]
	ended  chan error
}

// deliver sends the first report at once and the next ones an interval after
// the one before. A renewal puts the next report an interval after itself:
// engines do so, and one that is renewed faster than it reports stays silent.
// deliver returns nil when the stream ended, else the error of a send, io.EOF
// when the stream ended before it.
func (m *monitor) deliver(c *call) error {
	select {
	case <-m.changed: // while connecting; the first report is sent anyway
	default:
	}
	if err := m.send(c); err != nil {
		return err
	}
	timer := time.NewTimer(m.schedule().interval)
	defer timer.Stop()
	for {
		select {
		case err := <-c.ended:
			c.ended <- err
			return nil
		case <-m.changed:
			s := m.schedule()
			timer.Reset(time.Until(s.updatedAt.Add(s.interval)))
		case <-timer.C:
			if err := m.send(c); err != nil {
				return err
			}
			timer.Reset(m.schedule().interval)
		}
	}
}

func (m *monitor) send(c *call) error {
	if m.process.config.Faults.Silent.Load() {
		return nil
	}
	return c.stream.Send(m.process.report(m))
}

// connect opens a channel and waits until it is ready, three seconds at most.
func (m *monitor) connect() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///plane",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(m.target.String()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return m.process.config.Dial(ctx, m.target.String())
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if !becomesReady(m.ctx, conn) {
		_ = conn.Close()
		return nil, status.Error(codes.Unavailable, "channel not ready in time")
	}
	return conn, nil
}

func becomesReady(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		if state == connectivity.Idle {
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

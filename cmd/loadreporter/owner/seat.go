package owner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/control"
	"github.com/loadplane/loadplane/cmd/loadreporter/node"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

const (
	// callTimeout bounds a call to the owner.
	callTimeout = 2 * time.Second
	// A lock that is not free is tried again after firstTry, doubling to
	// lastTry, while no owner can be followed.
	firstTry = 2 * time.Millisecond
	lastTry  = 250 * time.Millisecond
	// checkEach is the time between two looks at the lock file.
	checkEach = 10 * time.Second
	// grace is how long a registration counts that was forwarded and is not in
	// the table yet.
	grace = 2 * time.Second
)

// Options configure a Seat.
type Options struct {
	// Files are those of the engine. Required.
	Files Files
	// Node does the work of the owner. Required.
	Node *node.Node
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Seat is the place of the owner: it is taken, or waited for. It implements
// control.Desk, as owner by itself and else by the owner, and is safe for
// concurrent use.
type Seat struct {
	opts    Options
	metrics *metrics
	face    *control.Face
	// calls and streams are clients of the owner's socket.
	calls, streams *http.Client
	// hinted holds a token when a hint is to be forwarded.
	hinted chan struct{}

	mu sync.Mutex
	// owns says that this process is the owner.
	owns bool
	// heard is when the owner sent the table last, zero for never.
	heard time.Time
	// leases are the owner's routers, and asked those that were forwarded to it
	// in the last seconds.
	leases map[netip.AddrPort]lease
	asked  map[netip.AddrPort]asked
	// heirs counts the processes that follow the table; it stays as it is once
	// ending, which is that of the owner's work, is over.
	heirs  int
	ending context.Context
	// hint is the sum of those that are to be forwarded.
	hint control.Hint
}

// asked is a registration that was forwarded.
type asked struct {
	lease
	at time.Time
}

// New checks the options. It starts nothing.
func New(opts Options) (*Seat, error) {
	if opts.Node == nil || opts.Files == (Files{}) {
		return nil, errors.New("owner: Node or Files is missing")
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	s := &Seat{opts: opts, metrics: m, hinted: make(chan struct{}, 1), asked: map[netip.AddrPort]asked{}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", opts.Files.Socket)
		},
		DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: callTimeout,
	}
	s.calls = &http.Client{Transport: transport, Timeout: callTimeout}
	s.streams = &http.Client{Transport: transport}
	s.face, err = control.New(control.Options{Desk: opts.Node, Logger: opts.Logger})
	return s, err
}

// Run waits for the seat and then does the owner's work until ctx ends. It
// returns when all has stopped, with an error where the owner's work failed.
func (s *Seat) Run(ctx context.Context) error {
	stood, pause := false, firstTry
	for ctx.Err() == nil {
		held, err := tryLock(s.opts.Files.Lock)
		switch {
		case errors.Is(err, ErrReplaced): // by one who made it anew; once more
		case err != nil:
			return err
		case held != nil:
			if stood {
				s.metrics.takeovers.Inc()
			}
			s.opts.Logger.Info("this process owns the engine", "lock", s.opts.Files.Lock, "after_another", stood)
			return s.own(ctx, held)
		default:
			if s.stand(ctx) {
				stood, pause = true, firstTry
			}
		}
		sleep(ctx, pause)
		pause = min(2*pause, lastTry)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// own does the owner's work. The lock is given back when all has stopped.
func (s *Seat) own(ctx context.Context, held *lock) error {
	defer held.free()
	left := s.take()
	defer s.leave()
	ln, err := listen(s.opts.Files.Socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+tablePath, s.streamTable)
	mux.Handle("/", s.face)
	g, ctx := errgroup.WithContext(ctx)
	s.mu.Lock()
	s.ending = ctx
	s.mu.Unlock()
	g.Go(func() error {
		return s.opts.Node.Run(ctx, node.Start{Left: left, Inherited: s.inherited, LifeFile: s.opts.Files.Life})
	})
	g.Go(func() error { return control.Serve(ctx, ln, mux) })
	g.Go(func() error { return s.guard(ctx, held) })
	return g.Wait()
}

// guard looks at the lock file from time to time, and keeps it young for those
// who clean up.
func (s *Seat) guard(ctx context.Context, held *lock) error {
	tick := time.NewTicker(checkEach)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := held.check(s.opts.Files.Lock); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		now := time.Now()
		_ = os.Chtimes(s.opts.Files.Lock, now, now)
		_ = os.Chtimes(s.opts.Files.Socket, now, now)
	}
}

// take begins to own, and returns the routers that the last owner left.
func (s *Seat) take() []push.Registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owns = true
	s.metrics.owner.Set(1)
	now := time.Now()
	var left []push.Registration
	for target, l := range s.known(now) {
		if rest := l.expires.Sub(now); rest > 0 {
			left = append(left, push.Registration{Target: target, Interval: l.interval, Lease: rest})
		}
	}
	return left
}

// known returns the routers of the table with those forwarded since. The caller
// holds s.mu.
func (s *Seat) known(now time.Time) map[netip.AddrPort]lease {
	all := make(map[netip.AddrPort]lease, len(s.leases)+len(s.asked))
	for target, l := range s.leases {
		all[target] = l
	}
	for target, a := range s.asked {
		if now.Sub(a.at) < grace && a.expires.After(all[target].expires) {
			all[target] = a.lease
		}
	}
	return all
}

// inherited says whether another process is there that goes on.
func (s *Seat) inherited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heirs > 0
}

// follow counts a process that follows the table, until left is called.
func (s *Seat) follow() (left func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heirs++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ending.Err() == nil {
			s.heirs--
		}
	}
}

// leave ends owning.
func (s *Seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owns = false
	s.metrics.owner.Set(0)
}

// stand follows the owner until it is gone, and forwards hints meanwhile. It
// says whether there was an owner that answered.
func (s *Seat) stand(ctx context.Context) (heard bool) {
	ctx, cancel := context.WithCancel(ctx)
	var forwarding sync.WaitGroup
	forwarding.Go(func() { s.forwardHints(ctx) })
	heard, err := s.followTable(ctx)
	cancel()
	forwarding.Wait()
	if heard {
		s.opts.Logger.Info("the owner is gone", "err", cmp.Or(err, errEnded))
	}
	return heard
}

var errEnded = errors.New("it closed the connection")

// hear takes a line of the table over.
func (s *Seat) hear(leases map[netip.AddrPort]lease, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard.IsZero() {
		s.opts.Logger.Info("another process owns the engine", "socket", s.opts.Files.Socket)
	}
	s.leases, s.heard = leases, now
	for target, a := range s.asked {
		if now.Sub(a.at) >= grace {
			delete(s.asked, target)
		}
	}
}

// owning says whether this process is the owner.
func (s *Seat) owning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owns
}

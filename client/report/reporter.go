package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/link"
	"github.com/loadplane/loadplane/client/internal/retry"
	"github.com/loadplane/loadplane/client/report/schedule"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

const (
	// callTimeout bounds one call of the registration service, and how long a new
	// stream may be silent.
	callTimeout = 3 * time.Second
	// farewell bounds the call that gives the lease back.
	farewell = time.Second
	// anewEach is the shortest time between two leases that are begun without a
	// wait.
	anewEach = time.Second
)

// Reporter reports one engine to one plane for as long as Run runs. All methods
// are safe for concurrent use.
type Reporter struct {
	opts Options
	log  *slog.Logger
	dial link.DialFunc
	// random returns a number in [0, n).
	random func(n int64) int64

	// running is held by Run.
	running sync.Mutex
	// hurried signals that a report is due, changed that the registration did.
	hurried, changed chan struct{}

	mu           sync.Mutex
	registration *pb.RegisterRequest
	status       Status
}

// New returns a reporter that does nothing until Run is called. The error names
// the field of the options that is wrong.
func New(o Options) (*Reporter, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &Reporter{
		opts: o, log: o.Logger, random: rand.Int64N,
		dial:    (&net.Dialer{Timeout: link.DialTimeout}).DialContext,
		hurried: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		registration: cloned(o.Registration, ""),
		status:       Status{Since: time.Now()},
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// Hurry makes a report due now, such as after a change that routers should know
// of. Several calls before it is made are one. It does not move the schedule,
// and stays within the granted rate: a report that is hurried too often waits
// for a part of the interval.
func (r *Reporter) Hurry() { poke(r.hurried) }

// Update registers again with changed facts, soon. Another URL ends the lease
// and begins another one. A registration without a URL is ignored.
func (r *Reporter) Update(registration *pb.RegisterRequest) {
	if registration.GetUrl() == "" {
		return
	}
	r.mu.Lock()
	r.registration = cloned(registration, "")
	r.mu.Unlock()
	poke(r.changed)
}

// Status returns what the reporter does now.
func (r *Reporter) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// note changes the status.
func (r *Reporter) note(change func(s *Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}

// current returns the registration as it is now, with a lease.
func (r *Reporter) current(lease string) *pb.RegisterRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cloned(r.registration, lease)
}

// Run registers and reports until ctx ends. It then gives the lease back, for
// which it takes a second at most, and returns nil. It never gives up before;
// Status tells what is wrong. Run may be called again; while it runs, another
// call returns ErrRunning. All goroutines that it started are over when it
// returns.
func (r *Reporter) Run(ctx context.Context) error {
	if !r.running.TryLock() {
		return ErrRunning
	}
	defer r.running.Unlock()
	u := &run{Reporter: r, plan: retry.New([]string{r.opts.Address}, r.random)}
	for ctx.Err() == nil {
		began := time.Now()
		err := u.session(ctx)
		if ctx.Err() != nil {
			break
		}
		u.failed(err)
		u.pause(ctx, u.wait(err, time.Since(began)))
	}
	u.leave(ctx)
	return nil
}

// run is what lasts from one session to the next. It is for the goroutine of
// Run.
type run struct {
	*Reporter
	plan *retry.Schedule
	// lease is the secret of the lease that is held; empty for none. url is that
	// of the engine it is for.
	lease, url string
	granted    grant
	// had says that there was a lease since one was last begun without a wait,
	// which was at anew.
	had  bool
	anew time.Time
	// schedule is made at the first grant; the sampler of the session has it.
	schedule *schedule.Schedule
	// held counts the attempts in a row that found the lease with another.
	held int
	// states, refusals and clamps bound the lines about each.
	states, refusals, clamps lines
}

// failed notes why a session ended.
func (u *run) failed(err error) {
	err = advise(err)
	u.note(func(s *Status) { s.LastError = fmt.Errorf("%s: %w", u.opts.Address, err) })
	level, state := slog.LevelWarn, connect.CodeOf(err).String()
	if errors.Is(err, ErrSourceChanged) || errors.Is(err, errMoved) {
		level, state = slog.LevelInfo, err.Error()
	}
	if left, ok := u.states.allow("ended "+state, time.Now()); ok {
		u.log.Log(context.Background(), level, "reporting ended",
			slog.String("address", u.opts.Address), slog.Any("error", err), slog.Int("left_out", left))
	}
}

// began notes that the plane answered a stream.
func (u *run) began() {
	u.note(func(s *Status) { s.connect(true, time.Now()) })
	if left, ok := u.states.allow("began", time.Now()); ok {
		u.log.Info("reporting began", slog.String("address", u.opts.Address),
			slog.String("worker", u.Status().WorkerID), slog.Int("left_out", left))
	}
}

// wait returns how long to stay away after a session that lasted for some time.
// A stream that ends as NOT_FOUND may leave the lease: that the call tells.
func (u *run) wait(err error, lasted time.Duration) time.Duration {
	now := time.Now()
	switch code := connect.CodeOf(err); {
	case code == connect.CodeAlreadyExists:
		return u.turn()
	case code == connect.CodeNotFound || errors.Is(err, errMoved):
		if u.had && now.Sub(u.anew) >= anewEach {
			u.had, u.anew = false, now
			return 0
		}
	}
	u.plan.Ended(retry.Ending{Lasted: lasted, Stay: stayOf(err)}, now)
	_, at := u.plan.Pick(now)
	return at.Sub(now)
}

// turn returns how long to wait for a lease that another reporter has: a random
// time, whose bound doubles from 100 ms to 5 s and is not above the life of a
// lease.
func (u *run) turn() time.Duration {
	most := lastTurn
	if u.held < 6 {
		most = min(firstTurn<<u.held, lastTurn)
	}
	if u.granted.ttl > 0 {
		most = min(most, u.granted.ttl)
	}
	u.held++
	return max(time.Duration(u.random(int64(most)+1)), leastTurn)
}

// forget forgets the lease.
func (u *run) forget() {
	u.lease = ""
	u.note(func(s *Status) { s.WorkerID = "" })
}

// pause waits, but not for longer than until the registration changes or ctx
// ends.
func (u *run) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.changed:
	case <-ctx.Done():
	}
}

// leave gives the lease back, unless another reporter takes it over.
func (u *run) leave(ctx context.Context) {
	if u.lease == "" {
		return
	}
	if u.opts.Inherited != nil && u.opts.Inherited() {
		u.log.Info("the lease is left to another reporter", slog.String("address", u.opts.Address))
		u.forget()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	way := link.New(u.opts.Address, u.opts.TLS, u.dial)
	defer way.Close()
	if err := u.deregister(ctx, way, u.lease); err != nil {
		u.note(func(s *Status) { s.LastError = fmt.Errorf("%s: %w", u.opts.Address, err) })
	}
	u.forget()
}

// poke leaves a signal in a channel of one place.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain takes what poke left.
func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

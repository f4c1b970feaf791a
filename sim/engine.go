package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/loadplane/loadplane/sim/ports"
	"github.com/loadplane/loadplane/sim/push"
	"github.com/loadplane/loadplane/sim/reporter"
	"github.com/loadplane/loadplane/sim/serve"
)

// relistenAfter is the time to the next attempt to listen.
const relistenAfter = time.Second

// network is how engines listen and dial.
type network struct {
	listen func(address string) (net.Listener, error)
	dial   func(ctx context.Context, address string) (net.Conn, error)
}

// Engine is one simulated engine. All methods are safe for concurrent use.
type Engine struct {
	index   int
	opts    Options
	net     network
	info    WorkerInfo
	address string
	http    *ports.Row
	log     *slog.Logger
	faults  faultSet
	tasks   sync.WaitGroup

	mu      sync.Mutex
	closing bool
	lives   uint64
	life    *life
}

// newEngine returns an engine that listens and has no life yet.
func newEngine(i int, opts Options, n network) (*Engine, error) {
	row, err := ports.Bind(n.listen, opts.Listen, opts.port(i))
	if err != nil {
		return nil, err
	}
	address := row.Address()
	return &Engine{
		index:   i,
		opts:    opts,
		net:     n,
		info:    WorkerInfo{URL: "http://" + address, Kind: opts.kind(i), Role: opts.role(i), Model: opts.Model, Zone: opts.zone(i)},
		address: address,
		http:    row,
		log:     opts.Logger.With("engine", "http://"+address),
	}, nil
}

// begin begins the first life.
func (e *Engine) begin() (err error) {
	e.life, err = e.newLife(e.opts.ranks(e.index))
	return err
}

// Info returns what discovery should know of the engine.
func (e *Engine) Info() WorkerInfo { return e.info }

// Source returns the source instance id of the present life.
func (e *Engine) Source() string { return e.current().Source() }

// Sequence returns the sequence number of the last report of the present
// life, 0 before the first. What is published on sockets is not counted.
func (e *Engine) Sequence() uint64 { return e.current().Sequence() }

// Monitors returns the number of planes that hold a lease of the engine.
func (e *Engine) Monitors() int {
	l := e.current()
	return l.Monitors() + l.sessions()
}

// Ranks returns the number of DP ranks of the present life.
func (e *Engine) Ranks() int { return e.current().ranks }

func (e *Engine) current() *life {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

// reporting is the process of the present life.
func (e *Engine) reporting() *reporter.Process { return e.current().Process }

// Restart ends the life of the engine and begins the next. Its streams are
// cancelled; nothing is reported until the engine is registered again, dialled
// again or, where it is a native one, opens another stream by its lease.
func (e *Engine) Restart() {
	// Ports are kept, so that nothing can fail.
	_ = e.restart(func(old *life) int { return old.ranks })
}

// Rerank restarts the engine with another number of DP ranks, 1 to 4,096, as a
// new deployment does. An engine of a kind without ranks keeps its one. The
// error says that there are no ports for the ranks; nothing changes then.
func (e *Engine) Rerank(ranks int) error {
	if ranks < 1 || ranks > maxRanks {
		return fmt.Errorf("sim: %d ranks, must be 1 to %d", ranks, maxRanks)
	}
	return e.restart(func(*life) int {
		if !e.info.Kind.ranked() {
			return 1
		}
		return ranks
	})
}

func (e *Engine) restart(ranks func(old *life) int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil
	}
	next, err := e.newLife(ranks(e.life))
	if err != nil {
		return fmt.Errorf("sim: no ports for another life: %w", err)
	}
	e.life.close()
	if e.life.row != nil && e.life.row != next.row {
		e.life.row.Release()
	}
	e.life = next
	e.log.Info("engine restarted", "source", e.life.Source(), "ranks", e.life.ranks)
	return nil
}

// SetFault makes the fault hold from now on, whatever times it names; a
// restart happens once.
func (e *Engine) SetFault(f Fault) {
	switch f.Kind {
	case FaultRestart:
		e.Restart()
		return
	case FaultRerank:
		if err := e.Rerank(f.Ranks); err != nil {
			e.log.Error("engine cannot restart", "error", err)
		}
		return
	}
	e.faults.set(f)
	e.log.Info("fault begins", "fault", f.String())
}

// ClearFault ends a fault; it does nothing when there is none of the kind.
func (e *Engine) ClearFault(kind FaultKind) {
	if e.faults.clear(kind) {
		e.log.Info("fault ends", "fault", string(kind))
	}
}

// run serves until ctx ends and everything of the engine has stopped.
func (e *Engine) run(ctx context.Context) {
	for _, f := range e.opts.Faults {
		if f.Engine == AllEngines || f.Engine == e.index {
			e.tasks.Go(func() { e.play(ctx, f) })
		}
	}
	for ctx.Err() == nil {
		down, changed := e.faults.watch(FaultDown)
		if !down {
			e.up(ctx)
			continue
		}
		e.release()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	e.close()
}

// release closes listeners that were never served.
func (e *Engine) release() {
	e.http.Release()
	if l := e.current(); l != nil && l.row != nil {
		l.row.Release()
	}
}

func (e *Engine) close() {
	e.release()
	e.mu.Lock()
	e.closing = true
	if e.life != nil {
		e.life.close()
	}
	e.mu.Unlock()
	e.tasks.Wait()
}

// up listens and serves until ctx ends or the engine goes down.
func (e *Engine) up(ctx context.Context) {
	row, err := e.http.Take()
	if err != nil {
		e.log.Error("engine cannot listen", "error", err)
		wait(ctx, relistenAfter)
		return
	}
	ctx, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { e.keepBeside(ctx) })
	beside.Go(func() {
		e.awaitDown(ctx)
		stop(serve.ErrAbort)
	})
	if e.info.Kind == KindNative {
		beside.Go(func() { e.report(ctx) })
	}
	if err := serve.HTTP(ctx, row[0], e.handler(ctx.Done()), e.log); err != nil {
		e.log.Error("engine stopped serving", "error", err)
	}
	stop(nil)
	beside.Wait()
}

// awaitDown returns when the engine is to go down or ctx ends.
func (e *Engine) awaitDown(ctx context.Context) {
	for {
		down, changed := e.faults.watch(FaultDown)
		if down {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// handler is the HTTP face; closing ends answers that are delayed.
func (e *Engine) handler(closing <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	if e.info.Kind == KindSGLang {
		mux.Handle(push.Path, push.Handler(e.reporting, func() { e.delay(closing) }))
	}
	if e.info.Kind.serves() {
		api := serve.OpenAI(e.info.Model, e.reporting)
		mux.Handle("POST /v1/chat/completions", api)
		mux.Handle("POST /v1/completions", api)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if e.info.Kind != KindSGLang {
			e.delay(closing)
		}
		if _, silent := e.faults.get(FaultSilent); silent {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		e.current().pages.ServeHTTP(w, r)
	})
	return mux
}

// slow is the delay of FaultSlow; 0 for none.
func (e *Engine) slow() time.Duration {
	f, _ := e.faults.get(FaultSlow)
	return f.Delay
}

// delay waits as long as FaultSlow says, or until closing.
func (e *Engine) delay(closing <-chan struct{}) {
	if slow := e.slow(); slow > 0 {
		select {
		case <-time.After(slow):
		case <-closing:
		}
	}
}

package sim

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/reporter"
	"github.com/loadplane/loadplane/sim/serve"
)

// Times of the HTTP side.
const (
	headerTimeout   = 5 * time.Second
	shutdownTimeout = time.Second
	relistenAfter   = time.Second
)

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
	first   net.Listener // the first serving takes it
	log     *slog.Logger
	faults  faultSet
	tasks   sync.WaitGroup

	mu      sync.Mutex
	closing bool
	lives   uint64
	life    *reporter.Process
}

func newEngine(i int, opts Options, n network) (*Engine, error) {
	l, err := n.listen(opts.address(i))
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	e := &Engine{
		index:   i,
		opts:    opts,
		net:     n,
		info:    WorkerInfo{URL: "http://" + address, Kind: opts.kind(i), Role: opts.role(i), Model: opts.Model, Zone: opts.zone(i)},
		address: address,
		first:   l,
		log:     opts.Logger.With("engine", "http://"+address),
	}
	e.life = e.newLife()
	return e, nil
}

// Info returns what discovery should know of the engine.
func (e *Engine) Info() WorkerInfo { return e.info }

// Source returns the source instance id of the present life.
func (e *Engine) Source() string { return e.current().Source() }

// Sequence returns the sequence number of the last report of the present
// life, 0 before the first.
func (e *Engine) Sequence() uint64 { return e.current().Sequence() }

// Monitors returns the number of planes that hold a lease of the engine.
func (e *Engine) Monitors() int { return e.current().Monitors() }

func (e *Engine) current() *reporter.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

// newLife returns the process of the next life. The first one has been at
// work for a while.
func (e *Engine) newLife() *reporter.Process {
	e.lives++
	return reporter.New(reporter.Config{
		Role:        e.info.Role.workerType(),
		Model:       e.info.Model,
		Zone:        e.info.Zone,
		Ranks:       e.opts.ranks(e.index),
		Seed:        e.opts.Seed,
		Stream:      uint64(e.index)<<32 | e.lives,
		Warm:        e.lives == 1,
		NoTraffic:   e.opts.NoTraffic,
		FirstSample: e.opts.FirstSample,
		Faults:      &e.faults.reports,
		Dial:        e.net.dial,
	})
}

// Restart ends the life of the engine and begins the next. Its streams are
// cancelled; nothing is reported until the engine is registered again.
func (e *Engine) Restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return
	}
	e.life.Close()
	e.life = e.newLife()
	e.log.Info("engine restarted", "source", e.life.Source())
}

// SetFault makes the fault hold from now on, whatever times it names; a
// restart happens once.
func (e *Engine) SetFault(f Fault) {
	if f.Kind == FaultRestart {
		e.Restart()
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
			e.serve(ctx)
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

// release closes the first listener if it was never served.
func (e *Engine) release() {
	if e.first != nil {
		_ = e.first.Close()
		e.first = nil
	}
}

func (e *Engine) close() {
	e.release()
	e.mu.Lock()
	e.closing = true
	e.life.Close()
	e.mu.Unlock()
	e.tasks.Wait()
}

// serve listens and answers until ctx ends or the engine goes down.
func (e *Engine) serve(ctx context.Context) {
	l, err := e.listener()
	if err != nil {
		e.log.Error("engine cannot listen", "error", err)
		wait(ctx, relistenAfter)
		return
	}
	srv := &http.Server{
		Handler:           e.handler(ctx.Done()),
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	for {
		down, changed := e.faults.watch(FaultDown)
		if down {
			_ = srv.Close()
			e.stopped(<-done)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			e.shutdown(srv)
			e.stopped(<-done)
			return
		case err := <-done:
			e.stopped(err)
			return
		}
	}
}

// stopped tells of a listener that was not closed on purpose.
func (e *Engine) stopped(err error) {
	if !errors.Is(err, http.ErrServerClosed) {
		e.log.Error("engine stopped serving", "error", err)
	}
}

func (e *Engine) listener() (net.Listener, error) {
	if l := e.first; l != nil {
		e.first = nil
		return l, nil
	}
	return e.net.listen(e.address)
}

// shutdown waits for the calls that are being answered.
func (e *Engine) shutdown(srv *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		_ = srv.Close()
	}
}

// handler is the HTTP face; closing ends answers that are delayed.
func (e *Engine) handler(closing <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	if e.info.Kind == KindSGLang {
		mux.HandleFunc(startReportingPath, func(w http.ResponseWriter, r *http.Request) {
			e.startReporting(w, r, closing)
		})
	}
	if e.info.Kind.serves() {
		api := serve.OpenAI(e.info.Model, e.current)
		mux.Handle("POST /v1/chat/completions", api)
		mux.Handle("POST /v1/completions", api)
	}
	pages := e.info.Kind.pages(e.face())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if e.info.Kind != KindSGLang {
			e.delay(closing)
		}
		if _, silent := e.faults.get(FaultSilent); silent {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		pages.ServeHTTP(w, r)
	})
	return mux
}

// delay waits as long as FaultSlow says, or until closing.
func (e *Engine) delay(closing <-chan struct{}) {
	if slow, ok := e.faults.get(FaultSlow); ok {
		select {
		case <-time.After(slow.Delay):
		case <-closing:
		}
	}
}

// face is what the pages of the engine are made of.
func (e *Engine) face() face.Engine {
	host, portText, _ := net.SplitHostPort(e.address) // an address we listened on
	port, _ := strconv.Atoi(portText)
	mode := "null"
	if e.info.Role != RolePlain {
		mode = string(e.info.Role)
	}
	return face.Engine{
		Model:  e.info.Model,
		Mode:   mode,
		Zone:   e.info.Zone,
		Host:   host,
		Port:   port,
		Ranks:  e.opts.ranks(e.index),
		Pushes: e.info.Kind == KindSGLang,
		Sample: func() (reporter.Sample, error) { return e.current().Sample() },
	}
}

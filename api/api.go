package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"github.com/loadplane/loadplane/api/feeds"
	"github.com/loadplane/loadplane/api/frame"
	"github.com/loadplane/loadplane/api/jsonview"
	"github.com/loadplane/loadplane/api/pace"
	"github.com/loadplane/loadplane/api/page"
	"github.com/loadplane/loadplane/api/picks"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

const (
	// maxMessage bounds one request message, maxBody a whole request.
	maxMessage = 64 << 10
	maxBody    = 2 * maxMessage
	// readTimeout bounds the reading of a request, answerTimeout the writing
	// of an answer that is neither a stream nor a whole view or list.
	readTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second
	// minHeartbeat is the shortest heartbeat interval that is granted.
	minHeartbeat = 100 * time.Millisecond
	// drainMoment is the time to tell a health watch of the drain.
	drainMoment = 200 * time.Millisecond
)

// Options configure an API. Zero durations and counts stand for the defaults.
type Options struct {
	// Snapshots is what is served. Required.
	Snapshots *snapshot.Builder
	// ServerID names this process; clients compare clocks only within one.
	// Required.
	ServerID string
	// Heartbeat is the longest time between two messages of a watch that asks
	// for none; 1 s by default, at most a third of the stale time.
	Heartbeat time.Duration
	// WriteTimeout is the time that a reader has to take one message before its
	// watch is cut, and each 64 KiB of an answer; 5 s by default.
	WriteTimeout time.Duration
	// MaxWatchers bounds the watches at once; 2,000 by default.
	MaxWatchers int
	// MaxHeld bounds the answers that are held back until the content changes;
	// 1,000 by default.
	MaxHeld int
	// MaxAnswers bounds the answers with a whole view or list that are written
	// at once; 64 by default. Others wait for up to WriteTimeout.
	MaxAnswers int
	// MaxWatchesPerConnection bounds those of one connection; 256 by default.
	MaxWatchesPerConnection int
	// WatchesPerSecond and WatchBurst bound the new watches of all peers that
	// are not exempt; 200 and 400 by default.
	WatchesPerSecond float64
	WatchBurst       int
	// Exempt says which peers the bound of new watches does not hold for; nil
	// for those on loopback.
	Exempt func(netip.Addr) bool
	// Version is the program's own, for people; may be empty.
	Version string
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Gatherer is what /metrics shows; nil serves no /metrics.
	Gatherer prometheus.Gatherer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) validate() error {
	if o.Snapshots == nil {
		return errors.New("api: Snapshots is not set")
	}
	if o.ServerID == "" {
		return errors.New("api: ServerID is empty")
	}
	o.Heartbeat = orDefault(o.Heartbeat, time.Second)
	o.WriteTimeout = orDefault(o.WriteTimeout, 5*time.Second)
	o.MaxWatchers = orDefault(o.MaxWatchers, 2000)
	o.MaxHeld = orDefault(o.MaxHeld, 1000)
	o.MaxAnswers = orDefault(o.MaxAnswers, 64)
	o.MaxWatchesPerConnection = orDefault(o.MaxWatchesPerConnection, 256)
	o.WatchesPerSecond = orDefault(o.WatchesPerSecond, 200)
	o.WatchBurst = orDefault(o.WatchBurst, 400)
	if o.Exempt == nil {
		o.Exempt = netip.Addr.IsLoopback
	}
	if min(o.MaxWatchers, o.MaxHeld, o.MaxAnswers, o.MaxWatchesPerConnection) < 0 || min(o.Heartbeat, o.WriteTimeout) < 0 {
		return errors.New("api: a time or a limit is negative")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

func orDefault[T int | float64 | time.Duration](v, byDefault T) T {
	if v == 0 {
		return byDefault
	}
	return v
}

// API serves one view. All methods are safe for concurrent use. It starts
// nothing: its goroutines are those of the requests.
type API struct {
	opts      Options
	store     *store.Store
	clock     *store.Clock
	stale     time.Duration
	metrics   *metrics
	gate      gate
	json      *jsonview.Encoder
	feeds     *feeds.Set
	picks     *picks.Picks
	page      *page.Page
	offenders pace.Offenders
	lags      lags
	buffers   frame.Buffers
	// faults bounds the lines about what cannot be encoded.
	faults rate.Sometimes
	// held counts the answers that are held back.
	held atomic.Int64
	// whole has one for each whole answer that is being written.
	whole chan struct{}
	// began is what the places of watchers in their intervals count from.
	began time.Time
	// chunk is the size at which an event is cut, bytes.
	chunk int

	drain    chan struct{}
	drainOne sync.Once
	// drainWhy is written before drain closes and read after.
	drainWhy string
}

// New checks the options and registers the metrics.
func New(opts Options) (*API, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	st := opts.Snapshots.Store()
	a := &API{
		opts:  opts,
		store: st,
		clock: st.Options().Clock,
		stale: st.Options().StaleAfter,
		feeds: feeds.New(opts.Snapshots),
		began: time.Now(),
		json:  jsonview.New(st.Options(), opts.ServerID),
		gate:  newGate(opts),
		drain: make(chan struct{}),
		whole: make(chan struct{}, opts.MaxAnswers),
		chunk: maxChunk,

		faults: rate.Sometimes{First: 8, Interval: time.Minute},
	}
	m, err := newMetrics(opts.Registerer, a)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	a.metrics = m
	a.picks, err = picks.New(picks.Options{
		Snapshots: opts.Snapshots, UnknownParameter: ReasonUnknownParameter, BadParameter: ReasonBadParameter,
		Registerer: opts.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	a.page, err = page.New()
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return a, nil
}

// Guarded returns the routes of the API listener behind a guard, all but the
// files of the page: they hold no data, and a browser asks for them before it
// can have a credential.
func (a *API) Guarded(guard func(http.Handler) http.Handler) http.Handler {
	open := a.Handler()
	guarded := guard(open)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.page.Has(r) {
			open.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// Handler returns the routes of the API listener. It checks no credentials.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	rpc := append(frame.Codecs(),
		connect.WithReadMaxBytes(maxMessage),
		// Nothing is compressed: a shared frame would be compressed again for
		// every watcher, and a small request could unfold to a large one.
		connect.WithCompression("gzip", nil, nil),
	)
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(snapshotService{a}, rpc...))
	mux.Handle(loadplanev1connect.NewWorkerServiceHandler(workerService{a}, rpc...))
	path, handler := grpchealth.NewHandler(a.health(), rpc...)
	mux.Handle(path, a.endWithDrain(handler))
	mux.HandleFunc("GET /v1/load_monitor/snapshot", a.serveSnapshot)
	mux.HandleFunc("GET /v1/load_monitor/watch", a.serveWatch)
	mux.Handle("GET /v1/pick", a.picks)
	mux.HandleFunc("GET /{$}", a.serveIndex)
	mux.Handle("GET /assets/", a.page)
	return a.outer(mux)
}

// Drain makes the plane not ready, refuses new watches, and ends the open
// ones as unavailable with the reason. It returns at once; calls after the
// first change nothing.
func (a *API) Drain(reason string) {
	a.drainOne.Do(func() {
		a.drainWhy = reason
		close(a.drain)
	})
}

func (a *API) draining() bool {
	select {
	case <-a.drain:
		return true
	default:
		return false
	}
}

// outer bounds what every request may cost and gives handlers the writer.
func (a *API) outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := frame.NewWriter(rw, &a.buffers)
		w.Limit(readTimeout, answerTimeout)
		defer w.Finish()
		secure(w.Header())
		r = r.WithContext(context.WithValue(r.Context(), writerKey{}, w))
		r.Body = http.MaxBytesReader(rw, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// endWithDrain ends what is still open a moment after the drain began: a
// health watch tells that the plane does not serve, and would then stay.
func (a *API) endWithDrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-ctx.Done():
			case <-a.drain:
				time.AfterFunc(drainMoment, cancel)
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// writerKey finds the writer of a request.
type writerKey struct{}

// writerOf returns the writer that outer made.
func writerOf(ctx context.Context) *frame.Writer {
	w, _ := ctx.Value(writerKey{}).(*frame.Writer)
	return w
}

func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
}

// serveIndex answers browsers with the page and others with what there is.
func (a *API) serveIndex(w http.ResponseWriter, r *http.Request) {
	if a.page.Has(r) {
		a.page.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, `loadplane %s

GET  /v1/load_monitor/snapshot   the load of all workers as JSON (?shape=upstream, ?wait=20s)
GET  /v1/load_monitor/watch      the same and its changes, a JSON value a line
     both take ?model= &zone= &role= &worker= &label.NAME= &detail=workers
GET  /v1/pick                    where to send a request (?model= &role= &policy= &n=)
POST /%s/WatchSnapshots
POST /%s/GetSnapshot
POST /%s/ListWorkers
POST /%s/ExplainWorker
POST /%s/Check
`, a.opts.Version, loadplanev1connect.SnapshotServiceName, loadplanev1connect.SnapshotServiceName,
		loadplanev1connect.WorkerServiceName, loadplanev1connect.WorkerServiceName, grpchealth.HealthV1ServiceName)
}

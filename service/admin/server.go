package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

// source is the name of what operators add, among the sources of a worker.
const source = "admin"

const (
	// maxBody bounds a request, bytes: a URL, a token file's path and the values
	// of 64 labels fit.
	maxBody = 64 << 10
	// requestTimeout bounds reading a request, and writing its answer.
	requestTimeout = 10 * time.Second
	// listedTimeout bounds the wait for an added worker to be listed.
	listedTimeout = 2 * time.Second
)

// Options are what a server needs.
type Options struct {
	// Registry takes the workers. Required.
	Registry *registry.Registry
	// Store shows what is listed. Required, and that of the registry.
	Store *store.Store
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one. It gets a line for each change.
	Logger *slog.Logger
}

// Answer is what became of a request. It is a plain value.
type Answer struct {
	// WorkerID is the id of the worker. One that is added beside another source
	// with the same origin has the id that the winning source gives it.
	WorkerID string `json:"worker_id"`
	// DiscoveredBy are the sources that list a worker that was added, joined by
	// "+"; empty where it is not listed yet.
	DiscoveredBy string `json:"discovered_by,omitempty"`
}

// Fault is why a request was refused. It is immutable.
type Fault struct {
	// Status is the HTTP status.
	Status int `json:"-"`
	// Message states what is wrong.
	Message string `json:"error"`
	// Advice says what to do.
	Advice string `json:"advice"`
}

// Error returns what is wrong and what to do.
func (f *Fault) Error() string { return f.Message + "; " + f.Advice }

// NewServer returns a server of the requests of operators. It starts nothing.
func NewServer(opts Options) (*http.Server, error) {
	if opts.Registry == nil || opts.Store == nil {
		return nil, errors.New("admin: options Registry and Store are required")
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	d := &desk{opts, m}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /workers", d.serve(opAdd, d.add))
	mux.HandleFunc("DELETE /workers/{id}", d.serve(opRemove, d.remove))
	mux.HandleFunc("POST /workers/{id}/drain", d.serve(opDrain, d.drain(true)))
	mux.HandleFunc("POST /workers/{id}/undrain", d.serve(opUndrain, d.drain(false)))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusNotFound, &Fault{Message: "there is no such request", Advice: "use loadplane workers add, remove or drain"})
	})
	return &http.Server{
		Handler:        mux,
		ReadTimeout:    requestTimeout,
		WriteTimeout:   requestTimeout,
		IdleTimeout:    requestTimeout,
		MaxHeaderBytes: maxBody,
		ErrorLog:       slog.NewLogLogger(opts.Logger.Handler(), slog.LevelWarn),
	}, nil
}

// desk carries out requests. It is immutable and safe for concurrent use.
type desk struct {
	opts    Options
	metrics *metrics
}

// serve answers the requests for one operation.
func (d *desk) serve(op operation, do func(*http.Request) (Answer, *Fault)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		answer, fault := do(r)
		d.metrics.asked(op, fault == nil)
		if fault != nil {
			d.opts.Logger.Info("request of an operator refused", "operation", string(op), "error", fault.Message)
			write(w, fault.Status, fault)
			return
		}
		d.opts.Logger.Info("workers changed by an operator", "operation", string(op), "worker", answer.WorkerID)
		write(w, http.StatusOK, answer)
	}
}

func write(w http.ResponseWriter, status int, body any) {
	text, _ := json.Marshal(body) // Texts alone can always be encoded.
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}

// add lists the worker of the body, and returns once it is listed, or after a
// moment.
func (d *desk) add(r *http.Request) (Answer, *Fault) {
	text, err := io.ReadAll(r.Body)
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return Answer{}, &Fault{http.StatusRequestEntityTooLarge, fmt.Sprintf("the worker has more than %d bytes", maxBody), "name it shorter"}
	case err != nil:
		return Answer{}, &Fault{http.StatusBadRequest, "the request broke off", "send it again"}
	}
	spec, err := registry.ParseWorkerFlag(strings.TrimSpace(string(text)))
	if err != nil {
		return Answer{}, &Fault{http.StatusBadRequest, err.Error(), "give URL[,key=value...] with the keys of serve --worker"}
	}
	if err := d.opts.Registry.AddWorker(spec); err != nil {
		return Answer{}, &Fault{http.StatusConflict, err.Error(), "see who lists what with: loadplane workers list -o wide"}
	}
	return d.listed(r.Context(), &spec), nil
}

// listed waits until a worker that was added is listed.
func (d *desk) listed(ctx context.Context, spec *registry.WorkerSpec) Answer {
	ctx, cancel := context.WithTimeout(ctx, listedTimeout)
	defer cancel()
	for {
		state, stale := d.opts.Store.Current()
		for _, e := range state.Entries {
			if w := e.Worker; w.Origin == spec.Origin && slices.Contains(strings.Split(w.DiscoveredBy, "+"), source) {
				return Answer{w.ID, w.DiscoveredBy}
			}
		}
		select {
		case <-stale:
		case <-ctx.Done():
			return Answer{WorkerID: spec.ID}
		}
	}
}

func (d *desk) remove(r *http.Request) (Answer, *Fault) {
	id := d.meant(r)
	if err := d.opts.Registry.RemoveWorker(id); err != nil {
		return Answer{}, d.refusal(id, err, "a worker of another source is removed there; loadplane workers drain keeps new work from it")
	}
	return Answer{WorkerID: id}, nil
}

func (d *desk) drain(on bool) func(*http.Request) (Answer, *Fault) {
	return func(r *http.Request) (Answer, *Fault) {
		id := d.meant(r)
		if err := d.opts.Registry.DrainWorker(id, on); err != nil {
			return Answer{}, d.refusal(id, err, "undo it where its source says so")
		}
		return Answer{WorkerID: id}, nil
	}
}

// refusal is that of a worker which is not there, or else one with the advice.
func (d *desk) refusal(id string, err error, advice string) *Fault {
	if !d.knows(id) {
		return &Fault{http.StatusNotFound, err.Error(), "see the ids with: loadplane workers list"}
	}
	return &Fault{http.StatusConflict, err.Error(), advice}
}

// meant returns the id of a request. Tables show ids without http://, so that is
// added where it makes the id of a worker.
func (d *desk) meant(r *http.Request) string {
	id := r.PathValue("id")
	if full := "http://" + id; !d.knows(id) && d.knows(full) {
		return full
	}
	return id
}

func (d *desk) knows(id string) bool {
	state, _ := d.opts.Store.Current()
	return slices.ContainsFunc(state.Entries, func(e *store.Entry) bool { return e.Worker.ID == id })
}

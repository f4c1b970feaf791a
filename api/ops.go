package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// storeGrace is how long the committer may be silent, and an expiry overdue,
// before the plane is not ready.
const storeGrace = 2 * time.Second

// ReadyReport says whether the plane is ready to be asked. It is a plain
// value.
type ReadyReport struct {
	// Failed are the checks that fail, in a fixed order; empty when ready.
	Failed []store.Reason `json:"failed"`
}

// Ready says that no check fails.
func (r ReadyReport) Ready() bool { return len(r.Failed) == 0 }

// Ready derives readiness from the state of the plane: it is ready when it is
// not draining, commits, and has heard what it expects or stopped waiting.
// Where there is discovery it is not ready before the first sync.
func (a *API) Ready(ctx context.Context) ReadyReport {
	var r ReadyReport
	if a.draining() {
		r.Failed = append(r.Failed, ReasonDraining)
	}
	state, _ := a.store.Fresh(ctx)
	now := a.clock.Now()
	if a.stalled(state, now) {
		r.Failed = append(r.Failed, ReasonStoreStalled)
	}
	if state.Warming {
		r.Failed = append(r.Failed, ReasonWarming)
	}
	return r
}

func (a *API) stalled(state *store.State, now store.Instant) bool {
	beat := a.store.Beat()
	return beat == 0 || now.Sub(beat) > storeGrace ||
		state.NextDue != 0 && now.Sub(state.NextDue) > storeGrace
}

// Ops returns the routes of the ops listener: /metrics, /livez and /readyz.
func (a *API) Ops() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	})
	mux.HandleFunc("GET /readyz", a.serveReady)
	if a.opts.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(a.opts.Gatherer, promhttp.HandlerOpts{
			MaxRequestsInFlight: 2,
			Timeout:             5 * time.Second,
		}))
	}
	return a.outer(mux)
}

func (a *API) serveReady(w http.ResponseWriter, r *http.Request) {
	report := a.Ready(r.Context())
	if report.Ready() {
		_, _ = io.WriteString(w, "ok")
		return
	}
	// A list of words can always be encoded.
	body, _ := json.Marshal(report)
	answerJSON(w, http.StatusServiceUnavailable, append(body, '\n'))
}

// health is grpc.health.v1 over the readiness of the plane.
type health struct{ *API }

// Check answers for the whole plane and for each of its services.
func (h health) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if err := checkService(req.Service); err != nil {
		return nil, err
	}
	status := grpchealth.StatusNotServing
	if h.Ready(ctx).Ready() {
		status = grpchealth.StatusServing
	}
	return &grpchealth.CheckResponse{Status: status}, nil
}

func checkService(name string) error {
	switch name {
	case "", loadplanev1connect.SnapshotServiceName, loadplanev1connect.WorkerServiceName:
		return nil
	}
	return connect.NewError(connect.CodeNotFound, errors.New("the service does not exist"))
}

// Watch calls onChange when the readiness may have changed, until stop. It
// counts as a watch.
func (h health) Watch(ctx context.Context, req *grpchealth.CheckRequest, onChange func()) (stop func(), err error) {
	if err := checkService(req.Service); err != nil {
		return nil, err
	}
	leave, refused := h.admit(ctx)
	if refused != nil {
		return nil, refused.rpc()
	}
	writerOf(ctx).Stream(h.opts.WriteTimeout)
	stopped := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { h.follow(stopped, onChange) })
	return func() {
		close(stopped)
		running.Wait()
		leave()
	}, nil
}

// follow calls onChange at every version, at every heartbeat, and once at the
// drain.
func (h health) follow(stopped <-chan struct{}, onChange func()) {
	drain := h.drain
	timer := time.NewTicker(h.opts.Heartbeat)
	defer timer.Stop()
	for {
		_, stale := h.store.Current()
		select {
		case <-stopped:
			return
		case <-stale:
		case <-timer.C:
		case <-drain:
			drain = nil
		}
		onChange()
	}
}

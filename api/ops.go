package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/loadplane/loadplane/api/health"
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

// health returns grpc.health.v1 over the readiness. Its watches count as
// watches.
func (a *API) health() *health.Checker {
	return &health.Checker{
		Services: []string{loadplanev1connect.SnapshotServiceName, loadplanev1connect.WorkerServiceName},
		Ready:    func(ctx context.Context) bool { return a.Ready(ctx).Ready() },
		Admit: func(ctx context.Context) (func(), error) {
			leave, refused := a.admit(ctx, "")
			if refused != nil {
				return nil, refused.rpc()
			}
			writerOf(ctx).Stream(a.opts.WriteTimeout)
			return leave, nil
		},
		Store: a.store, Heartbeat: a.opts.Heartbeat, Drain: a.drain,
	}
}

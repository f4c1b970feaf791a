package api

import (
	"bytes"
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

// ReadyReport says whether the plane is ready to be asked, and how well it is
// informed. It is a plain value.
type ReadyReport struct {
	// Ready says that no check fails.
	Ready bool `json:"ready"`
	// Failed are the checks that fail, in a fixed order; empty when ready.
	// Nothing else decides about readiness.
	Failed []store.Reason `json:"failed"`
	// Sources are the sources of discovery, in the order in which they win over
	// each other.
	Sources []SourceReport `json:"sources"`
	// Pools is the coverage of all pools together.
	Pools Coverage `json:"pools"`
}

// SourceReport is how a source of discovery is. It is a plain value.
type SourceReport struct {
	// Name is the source's.
	Name string `json:"name"`
	// Synced says that it delivered a list since the start.
	Synced bool `json:"synced"`
	// ListedAge is the age of the list in force, milliseconds; nil without one.
	ListedAge *uint64 `json:"listed_age_ms,omitempty"`
	// Error says why there is no new list; empty while there is.
	Error string `json:"error,omitempty"`
}

// Ready derives readiness from the state of the plane: it is ready when it is
// not draining, commits, and has heard what it expects or stopped waiting.
// Where there is discovery it is not ready before the first sync. Sources that
// fail and workers that are not heard are reported and fail no check.
func (a *API) Ready(ctx context.Context) ReadyReport {
	failed := a.failed(ctx)
	view, _ := a.opts.Snapshots.Current()
	return ReadyReport{Ready: len(failed) == 0, Failed: failed, Sources: a.sourceReports(), Pools: coverageOf(view)}
}

// failed returns the checks that fail; an empty list for none.
func (a *API) failed(ctx context.Context) []store.Reason {
	state, _ := a.store.Fresh(ctx)
	return a.failing(state)
}

// failing returns the checks that fail by a state; an empty list for none.
func (a *API) failing(state *store.State) []store.Reason {
	failed := []store.Reason{}
	if a.draining() {
		failed = append(failed, ReasonDraining)
	}
	if a.stalled(state, a.clock.Now()) {
		failed = append(failed, ReasonStoreStalled)
	}
	if state.Warming {
		failed = append(failed, ReasonWarming)
	}
	return failed
}

func (a *API) sourceReports() []SourceReport {
	all := a.store.Sources()
	now := a.clock.Now()
	reports := make([]SourceReport, len(all))
	for i, src := range all {
		reports[i] = SourceReport{Name: src.Name, Synced: src.Synced, Error: src.Error}
		if src.Listed != 0 {
			age := uint64(max(0, now.Sub(src.Listed).Milliseconds()))
			reports[i].ListedAge = &age
		}
	}
	return reports
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
			// What is wrong with one metric does not take the page away; it is
			// counted in promhttp_metric_handler_errors_total.
			ErrorHandling: promhttp.ContinueOnError,
			Registry:      a.opts.Registerer,
		}))
	}
	return a.outer(mux)
}

func (a *API) serveReady(w http.ResponseWriter, r *http.Request) {
	report := a.Ready(r.Context())
	status := http.StatusOK
	if !report.Ready {
		status = http.StatusServiceUnavailable
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // Errors are for people.
	// Words, texts and numbers can always be encoded.
	_ = enc.Encode(report)
	answerJSON(w, status, body.Bytes())
}

// health returns grpc.health.v1 over the readiness. Its watches count as
// watches.
func (a *API) health() *health.Checker {
	return &health.Checker{
		Services: []string{loadplanev1connect.SnapshotServiceName, loadplanev1connect.WorkerServiceName},
		Ready:    func(ctx context.Context) bool { return len(a.failed(ctx)) == 0 },
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

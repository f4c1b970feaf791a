package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/loadplane/loadplane/api/jsonview"
)

// maxEcho bounds what an error repeats of a query.
const maxEcho = 64

// serveSnapshot answers with the view as JSON.
func (a *API) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	upstream, refused := parseShape(r.URL.RawQuery)
	if refused != nil {
		a.metrics.requests.of(class4xx).Inc()
		a.metrics.refused.of(refused.reason).Inc()
		refused.http(w)
		return
	}
	a.metrics.requests.of(class2xx).Inc()
	view, _ := a.snapshots.Fresh(r.Context())
	answerJSON(w, http.StatusOK, a.json.Snapshot(view, upstream))
}

// parseShape reads the query of a snapshot request.
func parseShape(raw string) (upstream bool, refused *refusal) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return false, refuseArgument(ReasonUnknownParameter, "the query cannot be parsed")
	}
	for key, values := range query {
		if key != "shape" {
			return false, refuseArgument(ReasonUnknownParameter, fmt.Sprintf("the query key %q does not exist", cut(key)))
		}
		if len(values) != 1 || values[0] != "upstream" {
			return false, refuseArgument(ReasonUnknownParameter,
				fmt.Sprintf("shape can only be \"upstream\", once, and is %q", cut(values[0])))
		}
		upstream = true
	}
	return upstream, nil
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxEcho)], "") }

// serveWatch sends the view and its changes, a JSON value a line.
func (a *API) serveWatch(w http.ResponseWriter, r *http.Request) {
	if r.URL.RawQuery != "" {
		refused := refuseArgument(ReasonUnknownParameter, "a watch takes no query")
		a.metrics.refused.of(refused.reason).Inc()
		refused.http(w)
		return
	}
	leave, refused := a.admit(r.Context())
	if refused != nil {
		refused.http(w)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	if r.Method == http.MethodHead {
		return
	}
	out := writerOf(r.Context())
	line := watch{api: a, out: out, heartbeat: a.grant(0), encode: func(u update) error {
		_, _ = out.Write(a.line(u)) // out keeps the error
		out.Flush()
		return nil
	}}
	// The last line says why the watch ends; a reader that is gone needs none.
	if err := line.run(r.Context()); errors.Is(err, errCut) {
		a.opts.Logger.Debug("watch cut", "remote", r.RemoteAddr)
	}
}

func (a *API) line(u update) []byte {
	return a.json.Line(jsonview.Line{
		Type: string(u.kind), View: u.view, Since: u.since, Whole: u.kind == kindFull, Base: u.base,
		Reason: u.why, ReconnectWithin: reconnectWithin,
	})
}

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Paths of the face.
const (
	StartReporting = "/v1/start_reporting"
	Refresh        = "/refresh"
	Status         = "/v1/status"
	Livez          = "/livez"
	Readyz         = "/readyz"
	Metrics        = "/metrics"
)

// Options configure a Face.
type Options struct {
	// Desk decides. Required.
	Desk Desk
	// Guard bounds the targets that a caller may name; nil trusts all callers.
	Guard *Guard
	// Gatherer has the metrics to show; nil shows none.
	Gatherer prometheus.Gatherer
	// Registerer takes the metrics of the face; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Face answers HTTP requests. It is safe for concurrent use.
type Face struct {
	opts    Options
	metrics *metrics
	handler http.Handler
}

// New checks the options. It starts nothing.
func New(opts Options) (*Face, error) {
	if opts.Desk == nil {
		return nil, errors.New("control: Desk is missing")
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	f := &Face{opts: opts, metrics: m}
	mux := http.NewServeMux()
	mux.HandleFunc(StartReporting, f.startReporting)
	mux.HandleFunc(Refresh, f.refresh)
	mux.HandleFunc("GET "+Livez, func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET "+Readyz, f.ready)
	mux.HandleFunc("GET "+Status, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, opts.Desk.Status()) })
	if opts.Gatherer != nil {
		mux.Handle("GET "+Metrics, promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{}))
	}
	// A page in somebody's browser must not ask a reporter on that host.
	f.handler = http.NewCrossOriginProtection().Handler(mux)
	return f, nil
}

// ServeHTTP answers a request.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.handler.ServeHTTP(w, r) }

// granted is the answer to a registration.
type granted struct {
	Status       string `json:"status"`
	LeaseTTLMs   int64  `json:"lease_ttl_ms"`
	RenewAfterMs int64  `json:"renew_after_ms"`
}

func (f *Face) startReporting(w http.ResponseWriter, r *http.Request) {
	req, err := f.register(w, r)
	if err != nil {
		fault := faultOf(err)
		f.metrics.count(StartReporting, fault.Status)
		f.opts.Logger.Debug("registration refused", "caller", r.RemoteAddr, "status", fault.Status, "err", fault.Message)
		writeFault(w, fault)
		return
	}
	f.metrics.count(StartReporting, http.StatusOK)
	leaseMs := req.Lease.Milliseconds()
	writeJSON(w, http.StatusOK, granted{"reporting", leaseMs, max(1, leaseMs/3)})
}

func (f *Face) register(w http.ResponseWriter, r *http.Request) (push.Registration, error) {
	body, err := read(w, r, maxRegistrationBytes)
	if err != nil {
		return push.Registration{}, err
	}
	// Engines refuse a content type that is not JSON, and take none for it.
	if !isJSON(r.Header.Get("Content-Type")) {
		return push.Registration{}, &Fault{http.StatusBadRequest, "the content type is not JSON"}
	}
	req, err := parseRequest(body)
	if err != nil {
		return push.Registration{}, &Fault{http.StatusBadRequest, err.Error()}
	}
	if f.opts.Guard != nil && !f.opts.Guard.Allows(callerOf(r), req.Target.Addr()) {
		f.opts.Logger.Warn("report target refused", "caller", r.RemoteAddr, "target", req.Target)
		return push.Registration{}, &Fault{http.StatusForbidden, "reports go to the address that asks for them only, or to those of --push-targets"}
	}
	return req, f.opts.Desk.Register(r.Context(), req)
}

func callerOf(r *http.Request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return a.Addr()
}

func (f *Face) refresh(w http.ResponseWriter, r *http.Request) {
	body, err := read(w, r, maxHintBytes)
	if err == nil {
		err = f.hint(body)
	}
	if err != nil {
		fault := faultOf(err)
		f.metrics.count(Refresh, fault.Status)
		writeFault(w, fault)
		return
	}
	f.metrics.count(Refresh, http.StatusAccepted)
	writeJSON(w, http.StatusAccepted, map[string]string{"status": "accepted"})
}

func (f *Face) hint(body []byte) error {
	h, err := parseHint(body)
	if err != nil {
		return &Fault{http.StatusBadRequest, err.Error()}
	}
	return f.opts.Desk.Refresh(h)
}

// read returns the body of a POST.
func read(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, &Fault{http.StatusMethodNotAllowed, "Method Not Allowed"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return nil, &Fault{http.StatusBadRequest, fmt.Sprintf("the body could not be read, or has more than %d bytes", most)}
	}
	return body, nil
}

func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" ||
		strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}

func (f *Face) ready(w http.ResponseWriter, _ *http.Request) {
	if err := f.opts.Desk.Ready(); err != nil {
		say(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	say(w, http.StatusOK, "ok")
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// writeFault answers with an error in the shape that engines use: the type is
// the code in digits, except that a faulty request has words there.
func writeFault(w http.ResponseWriter, f *Fault) {
	kind := strconv.Itoa(f.Status)
	if f.Status == http.StatusBadRequest {
		kind = "Bad Request"
	}
	writeJSON(w, f.Status, errorBody{Object: "error", Message: f.Message, Type: kind, Code: f.Status})
}

// errorBody is the body of an error; Param is always null.
type errorBody struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		say(w, http.StatusInternalServerError, "the answer could not be written")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the caller may be gone
}

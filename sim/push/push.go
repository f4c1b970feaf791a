// Package push answers registrations for the push load reporter of a simulated
// engine.
package push

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Path is where registrations go.
const Path = "/v1/start_reporting"

const (
	maxBody     = 64 << 10
	maxDuration = 100 * 365 * 24 * time.Hour
)

// registration is a valid request to start or to go on reporting.
type registration struct {
	target     reporter.Target
	intervalMs int64
	leaseMs    int64
}

func (r registration) from(origin string) reporter.Registration {
	return reporter.Registration{
		Target: r.target, Origin: origin,
		Interval: millis(r.intervalMs), Lease: millis(r.leaseMs),
	}
}

func millis(ms int64) time.Duration {
	if ms > maxDuration.Milliseconds() {
		return maxDuration
	}
	return time.Duration(ms) * time.Millisecond
}

var registrationKeys = []string{"ip", "lease_ttl_ms", "port", "report_interval_ms"}

// parseRegistration reads the body of a start_reporting call as strictly as
// the engine does: exactly the four keys, whole numbers, an address literal.
func parseRegistration(body []byte) (registration, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return registration{}, errors.New("body: not a JSON object")
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(registrationKeys, key) {
			return registration{}, fmt.Errorf("body.%s: extra inputs are not permitted", key)
		}
	}
	for _, key := range registrationKeys {
		if _, ok := fields[key]; !ok {
			return registration{}, fmt.Errorf("body.%s: field required", key)
		}
	}
	return readRegistration(fields)
}

func readRegistration(fields map[string]json.RawMessage) (registration, error) {
	ip, errIP := parseIP(fields["ip"])
	port, errPort := parseInt(fields, "port", 65535)
	interval, errInterval := parseInt(fields, "report_interval_ms", math.MaxInt64)
	lease, errLease := parseInt(fields, "lease_ttl_ms", math.MaxInt64)
	return registration{
		target:     reporter.Target{IP: ip, Port: uint16(port)},
		intervalMs: interval,
		leaseMs:    lease,
	}, errors.Join(errIP, errPort, errInterval, errLease)
}

func parseIP(raw json.RawMessage) (netip.Addr, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return netip.Addr{}, errors.New("body.ip: not a string")
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, errors.New("body.ip: not a valid IPv4 or IPv6 address")
	}
	return ip, nil
}

// parseInt reads a JSON integer from 1 to limit. Strings, booleans, null and
// numbers with a fraction or an exponent are no integers.
func parseInt(fields map[string]json.RawMessage, key string, limit int64) (int64, error) {
	n, err := strconv.ParseInt(string(fields[key]), 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("body.%s: not a valid integer", key)
	case n < 1 || n > limit:
		return 0, fmt.Errorf("body.%s: must be from 1 to %d", key, limit)
	}
	return n, nil
}

// origin is the address by which the caller reached the engine. It is taken
// from the connection and the Host header, never from a forwarding header.
func origin(r *http.Request) string {
	scheme, port := "http", "80"
	if r.TLS != nil {
		scheme, port = "https", "443"
	}
	host := r.Host
	if h, p, err := net.SplitHostPort(r.Host); err == nil {
		host, port = h, p
	}
	host = strings.Trim(host, "[]")
	return scheme + "://" + net.JoinHostPort(strings.ToLower(host), port)
}

// Handler answers at Path. process returns the one that reports; delay is called
// before a registration takes effect.
func Handler(process func() *reporter.Process, delay func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			face.SGLangError(w, http.StatusMethodNotAllowed, "Method Not Allowed")
			return
		}
		req, err := readRequest(w, r)
		if err != nil {
			face.SGLangError(w, http.StatusBadRequest, err.Error())
			return
		}
		delay()
		answer(w, req, process().Register(req.from(origin(r))))
	})
}

// answer says what came of a registration.
func answer(w http.ResponseWriter, req registration, err error) {
	switch {
	case errors.Is(err, reporter.ErrOwned):
		face.SGLangError(w, http.StatusConflict, err.Error())
	case err != nil:
		face.SGLangError(w, http.StatusServiceUnavailable, err.Error())
	default:
		page.WriteJSON(w, http.StatusOK, granted{"reporting", req.leaseMs, max(1, req.leaseMs/3)})
	}
}

// granted is the answer to a registration.
type granted struct {
	Status       string `json:"status"`
	LeaseTTLMs   int64  `json:"lease_ttl_ms"`
	RenewAfterMs int64  `json:"renew_after_ms"`
}

func readRequest(w http.ResponseWriter, r *http.Request) (registration, error) {
	if !isJSON(r.Header.Get("Content-Type")) {
		return registration{}, errors.New("body: content type is not JSON")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return registration{}, errors.New("body: not readable")
	}
	return parseRegistration(body)
}

// isJSON takes a missing content type for JSON, as the engine's framework does.
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && (kind == "application/json" ||
		strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json"))
}

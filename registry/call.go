package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// Limits of a registration call.
const (
	maxAnswerBytes = 64 << 10
	startReporting = "/v1/start_reporting"
)

// outcome is what came of a registration call. reason and err are empty after
// a good one.
type outcome struct {
	state   RegistrationState
	reason  store.Reason
	status  int
	err     error
	granted grant
}

// grant is what an engine granted; 0 stands for nothing usable.
type grant struct{ lease, renewAfter time.Duration }

func (o *outcome) result() store.Reason { return cmp.Or(o.reason, "ok") }

func failed(reason store.Reason, err error) outcome {
	return outcome{state: StateRetrying, reason: reason, err: err}
}

// ConnectReason returns the reason word for an error of a Dial.
func ConnectReason(err error) store.Reason {
	if errors.Is(err, egress.ErrDenied) {
		return ReasonEgressDenied
	}
	return ReasonConnectFailed
}

// call asks the engine to report, over a connection of its own, in one
// bounded time. Redirects are not followed and no proxy is asked, so
// credentials reach the worker's host only.
func (w *worker) call(ctx context.Context) outcome {
	ctx, cancel := context.WithTimeout(ctx, w.reg.opts.CallTimeout)
	defer cancel()
	spec, def := w.settings()
	found := w.resolve(ctx)
	origin, _ := w.contact(&spec)
	conn, err := w.reg.dial(ctx, "tcp", origin)
	if err != nil {
		return failed(ConnectReason(err), err)
	}
	defer conn.Close()
	w.learn(withAddr(found, conn.RemoteAddr()))
	req, err := w.request(ctx, &spec, def.Interval, conn)
	if errors.Is(err, errLoopback) {
		return outcome{state: StateParked, reason: ReasonLoopbackAddress, err: err}
	}
	if err != nil {
		return failed(ReasonCredential, err)
	}
	transport, err := w.transport(&spec, conn)
	if err != nil {
		return failed(ReasonCredential, err)
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return failed(ReasonConnectFailed, err)
	}
	defer resp.Body.Close()
	return judgeAnswer(resp)
}

// contact returns the origin and the base URL to which a registration goes:
// those of the reporter beside the engine, on the worker's host, where a worker
// that pushes names its port.
func (w *worker) contact(spec *WorkerSpec) (origin, base string) {
	if w.dialect != store.DialectPush || spec.ReporterPort == 0 {
		return w.origin, w.url
	}
	origin = net.JoinHostPort(w.host(), strconv.Itoa(spec.ReporterPort))
	scheme, _, _ := strings.Cut(w.url, "://")
	return origin, scheme + "://" + origin
}

// resolve returns the addresses of the worker's host; nil where it has no
// name to resolve, or the resolver failed.
func (w *worker) resolve(ctx context.Context) []netip.Addr {
	host := w.host()
	if literalAddrs(host) != nil {
		return nil
	}
	addrs, err := w.reg.lookup(ctx, host)
	if err != nil {
		return nil
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap().WithZone("")
	}
	return addrs
}

// withAddr adds the address of a connection to a list that is not empty.
func withAddr(addrs []netip.Addr, a net.Addr) []netip.Addr {
	if addr := addrOf(a); addr.IsValid() && len(addrs) > 0 {
		addrs = append(addrs, addr)
	}
	return addrs
}

// reportTo is the body of the call.
type reportTo struct {
	IP             string `json:"ip"`
	Port           uint16 `json:"port"`
	ReportInterval int64  `json:"report_interval_ms"`
	LeaseTTL       int64  `json:"lease_ttl_ms"`
}

// errLoopback: an engine on another host would report to itself.
var errLoopback = errors.New("the report address is a loopback address and the engine is on another host; set --report-address")

// addrOf returns the address of one end of a connection; the zero Addr where
// it has none.
func addrOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// request builds the call that goes over conn.
func (w *worker) request(ctx context.Context, spec *WorkerSpec, interval time.Duration, conn net.Conn) (*http.Request, error) {
	opts := &w.reg.opts
	ip := opts.ReportAddress
	if !ip.IsValid() {
		ip = addrOf(conn.LocalAddr())
	}
	port := opts.ReportPort()
	if !ip.IsValid() || port == 0 {
		return nil, errors.New("there is no address to tell the engine")
	}
	if far := addrOf(conn.RemoteAddr()); ip.IsLoopback() && far.IsValid() && !far.IsLoopback() {
		return nil, errLoopback
	}
	body, err := json.Marshal(reportTo{ip.String(), port, interval.Milliseconds(), opts.Lease.Milliseconds()})
	if err != nil {
		return nil, err
	}
	_, base := w.contact(spec)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+startReporting, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "loadplane")
	token, err := egress.ReadToken(cmp.Or(spec.TokenFile, opts.TokenFile))
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, err
}

// transport sends one request over conn.
func (w *worker) transport(spec *WorkerSpec, conn net.Conn) (*http.Transport, error) {
	roots, err := egress.ReadRoots(cmp.Or(spec.CAFile, w.reg.opts.CAFile))
	if err != nil {
		return nil, err
	}
	once := make(chan net.Conn, 1)
	once <- conn
	return &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("the connection of the call is used up")
			}
		},
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerBytes,
	}, nil
}

// judgeAnswer reads the answer of an engine.
func judgeAnswer(resp *http.Response) outcome {
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	o := outcome{status: resp.StatusCode}
	o.state, o.reason = judgeStatus(resp.StatusCode)
	if o.state != StateRegistered {
		o.err = fmt.Errorf("the engine answered %d: %q", resp.StatusCode, cut(string(body)))
		return o
	}
	if o.err = readErr; o.err == nil {
		o.granted, o.err = parseAnswer(body)
	}
	if o.err != nil {
		o.reason = ReasonBadAnswer
	}
	return o
}

// judgeStatus says what an HTTP status means for the registration.
func judgeStatus(status int) (RegistrationState, store.Reason) {
	switch {
	case status >= 200 && status < 300:
		return StateRegistered, ""
	case status >= 300 && status < 400:
		return StateParked, ReasonRedirected
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return StateParked, ReasonAuth
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return StateParked, ReasonUnsupported
	case status == http.StatusConflict:
		return StateConflict, ReasonConflict
	case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
		return StateParked, ReasonRejected
	}
	return StateRetrying, ReasonEngineError
}

// parseAnswer reads the body of a good answer. What is valid in it is granted
// even where it returns an error.
func parseAnswer(body []byte) (grant, error) {
	if len(body) > maxAnswerBytes {
		return grant{}, fmt.Errorf("the answer is longer than %d bytes", maxAnswerBytes)
	}
	var a struct {
		LeaseTTL   json.RawMessage `json:"lease_ttl_ms"`
		RenewAfter json.RawMessage `json:"renew_after_ms"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return grant{}, errors.New("the answer is not a JSON object")
	}
	lease, leaseErr := parseMillis("lease_ttl_ms", a.LeaseTTL)
	renew, renewErr := parseMillis("renew_after_ms", a.RenewAfter)
	return grant{lease, renew}, errors.Join(leaseErr, renewErr)
}

// parseMillis reads a number of milliseconds from 1 to a day.
func parseMillis(key string, raw json.RawMessage) (time.Duration, error) {
	var ms int64
	const day = 24 * 60 * 60 * 1000
	if err := json.Unmarshal(raw, &ms); err != nil || ms < 1 || ms > day {
		return 0, fmt.Errorf("%s of the answer is not a number from 1 to %d", key, day)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

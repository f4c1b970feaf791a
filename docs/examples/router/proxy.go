package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/loadplane/loadplane/client/balance"
)

const (
	maxRetries = 2
	maxBody    = 16 << 20
	// bytesPerToken estimates the length of a prompt. A router with a tokenizer
	// knows better.
	bytesPerToken = 4
	// lookAgain is the time between two looks at whether a worker that has not
	// answered is alive.
	lookAgain = 250 * time.Millisecond
)

var (
	errBody  = errors.New("the body is no JSON of a request")
	errLarge = fmt.Errorf("the body is above %d bytes", maxBody)
	errLost  = errors.New("the worker is silent")
	errFull  = errors.New("the worker answered " + http.StatusText(http.StatusServiceUnavailable))
)

// transport sends a request to a worker of its own choice, and to another one
// if that does not begin to answer.
type transport struct {
	balancer *balance.Balancer
	picked   func(*balance.Route)
	engines  http.RoundTripper
	log      *slog.Logger
}

// engines connects to workers. An answer may take its time; a connection not.
func engines() http.RoundTripper {
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 512, IdleConnTimeout: 30 * time.Second, DisableCompression: true}
}

// reverseProxy streams answers, and leaves the choice of worker to t.
func reverseProxy(t *transport) http.Handler {
	return &httputil.ReverseProxy{
		Transport: t, FlushInterval: -1, ErrorHandler: t.fail,
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetXForwarded() },
		ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelDebug),
	}
}

// RoundTrip returns the answer of the first worker that begins to answer. Its
// body ends the route when it is closed. The error is errFull where all that
// were asked answered so, else that of the last one that did not.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, request, err := read(r)
	if err != nil {
		return nil, err
	}
	var last error
	for retries := 0; retries <= maxRetries; retries++ {
		route, err := t.balancer.Pick(request)
		if err != nil {
			return nil, cmp.Or(last, err)
		}
		t.picked(route)
		answer, err := attempt(t.engines, r, body, route)
		switch {
		case err == nil && !unavailable(answer.StatusCode):
			return answer, nil
		case r.Context().Err() != nil: // The caller left; the worker is not to blame.
			route.Done()
			return nil, r.Context().Err()
		case err == nil:
			answer.Body.Close()
			err = refused(answer)
		}
		route.Failed()
		t.log.Info("no answer", "worker", route.WorkerID, "rank", route.DPRank, "error", err)
		request.Avoid = append(request.Avoid, route.WorkerID)
		if last == nil || !errors.Is(err, errFull) {
			last = err
		}
	}
	return nil, last
}

func refused(answer *http.Response) error {
	if answer.StatusCode == http.StatusServiceUnavailable {
		return errFull
	}
	return errors.New(answer.Status)
}

// read takes the body, which is sent again with every attempt, and what counts
// for the choice.
func read(r *http.Request) (body []byte, request balance.Request, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, request, nil // such as GET /v1/models: any worker will do
	}
	body, err = io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return nil, request, errLarge
	}
	if err != nil {
		return nil, request, fmt.Errorf("%w: %w", errBody, err)
	}
	var named struct{ Model string }
	if err := json.Unmarshal(body, &named); err != nil {
		return nil, request, fmt.Errorf("%w: %w", errBody, err)
	}
	return body, balance.Request{Model: named.Model, PromptTokens: int64(len(body) / bytesPerToken)}, nil
}

// attempt sends the request to a worker, and returns once there is a first byte
// of the answer, or the worker is lost.
func attempt(engines http.RoundTripper, r *http.Request, body []byte, route *balance.Route) (*http.Response, error) {
	target, err := url.Parse(route.URL)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = target.Scheme, target.Host, ""
	out.URL.Path = strings.TrimSuffix(target.Path, "/") + r.URL.Path
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	out.Body, _ = out.GetBody()
	out.ContentLength = int64(len(body))
	out.Header.Del(balance.RankHeader) // The choice is the router's.
	if route.DPRank != "" {
		out.Header.Set(balance.RankHeader, route.DPRank)
	}
	begun := make(chan struct{})
	go watch(ctx, cancel, begun, route)
	answer, err := engines.RoundTrip(out)
	if err == nil {
		first := bufio.NewReader(answer.Body)
		if _, err = first.Peek(1); err == nil || errors.Is(err, io.EOF) {
			close(begun)
			answer.Body = &answerBody{Reader: first, body: answer.Body, cancel: cancel, route: route}
			return answer, nil
		}
		answer.Body.Close()
	}
	cancel(nil)
	if lost := context.Cause(ctx); errors.Is(lost, errLost) {
		err = lost
	}
	return nil, err
}

// watch cancels an attempt whose worker is lost before the answer has begun.
func watch(ctx context.Context, cancel context.CancelCauseFunc, begun <-chan struct{}, route *balance.Route) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-begun:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			if route.Lost() {
				cancel(errLost)
			}
		}
	}
}

// answerBody ends the route with the answer, or when the caller leaves.
type answerBody struct {
	io.Reader
	body   io.Closer
	cancel context.CancelCauseFunc
	route  *balance.Route
}

func (b *answerBody) Close() error {
	b.route.Done()
	b.cancel(nil)
	return b.body.Close()
}

func unavailable(code int) bool {
	return code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
}

// fail answers a request that no worker began to answer.
func (t *transport) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody is there
	}
	code, reason := http.StatusBadGateway, balance.ReasonOf(err)
	switch {
	case errors.Is(err, errLarge):
		code = http.StatusRequestEntityTooLarge
	case errors.Is(err, errBody):
		code = http.StatusBadRequest
	case errors.Is(err, errFull):
		code = http.StatusServiceUnavailable
	case reason == balance.ReasonUnknownPool:
		code = http.StatusNotFound
	case reason != "":
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"message": err.Error(), "type": http.StatusText(code), "code": reason,
	}})
}

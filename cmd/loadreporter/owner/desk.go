package owner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/control"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
)

// maxAnswerBytes bounds an answer of the owner.
const maxAnswerBytes = 64 << 10

// errSilent: there is an owner, and it does not answer.
var errSilent = errors.New("the process that owns the engine does not answer")

// Register begins or renews the reports to a router, here or at the owner.
func (s *Seat) Register(ctx context.Context, r push.Registration) error {
	if s.owning() {
		return s.opts.Node.Register(ctx, r)
	}
	err := s.forward(ctx, control.StartReporting, map[string]any{
		"ip": r.Target.Addr(), "port": r.Target.Port(),
		"report_interval_ms": r.Interval.Milliseconds(), "lease_ttl_ms": r.Lease.Milliseconds(),
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.asked[r.Target] = asked{lease{r.Interval, now.Add(r.Lease)}, now}
	return nil
}

// Refresh takes a hint. One for the owner is forwarded soon, together with
// those that come meanwhile.
func (s *Seat) Refresh(h control.Hint) error {
	if s.owning() {
		return s.opts.Node.Refresh(h)
	}
	if err := s.Ready(); err != nil {
		return &control.Fault{Status: http.StatusServiceUnavailable, Message: err.Error()}
	}
	s.mu.Lock()
	s.hint.Reason, s.hint.Count = h.Reason, min(s.hint.Count+h.Count, math.MaxInt32)
	s.mu.Unlock()
	select {
	case s.hinted <- struct{}{}:
	default:
	}
	return nil
}

// forwardHints forwards hints until ctx ends, one call at a time.
func (s *Seat) forwardHints(ctx context.Context) {
	for {
		select {
		case <-s.hinted:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		h := s.hint
		s.hint = control.Hint{}
		s.mu.Unlock()
		if h.Count == 0 {
			continue
		}
		if err := s.forward(ctx, control.Refresh, h); err != nil && ctx.Err() == nil {
			s.opts.Logger.Debug("hint not forwarded", "err", err)
		}
	}
}

// forward makes a call to the owner. The owner's refusal is returned as it is.
func (s *Seat) forward(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://owner"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.calls.Do(req)
	if err != nil {
		s.metrics.failed.Inc()
		return &control.Fault{Status: http.StatusServiceUnavailable, Message: errSilent.Error()}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	switch {
	case err != nil:
		s.metrics.failed.Inc()
		return &control.Fault{Status: http.StatusServiceUnavailable, Message: errSilent.Error()}
	case resp.StatusCode/100 == 2:
		s.metrics.forwarded.Inc()
		return nil
	}
	s.metrics.forwarded.Inc()
	return refusal(resp.StatusCode, answer)
}

// refusal reads an error that the owner answered.
func refusal(status int, answer []byte) *control.Fault {
	var body struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(answer, &body) != nil || body.Message == "" {
		body.Message = fmt.Sprintf("the process that owns the engine answered %d", status)
	}
	return &control.Fault{Status: status, Message: body.Message}
}

// Ready says why this process does no good; nil where it does: as owner, or
// beside an owner that answers.
func (s *Seat) Ready() error {
	s.mu.Lock()
	owns, silent := s.owns, time.Since(s.heard) > hungAfter
	s.mu.Unlock()
	switch {
	case owns:
		return s.opts.Node.Ready()
	case silent:
		return errSilent
	}
	return nil
}

// Status is the state of a Seat as JSON. It is a plain value.
type Status struct {
	// Role is "owner" or "standby".
	Role string `json:"role"`
	// Ready says why the process does no good; empty where it does.
	NotReady string `json:"not_ready"`
	// Lock and Socket are the files of the engine.
	Lock   string `json:"lock"`
	Socket string `json:"socket"`
	// Takeover is what a standby would go on with.
	Takeover []row `json:"takeover"`
	// Node is the owner's work; null beside another owner.
	Node any `json:"node"`
}

// Status returns a Status.
func (s *Seat) Status() any {
	st := Status{Role: "standby", Lock: s.opts.Files.Lock, Socket: s.opts.Files.Socket, Takeover: []row{}}
	if err := s.Ready(); err != nil {
		st.NotReady = err.Error()
	}
	if s.owning() {
		st.Role, st.Node = "owner", s.opts.Node.Status()
		return st
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for target, l := range s.known(now) {
		if left := l.expires.Sub(now).Milliseconds(); left > 0 {
			st.Takeover = append(st.Takeover, row{target, l.interval.Milliseconds(), left})
		}
	}
	return st
}

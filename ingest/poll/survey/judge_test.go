package survey

import (
	"errors"
	"fmt"
	"testing"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

func TestJudgeStatus(t *testing.T) {
	for status, want := range map[int]store.Reason{
		200: "", 201: registry.ReasonEngineError, 204: registry.ReasonEngineError,
		301: registry.ReasonRedirected, 307: registry.ReasonRedirected,
		400: registry.ReasonRejected, 422: registry.ReasonRejected,
		401: registry.ReasonAuth, 403: registry.ReasonAuth,
		404: registry.ReasonUnsupported, 405: registry.ReasonUnsupported, 501: registry.ReasonUnsupported,
		408: registry.ReasonEngineError, 425: registry.ReasonEngineError, 429: registry.ReasonEngineError,
		500: registry.ReasonEngineError, 502: registry.ReasonEngineError, 503: registry.ReasonEngineError,
		999: registry.ReasonEngineError,
	} {
		// The body never matters where the status says no.
		for _, err := range []error{nil, egress.ErrTooLarge} {
			got, text := Judge(&egress.Answer{Status: status, Body: []byte("ok")}, err)
			if status == 200 && err != nil {
				want = ReasonTooLarge
			}
			if got != want || (text == nil) != (want == "") {
				t.Errorf("%d with %v: got %q, %v", status, err, got, text)
			}
		}
	}
}

func TestJudgeErrors(t *testing.T) {
	for err, want := range map[error]store.Reason{
		egress.ErrConnect: registry.ReasonConnectFailed, egress.ErrCredential: registry.ReasonCredential,
		egress.ErrTimeout: ReasonTimeout, egress.ErrTLS: ReasonTLS, egress.ErrBroken: ReasonBroken,
		egress.ErrTooLarge: ReasonTooLarge, egress.ErrEncoding: ReasonCompressed,
		errors.New("another"): registry.ReasonConnectFailed,
	} {
		if got, text := Judge(nil, fmt.Errorf("%w: more", err)); got != want || text == nil {
			t.Errorf("%v: got %q, %v", err, got, text)
		}
	}
}

// TestBug67OnlyDefiniteAnswersAreRemembered lists what does not say that an
// engine lacks a page.
func TestBug67OnlyDefiniteAnswersAreRemembered(t *testing.T) {
	for reason, definite := range map[store.Reason]bool{
		registry.ReasonUnsupported: true, registry.ReasonAuth: true, registry.ReasonRejected: false,
		registry.ReasonRedirected: false, ReasonTooLarge: false, ReasonCompressed: false, sample.ReasonHTMLPage: false,
		sample.ReasonBadJSON: false, ReasonReaderPanic: false,
		registry.ReasonEngineError: false, registry.ReasonConnectFailed: false, registry.ReasonCredential: false,
		ReasonTimeout: false, ReasonTLS: false, ReasonBroken: false,
		sample.ReasonNoData: false, sample.ReasonNoLoad: false,
	} {
		p := &Page{Reason: reason}
		if p.Definite() != definite {
			t.Errorf("%s: definite %v", reason, p.Definite())
		}
	}
}

package reader

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// TestRestrictedContextIsKept: a round does not connect where its context forbids
// it.
func TestRestrictedContextIsKept(t *testing.T) {
	plain := t.Context()
	for name, c := range map[string]struct {
		ctx    context.Context
		reason store.Reason
	}{
		"restricted":     {egress.Restrict(plain), registry.ReasonEgressDenied},
		"allowed":        {egress.Restrict(plain, netip.MustParsePrefix("127.0.0.0/8")), registry.ReasonConnectFailed},
		"not restricted": {plain, registry.ReasonConnectFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Options{
				Clock: store.NewClock(), Timeout: testLimit, StaleAfter: testStale, Prefix: "test-", Logger: slog.New(slog.DiscardHandler),
			})
			defer r.Close()
			for range 2 {
				res := r.Read(c.ctx, registry.Target{ID: "w", URL: "http://127.0.0.1:1"}) // nothing listens there
				if res == nil || res.Page == nil || res.Page.Reason != c.reason {
					t.Errorf("%+v", res)
				}
			}
		})
	}
}

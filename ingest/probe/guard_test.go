package probe

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// TestGuardedEngineIsNotAsked: in a restricted context an address of the deny
// list is not connected to, and every offer says so.
func TestGuardedEngineIsNotAsked(t *testing.T) {
	p, err := New(Options{Clock: store.NewClock()})
	if err != nil {
		t.Fatal(err)
	}
	target := registry.Target{
		ID: "a", URL: "http://127.0.0.1:1", Origin: "127.0.0.1:1", Interval: time.Second, ReporterPort: 2, Line: egress.NewLine(),
	}
	f := p.Probe(egress.Restrict(t.Context()), target)
	if len(f.Offers) == 0 || f.Complete {
		t.Fatalf("%+v", f)
	}
	for _, o := range f.Offers {
		if o.Verdict != registry.VerdictUnknown || o.Reason != registry.ReasonEgressDenied {
			t.Errorf("%s: %s, %s (%s)", o.Dialect, o.Verdict, o.Reason, o.Detail)
		}
	}
}

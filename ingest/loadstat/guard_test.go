package loadstat

import (
	"context"
	"net/netip"
	"testing"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// guardedURL is one on loopback, at which nothing listens.
const guardedURL = "http://127.0.0.1:1"

// listed is a source with one worker.
type listed struct{ spec registry.WorkerSpec }

func (*listed) Name() string { return "outside" }

func (l *listed) Run(ctx context.Context, deliver func(registry.Listing)) {
	deliver(registry.Listing{Specs: []registry.WorkerSpec{l.spec}})
	<-ctx.Done()
}

// TestGuardedWorkerIsNotDialled: an address that came from outside does not lead
// the plane to itself.
func TestGuardedWorkerIsNotDialled(t *testing.T) {
	for name, c := range map[string]struct {
		guarded bool
		allow   []netip.Prefix
		reason  store.Reason
	}{
		"guarded":     {guarded: true, reason: registry.ReasonEgressDenied},
		"allowed":     {guarded: true, allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, reason: registry.ReasonConnectFailed},
		"not guarded": {reason: registry.ReasonConnectFailed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, 1, func(reg *registry.Options, opts *Options) {
				spec, err := registry.NewSpec(guardedURL)
				if err != nil {
					t.Fatal(err)
				}
				spec.Dialect, spec.Guarded = store.DialectLoadstat, c.guarded
				reg.Workers, reg.Sources, reg.EgressAllow = nil, []registry.Source{&listed{spec}}, c.allow
				opts.Dial = nil
			}, func(p *plane, _, _ *engine) {
				p.facts.set(guardedURL, registry.LoadStat{Port: 1, Topic: "load", Ranks: 1})
				after(2 * testStale)
				p.wantNothing(guardedURL, c.reason)
			})
		})
	}
}

package loadstat

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
)

func TestOptionsAreChecked(t *testing.T) {
	clock := store.NewClock()
	cases := map[string]struct {
		opts Options
		want string
	}{
		"no clock":      {Options{StaleAfter: time.Second}, "Clock"},
		"no age":        {Options{Clock: clock}, "StaleAfter"},
		"negative age":  {Options{Clock: clock, StaleAfter: -1}, "StaleAfter"},
		"negative rank": {Options{Clock: clock, StaleAfter: 1, MaxRanks: -1}, "MaxRanks"},
		"many ranks":    {Options{Clock: clock, StaleAfter: 1, MaxRanks: 4097}, "MaxRanks"},
		"good":          {Options{Clock: clock, StaleAfter: 1}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := New(c.opts)
			if c.want == "" {
				if err != nil || s.opts.MaxRanks != 512 || s.opts.Dial == nil || s.opts.Logger == nil {
					t.Errorf("got %+v, %v", s, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	opts := Options{Clock: store.NewClock(), StaleAfter: time.Second, Registerer: reg}
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	m := s.metrics
	for i, c := range []prometheus.Collector{
		m.connections, m.ended, m.messages, m.coalesced, m.old, m.negative, m.mismatches, m.restarts, m.reports,
		m.received, m.engines, m.sockets,
	} {
		if already := (prometheus.AlreadyRegisteredError{}); !errors.As(reg.Register(c), &already) {
			t.Errorf("metric %d is not registered", i)
		}
	}
	if _, err := New(opts); err == nil {
		t.Error("two subscribers have the same metrics")
	}
}

// TestOddValuesAreCounted has a rank that names another rank and a number below
// 0.
func TestOddValuesAreCounted(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		a.rank(1).set(func(r *publisher) { r.values = []any{int64(-1), int64(2), int64(3), int64(100), int64(0)} })
		after(3 * time.Second)
		w := p.wantFresh(workerA, 2)
		if w.Ranks[1].DPRank != 1 || w.Ranks[1].Has(store.NumRunningReqs) {
			t.Errorf("rank 1 is %+v", w.Ranks[1])
		}
		n := p.metric(p.sub.metrics.negative)
		if n == 0 || n != p.metric(p.sub.metrics.mismatches) || n >= p.metric(p.sub.metrics.messages) {
			t.Errorf("%d negative, %d mismatches of %d messages", n, p.metric(p.sub.metrics.mismatches), p.metric(p.sub.metrics.messages))
		}
	})
}

// offering makes the dialect one of several that the engines offer.
type offering struct{ *facts }

func (o offering) Probe(ctx context.Context, t registry.Target) registry.Finding {
	f := o.Facts(ctx, t)
	f.Offers = []registry.Offer{{Dialect: store.DialectLoadstat, Verdict: registry.VerdictOffered, Detail: "named by the engine"}}
	return f
}

// TestStreamTakesOver has an engine push by itself, which ends the subscription.
func TestStreamTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, func(reg *registry.Options, _ *Options) {
			reg.Workers = []string{workerA}
			prober, _ := reg.Prober.(*facts)
			reg.Prober = offering{prober}
		})
		p.net.engine(hostA, 2)
		p.facts.set(workerA, registry.LoadStat{Port: basePort, Ranks: 2})
		ctx, stop := context.WithCancel(t.Context())
		p.stop = stop
		p.runs.Go(func() { _ = p.store.Run(ctx) })
		p.runs.Go(func() { _ = p.registry.Run(ctx) })
		after(5 * time.Second)
		w := p.wantFresh(workerA, 2)
		if w.Worker.Dialect != store.DialectLoadstat || !strings.Contains(w.diag.DialectWhy, "2 sockets from 10.0.0.1:5600") {
			t.Errorf("the dialect is %s, %q", w.Worker.Dialect, w.diag.DialectWhy)
		}
		load := &store.Load{
			Source: "pushed", Sequence: 1, Status: store.StatusHealthy, Received: p.sub.opts.Clock.Now(),
			Ranks: []store.Rank{{}}, Samples: []store.Sample{{}},
		}
		b, err := p.registry.Bind(registry.Claim{
			Addr: workerA, Role: store.RoleRegular, Source: "pushed", Peer: netip.MustParseAddrPort("10.0.0.1:40000"),
		}, load)
		if err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		if n := p.metric(p.sub.metrics.engines) + p.metric(p.sub.metrics.sockets); n != 0 {
			t.Errorf("%d engines and sockets are left", n)
		}
		if w := p.worker(workerA); w.Load.Source != "pushed" {
			t.Errorf("the source is %s", w.Load.Source)
		}
		b.Close()
		p.close()
	})
}

// mute stands for engines that cannot be asked.
type mute struct{}

func (mute) Facts(context.Context, registry.Target) registry.Finding { return registry.Finding{} }
func (mute) Probe(context.Context, registry.Target) registry.Finding { return registry.Finding{} }

// TestDeniedAddressIsNamed: where the engine's address is denied, that is what
// is wrong, and not that it names no sockets. No packet is sent to find out.
func TestDeniedAddressIsNamed(t *testing.T) {
	const at = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		within func(context.Context) context.Context
		reason store.Reason
	}{
		"denied":     {func(ctx context.Context) context.Context { return egress.Restrict(ctx) }, registry.ReasonEgressDenied},
		"not denied": {func(ctx context.Context) context.Context { return ctx }, registry.ReasonUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, 1, func(reg *registry.Options, o *Options) {
				reg.Workers = []string{at + ",dialect=loadstat"}
				reg.Prober = mute{}
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if network != "udp" || addr != "127.0.0.1:1" {
						t.Errorf("dialled %s %s", network, addr)
					}
					return egress.DefaultDial(c.within(ctx), network, addr)
				}
			}, func(p *plane, _, _ *engine) {
				after(3 * time.Second)
				p.wantNothing(at, c.reason)
			})
		})
	}
}

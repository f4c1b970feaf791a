package registry

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// TestStopDuringATrial ends the plane while a dialect is tried beside the one in
// use, whichever of both dialers returns first.
func TestStopDuringATrial(t *testing.T) {
	for name, lag := range map[string]time.Duration{"both at once": 0, "poll later": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			onTrial(t, lag, func(*plane) {})
		})
	}
}

// TestRemoveDuringATrial removes the worker meanwhile.
func TestRemoveDuringATrial(t *testing.T) {
	onTrial(t, 10*time.Millisecond, func(p *plane) {
		p.rediscover("http://10.0.0.9:1")
		p.after(time.Minute)
		p.close()
	})
}

// onTrial runs body while monitor is on trial beside poll, whose dialer takes a
// while to return.
func onTrial(t *testing.T, lag time.Duration, body func(p *plane)) {
	t.Helper()
	s := &script{probe: laterOffers([]Offer{unclear(monitor, ReasonEngineError), offered(poll)}, []Offer{offered(monitor)})}
	s.serve = func(ctx context.Context, e *Engine, n int) store.Reason {
		reason := s.plane.poll(ctx, e, n)
		<-time.After(lag)
		return reason
	}
	silent := &sender{delay: time.Hour}
	beside(t, s, map[store.Dialect]Dialer{monitor: silent}, func(p *plane) {
		p.noGap(parkFor + 2*time.Second)
		if silent.running.Load() != 1 {
			t.Fatal("there is no trial")
		}
		body(p)
	})
}

// TestRandomDialersEnd has dialers that report, fail and end at random, beside
// streams that come by themselves: the plane always stops, and a worker is never
// left alone.
func TestRandomDialersEnd(t *testing.T) {
	for seed := range uint64(100) {
		(&dice{rand: rand.New(rand.NewPCG(seed, 77)), seed: seed}).play(t)
	}
}

// dice is what a run of TestRandomDialersEnd draws from. It is safe for
// concurrent use.
type dice struct {
	mu   sync.Mutex
	rand *rand.Rand
	seed uint64
}

func (d *dice) n(below int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(below)
}

// probe answers late, and not always all.
func (d *dice) probe(ctx context.Context, _ Target, _ int) Finding {
	await(ctx, time.Duration(d.n(3))*time.Second, nil)
	offers := []Offer{offered(monitor), offered(loadstat), offered(poll)}
	if d.n(2) == 0 {
		offers = []Offer{unclear(monitor, ReasonEngineError), unclear(loadstat, ReasonEngineError), offered(poll)}
	}
	return Finding{Complete: d.n(2) == 0, Offers: offers}
}

// serve reports after a while, or never, and ends within half a minute.
func (d *dice) serve(ctx context.Context, e *Engine, p *plane, source string) store.Reason {
	defer func() { <-time.After(time.Duration(d.n(3)) * 50 * time.Millisecond) }()
	one := &sender{p: p, source: source, delay: []time.Duration{0, time.Second, 5 * time.Second, time.Hour}[d.n(4)]}
	ctx, stop := context.WithTimeout(ctx, time.Duration(d.n(30))*time.Second)
	defer stop()
	if reason := one.Serve(ctx, e); reason != "" {
		return reason
	}
	return []store.Reason{"", ReasonInstanceChanged, ReasonUnsupported, ReasonAuth, ReasonConnectFailed}[d.n(5)]
}

func (d *dice) play(t *testing.T) {
	t.Helper()
	s := &script{probe: d.probe}
	s.serve = func(ctx context.Context, e *Engine, _ int) store.Reason { return d.serve(ctx, e, s.plane, "p") }
	dialer := func(source string) Dialer {
		return dialerFunc(func(ctx context.Context, e *Engine) store.Reason { return d.serve(ctx, e, s.plane, source) })
	}
	beside(t, s, map[store.Dialect]Dialer{monitor: dialer("m"), loadstat: dialer("l")}, func(p *plane) {
		for range d.n(60) {
			if d.n(4) == 0 {
				poke(p.workers[testWorker].back)
			}
			if d.n(10) == 0 {
				if b, err := p.Bind(claim("pushed"), p.load("pushed", uint64(p.clock.Now()))); err == nil && d.n(2) == 0 {
					b.Close()
				}
			}
			p.after(time.Duration(d.n(3000)) * time.Millisecond)
		}
		before := s.probes() + s.sessions()
		p.after(5 * time.Minute)
		if s.probes()+s.sessions() > before {
			return
		}
		if e, live := p.entry(testWorker); live == nil || p.clock.Now().Sub(live.Received) > time.Minute {
			t.Errorf("seed %d: nothing happens for five minutes: %s %+v", d.seed, e.Freshness, p.diagnostics(testWorker))
		}
	})
}

package registry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// script is a prober and a dialer of the poll dialect that act as a test says.
type script struct {
	mu sync.Mutex
	// probe and facts answer the n-th question about a worker, from 0; serve
	// is its n-th session; a nil one answers at every interval.
	probe, facts func(ctx context.Context, t Target, n int) Finding
	serve        func(ctx context.Context, e *Engine, n int) store.Reason

	probed, asked, served map[string][]time.Time
	plane                 *plane
	// change is closed by tests whose engine becomes another.
	change chan struct{}
}

func (s *script) count(m *map[string][]time.Time, id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *m == nil {
		*m = make(map[string][]time.Time)
	}
	(*m)[id] = append((*m)[id], time.Now())
	return len((*m)[id]) - 1
}

func (s *script) times(m *map[string][]time.Time) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (*m)[testWorker]
}

func (s *script) probes() int   { return len(s.times(&s.probed)) }
func (s *script) asks() int     { return len(s.times(&s.asked)) }
func (s *script) sessions() int { return len(s.times(&s.served)) }

func (s *script) Probe(ctx context.Context, t Target) Finding {
	n := s.count(&s.probed, t.ID)
	if s.probe == nil {
		return Finding{Complete: true}
	}
	return s.probe(ctx, t, n)
}

func (s *script) Facts(ctx context.Context, t Target) Finding {
	n := s.count(&s.asked, t.ID)
	if s.facts == nil {
		return Finding{Complete: true}
	}
	return s.facts(ctx, t, n)
}

func (s *script) Serve(ctx context.Context, e *Engine) store.Reason {
	n := s.count(&s.served, e.Target().ID)
	if s.serve == nil {
		return s.plane.poll(ctx, e, n)
	}
	return s.serve(ctx, e, n)
}

func offered(d store.Dialect) Offer {
	return Offer{Dialect: d, Verdict: VerdictOffered, Detail: "asked"}
}

func absent(d store.Dialect, reason store.Reason) Offer {
	return Offer{Dialect: d, Verdict: VerdictAbsent, Reason: reason, Detail: "asked"}
}

func unclear(d store.Dialect, reason store.Reason) Offer {
	return Offer{Dialect: d, Reason: reason, Detail: "asked"}
}

// offers answers every probe alike, with nothing else to learn.
func offers(list ...Offer) func(context.Context, Target, int) Finding {
	return func(context.Context, Target, int) Finding { return Finding{Complete: true, Offers: list} }
}

// scripted runs body with a running plane whose engines act as s says. An
// engine that accepts a registration pushes.
func scripted(t *testing.T, s *script, workers []string, body func(p *plane)) {
	t.Helper()
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.Prober = workers, s
		o.Dialers = map[store.Dialect]Dialer{store.DialectPoll: s}
	}, func(p *plane) {
		p.net.report = func(origin string) {
			if origin == testOrigin {
				_, _ = p.Bind(claim("pushed"), p.load("pushed", uint64(p.clock.Now())))
			}
		}
		s.plane, s.change = p, make(chan struct{})
		p.runAll()
		body(p)
	})
}

// runAll is run for a plane that is discovered anew while it runs.
func (p *plane) runAll() {
	ctx, stop := context.WithCancel(p.t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { _ = p.st.Run(ctx) })
	p.tend(ctx, &loops)
	p.start = p.starter(ctx, &loops)
	loops.Go(func() { p.Registry.discover(ctx, p.start) })
	p.close = func() { stop(); loops.Wait() }
	p.settle()
}

// rediscover replaces the flags of a plane of runAll.
func (p *plane) rediscover(values ...string) {
	p.t.Helper()
	p.discovering.Lock()
	p.sources.flags, p.opts.Workers = nil, values
	err := p.readSources()
	p.discovering.Unlock()
	if err != nil {
		p.t.Fatal(err)
	}
	p.reconcile(p.start)
	p.settle()
}

// poll is a session of a dialer whose engine answers at every interval.
func (p *plane) poll(ctx context.Context, e *Engine, n int) store.Reason {
	source := "polled-" + string(rune('a'+n))
	b, err := e.Open(source, testPeer, p.load(source, 1))
	if err != nil {
		return reasonOf(err)
	}
	defer b.Close()
	e.Show(Way{State: StatePolling, Status: 200, Interval: e.Target().Interval})
	for q := uint64(2); ; q++ {
		select {
		case <-ctx.Done():
			return ""
		case <-b.Ended():
			return reasonOf(b.Err())
		case <-time.After(e.Target().Interval):
			_ = b.Admit(p.load(source, q))
		}
	}
}

func reasonOf(err error) store.Reason {
	var why *Refusal
	if errors.As(err, &why) {
		return why.Reason
	}
	return ""
}

// wantDialect checks the dialect in force and what is said of it.
func (p *plane) wantDialect(d store.Dialect, why string) {
	p.t.Helper()
	dg := p.diagnostics(testWorker)
	if e, _ := p.entry(testWorker); e.Worker.Dialect != d || dg.DialectWhy != why {
		p.t.Errorf("dialect %s because of %q, want %s because of %q", e.Worker.Dialect, dg.DialectWhy, d, why)
	}
}

// wantHeard checks that a report of a source was received within an interval.
func (p *plane) wantHeard(source string) {
	p.t.Helper()
	e, live := p.entry(testWorker)
	if e == nil || e.Load == nil || e.Load.Source != source || p.clock.Now().Sub(live.Received) > testInterval+testSettle {
		p.t.Errorf("entry %+v, receipt %+v, want a new report of %s", e, live, source)
	}
}

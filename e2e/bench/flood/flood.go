// Package flood has engines that do to a plane what no engine should: one that
// the plane dials for its load, one that publishes it on a socket, and one that
// registers itself.
package flood

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Kind is what the engines do.
type Kind string

// The kinds.
const (
	// Frequent engines send 10,000 reports a second.
	Frequent Kind = report.Frequent
	// Deaf engines never read a byte, once their reports are wanted.
	Deaf Kind = report.Deaf
	// Giant engines send frames that are too large.
	Giant Kind = report.Giant
)

// Rates, and the size of what is too large in bytes.
const (
	frequent = 10_000
	seldom   = 100
	giant    = 4 << 20
)

// The hosts of the engines: a plane counts what one address does.
const (
	monitorHost  = "127.200.0.1"
	loadstatHost = "127.200.0.2"
	nativeHost   = "127.200.0.3"
)

// Counts are what the engines did. It is a plain value.
type Counts struct {
	// Monitor, Loadstat and Native are the frames that were sent: reports, and
	// parts of what is too large.
	Monitor, Loadstat, Native uint64
	// Sessions are the connections that were taken or made.
	Sessions uint64
}

// Peers are three engines of a kind. It is safe for concurrent use, except that
// Run is called once.
type Peers struct {
	kind Kind
	// monitor and loadstat are where the reports are, and pages what the engines
	// tell of themselves.
	monitor, loadstat           net.Listener
	monitorPages, loadstatPages net.Listener
	// What each did: frames that were sent, and connections or sessions.
	sentMonitor, sentLoadstat, sentNative atomic.Uint64
	metMonitor, metLoadstat, metNative    atomic.Uint64
}

// Open binds the ports of the engines. Run gives them back.
func Open(kind Kind) (*Peers, error) {
	p := &Peers{kind: kind}
	for _, l := range []struct {
		to   *net.Listener
		host string
	}{
		{&p.monitor, monitorHost}, {&p.monitorPages, monitorHost},
		{&p.loadstat, loadstatHost}, {&p.loadstatPages, loadstatHost},
	} {
		ln, err := net.Listen("tcp4", net.JoinHostPort(l.host, "0"))
		if err != nil {
			p.close()
			return nil, err
		}
		*l.to = ln
	}
	return p, nil
}

func (p *Peers) listeners() []net.Listener {
	return []net.Listener{p.monitor, p.monitorPages, p.loadstat, p.loadstatPages}
}

func (p *Peers) close() {
	for _, ln := range p.listeners() {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// Workers are the engines that have to be listed, as a worker flag has them.
// The third one registers itself.
func (p *Peers) Workers() []string {
	return []string{
		fmt.Sprintf("http://%s,dialect=monitor,reporter_port=%d", p.monitorPages.Addr(), portOf(p.monitor)),
		fmt.Sprintf("http://%s,dialect=loadstat", p.loadstatPages.Addr()),
	}
}

func portOf(ln net.Listener) int {
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// Run serves the engines, and has the third one report to an ingest listener,
// until ctx ends and all of it has stopped.
func (p *Peers) Run(ctx context.Context, ingest string) {
	var runs sync.WaitGroup
	defer runs.Wait()
	pages := face.Engine{Model: "bench-model", Mode: "null", Ranks: 1, Sample: sample}
	monitored, published := pages, pages
	monitored.ReporterPort, published.LoadPort = portOf(p.monitor), portOf(p.loadstat)
	runs.Go(func() { serveHTTP(ctx, p.monitorPages, face.SGLang(monitored)) })
	runs.Go(func() { serveHTTP(ctx, p.loadstatPages, face.SGLang(published)) })
	runs.Go(func() { p.serveMonitor(ctx) })
	runs.Go(func() { p.serveLoadstat(ctx) })
	runs.Go(func() { p.reportNative(ctx, ingest) })
}

// Counts returns what was done so far.
func (p *Peers) Counts() Counts {
	return Counts{
		Monitor: p.sentMonitor.Load(), Loadstat: p.sentLoadstat.Load(), Native: p.sentNative.Load(),
		Sessions: p.metMonitor.Load() + p.metLoadstat.Load() + p.metNative.Load(),
	}
}

// Await waits until each of the engines was met by the plane and did what its
// kind does.
func (p *Peers) Await(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !p.struck() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the plane met not all: %+v: %w", p.Counts(), ctx.Err())
		}
	}
	return nil
}

func (p *Peers) struck() bool {
	met := p.metMonitor.Load() > 0 && p.metLoadstat.Load() > 0 && p.sentNative.Load() > 0
	return met && (p.kind == Deaf || p.sentMonitor.Load() > 0 && p.sentLoadstat.Load() > 0)
}

// sample is none: the load is told elsewhere.
func sample() (reporter.Sample, error) { return reporter.Sample{}, reporter.ErrNoSample }

func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	_ = srv.Serve(ln)
}

// hold takes connections and never reads from them, until ctx ends.
func hold(ctx context.Context, ln net.Listener, met *atomic.Uint64) {
	accept(ctx, ln, met, func(net.Conn) { <-ctx.Done() })
}

// accept counts and handles each connection until ctx ends, which closes all.
func accept(ctx context.Context, ln net.Listener, met *atomic.Uint64, handle func(net.Conn)) {
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // passing trouble, such as a connection that is gone already
		}
		met.Add(1)
		handlers.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			defer c.Close()
			handle(c)
		})
	}
}

// pace calls send at a rate a second until it fails or ctx ends. What is due
// goes out once a millisecond.
func pace(ctx context.Context, rate int, send func() error) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for sent := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		for due := int(time.Since(began).Seconds() * float64(rate)); sent < due; sent++ {
			if err := send(); err != nil {
				return err
			}
		}
	}
}

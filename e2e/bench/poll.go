package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/server"
)

// polledSize is the size of the parts that poll.
type polledSize struct {
	engines, ranks int
	// black engines never answer, drip ones send a byte a second.
	black, drip int
	interval    time.Duration
}

// shortestInterval is the shortest at which the plane polls.
const shortestInterval = 10 * time.Millisecond

// pollers are in the order in which they take turns, with the interval of a
// saturated run: the plane stretches its own.
var pollers = []struct {
	kind    server.Kind
	name    string
	flatOut time.Duration
}{
	{server.Polling, report.Polled, shortestInterval},
	{server.Parsed, report.Parser, 0},
	{server.Transfer, report.Transfer, 0},
}

// pushers take the pushed reports.
var pushers = []struct {
	kind server.Kind
	name string
}{{server.Plane, report.Pushed}, {server.Stock, report.Stock}}

// poll measures what a fresh update of an engine costs, polled in three ways
// and pushed, at one rate and as fast as it goes.
func (b *bench) poll() error {
	for run := range b.runs {
		if err := b.pollTurn(run); err != nil {
			return err
		}
	}
	if b.profiles == "" {
		return nil
	}
	for _, mode := range []string{paced, saturated} {
		sc, err := b.openPolled(server.Polling, b.intervalOf(mode, shortestInterval))
		if err != nil {
			return err
		}
		_, err = sc.profiled(filepath.Join(b.profiles, fmt.Sprintf("poll-%s-plane.pprof", mode)))
		sc.stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// pollTurn measures each once.
func (b *bench) pollTurn(run int) error {
	for _, mode := range []string{paced, saturated} {
		for _, p := range pollers {
			v, err := b.pollOnce(p.kind, b.intervalOf(mode, p.flatOut))
			if err == nil {
				err = b.addPoll(p.name, mode, run, v)
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, mode, err)
			}
		}
	}
	for _, p := range pushers {
		if err := b.pushOnce(p.kind, p.name, run); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (b *bench) intervalOf(mode string, flatOut time.Duration) time.Duration {
	if mode == paced {
		return b.polled.interval
	}
	return flatOut
}

func (b *bench) addPoll(of, mode string, run int, v report.Values) error {
	name := fmt.Sprintf("%s, %d engines, %d ranks", mode, b.polled.engines, b.polled.ranks)
	if mode == paced {
		name += fmt.Sprintf(", one in %s", b.polled.interval)
		given(v)
	}
	return b.results.Add(report.Record{Part: "poll", Case: name, Of: of, Run: run, Values: v})
}

// openPolled opens engines that are polled, and waits until all were heard.
func (b *bench) openPolled(kind server.Kind, interval time.Duration) (*scenario, error) {
	return b.openPages(setup{
		kind: kind, workers: b.polled.engines, interval: interval,
		pages: &engine.PagesSpec{Ranks: b.polled.ranks, Interval: interval},
	})
}

func (b *bench) openPages(s setup) (*scenario, error) {
	sc, err := b.open(s)
	if err != nil {
		return nil, err
	}
	if s.kind == server.Polling {
		_, err = sc.readers(1)
	}
	if err == nil {
		err = sc.heard()
	}
	if err == nil {
		err = b.warmUp()
	}
	if err != nil {
		sc.stop()
		return nil, err
	}
	return sc, nil
}

func (b *bench) pollOnce(kind server.Kind, interval time.Duration) (report.Values, error) {
	sc, err := b.openPolled(kind, interval)
	if err != nil {
		return nil, err
	}
	defer sc.stop()
	s, err := sc.spend()
	if err != nil {
		return nil, err
	}
	v := s.values()
	v["bytes a page"] = float64(sc.pageBytes)
	return v, nil
}

// pushOnce measures pushed reports of as many engines and ranks.
func (b *bench) pushOnce(kind server.Kind, name string, run int) error {
	sc, err := b.open(setup{kind: kind, workers: b.polled.engines, ranks: b.polled.ranks, interval: b.polled.interval})
	if err != nil {
		return err
	}
	defer sc.stop()
	if kind == server.Plane {
		if _, err := sc.readers(1); err != nil {
			return err
		}
	}
	if err := sc.connect(); err != nil {
		return err
	}
	rate := int(float64(b.polled.engines) / b.polled.interval.Seconds())
	for _, mode := range []struct {
		name string
		rate int
	}{{paced, rate}, {saturated, 0}} {
		v, err := b.drive(sc, mode.name, mode.rate, lineRun{kind: kind})
		if err != nil {
			return err
		}
		if err := b.addPoll(name, mode.name, run, v); err != nil {
			return err
		}
	}
	return nil
}

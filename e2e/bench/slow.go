package main

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/server"
)

const (
	// slowFor is how many times the duration of a measurement one with slow
	// engines takes.
	slowFor = 4
	// pollTimeout is the plane's; by then it has given the slow engines up
	// once and polls them at its longest interval.
	pollTimeout = 2 * time.Second
)

// slow measures whether engines that do not answer delay the polls of others:
// with some of them, and in turn with none.
func (b *bench) slow() error {
	for run := range b.runs {
		for _, name := range []string{report.SomeSlow, report.NoneSlow} {
			if err := b.slowOnce(name, run); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func (b *bench) slowOnce(name string, run int) error {
	pages := &engine.PagesSpec{Ranks: b.polled.ranks, Interval: b.polled.interval}
	if name == report.SomeSlow {
		pages.Black, pages.Drip = b.polled.black, b.polled.drip
	}
	sc, err := b.openPages(setup{
		kind: server.Polling, workers: b.polled.engines, interval: b.polled.interval, pages: pages, failing: name == report.SomeSlow,
	})
	if err != nil {
		return err
	}
	defer sc.stop()
	if err := b.pause(min(2*pollTimeout, slowFor*b.duration)); err != nil {
		return err
	}
	if err := sc.engines.Do("record", child.Nothing{}, nil); err != nil {
		return err
	}
	s, err := sc.spendFor(slowFor * b.duration)
	if err != nil {
		return err
	}
	var seen engine.Intervals
	if err := sc.engines.Do("intervals", child.Nothing{}, &seen); err != nil {
		return err
	}
	return b.addSlow(sc, slowRun{name: name, run: run, spent: s, seen: seen})
}

// slowRun is what came of a run of part slow. It is a plain value.
type slowRun struct {
	name  string
	run   int
	spent spent
	seen  engine.Intervals
}

func (b *bench) addSlow(sc *scenario, r slowRun) error {
	if want := sc.answering(); r.seen.Sources != want || r.seen.Count == 0 {
		return fmt.Errorf("%d of %d engines were polled, %d intervals recorded", r.seen.Sources, want, r.seen.Count)
	}
	v := r.spent.values()
	v[report.OffP50], v[report.OffP99], v["off the interval max ms"] = milli(r.seen.P50), milli(r.seen.P99), milli(r.seen.Max)
	v["longest interval ms"] = milli(r.seen.Longest)
	v["engines that answer"] = float64(sc.answering())
	v["intervals"] = float64(r.seen.Count)
	v["goroutines"], v["sockets"] = r.spent.goroutines, r.spent.sockets
	v["connections at once, most"] = float64(r.seen.Most)
	p := b.polled
	name := fmt.Sprintf("%d engines, %d black holes and %d that drip, or none, one in %s", p.engines, p.black, p.drip, p.interval)
	return b.results.Add(report.Record{Part: "slow", Case: name, Of: r.name, Run: r.run, Values: v})
}

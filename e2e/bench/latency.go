package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/server"
)

// latencyRanks is how many ranks the engines of parts latency and memory have.
const latencyRanks = 8

// latency measures the time from when a report is due to when a router has it
// in its view. Nothing is pinned: the machine is shared by all.
func (b *bench) latency() error {
	for run := range b.runs {
		if err := b.latencyOnce(run, ""); err != nil {
			return err
		}
	}
	if b.profiles == "" {
		return nil
	}
	return b.latencyOnce(0, filepath.Join(b.profiles, "latency-plane.pprof"))
}

func (b *bench) latencyOnce(run int, profile string) error {
	sc, err := b.open(setup{
		kind: server.Plane, workers: b.engines, ranks: latencyRanks, interval: time.Second / time.Duration(b.hertz), free: true,
	})
	if err != nil {
		return err
	}
	defer sc.stop()
	readers, err := sc.readers(b.readers)
	if err != nil {
		return err
	}
	router, err := sc.start("router", child.Unpinned)
	if err != nil {
		return err
	}
	if err := router.Do("connect", connection{Server: sc.addresses.API}, nil); err != nil {
		return err
	}
	if err := sc.connect(); err != nil {
		return err
	}
	v, err := b.ages(sc, readers, router, profile)
	if err != nil || profile != "" {
		return err
	}
	return b.results.Add(report.Record{
		Part: "latency", Of: string(server.Plane), Run: run, Values: v,
		Case: fmt.Sprintf("%d engines, %d ranks, %d Hz, %d watchers", b.engines, latencyRanks, b.hertz, b.readers+1),
	})
}

// ages lets the engines send and returns what the router saw of it.
func (b *bench) ages(sc *scenario, readers, router *child.Process, profile string) (report.Values, error) {
	if err := sc.engines.Do("pace", b.engines*b.hertz, nil); err != nil {
		return nil, err
	}
	if err := b.warmUp(); err != nil {
		return nil, err
	}
	var before, after uint64
	if err := readers.Do("received", child.Nothing{}, &before); err != nil {
		return nil, err
	}
	if err := router.Do("record", time.Second/time.Duration(b.hertz), nil); err != nil {
		return nil, err
	}
	spent, err := sc.profiled(profile)
	if err != nil {
		return nil, err
	}
	var ages engine.Ages
	if err := router.Do("ages", child.Nothing{}, &ages); err != nil {
		return nil, err
	}
	if err := readers.Do("received", child.Nothing{}, &after); err != nil {
		return nil, err
	}
	var sent engine.Sent
	if err := sc.engines.Do("halt", child.Nothing{}, &sent); err != nil {
		return nil, err
	}
	if ages.Count == 0 {
		return nil, fmt.Errorf("the router saw none of %.0f reports", spent.reports)
	}
	return report.Values{
		"p50 ms": milli(ages.P50), "p99 ms": milli(ages.P99), "p99.9 ms": milli(ages.P999), "max ms": milli(ages.Max),
		"reports/s":            spent.reports / spent.seconds,
		"reports seen %":       100 * float64(ages.Count) / spent.reports,
		"messages/s a watcher": float64(ages.Messages) / spent.seconds,
		"MB/s to the readers":  float64(after-before) / spent.seconds / 1e6,
		report.ServerCores:     spent.cpu.Seconds() / spent.seconds,
		"load late p99 ms":     milli(sent.LateP99),
	}, nil
}

func milli(us int64) float64 { return float64(us) / 1000 }

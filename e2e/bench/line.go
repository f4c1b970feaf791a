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

// kinds are in the order in which they take turns.
var kinds = []server.Kind{server.Plane, server.Stock, server.Tuned}

// line measures the whole line and the bare servers in turn, saturated and at
// a steady rate.
func (b *bench) line() error {
	for _, ranks := range b.ranks {
		for run := range b.runs {
			for _, kind := range kinds {
				if err := b.lineOnce(lineRun{kind: kind, ranks: ranks, run: run}); err != nil {
					return fmt.Errorf("%s, %d ranks: %w", kind, ranks, err)
				}
			}
		}
		if b.profiles == "" {
			continue
		}
		for _, kind := range kinds {
			if err := b.lineOnce(lineRun{kind: kind, ranks: ranks, profile: true}); err != nil {
				return fmt.Errorf("profile of %s, %d ranks: %w", kind, ranks, err)
			}
		}
	}
	return nil
}

// The modes.
const (
	saturated = report.Saturated
	paced     = "paced"
)

// lineRun is one turn of one server. A profile is not counted.
type lineRun struct {
	kind    server.Kind
	ranks   int
	run     int
	profile bool
}

func (b *bench) lineOnce(r lineRun) error {
	sc, err := b.open(setup{kind: r.kind, workers: b.workersOf(r.kind), ranks: r.ranks, interval: time.Second})
	if err != nil {
		return err
	}
	defer sc.stop()
	if r.kind == server.Plane {
		if _, err := sc.readers(1); err != nil {
			return err
		}
	}
	sc.workers = b.streams
	if err := sc.connect(); err != nil {
		return err
	}
	for _, mode := range []struct {
		name string
		rate int
	}{{saturated, 0}, {paced, b.rate}} {
		v, err := b.drive(sc, mode.name, mode.rate, r)
		if err != nil {
			return fmt.Errorf("%s: %w", mode.name, err)
		}
		if r.profile {
			continue
		}
		rec := report.Record{Part: "line", Case: fmt.Sprintf("%s, %d streams, %d ranks", mode.name, b.streams, r.ranks), Of: string(r.kind), Run: r.run, Values: v}
		if err := b.results.Add(rec); err != nil {
			return err
		}
	}
	return nil
}

// workersOf returns how many workers a server lists.
func (b *bench) workersOf(kind server.Kind) int {
	if kind == server.Plane {
		return b.streams
	}
	return 0
}

// drive lets the engines send, at a rate or, for 0, as fast as it goes.
func (b *bench) drive(sc *scenario, name string, rate int, r lineRun) (report.Values, error) {
	var err error
	if rate == 0 {
		err = sc.engines.Do("saturate", child.Nothing{}, nil)
	} else {
		err = sc.engines.Do("pace", rate, nil)
	}
	if err != nil {
		return nil, err
	}
	if err := b.warmUp(); err != nil {
		return nil, err
	}
	path := ""
	if r.profile {
		path = filepath.Join(b.profiles, fmt.Sprintf("line-%s-%s-%d-ranks.pprof", name, r.kind, r.ranks))
	}
	spent, err := sc.profiled(path)
	if err != nil {
		return nil, err
	}
	var sent engine.Sent
	if err := sc.engines.Do("halt", child.Nothing{}, &sent); err != nil {
		return nil, err
	}
	v := spent.values()
	if rate != 0 {
		v["load late p99 us"] = float64(sent.LateP99)
		given(v)
	}
	return v, b.warmUp() // what waits is read
}

// given marks a rate that is given, so that there is nothing to compare.
func given(v report.Values) {
	if rate, ok := v[report.ReportRate]; ok {
		v["reports/s, given"] = rate
		delete(v, report.ReportRate)
	}
}

// profiled measures the server and writes its profile, where there is a path
// for one.
func (sc *scenario) profiled(path string) (spent, error) {
	if path == "" {
		return sc.spend()
	}
	if err := sc.server.Do("profile", path, nil); err != nil {
		return spent{}, err
	}
	s, err := sc.spend()
	if err != nil {
		return s, err
	}
	if err := sc.server.Do("profile", "", nil); err != nil {
		return s, err
	}
	return s, sc.bench.results.Profile(path)
}

package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/views"
)

// viewsRanks is how many ranks the workers of part views have.
const viewsRanks = 8

// views measures what a version costs before it is sent, and what a worker
// holds.
func (b *bench) views() error {
	for _, workers := range b.size.views {
		for run := range b.runs {
			if err := b.viewsOnce(workers, run, ""); err != nil {
				return err
			}
		}
		if b.profiles == "" {
			continue
		}
		path := filepath.Join(b.profiles, fmt.Sprintf("views-%d-workers.pprof", workers))
		if err := b.viewsOnce(workers, 0, path); err != nil {
			return err
		}
		if err := b.results.Profile(path); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) viewsOnce(workers, run int, profile string) error {
	f := family{bench: b}
	defer f.stop()
	c, err := f.start("views", serverCore)
	if err != nil {
		return err
	}
	var r views.Result
	q := viewsRun{Spec: views.Spec{Workers: workers, Ranks: viewsRanks, Rounds: b.rounds}, Profile: profile}
	if err := c.Do("run", q, &r); err != nil || profile != "" {
		return err
	}
	add := func(what, of string, v report.Values) error {
		name := fmt.Sprintf("%s, %d workers, %d ranks", what, workers, viewsRanks)
		return b.results.Add(report.Record{Part: "views", Case: name, Of: of, Run: run, Values: v})
	}
	for _, e := range []struct {
		name string
		views.Event
	}{{"full", r.Full}, {"delta of 1 %", r.Delta}} {
		if err := add(e.name, "plane", eventValues(e.Event)); err != nil {
			return err
		}
		if err := add(e.name, "proto.Marshal", report.Values{report.BytesUs: micro(e.Marshal)}); err != nil {
			return err
		}
	}
	if err := add("full, nothing encoded before", "plane", report.Values{report.FirstUs: micro(r.Cold)}); err != nil {
		return err
	}
	return add("store and view", "plane", report.Values{"heap bytes a worker": r.HeapPerWorker})
}

func eventValues(e views.Event) report.Values {
	return report.Values{
		"bytes": float64(e.Bytes), "messages": float64(e.Chunks), report.FirstUs: micro(e.First), report.BytesUs: micro(e.Compose),
	}
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

package main

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/server"
)

// memory measures what the plane holds for a listed worker, for its load, for
// an idle connection with a report stream, and for an idle watcher.
func (b *bench) memory() error {
	for run := range b.runs {
		if err := b.streamMemory(run); err != nil {
			return err
		}
		if err := b.watcherMemory(run); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) streamMemory(run int) error {
	var empty, listed, all, left server.Memory
	if err := b.weighEmpty(&empty); err != nil {
		return err
	}
	sc, err := b.open(setup{kind: server.Plane, workers: b.workers, ranks: latencyRanks, interval: time.Second})
	if err != nil {
		return err
	}
	defer sc.stop()
	// The view has an owner, as in life.
	if _, err := sc.readers(1); err != nil {
		return err
	}
	if err := sc.weigh(&listed); err != nil {
		return err
	}
	if err := sc.connect(); err != nil {
		return err
	}
	if err := sc.weigh(&all); err != nil {
		return err
	}
	if err := sc.engines.Do("disconnect", child.Nothing{}, nil); err != nil {
		return err
	}
	if err := sc.weigh(&left); err != nil {
		return err
	}
	for _, m := range []struct {
		what     string
		from, to server.Memory
	}{
		{"a listed worker", empty, listed},
		{"the load of a worker", listed, left},
		{"an idle connection with a stream", left, all},
		{"an engine, all in", empty, all},
	} {
		rec := report.Record{Part: "memory", Case: fmt.Sprintf("%s, %d of them", m.what, b.workers), Of: string(server.Plane), Run: run, Values: each(m.from, m.to, b.workers)}
		if err := b.results.Add(rec); err != nil {
			return err
		}
	}
	return nil
}

// weighEmpty reads the memory of a plane without workers.
func (b *bench) weighEmpty(m *server.Memory) error {
	sc, err := b.open(setup{kind: server.Plane, interval: time.Second})
	if err != nil {
		return err
	}
	defer sc.stop()
	if _, err := sc.readers(1); err != nil {
		return err
	}
	return sc.weigh(m)
}

func (b *bench) watcherMemory(run int) error {
	var before, after server.Memory
	sc, err := b.open(setup{kind: server.Plane, interval: time.Second})
	if err != nil {
		return err
	}
	defer sc.stop()
	if err := sc.weigh(&before); err != nil {
		return err
	}
	if _, err := sc.readers(b.watchers); err != nil {
		return err
	}
	if err := sc.weigh(&after); err != nil {
		return err
	}
	return b.results.Add(report.Record{
		Part: "memory", Case: fmt.Sprintf("an idle watcher, %d of them", b.watchers), Of: string(server.Plane), Run: run,
		Values: each(before, after, b.watchers),
	})
}

// weigh reads the server's memory once it is idle.
func (sc *scenario) weigh(m *server.Memory) error {
	idle := 5 * time.Second // reports are stale by then
	if sc.bench.short {
		idle = sc.bench.duration
	}
	if err := sc.bench.pause(idle); err != nil {
		return err
	}
	return sc.server.Do("memory", child.Nothing{}, m)
}

// each shares a difference out. It may be negative: garbage is not exact.
func each(from, to server.Memory, n int) report.Values {
	share := func(a, b uint64) float64 { return (float64(b) - float64(a)) / float64(n) / 1024 }
	return report.Values{
		"heap KiB":         share(from.Heap, to.Heap),
		"heap + stack KiB": share(from.Heap+from.Stacks, to.Heap+to.Stacks),
		"resident KiB":     share(from.Resident, to.Resident),
	}
}

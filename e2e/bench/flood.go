package main

import (
	"context"
	"fmt"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/flood"
	"github.com/loadplane/loadplane/e2e/bench/program"
	"github.com/loadplane/loadplane/e2e/bench/report"
)

// floods are what is done to a plane, in turn.
var floods = []string{report.NoFlood, report.Frequent, report.Deaf, report.Giant}

// attackers is how many workers a plane lists of those that flood it; another
// one registers itself.
const attackers = 2

// floodedSize is the size of part flood.
type floodedSize struct {
	engines, ranks, hertz int
	// times is how many times the duration of a measurement one takes.
	times int
}

func (s floodedSize) interval() time.Duration { return time.Second / time.Duration(s.hertz) }

// flood measures whether engines that do what they should not delay the
// reports of others, or take the plane's memory.
func (b *bench) flood() error {
	for run := range b.runs {
		for _, kind := range floods {
			if err := b.floodOnce(kind, run); err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
		}
	}
	return nil
}

// flooded is a plane, as a process of its own, with engines that push to it, a
// router, and those that flood it. It is for one goroutine.
type flooded struct {
	family
	kind                   string
	plane                  *program.Program
	engines, router, peers *child.Process
	api, ingest            string
}

func (b *bench) floodOnce(kind string, run int) error {
	f := &flooded{family: family{bench: b}, kind: kind}
	defer f.stop()
	for _, step := range []func() error{f.launch, f.connect, f.strike, b.warmUp} {
		if err := step(); err != nil {
			return err
		}
	}
	v, err := f.measure()
	if err != nil {
		return err
	}
	s := b.flooded
	return b.results.Add(report.Record{
		Part: "flood", Of: kind, Run: run, Values: v,
		Case: fmt.Sprintf("%d engines, %d ranks, %d Hz", s.engines, s.ranks, s.hertz),
	})
}

// launch starts the engines, those that flood, and the plane that lists them.
func (f *flooded) launch() (err error) {
	b := f.bench
	var port int
	if f.engines, err = f.start("engines", loadCore); err != nil {
		return err
	}
	if err := f.engines.Do("open", child.Nothing{}, &port); err != nil {
		return err
	}
	args := []string{
		"--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0",
		"--log-level=info", "--report-interval=" + b.flooded.interval().String(),
	}
	for i := range b.flooded.engines {
		args = append(args, "--worker="+engine.Origin(i, port)+",dialect=push")
	}
	if f.kind != report.NoFlood {
		var workers []string
		if f.peers, err = f.start("flood", loadCore); err != nil {
			return err
		}
		if err := f.peers.Do("open", flood.Kind(f.kind), &workers); err != nil {
			return err
		}
		for _, w := range workers {
			args = append(args, "--worker="+w)
		}
	}
	path, err := b.command("loadplane")
	if err != nil {
		return err
	}
	f.plane, err = program.Start(b.ctx, b.core(serverCore), path, append([]string{"serve"}, args...)...)
	return err
}

// connect waits until the plane lists all, and connects engines and router.
func (f *flooded) connect() (err error) {
	b := f.bench
	ctx, cancel := context.WithTimeout(b.ctx, setUpWithin)
	defer cancel()
	if f.api, err = f.plane.Address(ctx, "api"); err != nil {
		return err
	}
	if f.ingest, err = f.plane.Address(ctx, "ingest"); err != nil {
		return err
	}
	want := b.flooded.engines
	if f.kind != report.NoFlood {
		want += attackers
	}
	for n := 0; n < want; {
		if n, err = listed(ctx, f.api); err == nil {
			err = b.pause(20 * time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("%d of %d workers are listed: %w", n, want, err)
		}
	}
	if f.router, err = f.start("router", loadCore); err != nil {
		return err
	}
	if err := f.router.Do("connect", connection{Server: f.api}, nil); err != nil {
		return err
	}
	return f.engines.Do("connect", connection{f.ingest, b.flooded.engines, b.flooded.ranks}, nil)
}

// strike begins the reports of all, and waits until those that flood do.
func (f *flooded) strike() error {
	if f.peers != nil {
		if err := f.peers.Do("run", f.ingest, nil); err != nil {
			return err
		}
	}
	return f.engines.Do("pace", f.bench.flooded.engines*f.bench.flooded.hertz, nil)
}

func (f *flooded) measure() (report.Values, error) {
	b := f.bench
	if err := f.router.Do("record", b.flooded.interval(), nil); err != nil {
		return nil, err
	}
	u, err := b.uses(f.plane, time.Duration(b.flooded.times)*b.duration)
	if err != nil {
		return nil, err
	}
	var ages engine.Ages
	if err := f.router.Do("ages", child.Nothing{}, &ages); err != nil {
		return nil, err
	}
	var sent engine.Sent
	if err := f.engines.Do("halt", child.Nothing{}, &sent); err != nil {
		return nil, err // An engine that keeps to the rules was cut off.
	}
	if ages.Gaps.Sources != b.flooded.engines || ages.Gaps.Count == 0 {
		return nil, fmt.Errorf("the router saw %d intervals of %d engines", ages.Gaps.Count, ages.Gaps.Sources)
	}
	v := off(ages.Gaps)
	for name, value := range u.values() {
		v[name] = value
	}
	v["engines seen"], v["reports seen/s"] = float64(ages.Gaps.Sources), float64(ages.Gaps.Events)/u.seconds
	v["age p50 ms"], v["age p99 ms"], v["age max ms"] = milli(ages.P50), milli(ages.P99), milli(ages.Max)
	v["load late p99 ms"] = milli(sent.LateP99)
	return v, f.count(v)
}

// count adds what those did that flood.
func (f *flooded) count(v report.Values) error {
	if f.peers == nil {
		return nil
	}
	var n flood.Counts
	if err := f.peers.Do("counts", child.Nothing{}, &n); err != nil {
		return err
	}
	v["frames sent, monitor"], v["frames sent, loadstat"] = float64(n.Monitor), float64(n.Loadstat)
	v["frames sent, native"], v["connections made"] = float64(n.Native), float64(n.Sessions)
	return nil
}

// stop ends those that flood and the engines before the plane.
func (f *flooded) stop() {
	f.family.stop()
	if f.plane == nil {
		return
	}
	if err := f.plane.Stop(); err != nil && f.bench.ctx.Err() == nil {
		fmt.Fprintf(f.bench.log, "bench: loadplane ended with %v: %s\n", err, f.plane.Log())
	}
}

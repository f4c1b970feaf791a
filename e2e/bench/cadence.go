package main

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/cadence"
	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/gaps"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/sim"
)

// pulse is an interval of part cadence, in a dialect, and how many times the
// duration of a measurement it is watched. It is a plain value.
type pulse struct {
	interval time.Duration
	dialect  string
	times    int
}

// cadenceRanks is how many ranks the engine of part cadence has.
const cadenceRanks = 8

// cadence measures how far the reports of the load reporter are off their
// interval where they arrive, beside a bare loop that sends to the same
// receiver at the same time.
func (b *bench) cadence() error {
	for run := range b.runs {
		for _, p := range b.pulses {
			s := beside{sim.KindSGLangPoll, cadenceRanks, p.dialect, p.interval}
			if err := b.cadenceOnce(s, time.Duration(p.times)*b.duration, run); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
	}
	return nil
}

func (b *bench) cadenceOnce(s beside, d time.Duration, run int) error {
	post, err := b.post(s)
	if err != nil {
		return err
	}
	defer post.stop()
	bare, err := post.start("bare", serverCore)
	if err != nil {
		return err
	}
	spec := cadence.BareSpec{Address: post.address, Ranks: s.ranks, Interval: s.interval}
	if err := bare.Do("run", spec, nil); err != nil {
		return err
	}
	if err := b.warmUp(); err != nil {
		return err
	}
	for _, c := range []*child.Process{post.receiver, bare} {
		if err := c.Do("record", s.interval, nil); err != nil {
			return err
		}
	}
	if err := b.pause(d); err != nil {
		return err
	}
	seen, err := post.seen()
	if err != nil {
		return err
	}
	var ticks gaps.Seen
	if err := bare.Do("ticks", child.Nothing{}, &ticks); err != nil {
		return err
	}
	return b.addCadence(s, run, seen, ticks)
}

func (b *bench) addCadence(s beside, run int, seen cadence.Seen, ticks gaps.Seen) error {
	for _, of := range []struct {
		name string
		seen gaps.Seen
	}{{report.Loadreporter, seen.Reports}, {report.BareSent, seen.Bare}, {report.BareTicks, ticks}} {
		if of.seen.Count == 0 {
			return fmt.Errorf("%s: no interval was recorded", of.name)
		}
		rec := report.Record{Part: "cadence", Case: fmt.Sprintf("one in %s, %s", s.interval, s.dialect), Of: of.name, Run: run, Values: off(of.seen)}
		if err := b.results.Add(rec); err != nil {
			return err
		}
	}
	return nil
}

// off says how far gaps were off their interval.
func off(s gaps.Seen) report.Values {
	return report.Values{
		report.OffP50: milli(s.P50), report.OffP99: milli(s.P99), "off the interval max ms": milli(s.Max),
		"longest interval ms": milli(s.Longest), "intervals": float64(s.Count),
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/cadence"
	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/flood"
	"github.com/loadplane/loadplane/e2e/bench/gaps"
	"github.com/loadplane/loadplane/sim"
)

// simulated says which engine a sim process is.
type simulated struct {
	Kind  sim.Kind
	Ranks int
}

// simChild is one simulated engine.
func simChild() (map[string]child.Role, func()) {
	ctx, stop := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	return map[string]child.Role{
		"open": child.Takes(func(s simulated) (string, error) {
			fleet, err := sim.New(sim.Options{
				Engines: 1, Kinds: []sim.Kind{s.Kind}, Ranks: s.Ranks, Model: "bench-model", Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				return "", err
			}
			runs.Go(func() { _ = fleet.Run(ctx) })
			return fleet.URLs()[0], nil
		}),
	}, func() { stop(); runs.Wait() }
}

// expected are reports to wait for.
type expected struct{ Reports, Ranks int }

func receiverChild() (map[string]child.Role, func()) {
	var r *cadence.Receiver
	var serving sync.WaitGroup
	closing := func() {
		if r != nil {
			r.Close()
			serving.Wait()
		}
	}
	return map[string]child.Role{
		"open": child.Takes(func(child.Nothing) (_ string, err error) {
			if r, err = cadence.NewReceiver(); err != nil {
				return "", err
			}
			serving.Go(func() {
				if err := r.Serve(); err != nil {
					fmt.Fprintln(os.Stderr, "bench: receiver:", err)
				}
			})
			return r.Address(), nil
		}),
		"await": child.Does(func(e expected) error {
			ctx, cancel := context.WithTimeout(context.Background(), setUpWithin)
			defer cancel()
			return r.Await(ctx, e.Reports, e.Ranks)
		}),
		"record": child.Does(func(interval time.Duration) error { r.Record(interval); return nil }),
		"seen":   child.Takes(func(child.Nothing) (cadence.Seen, error) { return r.Seen(), nil }),
	}, closing
}

func bareChild() (map[string]child.Role, func()) {
	ctx, stop := context.WithCancel(context.Background())
	b := cadence.NewBare()
	var runs sync.WaitGroup
	failed := make(chan error, 1)
	return map[string]child.Role{
		"run": child.Does(func(s cadence.BareSpec) error {
			runs.Go(func() { failed <- b.Run(ctx, s) })
			return nil
		}),
		"record": child.Does(func(interval time.Duration) error { b.Record(interval); return nil }),
		"ticks": child.Takes(func(child.Nothing) (gaps.Seen, error) {
			select {
			case err := <-failed:
				return gaps.Seen{}, errors.Join(errors.New("the bare loop ended"), err)
			default:
				return b.Ticks(), nil
			}
		}),
	}, func() { stop(); runs.Wait() }
}

func floodChild() (map[string]child.Role, func()) {
	ctx, stop := context.WithCancel(context.Background())
	var p *flood.Peers
	var runs sync.WaitGroup
	return map[string]child.Role{
		"open": child.Takes(func(kind flood.Kind) (_ []string, err error) {
			if p, err = flood.Open(kind); err != nil {
				return nil, err
			}
			return p.Workers(), nil
		}),
		"run": child.Does(func(ingest string) error {
			runs.Go(func() { p.Run(ctx, ingest) })
			within, cancel := context.WithTimeout(ctx, setUpWithin)
			defer cancel()
			return p.Await(within)
		}),
		"counts": child.Takes(func(child.Nothing) (flood.Counts, error) { return p.Counts(), nil }),
	}, func() { stop(); runs.Wait() }
}

package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/loadplane/loadplane/cmd/loadplane/workerslist"
	"github.com/loadplane/loadplane/sim"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fleetFlags describe a fleet of simulated engines.
type fleetFlags struct {
	set            *pflag.FlagSet
	engines, ranks int
	kinds          []string
	mixed, idle    bool
	seed           uint64
	faults         []string
}

func (f *fleetFlags) register(fs *pflag.FlagSet) {
	f.set = fs
	fs.IntVar(&f.engines, "engines", 8, "simulated engines, 1 to 10000; 11, with every kind, where only --mixed is given")
	fs.IntVar(&f.ranks, "ranks", 4, "DP ranks of an engine, 1 to 4096")
	fs.StringSliceVar(&f.kinds, "kinds", nil,
		"kinds of engines, given in turn: "+strings.Join(usage.Words(sim.Kinds()), ", ")+"; default: sglang, or all with --mixed")
	fs.BoolVar(&f.mixed, "mixed", false, "prefill and decode engines beside plain ones, and engines of all kinds and dialects")
	fs.BoolVar(&f.idle, "idle-load", false, "make up no load: only requests that are sent to the engines count")
	fs.Uint64Var(&f.seed, "seed", 1, "makes the load repeatable")
	fs.StringArrayVar(&f.faults, "fault", nil,
		"what goes wrong, as KIND[:engine=N,after=10s,for=5s,every=1m]; repeatable. Kinds: restart, rerank (with ranks=N), freeze, silent, fail, zero_capacity, nan, slow, down, idle")
}

// complete adds the words that the flags take to the completion.
func (f *fleetFlags) complete(cmd *cobra.Command) {
	usage.Complete(cmd, "kinds", usage.Words(sim.Kinds()))
	usage.Complete(cmd, "fault", usage.Words(sim.FaultKinds()))
}

// options returns the options of a fleet. A count of 0 stands for a default
// there, which is not what somebody who writes 0 asks for.
func (f *fleetFlags) options() (sim.Options, error) {
	o := sim.Options{Engines: f.engines, Ranks: f.ranks, Mixed: f.mixed, NoTraffic: f.idle, Seed: f.seed}
	if f.engines < 1 || f.ranks < 1 {
		return o, usagef("--engines and --ranks are at least 1")
	}
	kinds, err := sim.ParseKinds(f.kinds)
	if err != nil {
		return o, usageError{fmt.Errorf("--kinds: %w", err)}
	}
	o.Kinds = kinds
	if f.mixed && len(kinds) == 0 && !f.set.Changed("engines") {
		o.Engines = len(sim.MixedKinds())
	}
	for _, text := range f.faults {
		fault, err := sim.ParseFault(text)
		if err != nil {
			return o, usageError{fmt.Errorf("--fault: %w", err)}
		}
		o.Faults = append(o.Faults, fault)
	}
	return o, nil
}

// simFlags are those of the sim command.
type simFlags struct {
	fleetFlags
	listen              string
	basePort            int
	plane               string
	write               string
	logLevel, logFormat string
}

func (a *app) simCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a fleet of simulated engines",
		Long: `Run a fleet of simulated engines until SIGINT or SIGTERM. They answer over
real HTTP, with the pages of their kind, and those that push, are dialled or
publish do so over real gRPC and ZMQ. The worker list goes to standard output,
or to the file that --write-workers names, in the form that serve
--workers-file reads. Native engines are not in it: they register themselves at
the plane that --plane names.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.sim(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	f.register(fs)
	f.complete(cmd)
	fs.StringVar(&f.listen, "listen", "127.0.0.1", "host to listen on")
	fs.IntVar(&f.basePort, "base-port", 0, "port of the first engine; 0 takes free ones")
	fs.StringVar(&f.plane, "plane", "", "base URL of the ingest listener that native engines register at, such as http://127.0.0.1:7401")
	fs.StringVar(&f.write, "write-workers", "", "file to write the worker list to")
	fs.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "auto", "auto, json or text")
	return cmd
}

func (a *app) sim(ctx context.Context, f simFlags) error {
	opts, err := f.options()
	if err != nil {
		return err
	}
	opts.Listen, opts.BasePort = f.listen, f.basePort
	opts.Logger = a.newLogger(a.err, f.logLevel, f.logFormat)
	if opts.Plane, err = planeAt(f.plane); err != nil {
		return err
	}
	fleet, err := sim.New(opts)
	if err != nil {
		return usageError{err}
	}
	if err := workerslist.Announce(a.out, fleet, f.write); err != nil {
		discard(fleet)
		return err
	}
	return fleet.Run(ctx)
}

// planeAt returns the address of a plane; nil for none.
func planeAt(address string) (func() string, error) {
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
		return nil, usagef("--plane %q is not http://host:port or https://host:port", address)
	}
	return func() string { return address }, nil
}

// discard gives the listeners of a fleet back that will not run.
func discard(fleet *sim.Fleet) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = fleet.Run(ctx)
}

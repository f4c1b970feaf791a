package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/loadplane/loadplane/sim"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// fleetFlags describe a fleet of simulated engines.
type fleetFlags struct {
	engines, ranks int
	kinds          []string
	mixed, idle    bool
	seed           uint64
	faults         []string
}

func (f *fleetFlags) register(fs *pflag.FlagSet) {
	fs.IntVar(&f.engines, "engines", 8, "simulated engines, 1 to 10000")
	fs.IntVar(&f.ranks, "ranks", 4, "DP ranks of an engine, 1 to 4096")
	fs.StringSliceVar(&f.kinds, "kinds", nil,
		"kinds of engines, given in turn: sglang, sglang-poll, vllm, tgi, llamacpp, trtllm, triton; default: sglang, or all with --mixed")
	fs.BoolVar(&f.mixed, "mixed", false, "prefill and decode engines beside plain ones, and engines of all kinds")
	fs.BoolVar(&f.idle, "idle-load", false, "make up no load: only requests that are sent to the engines count")
	fs.Uint64Var(&f.seed, "seed", 1, "makes the load repeatable")
	fs.StringArrayVar(&f.faults, "fault", nil,
		"what goes wrong, as KIND[:engine=N,after=10s,for=5s,every=1m]; repeatable. Kinds: restart, freeze, silent, fail, zero_capacity, nan, slow, down, idle")
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
	write               string
	logLevel, logFormat string
}

func (a *app) simCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a fleet of simulated engines",
		Long: `Run a fleet of simulated engines until SIGINT or SIGTERM. They answer over
real HTTP, with the pages of their kind, and those that push report over real
gRPC. The worker list goes to standard output, or to the file that
--write-workers names, in the form that serve --workers-file reads.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.sim(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	f.register(fs)
	fs.StringVar(&f.listen, "listen", "127.0.0.1", "host to listen on")
	fs.IntVar(&f.basePort, "base-port", 0, "port of the first engine; 0 takes free ones")
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
	opts.Logger = a.newLogger(f.logLevel, f.logFormat)
	fleet, err := sim.New(opts)
	if err != nil {
		return usageError{err}
	}
	if err := a.announceFleet(fleet, f.write); err != nil {
		discard(fleet)
		return err
	}
	return fleet.Run(ctx)
}

// discard gives the listeners of a fleet back that will not run.
func discard(fleet *sim.Fleet) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = fleet.Run(ctx)
}

func (a *app) announceFleet(fleet *sim.Fleet, path string) error {
	list, err := workersYAML(fleet.Workers())
	if err != nil {
		return err
	}
	if path == "" {
		_, err := a.out.Write(list)
		return err
	}
	if err := replaceFile(path, list); err != nil {
		return fmt.Errorf("--write-workers: %w", err)
	}
	for _, url := range fleet.URLs() {
		fmt.Fprintln(a.out, url)
	}
	fmt.Fprintf(a.out, "\nserve them with: bin/loadplane serve --workers-file %s\n", path)
	return nil
}

// listedWorker is an item of a workers file.
type listedWorker struct {
	URL   string `yaml:"url"`
	Role  string `yaml:"role,omitempty"`
	Model string `yaml:"model,omitempty"`
	Zone  string `yaml:"zone,omitempty"`
}

func workersYAML(workers []sim.WorkerInfo) ([]byte, error) {
	list := struct {
		Workers []listedWorker `yaml:"workers"`
	}{}
	for _, w := range workers {
		list.Workers = append(list.Workers, listedWorker{w.URL, w.NamedRole(), w.Model, w.Zone})
	}
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(list)
	return []byte(b.String()), err
}

// replaceFile writes a file so that no reader sees a part of it.
func replaceFile(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".loadplane-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // It is gone after the rename.
	if err := writeAll(tmp, content); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func writeAll(f *os.File, content []byte) error {
	_, err := f.Write(content)
	if chmod := f.Chmod(0o644); err == nil {
		err = chmod
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

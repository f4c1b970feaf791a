// Command bench measures the whole line, from the report of an engine to the
// router that has it, next to bare gRPC servers in the same run. It prints one
// table, ratios first, and writes each measurement as a line of JSON.
//
// Servers and load are processes of their own. Where there are two cores and
// taskset, the server has the first core for itself and all load the second,
// but for part latency, which has all cores for all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/report"
)

// config is what the flags say.
type config struct {
	parts    []string
	short    bool
	runs     int
	duration time.Duration
	json     string
	profiles string
}

// size is how much is measured. A short run shows that everything works; its
// numbers mean nothing.
type size struct {
	streams, rate     int
	ranks             []int
	engines, hertz    int
	readers           int
	views             []int
	rounds            int
	workers, watchers int
	polled            polledSize
	pulses            []pulse
	flooded           floodedSize
}

func (c config) size() size {
	if c.short {
		return size{
			streams: 20, rate: 500, ranks: []int{2}, engines: 10, hertz: 10, readers: 4, views: []int{200},
			rounds: 3, workers: 50, watchers: 10,
			polled: polledSize{engines: 10, ranks: 2, black: 2, drip: 2, interval: 100 * time.Millisecond},
			pulses: []pulse{
				{10 * time.Millisecond, dialectNative, 1}, {100 * time.Millisecond, dialectPush, 4},
			},
			flooded: floodedSize{engines: 5, ranks: 2, hertz: 10, times: 4},
		}
	}
	return size{
		streams: 1000, rate: 20_000, ranks: []int{1, 8}, engines: 500, hertz: 10, readers: 99, views: []int{1000, 10_000},
		rounds: 51, workers: 5_000, watchers: 1_000,
		polled: polledSize{engines: 200, ranks: 3, black: 20, drip: 20, interval: time.Second},
		pulses: []pulse{
			{10 * time.Millisecond, dialectNative, 1}, {100 * time.Millisecond, dialectNative, 3},
			{100 * time.Millisecond, dialectPush, 3}, {time.Second, dialectNative, 4},
		},
		flooded: floodedSize{engines: 100, ranks: 8, hertz: 10, times: 1},
	}
}

// bench is one run of the program. It is for one goroutine.
type bench struct {
	config
	size
	ctx     context.Context
	machine report.Machine
	results *report.Results
	log     io.Writer
	dir     string // for files that only live as long as the run
}

// part is a group of measurements.
type part struct {
	name string
	run  func(*bench) error
}

var parts = []part{
	{"line", (*bench).line},
	{"latency", (*bench).latency},
	{"views", (*bench).views},
	{"memory", (*bench).memory},
	{"poll", (*bench).poll},
	{"slow", (*bench).slow},
	{"reporter", (*bench).reporter},
	{"cadence", (*bench).cadence},
	{"flood", (*bench).flood},
}

func main() {
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// command returns the exit code.
func command(args []string, stdout, stderr io.Writer) int {
	if isChild(args) {
		return fail(stderr, serveChild(args[1], os.Stdin, stdout))
	}
	cfg, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return fail(stderr, run(ctx, cfg, stdout, stderr))
}

// isChild says whether the arguments are those of a child.
func isChild(args []string) bool { return len(args) == 2 && args[0] == child.Word }

func fail(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "bench:", err)
	return 1
}

func parseFlags(args []string, stderr io.Writer) (config, error) {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	c := config{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	list := fs.String("part", strings.Join(names, ","), "parts to run")
	fs.BoolVar(&c.short, "short", false, "small and short: shows that everything works, its numbers mean nothing")
	fs.IntVar(&c.runs, "runs", 3, "runs of each measurement; the table has medians")
	fs.DurationVar(&c.duration, "duration", 5*time.Second, "length of each measurement")
	fs.StringVar(&c.json, "json", "", "file for the measurements, a JSON value a line")
	fs.StringVar(&c.profiles, "cpuprofile", "", "folder for CPU profiles of the servers, from runs that are not counted")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	c.parts = strings.Split(*list, ",")
	for _, p := range c.parts {
		if !slices.Contains(names, p) {
			fmt.Fprintf(stderr, "bench: there is no part %q\n", p)
			return c, errors.New("unknown part")
		}
	}
	if c.short {
		c.runs, c.duration = 1, 300*time.Millisecond
	}
	return c, nil
}

func run(ctx context.Context, cfg config, stdout, stderr io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "loadplane-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := io.Discard
	if cfg.json != "" {
		f, err := os.Create(cfg.json)
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	if cfg.profiles != "" {
		if err := os.MkdirAll(cfg.profiles, 0o750); err != nil {
			return err
		}
	}
	b := &bench{config: cfg, size: cfg.size(), ctx: ctx, machine: report.ReadMachine(), results: report.New(out), log: stderr, dir: dir}
	if err := b.results.Machine(b.machine, cfg.short); err != nil {
		return err
	}
	for _, p := range parts {
		if !slices.Contains(cfg.parts, p.name) {
			continue
		}
		began := time.Now()
		if err := p.run(b); err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
		fmt.Fprintf(stderr, "bench: part %s took %.0f s\n", p.name, time.Since(began).Seconds())
	}
	return b.results.Table(stdout)
}

// pause waits.
func (b *bench) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// warmUp is what goes by before a measurement begins.
func (b *bench) warmUp() error { return b.pause(b.duration / 4) }

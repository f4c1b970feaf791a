package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/loadplane/loadplane/cmd/loadplane/inspect"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/spf13/cobra"
)

// probeFlags say how an engine is asked.
type probeFlags struct {
	tokenFile, ca string
	reporterPort  int
	timeout       time.Duration
	out           remote.Output
}

func (a *app) probeCommand() *cobra.Command {
	var f probeFlags
	cmd := &cobra.Command{
		Use:   "probe URL",
		Short: "Ask an engine what it is and how its load can be had",
		Long: `Ask an engine, by GET requests only, what it is and in which dialects its load
can be had: the pages asked for, the engine, its version, models, role and DP
ranks, which name was found for which field, which fields stay unknown, the
values of the ranks, and the dialect that would be used and why. The values are
those of the load page, whatever dialect would be used; it is read again after a
second, for rates. A reporter port gets a connection and nothing on it. The exit
code is 1 where no dialect can be used.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.probe(cmd.Context(), f, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token for the engine")
	fs.StringVar(&f.ca, "ca", "", "PEM file with the CAs of the engine; default: those of the system")
	fs.IntVar(&f.reporterPort, "reporter-port", 0, "port of the engine's load reporter, where the engine does not name it")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Second, "bound of each request")
	f.out.Register(fs, "table", "json")
	return cmd
}

func (a *app) probe(ctx context.Context, f probeFlags, url string) error {
	format, err := f.out.Format()
	if err != nil {
		return err
	}
	target, err := f.target(url)
	if err != nil {
		return err
	}
	p, err := probe.New(probe.Options{Clock: store.NewClock(), Timeout: f.timeout})
	if err != nil {
		return err
	}
	report := p.Inspect(ctx, target)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	write := inspect.Table
	if format == "json" {
		write = inspect.JSON
	}
	if err := write(a.out, report); err != nil {
		return err
	}
	if report.Dialect == store.DialectUnspecified {
		return fmt.Errorf("no dialect can be used with %s: %s", target.URL, table.Printable(report.Why, 1024))
	}
	return nil
}

// target checks the command line; its errors are faults of it.
func (f probeFlags) target(url string) (registry.Target, error) {
	if f.timeout <= 0 {
		return registry.Target{}, usagef("--timeout: want more than 0")
	}
	if strings.Contains(url, ",") {
		return registry.Target{}, usagef("%q is not http://HOST:PORT or https://HOST:PORT", url)
	}
	if f.reporterPort < 0 || f.reporterPort > 65535 {
		return registry.Target{}, usagef("--reporter-port: want 1 to 65535")
	}
	spec, err := registry.ParseWorkerFlag(url)
	if err != nil {
		return registry.Target{}, usageError{err}
	}
	if _, err := egress.ReadToken(f.tokenFile); err != nil {
		return registry.Target{}, usageError{fmt.Errorf("--token-file: %w", err)}
	}
	if _, err := egress.ReadRoots(f.ca); err != nil {
		return registry.Target{}, usageError{fmt.Errorf("--ca: %w", err)}
	}
	return registry.Target{
		ID: spec.ID, URL: spec.URL, Origin: spec.Origin, Interval: time.Second, TokenFile: f.tokenFile, CAFile: f.ca,
		ReporterPort: f.reporterPort,
	}, nil
}

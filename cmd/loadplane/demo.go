package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/service"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/sim"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (a *app) demoCommand() *cobra.Command {
	var f fleetFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the plane and a fleet of simulated engines in one process",
		Long: `Run the plane and a fleet of simulated engines in one process, over real
sockets, until SIGINT or SIGTERM. All flags of serve work here too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), a.environ)
			if err != nil {
				return err
			}
			opts, err := f.options()
			if err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			return a.logging(cfg.LogLevel, cfg.LogFormat, func(l *slog.Logger) error {
				opts.Logger = l
				return a.demo(cmd.Context(), cfg, opts)
			})
		},
	}
	config.RegisterFlags(cmd.Flags())
	f.register(cmd.Flags())
	f.complete(cmd)
	return cmd
}

func (a *app) demo(ctx context.Context, cfg config.Config, opts sim.Options) error {
	logger := opts.Logger
	limitMemory(cfg, logger)
	opts.Logger = logger.With("part", "sim")
	var s *service.Service
	opts.Plane = func() string { return ingestURL(s) }
	fleet, err := sim.New(opts)
	if err != nil {
		return usageError{err}
	}
	for _, w := range fleet.Workers() {
		cfg.Worker = append(cfg.Worker, w.Flag())
	}
	if s, err = service.New(cfg, service.Options{Logger: logger, Version: versionText()}); err != nil {
		discard(fleet)
		return err
	}
	fmt.Fprint(a.out, demoText(s, cfg, fleetText(opts, fleet)))
	return runBoth(ctx, s, fleet, logger)
}

// runBoth stops the engines after the plane has drained, so that it drains
// with open streams.
func runBoth(ctx context.Context, s *service.Service, fleet *sim.Fleet, logger *slog.Logger) error {
	engines, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return fleet.Run(engines) })
	err := s.Run(ctx)
	stop()
	err = errors.Join(err, group.Wait())
	logger.Debug("demo stopped")
	return err
}

// fleetText says how many engines of which kind there are.
func fleetText(opts sim.Options, fleet *sim.Fleet) string {
	count := map[sim.Kind]int{}
	for _, e := range fleet.Engines() {
		count[e.Info().Kind]++
	}
	var parts []string
	for _, k := range sim.Kinds() {
		if count[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[k], k))
		}
	}
	size := plural(opts.Engines, "engine") + " x " + plural(opts.Ranks, "rank")
	return size + "\n\n" + table.Wrap("  kinds    ", strings.Join(parts, ", "))
}

// plural counts things.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// demoText says what to open and what to paste.
func demoText(s *service.Service, cfg config.Config, fleet string) string {
	api, _, ops := s.Addrs()
	apiURL, opsURL := listenerURL(s, config.API, api.String()), listenerURL(s, config.Ops, ops.String())
	curl, flags := "curl -s", ""
	if cfg.APITokenFile != "" {
		curl += ` -H "Authorization: Bearer $(cat ` + cfg.APITokenFile + `)"`
		flags = " --token-file " + cfg.APITokenFile
	}
	if cfg.TLSCert != "" {
		curl += " --cacert " + cfg.TLSCert
		flags += " --ca " + cfg.TLSCert
	}
	if apiURL != remote.DefaultServer {
		flags = " --server " + apiURL + flags
	}
	var b strings.Builder
	fmt.Fprintf(&b, "loadplane demo: %s", fleet)
	fmt.Fprintf(&b, "  page     %s/\n", apiURL)
	fmt.Fprintf(&b, "  metrics  %s/metrics\n\n", opsURL)
	fmt.Fprintf(&b, "Paste one of these into another terminal:\n\n")
	fmt.Fprintf(&b, "  bin/loadplane top%s\n", flags)
	fmt.Fprintf(&b, "  bin/loadplane workers list%s\n", flags)
	fmt.Fprintf(&b, "  bin/loadplane explain%s %s\n", flags, anyWorker(cfg))
	fmt.Fprintf(&b, "  bin/loadplane watch%s\n", flags)
	fmt.Fprintf(&b, "  %s %s/v1/load_monitor/snapshot\n", curl, apiURL)
	fmt.Fprintf(&b, "  %s -N %s/v1/load_monitor/watch\n", curl, apiURL)
	fmt.Fprintf(&b, "  %s %s/metrics\n", curl, opsURL)
	fmt.Fprintf(&b, "  %s %s/readyz\n\n", curl, opsURL)
	fmt.Fprintf(&b, "Ctrl-C stops it.\n\n")
	return b.String()
}

// anyWorker returns the address of a worker that is listed.
func anyWorker(cfg config.Config) string {
	if len(cfg.Worker) == 0 {
		return "WORKER" // engines that register themselves
	}
	url, _, _ := strings.Cut(cfg.Worker[0], ",")
	return strings.TrimPrefix(url, "http://")
}

// ingestURL is where the engines of this process reach the ingest listener.
func ingestURL(s *service.Service) string {
	_, ingest, _ := s.Addrs()
	host, port, _ := net.SplitHostPort(ingest.String()) // an address that is listened on
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return listenerURL(s, config.Ingest, net.JoinHostPort(host, port))
}

func listenerURL(s *service.Service, l config.Listener, addr string) string {
	if s.TLS(l) {
		return "https://" + addr
	}
	return "http://" + addr
}

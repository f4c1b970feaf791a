package main

import (
	"context"
	"log/slog"
	"runtime/debug"

	"github.com/loadplane/loadplane/service"
	"github.com/loadplane/loadplane/service/config"
	"github.com/spf13/cobra"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the plane",
		Long: `Run the plane until SIGINT or SIGTERM; a second signal stops at once.

Every setting is a flag, a key of the YAML file that --config names, and a
variable of the environment: --report-interval, report_interval and
LOADPLANE_REPORT_INTERVAL. Flags win over the environment, and that over the
file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), a.environ)
			if err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			return a.logging(cfg.LogLevel, cfg.LogFormat, func(l *slog.Logger) error { return runPlane(cmd.Context(), cfg, l) })
		},
	}
	config.RegisterFlags(cmd.Flags())
	return cmd
}

func runPlane(ctx context.Context, cfg config.Config, logger *slog.Logger) error {
	limitMemory(cfg, logger)
	if !cfg.Discovers() {
		logger.Warn("no worker is configured, and none may register itself; set --worker, --workers-file, --dns, --kubernetes, --admin-socket or --registration")
	}
	s, err := service.New(cfg, service.Options{Logger: logger, Version: versionText()})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// limitMemory leaves the runtime and GOMEMLIMIT alone unless it is told to.
func limitMemory(cfg config.Config, logger *slog.Logger) {
	if cfg.MemoryLimitMiB == 0 {
		return
	}
	debug.SetMemoryLimit(int64(cfg.MemoryLimitMiB) << 20)
	logger.Info("memory limit set", "mib", cfg.MemoryLimitMiB)
}

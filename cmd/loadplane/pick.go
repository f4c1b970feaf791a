package main

import (
	"context"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) pickCommand() *cobra.Command {
	var f remote.PickFlags
	cmd := &cobra.Command{
		Use:   "pick",
		Short: "Ask where the next request should go",
		Long: `Ask where the next request should go. The answer counts as load of the worker
until a report covers it, at the latest until the stale time is over, so that
the next one is told another; with --no-credit it does not.`,
	}
	f.Register(cmd.Flags())
	return a.asks(cmd, func(c *remote.Client, ctx context.Context, s remote.Screen, format string) error {
		return c.Pick(ctx, s, format, f)
	}, "table", "json")
}

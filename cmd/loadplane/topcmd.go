package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/top"
	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/spf13/cobra"
)

func (a *app) topCommand() *cobra.Command {
	var to remote.Flags
	var f top.Flags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the load of all workers in the terminal, live",
		Long: `Show the pools and all workers in the terminal, live, by a watch: sorted and
filtered by keys, a worker with its ranks and checks on Enter, the keys on "?".
With --once it prints the view once and exits, with 1 where the plane cannot be
reached. NO_COLOR switches colours off.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.Connect()
			if err != nil {
				return err
			}
			defer c.Close()
			return top.Run(cmd.Context(), c, f, top.Terminal{Out: a.out, Is: a.columns > 0, Environ: a.environ})
		},
	}
	to.Register(cmd.Flags())
	f.Register(cmd.Flags())
	usage.Complete(cmd, "sort", top.Columns())
	usage.Complete(cmd, "role", []string{"plain", "prefill", "decode"})
	return cmd
}

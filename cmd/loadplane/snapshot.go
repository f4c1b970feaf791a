package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) snapshotCommand() *cobra.Command {
	var f remote.Flags
	var out remote.Output
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Print the load of all workers once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := out.Format()
			if err != nil {
				return err
			}
			c, err := f.Connect()
			if err != nil {
				return err
			}
			defer c.Close()
			return c.Snapshot(cmd.Context(), a.out, format)
		},
	}
	f.Register(cmd.Flags())
	out.Register(cmd.Flags(), "table", "wide", "json", "yaml")
	return cmd
}

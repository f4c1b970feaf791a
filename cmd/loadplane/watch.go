package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) watchCommand() *cobra.Command {
	var f remote.Flags
	var out remote.Output
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print a line for every message of a watch",
		Long: `Print a line for every message of a watch, until Ctrl-C. It does not connect
again: when the plane ends the stream it says why and exits with 1.`,
		Args: cobra.NoArgs,
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
			return c.Watch(cmd.Context(), a.out, format)
		},
	}
	f.Register(cmd.Flags())
	out.Register(cmd.Flags(), "table", "json")
	return cmd
}

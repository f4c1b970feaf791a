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
		Short: "Print a line for every change and heartbeat of a watch",
		Long: `Print a line for every change and heartbeat of a watch, until Ctrl-C. A full
names all workers as changed, a delta those that changed and were removed. Every
view is checked against the digest that the plane sends. With -o json each
message of the stream is a line. It does not connect again: when the plane ends
the stream it says why and exits with 1.`,
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

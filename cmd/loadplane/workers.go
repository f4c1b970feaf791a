package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "What the plane knows of the way to each worker",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("workers wants a command: list")
		},
	}
	cmd.AddCommand(a.workersListCommand())
	return cmd
}

func (a *app) workersListCommand() *cobra.Command {
	var f remote.Flags
	var out remote.Output
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the workers and the state of their registration",
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
			return c.Workers(cmd.Context(), a.out, format)
		},
	}
	f.Register(cmd.Flags())
	out.Register(cmd.Flags(), "table", "wide", "json", "yaml")
	return cmd
}

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
	return a.asks(&cobra.Command{
		Use:   "list",
		Short: "List the workers and the state of their registration",
	}, (*remote.Client).Workers, "table", "wide", "json", "yaml")
}

package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) snapshotCommand() *cobra.Command {
	return a.asks(&cobra.Command{
		Use:   "snapshot",
		Short: "Print the load of all workers once",
	}, (*remote.Client).Snapshot, "table", "wide", "json", "yaml")
}

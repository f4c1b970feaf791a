package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

func (a *app) watchCommand() *cobra.Command {
	return a.asks(&cobra.Command{
		Use:   "watch",
		Short: "Print a line for every change and heartbeat of a watch",
		Long: `Print a line for every change and heartbeat of a watch, until Ctrl-C. A full
names all workers as changed, a delta those that changed and were removed. Every
view is checked against the digest that the plane sends. With -o wide a line
names the workers that changed, 16 at most; with -o json each message of the
stream is a line, with -o yaml a document. It does not connect again: when the
plane ends the stream it says why and exits with 1.`,
	}, (*remote.Client).Watch, "table", "wide", "json", "yaml")
}

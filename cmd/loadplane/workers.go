package main

import (
	"context"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/operate"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/spf13/cobra"
)

func (a *app) workersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "What the plane knows of the way to each worker, and changes of its list",
		Args:  usage.Group,
		RunE: func(*cobra.Command, []string) error {
			return usagef("workers wants a command: list, add, remove or drain")
		},
	}
	cmd.AddCommand(a.workersListCommand(), a.workersAddCommand(), a.workersRemoveCommand(), a.workersDrainCommand())
	return cmd
}

func (a *app) workersListCommand() *cobra.Command {
	return a.asks(&cobra.Command{
		Use:   "list",
		Short: "List the workers, the state of their registration, and the sources of discovery",
	}, (*remote.Client).Workers, "table", "wide", "json", "yaml")
}

func (a *app) workersAddCommand() *cobra.Command {
	return a.orders(&cobra.Command{
		Use:   "add URL[,key=value...]",
		Short: "Add a worker until the plane ends",
		Long: `Add a worker by the plane's admin socket, with the keys of serve --worker. The
list of workers that were added is kept in memory: it is gone when the plane
ends. Flags and the workers file win over it, and it over every other source.`,
	}, (*operate.Operator).Add)
}

func (a *app) workersRemoveCommand() *cobra.Command {
	return a.orders(&cobra.Command{
		Use:   "remove ID",
		Short: "Remove a worker that was added",
		Long: `Remove a worker that workers add added, by the plane's admin socket. Workers of
other sources are removed there.`,
	}, (*operate.Operator).Remove)
}

func (a *app) workersDrainCommand() *cobra.Command {
	var undo bool
	cmd := a.orders(&cobra.Command{
		Use:   "drain ID",
		Short: "Keep new work from a worker of any source",
		Long: `Keep new work from a worker of any source, by the plane's admin socket, until
that is undone, no source lists the worker any more, or the plane ends.`,
	}, func(o *operate.Operator, ctx context.Context, w io.Writer, id string) error {
		return o.Drain(ctx, w, id, !undo)
	})
	cmd.Flags().BoolVar(&undo, "undo", false, "let the worker have new work again")
	return cmd
}

// orders completes a command that changes one worker by an admin socket.
func (a *app) orders(cmd *cobra.Command, do func(o *operate.Operator, ctx context.Context, w io.Writer, worker string) error) *cobra.Command {
	var f operate.SocketFlags
	cmd.Args = usage.One
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o, err := f.Connect(a.environ)
		if err != nil {
			return err
		}
		return do(o, cmd.Context(), a.out, args[0])
	}
	f.Register(cmd.Flags())
	return cmd
}

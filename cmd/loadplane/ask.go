package main

import (
	"context"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/spf13/cobra"
)

// question is what a command asks a running plane, and writes.
type question func(c *remote.Client, ctx context.Context, s remote.Screen, format string) error

// asks completes a command that puts one question to a running plane: the
// flags that say how to reach it, and --output with its formats, the default
// first.
func (a *app) asks(cmd *cobra.Command, ask question, formats ...string) *cobra.Command {
	var f remote.Flags
	var out remote.Output
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return connected(&f, &out, func(c *remote.Client, format string) error {
			return ask(c, cmd.Context(), remote.Screen{Writer: a.out, Columns: a.columns}, format)
		})
	}
	f.Register(cmd.Flags())
	registerOutput(cmd, &out, formats...)
	return cmd
}

// connected does something with a plane, after the flags were checked.
func connected(f *remote.Flags, out *remote.Output, do func(c *remote.Client, format string) error) error {
	format, err := out.Format()
	if err != nil {
		return err
	}
	c, err := f.Connect()
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c, format)
}

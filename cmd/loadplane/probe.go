package main

import (
	"github.com/loadplane/loadplane/cmd/loadplane/inspect"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/spf13/cobra"
)

func (a *app) probeCommand() *cobra.Command {
	var f inspect.Flags
	var out remote.Output
	cmd := &cobra.Command{
		Use:   "probe URL",
		Short: "Ask an engine what it is and how its load can be had",
		Long: `Ask an engine, by GET requests only, what it is and in which dialects its load
can be had: the pages asked for, the engine, its version, models, role and DP
ranks, which name was found for which field, which fields stay unknown, the
values of the ranks, and the dialect that would be used and why. The values are
those of the load page, whatever dialect would be used; it is read again after a
second, for rates. A reporter port gets a connection and nothing on it. The exit
code is 1 where no dialect can be used.`,
		Args: usage.One,
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := out.Format()
			if err != nil {
				return err
			}
			report, err := f.Ask(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return inspect.Write(a.out, report, format)
		},
	}
	f.Register(cmd.Flags())
	registerOutput(cmd, &out, "table", "json")
	return cmd
}

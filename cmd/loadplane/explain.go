package main

import (
	"context"
	"errors"
	"time"

	"github.com/loadplane/loadplane/cmd/loadplane/findings"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/spf13/cobra"
)

// completeWithin bounds the question that completes a worker's name.
const completeWithin = time.Second

// errFailing is the answer of --exit-code.
var errFailing = errors.New("a check of the worker fails")

func (a *app) explainCommand() *cobra.Command {
	var f remote.Flags
	var out remote.Output
	var code bool
	cmd := &cobra.Command{
		Use:   "explain WORKER",
		Short: "Say of one worker what holds, what does not, and what to do",
		Long: `Say of one worker, by its id or its base URL, what has to hold for its load to be
seen, check by check in the order in which load comes, with what to do about
what fails, and what happened to it last. The first check that fails is most
often the cause of those below it.

The marks are OK, WARN (it holds, but not for long, or at a cost), FAIL, "?"
(nothing is known) and "-" (for information).

The exit code is 0 where the worker was explained, 1 where it could not be, 2
for a wrong command line. With --exit-code it is 3 where a check fails, so that
scripts can ask whether all is well.`,
		Args:              usage.One,
		ValidArgsFunction: completeWorker(&f),
		RunE: func(cmd *cobra.Command, args []string) error {
			return connected(&f, &out, func(c *remote.Client, format string) error {
				res, err := findings.Ask(cmd.Context(), c, args[0])
				if err != nil {
					return err
				}
				if err := findings.Write(a.out, res, format); err != nil {
					return err
				}
				if code && findings.Failing(res) {
					return errFailing
				}
				return nil
			})
		},
	}
	f.Register(cmd.Flags())
	registerOutput(cmd, &out, "table", "json", "yaml")
	cmd.Flags().BoolVar(&code, "exit-code", false, "exit with 3 where a check fails")
	return cmd
}

// completeWorker completes the id of a worker by asking the plane, within a
// second and without a word where that fails.
func completeWorker(f *remote.Flags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		c, err := f.Connect()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		ids, err := findings.Names(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// registerOutput adds --output, and its formats to the completion.
func registerOutput(cmd *cobra.Command, out *remote.Output, formats ...string) {
	out.Register(cmd.Flags(), formats...)
	usage.Complete(cmd, "output", formats)
}

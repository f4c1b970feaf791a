package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/service/config"
	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// app is what the commands share of the process. It is for one goroutine.
type app struct {
	// out takes results, err logs and errors.
	out, err io.Writer
	// environ has the form of os.Environ.
	environ []string
	// terminal says that err is one.
	terminal bool
	// columns is the width of the terminal that out is; 0 where it is none.
	columns int
	// started says that a command's own work began: errors before that are
	// faults of the command line.
	started bool
}

// usageError is a fault of the command line that a command found itself.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(a.err, "loadplane: %s\n", redactURL(err.Error()))
	var usage usageError
	var remoteUsage *remote.UsageError
	var badConfig *config.Error
	switch {
	case !a.started || errors.As(err, &usage) || errors.As(err, &remoteUsage):
		fmt.Fprintln(a.err, "loadplane: see loadplane help")
		return exitUsage
	case errors.As(err, &badConfig):
		return exitUsage
	}
	return exitFailure
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "loadplane",
		Short:         "One coherent view of the load of every inference engine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.started = true
			return cmd.Help()
		},
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		a.serveCommand(), a.demoCommand(), a.simCommand(),
		a.snapshotCommand(), a.watchCommand(), a.workersCommand(), a.pickCommand(), a.probeCommand(),
		a.checkConfigCommand(), a.versionCommand(),
	)
	return root
}

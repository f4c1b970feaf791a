package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/usage"
	"github.com/loadplane/loadplane/service/config"
	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	// exitFailing: explain --exit-code found a check that fails.
	exitFailing = 3
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
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(a.err, "loadplane: %s\n", redactURL(err.Error()))
	var misuse usageError
	var remoteUsage *remote.UsageError
	var badConfig *config.Error
	switch {
	case !a.started || errors.As(err, &misuse) || errors.As(err, &remoteUsage):
		fmt.Fprintf(a.err, "loadplane: see %s --help\n", cmd.CommandPath())
		return exitUsage
	case errors.As(err, &badConfig):
		return exitUsage
	case errors.Is(err, errFailing):
		return exitFailing
	}
	return exitFailure
}

const rootText = `One coherent view of the load of every inference engine, per DP rank.

Try it:            loadplane demo, then loadplane top
Run it:            loadplane serve --worker http://HOST:PORT
What is wrong:     loadplane explain WORKER, loadplane probe URL
Shell completion:  loadplane completion bash --help, and zsh, fish, powershell

Exit codes:
  0  done, or ended by a signal that was waited for
  1  it failed: no answer from the plane, a refusal, a start that failed
  2  the command line or the configuration is wrong
  3  explain --exit-code: a check of the worker fails`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "loadplane",
		Short:         "One coherent view of the load of every inference engine",
		Long:          rootText,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage.Group,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.started = true
			return cmd.Help()
		},
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.AddCommand(
		a.serveCommand(), a.demoCommand(), a.simCommand(),
		a.snapshotCommand(), a.watchCommand(), a.topCommand(), a.workersCommand(), a.explainCommand(), a.pickCommand(), a.probeCommand(),
		a.checkConfigCommand(), a.versionCommand(),
	)
	return root
}

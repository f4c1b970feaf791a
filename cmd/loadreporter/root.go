package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// version is set by the linker in releases.
var version string

// app is what the command has of the process. It is for one goroutine.
type app struct {
	// out takes results, err logs and errors.
	out, err io.Writer
	// terminal says that err is one.
	terminal bool
	// started says that the work began: errors before that are faults of the
	// command line.
	started bool
}

// usageError is a fault of the command line.
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
	fmt.Fprintf(a.err, "loadreporter: %s\n", printable(strings.ReplaceAll(err.Error(), "\n", "; "), maxErrorText))
	var usage usageError
	if !a.started || errors.As(err, &usage) {
		fmt.Fprintln(a.err, "loadreporter: see loadreporter --help")
		return exitUsage
	}
	return exitFailure
}

func (a *app) root() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:   "loadreporter --engine URL",
		Short: "Sample the load of the engine beside it and report it",
		Long: `Sample the load of one engine and report it until SIGINT or SIGTERM: to the
planes of --plane, at which it registers itself, and to routers that ask for it
by POST /v1/start_reporting as they ask an SGLang with the push load reporter.

Of several processes for one engine, on one host and of one user, one samples
and reports. The others forward to it and take over when it is gone.`,
		Args:          cobra.NoArgs,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.started = true
			c, err := s.check()
			if err != nil {
				return usageError{err}
			}
			return a.logging(c, func(l *slog.Logger) error { return report(cmd.Context(), c, l) })
		},
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("loadreporter {{.Version}}\n")
	root.CompletionOptions.DisableDefaultCmd = true
	s.register(root.Flags())
	return root
}

// versionText returns the version, or else the revision it was built from.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel-" + s.Value[:min(len(s.Value), 12)]
		}
	}
	return "devel"
}

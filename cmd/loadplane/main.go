// Command loadplane runs the load-control plane and talks to a running one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// The first signal asks for a drain. From then on signals act as if they
	// were not caught, so a second one stops at once.
	context.AfterFunc(ctx, stop)
	columns, _, _ := term.GetSize(int(os.Stdout.Fd())) // 0 where it is no terminal
	a := &app{
		out:      os.Stdout,
		err:      os.Stderr,
		environ:  os.Environ(),
		terminal: term.IsTerminal(int(os.Stderr.Fd())),
		columns:  columns,
	}
	os.Exit(a.run(ctx, os.Args[1:]))
}

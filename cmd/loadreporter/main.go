// Command loadreporter runs beside one inference engine, samples its load and
// reports it to planes and routers.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/term"
)

// memoryLimit is the soft limit of the Go runtime where GOMEMLIMIT sets none,
// bytes.
const memoryLimit = 24 << 20

func main() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// A sample is a few short steps, one after the other. More threads for
		// them would wake each other, which costs more than the steps.
		runtime.GOMAXPROCS(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// From the first signal on they act as if they were not caught, so a second
	// one stops at once.
	context.AfterFunc(ctx, stop)
	a := &app{out: os.Stdout, err: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	os.Exit(a.run(ctx, os.Args[1:]))
}

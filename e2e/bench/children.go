package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/server"
	"github.com/loadplane/loadplane/e2e/bench/views"
)

// setUpWithin bounds each step before a measurement.
const setUpWithin = 60 * time.Second

// serveChild answers questions until in ends.
func serveChild(name string, in io.Reader, out io.Writer) error {
	open, ok := children[name]
	if !ok {
		return fmt.Errorf("there is no child %q", name)
	}
	roles, closing := open()
	defer closing()
	return child.Serve(roles, in, out)
}

// children are the processes, by name: what they answer and how they end.
var children = map[string]func() (map[string]child.Role, func()){
	"server":   serverChild,
	"engines":  enginesChild,
	"pages":    pagesChild,
	"readers":  readersChild,
	"router":   routerChild,
	"views":    viewsChild,
	"sim":      simChild,
	"receiver": receiverChild,
	"bare":     bareChild,
	"flood":    floodChild,
}

// awaited are numbers of workers to wait for.
type awaited struct{ Workers, Heard int }

func serverChild() (map[string]child.Role, func()) {
	var p *server.Process
	closing := func() {
		if p != nil {
			p.Close()
		}
	}
	return map[string]child.Role{
		"open": child.Takes(func(s server.Spec) (_ server.Addresses, err error) {
			if p, err = server.Open(s); err != nil {
				return server.Addresses{}, err
			}
			return p.Addresses, nil
		}),
		"await": child.Does(func(a awaited) error {
			ctx, cancel := context.WithTimeout(context.Background(), setUpWithin)
			defer cancel()
			return p.Await(ctx, a.Workers, a.Heard)
		}),
		"usage":   child.Takes(func(child.Nothing) (server.Usage, error) { return p.Usage(), nil }),
		"memory":  child.Takes(func(child.Nothing) (server.Memory, error) { return server.ReadMemory(), nil }),
		"profile": child.Does(func(path string) error { return p.Profile(path) }),
	}, closing
}

// connection says what an engines or a readers process opens.
type connection struct {
	Server   string
	N, Ranks int
}

func enginesChild() (map[string]child.Role, func()) {
	var f *engine.Fleet
	var serving sync.WaitGroup
	closing := func() {
		if f == nil {
			return
		}
		f.Halt()
		f.Disconnect()
		_ = f.Close()
		serving.Wait()
	}
	return map[string]child.Role{
		"open": child.Takes(func(child.Nothing) (_ int, err error) {
			if f, err = engine.NewFleet(); err != nil {
				return 0, err
			}
			serving.Go(func() {
				if err := f.Serve(); err != nil {
					fmt.Fprintln(os.Stderr, "bench: engines:", err)
				}
			})
			return f.Port(), nil
		}),
		"connect": child.Does(func(c connection) error {
			ctx, cancel := context.WithTimeout(context.Background(), setUpWithin)
			defer cancel()
			return f.Connect(ctx, c.Server, c.N, c.Ranks)
		}),
		"saturate":   child.Does(func(child.Nothing) error { f.Saturate(); return nil }),
		"pace":       child.Does(func(rate int) error { f.Pace(rate); return nil }),
		"disconnect": child.Does(func(child.Nothing) error { f.Disconnect(); return nil }),
		"halt": child.Takes(func(child.Nothing) (engine.Sent, error) {
			s := f.Halt()
			if s.Failure != "" {
				return s, errors.New(s.Failure)
			}
			return s, nil
		}),
	}, closing
}

// opened is what a pages process opened.
type opened struct{ Port, Size int }

func pagesChild() (map[string]child.Role, func()) {
	var p *engine.Pages
	var serving sync.WaitGroup
	closing := func() {
		if p != nil {
			_ = p.Close()
			serving.Wait()
		}
	}
	return map[string]child.Role{
		"open": child.Takes(func(s engine.PagesSpec) (_ opened, err error) {
			if p, err = engine.OpenPages(s); err != nil {
				return opened{}, err
			}
			serving.Go(func() {
				if err := p.Serve(); err != nil {
					fmt.Fprintln(os.Stderr, "bench: pages:", err)
				}
			})
			return opened{p.Port(), p.Size()}, nil
		}),
		"record":    child.Does(func(child.Nothing) error { p.Record(); return nil }),
		"intervals": child.Takes(func(child.Nothing) (engine.Intervals, error) { return p.Intervals(), nil }),
	}, closing
}

func readersChild() (map[string]child.Role, func()) {
	var r engine.Readers
	return map[string]child.Role{
		"connect": child.Does(func(c connection) error {
			ctx, cancel := context.WithTimeout(context.Background(), setUpWithin)
			defer cancel()
			return r.Connect(ctx, c.Server, c.N)
		}),
		"received": child.Takes(func(child.Nothing) (uint64, error) { return r.Received() }),
	}, r.Disconnect
}

func routerChild() (map[string]child.Role, func()) {
	ctx, stop := context.WithCancel(context.Background())
	r := engine.NewRouter()
	var runs sync.WaitGroup
	return map[string]child.Role{
		"connect": child.Does(func(c connection) error {
			runs.Go(func() { _ = r.Run(ctx, "http://"+c.Server) }) // Ages has its error.
			return nil
		}),
		"record": child.Does(func(interval time.Duration) error { r.Record(interval); return nil }),
		"ages": child.Takes(func(child.Nothing) (engine.Ages, error) {
			a := r.Ages()
			if a.Failure != "" {
				return a, errors.New(a.Failure)
			}
			return a, nil
		}),
	}, func() { stop(); runs.Wait() }
}

// viewsRun is a question to a views process.
type viewsRun struct {
	views.Spec
	Profile string
}

func viewsChild() (map[string]child.Role, func()) {
	return map[string]child.Role{
		"run": child.Takes(func(q viewsRun) (views.Result, error) {
			if q.Profile != "" {
				f, err := os.Create(q.Profile)
				if err != nil {
					return views.Result{}, err
				}
				defer f.Close()
				if err := pprof.StartCPUProfile(f); err != nil {
					return views.Result{}, err
				}
				defer pprof.StopCPUProfile()
			}
			return views.Run(context.Background(), q.Spec)
		}),
	}, func() {}
}

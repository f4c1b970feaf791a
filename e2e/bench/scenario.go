package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/loadplane/loadplane/e2e/bench/child"
	"github.com/loadplane/loadplane/e2e/bench/engine"
	"github.com/loadplane/loadplane/e2e/bench/report"
	"github.com/loadplane/loadplane/e2e/bench/server"
)

// The cores of a pinned scenario.
const (
	serverCore = 0
	loadCore   = 1
)

// family is the children of one scenario.
type family struct {
	bench    *bench
	children []*child.Process
}

// start starts a child on a core, where the machine pins.
func (f *family) start(role string, core int) (*child.Process, error) {
	if !f.bench.machine.Pinned {
		core = child.Unpinned
	}
	c, err := child.Start(f.bench.ctx, role, core)
	if err == nil {
		f.children = append(f.children, c)
	}
	return c, err
}

// stop ends the load before the servers.
func (f *family) stop() {
	for i := len(f.children) - 1; i >= 0; i-- {
		f.children[i].Stop()
	}
}

// setup says what a scenario has. It is a plain value.
type setup struct {
	kind     server.Kind
	workers  int
	ranks    int
	interval time.Duration
	// free leaves the processes on all cores.
	free bool
}

// scenario is a server and the engines that it knows of. It is for one
// goroutine.
type scenario struct {
	family
	setup
	server, engines *child.Process
	addresses       server.Addresses
}

// open starts the processes of a setup and waits until the workers are
// listed. stop ends them, also after an error.
func (b *bench) open(s setup) (*scenario, error) {
	sc := &scenario{family: family{bench: b}, setup: s}
	var port int
	err := sc.launch(&port)
	if err == nil {
		err = sc.serve(port)
	}
	if err != nil {
		sc.stop()
		return nil, err
	}
	return sc, nil
}

// core returns where a process belongs.
func (sc *scenario) core(n int) int {
	if sc.free {
		return child.Unpinned
	}
	return n
}

func (sc *scenario) launch(port *int) (err error) {
	if sc.server, err = sc.start("server", sc.core(serverCore)); err != nil {
		return err
	}
	if sc.engines, err = sc.start("engines", sc.core(loadCore)); err != nil {
		return err
	}
	return sc.engines.Do("open", child.Nothing{}, port)
}

func (sc *scenario) serve(port int) error {
	file, err := sc.bench.workersFile(sc.workers, port)
	if err != nil {
		return err
	}
	spec := server.Spec{Kind: sc.kind, WorkersFile: file, Interval: sc.interval}
	if err := sc.server.Do("open", spec, &sc.addresses); err != nil {
		return err
	}
	return sc.server.Do("await", awaited{Workers: sc.workers}, nil)
}

// connect connects the engines and waits until all were heard.
func (sc *scenario) connect() error {
	err := sc.engines.Do("connect", connection{sc.addresses.Ingest, sc.workers, sc.ranks}, nil)
	if err != nil {
		return err
	}
	return sc.server.Do("await", awaited{Workers: sc.workers, Heard: true}, nil)
}

// readers opens watches that read and discard.
func (sc *scenario) readers(n int) (*child.Process, error) {
	c, err := sc.start("readers", sc.core(loadCore))
	if err != nil {
		return nil, err
	}
	err = c.Do("connect", connection{Server: sc.addresses.API, N: n}, nil)
	return c, err
}

// workersFile writes the list of n engines.
func (b *bench) workersFile(n, port int) (string, error) {
	var text strings.Builder
	text.WriteString("workers:\n")
	if n == 0 {
		text.Reset()
		text.WriteString("workers: []\n")
	}
	for i := range n {
		fmt.Fprintf(&text, "- {url: %q, model: bench-model}\n", engine.Origin(i, port))
	}
	path := filepath.Join(b.dir, "workers.yaml")
	return path, os.WriteFile(path, []byte(text.String()), 0o600)
}

// spent is what a server used in a measurement. It is a plain value.
type spent struct {
	reports  float64
	seconds  float64
	cpu      time.Duration
	mallocs  float64
	refusals uint64
}

// spend measures the server over the duration of a measurement.
func (sc *scenario) spend() (spent, error) {
	var before, after server.Usage
	if err := sc.server.Do("usage", child.Nothing{}, &before); err != nil {
		return spent{}, err
	}
	if err := sc.bench.pause(sc.bench.duration); err != nil {
		return spent{}, err
	}
	if err := sc.server.Do("usage", child.Nothing{}, &after); err != nil {
		return spent{}, err
	}
	s := spent{
		reports: float64(after.Reports - before.Reports), seconds: after.At.Sub(before.At).Seconds(),
		cpu: after.CPU - before.CPU, mallocs: float64(after.Mallocs - before.Mallocs), refusals: after.Refused,
	}
	if s.refusals > 0 || s.reports == 0 {
		return s, fmt.Errorf("%.0f reports were accepted, %d refused", s.reports, s.refusals)
	}
	return s, nil
}

func (s spent) values() report.Values {
	return report.Values{
		report.ReportRate:  s.reports / s.seconds,
		report.ReportCPU:   float64(s.cpu.Microseconds()) / s.reports,
		"allocs a report":  s.mallocs / s.reports,
		report.ServerCores: s.cpu.Seconds() / s.seconds,
	}
}

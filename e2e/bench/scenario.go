package main

import (
	"cmp"
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
	// pages are engines that are polled; nil for engines that push.
	pages *engine.PagesSpec
	// failing says that some of them are not to be heard, so that refusals are
	// no fault.
	failing bool
}

// answering is how many workers are heard, once all is well.
func (s *setup) answering() int {
	if s.pages == nil {
		return s.workers
	}
	return s.workers - s.pages.Black - s.pages.Drip
}

// scenario is a server and the engines that it knows of. It is for one
// goroutine.
type scenario struct {
	family
	setup
	server, engines *child.Process
	addresses       server.Addresses
	// pageBytes is the size of a page of the engines that are polled.
	pageBytes int
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
	if sc.pages != nil {
		return sc.launchPages(port)
	}
	if sc.engines, err = sc.start("engines", sc.core(loadCore)); err != nil {
		return err
	}
	return sc.engines.Do("open", child.Nothing{}, port)
}

func (sc *scenario) launchPages(port *int) (err error) {
	if sc.engines, err = sc.start("pages", sc.core(loadCore)); err != nil {
		return err
	}
	var o opened
	err = sc.engines.Do("open", *sc.pages, &o)
	*port, sc.pageBytes = o.Port, o.Size
	return err
}

func (sc *scenario) serve(port int) error {
	dialect := ""
	if sc.pages != nil {
		dialect = ", dialect: poll"
	}
	urls := origins(sc.workers, port)
	file, err := sc.bench.workersFile(urls, dialect)
	if err != nil {
		return err
	}
	spec := server.Spec{Kind: sc.kind, WorkersFile: file, Interval: sc.interval}
	if sc.kind == server.Parsed || sc.kind == server.Transfer {
		spec.URLs = urls
	}
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
	return sc.heard()
}

// heard waits until all workers were heard that will be.
func (sc *scenario) heard() error {
	return sc.server.Do("await", awaited{Workers: sc.workers, Heard: sc.answering()}, nil)
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

// origins are the base URLs of n engines.
func origins(n, port int) []string {
	urls := make([]string, n)
	for i := range urls {
		urls[i] = engine.Origin(i, port)
	}
	return urls
}

// workersFile writes the list of engines; more stands behind the keys of each.
func (b *bench) workersFile(urls []string, more string) (string, error) {
	var text strings.Builder
	text.WriteString("workers:\n")
	if len(urls) == 0 {
		text.Reset()
		text.WriteString("workers: []\n")
	}
	for _, url := range urls {
		fmt.Fprintf(&text, "- {url: %q, model: bench-model%s}\n", url, more)
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
	// goroutines and sockets are those at the end.
	goroutines, sockets float64
}

// spend measures the server over the duration of a measurement.
func (sc *scenario) spend() (spent, error) { return sc.spendFor(sc.bench.duration) }

func (sc *scenario) spendFor(d time.Duration) (spent, error) {
	var before, after server.Usage
	if err := sc.server.Do("usage", child.Nothing{}, &before); err != nil {
		return spent{}, err
	}
	if err := sc.bench.pause(d); err != nil {
		return spent{}, err
	}
	if err := sc.server.Do("usage", child.Nothing{}, &after); err != nil {
		return spent{}, err
	}
	s := spent{
		reports: float64(after.Reports - before.Reports), seconds: after.At.Sub(before.At).Seconds(),
		cpu: after.CPU - before.CPU, mallocs: float64(after.Mallocs - before.Mallocs), refusals: after.Refused,
		goroutines: float64(after.Goroutines), sockets: float64(after.Sockets),
	}
	if s.refusals > 0 && !sc.failing || s.reports == 0 {
		return s, fmt.Errorf("%.0f reports were accepted, %d refused; %s", s.reports, s.refusals, cmp.Or(after.Failure, "no poll failed"))
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

package sim

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/loadstat"
	"github.com/loadplane/loadplane/sim/monitor"
	"github.com/loadplane/loadplane/sim/native"
	"github.com/loadplane/loadplane/sim/ports"
	"github.com/loadplane/loadplane/sim/reporter"
)

// life is one process of an engine, with all that it shows and serves. ctx ends
// with it.
type life struct {
	*reporter.Process
	ctx   context.Context
	end   context.CancelFunc
	ranks int
	pages http.Handler
	// row are the ports beside that of HTTP; nil for none.
	row *ports.Row
	// beside serves what is not HTTP until ctx ends; nil for nothing.
	beside func(ctx context.Context) error
	// sessions counts those of routers that dialled the engine.
	sessions func() int
}

// close ends the process and what it serves. Its ports stay reserved.
func (l *life) close() {
	l.end()
	l.Close()
}

// newLife returns the process of the next life with a number of ranks. The
// first one has been at work for a while. Ports stay as they are where their
// number does. The error is that of new ports.
func (e *Engine) newLife(ranks int) (*life, error) {
	l := &life{ranks: ranks, sessions: func() int { return 0 }}
	if e.life != nil {
		l.row = e.life.row
	}
	if n := e.info.Kind.ports(ranks); n > 0 && (l.row == nil || l.row.Size() != n) {
		row, err := ports.Reserve(e.net.listen, e.opts.Listen, n)
		if err != nil {
			return nil, err
		}
		l.row = row
	}
	e.lives++
	l.ctx, l.end = context.WithCancel(context.Background())
	l.Process = reporter.New(e.process(ranks))
	l.pages = e.info.Kind.pages(e.face(l))
	e.furnish(l)
	return l, nil
}

// process describes the process of the present life.
func (e *Engine) process(ranks int) reporter.Config {
	return reporter.Config{
		Role:        e.info.Role.workerType(),
		Model:       e.info.Model,
		Zone:        e.info.Zone,
		Ranks:       ranks,
		Seed:        e.opts.Seed,
		Stream:      uint64(e.index)<<32 | e.lives,
		Warm:        e.lives == 1,
		NoTraffic:   e.opts.NoTraffic,
		FirstSample: e.opts.FirstSample,
		Faults:      &e.faults.reports,
		Dial:        e.net.dial,
	}
}

// furnish gives a life what its kind has beside pages.
func (e *Engine) furnish(l *life) {
	role, faults := e.info.Role.workerType(), &e.faults.reports
	switch e.info.Kind {
	case KindSGLangMonitor:
		s := monitor.New(monitor.Config{Process: l.Process, Role: role, Model: e.info.Model, Faults: faults, Slow: e.slow})
		l.sessions = s.Sessions
		l.beside = l.listening(func(ctx context.Context, row []net.Listener) error { return s.Run(ctx, row[0]) })
	case KindSGLangLoadStat:
		p := loadstat.New(l.ranks, loadstat.Config{Process: l.Process, Role: role, Faults: faults})
		l.beside = l.listening(p.Run)
	}
}

// listening gives run the listeners of the row.
func (l *life) listening(run func(context.Context, []net.Listener) error) func(context.Context) error {
	return func(ctx context.Context) error {
		row, err := l.row.Take()
		if err != nil {
			return fmt.Errorf("cannot listen: %w", err)
		}
		return run(ctx, row)
	}
}

// face is what the pages of a life are made of.
func (e *Engine) face(l *life) face.Engine {
	host, portText, _ := net.SplitHostPort(e.address) // an address we listened on
	port, _ := strconv.Atoi(portText)
	f := face.Engine{
		Model:  e.info.Model,
		Mode:   "null",
		Zone:   e.info.Zone,
		Host:   host,
		Port:   port,
		Ranks:  l.ranks,
		Pushes: e.info.Kind == KindSGLang,
		Sample: l.Sample,
	}
	if e.info.Role != RolePlain {
		f.Mode = string(e.info.Role)
	}
	switch e.info.Kind {
	case KindSGLangMonitor:
		f.ReporterPort = l.row.Base()
	case KindSGLangLoadStat:
		f.LoadPort = l.row.Base()
	}
	return f
}

// keepBeside serves what is not HTTP, life after life, until ctx ends.
func (e *Engine) keepBeside(ctx context.Context) {
	for l := e.current(); l.beside != nil && ctx.Err() == nil; l = e.current() {
		until, stop := context.WithCancel(ctx)
		ended := context.AfterFunc(l.ctx, stop)
		if err := l.beside(until); err != nil && until.Err() == nil {
			e.log.Error("engine stopped serving beside its pages", "error", err)
			wait(until, relistenAfter)
		}
		ended()
		stop()
	}
}

// report registers a native engine at its plane and reports until ctx ends. The
// lease is that of the engine, not of a life.
func (e *Engine) report(ctx context.Context) {
	err := native.Run(ctx, native.Config{
		Process: e.reporting, Plane: e.opts.Plane, URL: e.info.URL, Model: e.info.Model, Zone: e.info.Zone,
		Faults: &e.faults.reports, Logger: e.log,
	})
	if err != nil && ctx.Err() == nil {
		e.log.Error("engine cannot report", "error", err)
	}
}

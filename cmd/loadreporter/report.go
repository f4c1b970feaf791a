package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadreporter/build"
	"github.com/loadplane/loadplane/cmd/loadreporter/control"
	"github.com/loadplane/loadplane/cmd/loadreporter/node"
	"github.com/loadplane/loadplane/cmd/loadreporter/owner"
	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
)

// report does the work until ctx ends.
func report(ctx context.Context, c *config, logger *slog.Logger) error {
	p := &parts{config: c, logger: logger, registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	seat, err := p.seat()
	if err != nil {
		return err
	}
	face, err := control.New(control.Options{
		Desk: seat, Guard: &control.Guard{Targets: c.allowed},
		Gatherer: p.registry, Registerer: p.registry, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.listen)
	if err != nil {
		return usagef("--listen: %w", err)
	}
	p.greet(ln)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return control.Serve(ctx, ln, face) })
	g.Go(func() error { return seat.Run(ctx) })
	err = p.nameState(g.Wait())
	p.logger.Info("load reporter stopped")
	return err
}

// nameState names the flag where the files of the owner are what is wrong.
func (p *parts) nameState(err error) error {
	var file *fs.PathError
	if errors.As(err, &file) && strings.HasPrefix(file.Path, filepath.Clean(p.stateDir)) {
		return fmt.Errorf("--state-dir: %w", err)
	}
	return err
}

// parts makes the parts of the process. It is for one goroutine.
type parts struct {
	*config
	logger   *slog.Logger
	registry *prometheus.Registry
}

// greet says what runs, and warns of what others may see.
func (p *parts) greet(ln net.Listener) {
	p.logger.Info("load reporter started", "version", versionText(), "engine", p.target.URL, "advertise", p.origin, "listen", ln.Addr())
	if len(p.planes) == 0 {
		p.logger.Info("no plane is configured; reports go to routers that ask for them")
	}
	if p.listensElsewhere {
		p.logger.Warn("the HTTP listener is reachable from other hosts and asks for no credential", "listen", ln.Addr())
	}
	for _, plane := range p.planes {
		if p.token != "" && plaintext(plane) {
			p.logger.Warn("the token goes to a plane in plaintext", "plane", plane)
		}
	}
}

// plaintext says whether a URL leads to another host without TLS.
func plaintext(address string) bool {
	u, err := url.Parse(address)
	if err != nil || !strings.EqualFold(u.Scheme, "http") {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (p *parts) seat() (*owner.Seat, error) {
	files, err := owner.FilesIn(p.stateDir, p.target.Origin)
	if err != nil {
		return nil, usagef("--state-dir: %w", err)
	}
	n, err := p.node()
	if err != nil {
		return nil, err
	}
	return owner.New(owner.Options{Files: files, Node: n, Registerer: p.registry, Logger: p.logger})
}

func (p *parts) node() (*node.Node, error) {
	src, err := p.source()
	if err != nil {
		return nil, err
	}
	opts := node.Options{
		Source: src, Advertise: p.advertised.URL, Origin: p.origin,
		Identity: build.Identity{Role: p.advertised.Role, Models: p.advertised.Models, Zone: p.advertised.Zone},
		Labels:   p.advertised.Labels, Planes: p.planes, TLS: p.tls,
		Interval: p.interval, StaleAfter: p.staleAfter,
		UnknownAsZero: p.unknown == "zero", MaxTargets: p.maxTargets,
		Registerer: p.registry, Logger: p.logger,
	}
	if p.token != "" {
		opts.Token = func(context.Context) (string, error) { return egress.ReadToken(p.token) }
	}
	n, err := node.New(opts)
	if err != nil {
		return nil, usageError{err}
	}
	return n, nil
}

func (p *parts) source() (*source.Source, error) {
	clock := store.NewClock()
	prober, err := probe.New(probe.Options{Clock: clock, Timeout: p.timeout, Registerer: p.registry, Logger: p.logger})
	if err != nil {
		return nil, err
	}
	return source.New(source.Options{
		Target: p.target, Timeout: p.timeout, StaleAfter: p.staleAfter,
		Prober: prober, Clock: clock, Logger: p.logger, Registerer: p.registry,
	})
}

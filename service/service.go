package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/api/series"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/service/access"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/service/scaler"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/journal"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Options are what a Service needs beside its configuration.
type Options struct {
	// Logger is nil for the default one.
	Logger *slog.Logger
	// Version is the program's own, shown to people; may be empty.
	Version string
	// Epoch is the epoch of this start, Unix milliseconds; 0 reads the wall
	// clock. A test sets the clock back by it.
	Epoch uint64
}

// Service is a plane with bound listeners. Run is called once; the other
// methods are safe for concurrent use.
type Service struct {
	*parts
	apiLn, ingestLn, opsLn net.Listener
	// adminLn is nil without an admin socket, scalerLn without a Scaler.
	adminLn, scalerLn net.Listener
}

// parts are what New wires before it binds anything.
type parts struct {
	cfg      config.Config
	logger   *slog.Logger
	metrics  *metrics
	access   *access.Access
	clock    *store.Clock
	gatherer *prometheus.Registry

	store      *store.Store
	snapshots  *snapshot.Builder
	registry   *registry.Registry
	api        *api.API
	ingest     *ingest.Server
	apiServer  *http.Server
	opsServer  *http.Server
	ingestPort atomic.Uint32
	// adminServer is nil without an admin socket.
	adminServer *http.Server
	// scaler is nil where it has no address.
	scaler *scaler.Server
}

// New validates cfg, reads the files it names, wires the parts and binds the
// listeners. It starts nothing; Close gives the listeners of a service back
// that will not run. A fault of the configuration is a *config.Error.
func New(cfg config.Config, opts Options) (*Service, error) {
	p, err := build(cfg, opts)
	if err != nil {
		return nil, err
	}
	s := &Service{parts: p}
	if err := s.listenAll(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Check does all that New does, except binding listeners.
func Check(cfg config.Config) error {
	_, err := build(cfg, Options{Logger: slog.New(slog.DiscardHandler)})
	return err
}

func build(cfg config.Config, opts Options) (*parts, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &parts{cfg: cfg, logger: opts.Logger, clock: store.NewClock(), gatherer: prometheus.NewRegistry()}
	if p.logger == nil {
		p.logger = slog.Default()
	}
	p.gatherer.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = newMetrics(p.gatherer, opts.Version)
	for _, wire := range []func(Options) error{p.wireAccess, p.wireStore, p.wireRegistry, p.wireIngest, p.wireAPI, p.wireScaler, p.wireAdmin} {
		if err := wire(opts); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *parts) wireAccess(Options) (err error) {
	p.access, err = access.New(access.Options{
		TokenFile: p.cfg.APITokenFile, ClientCA: p.cfg.ClientCA, Cert: p.cfg.TLSCert, Key: p.cfg.TLSKey,
		Registerer: p.gatherer, Logger: p.logger,
	})
	if err != nil {
		return config.Errorf("%w", err)
	}
	return nil
}

func (p *parts) wireStore(opts Options) (err error) {
	p.store, err = store.New(store.Options{
		Lineage:        randomName(),
		Epoch:          cmp.Or(opts.Epoch, uint64(time.Now().UnixMilli())),
		Clock:          p.clock,
		StaleAfter:     p.cfg.StaleAfter,
		Settle:         p.cfg.Settle,
		ReportInterval: p.cfg.ReportInterval,
		Discovery:      p.cfg.Discovers(),
		Registerer:     p.gatherer,
		Logger:         p.logger,
	})
	if err != nil {
		return err
	}
	p.snapshots = snapshot.New(p.store)
	return nil
}

func (p *parts) guard(l config.Listener) *access.Guard {
	return p.access.Guard(string(l), p.cfg.TLS(l))
}

func (p *parts) wireAPI(opts Options) (err error) {
	p.api, err = api.New(api.Options{
		Snapshots:               p.snapshots,
		ServerID:                randomName(),
		Heartbeat:               p.cfg.Heartbeat,
		WriteTimeout:            p.cfg.WriteTimeout,
		MaxWatchers:             p.cfg.MaxWatchers,
		MaxWatchesPerConnection: p.cfg.MaxStreamsPerConnection,
		Exempt:                  p.cfg.Exempt,
		Version:                 opts.Version,
		Registerer:              p.gatherer,
		Gatherer:                p.gatherer,
		Logger:                  p.logger,
	})
	if err != nil {
		return err
	}
	if p.cfg.MetricsWorkers > 0 {
		p.gatherer.MustRegister(series.New(p.store, p.cfg.MetricsWorkers))
	}
	g := p.guard(config.API)
	guarded := p.api.Guarded(func(h http.Handler) http.Handler { return g.HTTP(g.SameOrigin(h)) })
	p.apiServer = api.NewHTTPServer(guarded, p.httpTLS(config.API), p.logger)
	p.opsServer = api.NewHTTPServer(p.opsHandler(), p.httpTLS(config.Ops), p.logger)
	return nil
}

// opsHandler leaves the health endpoints open and guards the rest.
func (p *parts) opsHandler() http.Handler {
	ops := p.api.Ops()
	mux := http.NewServeMux()
	mux.Handle("GET /livez", ops)
	mux.Handle("GET /readyz", ops)
	mux.Handle("/", p.guard(config.Ops).HTTP(ops))
	return mux
}

// httpTLS returns the settings of an HTTP listener. Health checks come without
// a certificate, so the ops listener leaves the decision to its guard.
func (p *parts) httpTLS(l config.Listener) *tls.Config {
	if !p.cfg.TLS(l) {
		return nil
	}
	return p.access.TLSConfig(l == config.API && p.access.CertificateOnly(), "h2", "http/1.1")
}

func randomName() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // It never fails.
	return hex.EncodeToString(b)
}

func (s *Service) listenAll() (err error) {
	if s.apiLn, err = s.listen(config.API); err != nil {
		return err
	}
	if s.ingestLn, err = s.listen(config.Ingest); err != nil {
		return err
	}
	if s.opsLn, err = s.listen(config.Ops); err != nil {
		return err
	}
	s.ingestPort.Store(uint32(bound(s.ingestLn).Port()))
	if err := s.listenScaler(); err != nil {
		return err
	}
	return s.listenAdmin()
}

func (s *Service) listen(l config.Listener) (net.Listener, error) {
	addr := s.cfg.Address(l)
	ln, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, config.Errorf("%s_listen: %s is in use; choose another address with --%s-listen (port 0 takes a free one)", l, addr, l)
	case errors.Is(err, syscall.EACCES):
		return nil, config.Errorf("%s_listen: no permission for %s; choose a port above 1023 with --%s-listen", l, addr, l)
	case err != nil:
		return nil, config.Errorf("%s_listen: %w; choose another address with --%s-listen", l, err, l)
	}
	// A name may stand for another address than its text promised.
	if !bound(ln).Addr().IsLoopback() && !s.cfg.Guarded(l) {
		_ = ln.Close()
		return nil, config.Errorf("%s_listen: %s", l, config.Advice(l, ln.Addr().String()))
	}
	return s.access.Limit(ln, string(l), access.Limits{
		Total: s.cfg.MaxConnections, PerAddress: s.cfg.MaxConnectionsPerAddress, Exempt: s.cfg.Exempt,
	}), nil
}

// bound returns the address of a TCP listener.
func bound(ln net.Listener) netip.AddrPort {
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	port := addr.AddrPort()
	return netip.AddrPortFrom(port.Addr().Unmap(), port.Port())
}

// Close gives the listeners back. It is for a service that never ran.
func (s *Service) Close() {
	for _, ln := range []net.Listener{s.apiLn, s.ingestLn, s.opsLn, s.scalerLn, s.adminLn} {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// Addrs returns the bound addresses, with real ports.
func (s *Service) Addrs() (api, ingest, ops net.Addr) {
	return s.apiLn.Addr(), s.ingestLn.Addr(), s.opsLn.Addr()
}

// TLS says whether a listener speaks TLS.
func (s *Service) TLS(l config.Listener) bool { return s.cfg.TLS(l) }

// Run serves until ctx ends, then drains within DrainTimeout and returns nil,
// with streams open or not. It returns the error of the first component that
// failed; that stops the others too. An error says that something did not
// stop where it names no other fault.
func (s *Service) Run(ctx context.Context) error {
	s.announce()
	l := lifecycle{logger: s.logger, timeout: s.cfg.DrainTimeout * 9 / 10, grace: s.cfg.DrainTimeout / 10}
	return l.run(ctx, s.components(), func() {
		s.metrics.draining.Set(1)
		s.api.Drain("the plane is shutting down")
		s.registry.Drain()
	})
}

// components are in the order of starting; they stop in reverse, so that the
// committer outlives all that feeds and reads it.
func (s *Service) components() []component {
	all := []component{
		{name: "committer", run: s.store.Run},
		{name: "journal", run: journal.New(journal.Options{Store: s.store, Logger: s.logger}).Run},
		serving("ops", s.opsServer, s.opsLn),
		{name: "advice", run: s.advise},
		{name: "registry", run: s.registry.Run},
		{name: "ingest", run: func(ctx context.Context) error { return s.ingest.Run(ctx, s.ingestLn) }},
		serving("api", s.apiServer, s.apiLn),
	}
	if s.scalerLn != nil {
		all = append(all, component{name: "scaler", run: func(ctx context.Context) error { return s.scaler.Run(ctx, s.scalerLn) }})
	}
	if s.adminLn != nil {
		all = append(all, serving("admin", s.adminServer, s.adminLn))
	}
	return all
}

// serving is the component of an HTTP server.
func serving(name string, server *http.Server, ln net.Listener) component {
	return component{name: name, run: serve(server, ln), stop: server.Shutdown, kill: server.Close}
}

func serve(server *http.Server, ln net.Listener) func(context.Context) error {
	return func(context.Context) error {
		var err error
		if server.TLSConfig != nil {
			err = server.ServeTLS(ln, "", "")
		} else {
			err = server.Serve(ln)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve: %w", err)
	}
}

func (s *Service) announce() {
	for _, l := range []struct {
		name config.Listener
		addr net.Addr
	}{{config.API, s.apiLn.Addr()}, {config.Ingest, s.ingestLn.Addr()}, {config.Ops, s.opsLn.Addr()}} {
		s.logger.Info("listening", "listener", string(l.name), "address", l.addr.String(), "tls", s.cfg.TLS(l.name))
	}
	if addr := s.ScalerAddr(); addr != nil {
		s.logger.Info("listening", "listener", string(config.Scaler), "address", addr.String(), "tls", s.cfg.TLS(config.Scaler))
	}
	if s.adminLn != nil {
		s.logger.Info("listening", "listener", "admin", "address", s.cfg.AdminSocket, "tls", false)
	}
	if s.cfg.Identity == config.IdentityOrigin {
		s.logger.Warn("peer addresses are not checked; any host that reaches ingest may report as any worker", "setting", "--identity=origin")
	}
}

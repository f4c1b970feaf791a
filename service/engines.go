package service

import (
	"errors"
	"net/netip"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadstat"
	"github.com/loadplane/loadplane/ingest/monitor"
	"github.com/loadplane/loadplane/ingest/native"
	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/ingest/push"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/store"
	grpccreds "google.golang.org/grpc/credentials"
)

// registrationRules are the values of the setting registration.
var registrationRules = map[string]registry.RegistrationRule{
	config.RegistrationOpen:  registry.RegistrationOpen,
	config.RegistrationKnown: registry.RegistrationKnown,
	config.RegistrationOff:   registry.RegistrationOff,
}

func (p *parts) wireRegistry(Options) error {
	address, _ := netip.ParseAddr(p.cfg.ReportAddress) // Empty: the zero Addr.
	dialers, err := p.dialers()
	if err != nil {
		return err
	}
	prober, err := probe.New(probe.Options{
		Clock: p.clock, Timeout: p.cfg.PollTimeout, Registerer: p.gatherer, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	sources, err := p.sources()
	if err != nil {
		return err
	}
	p.registry, err = registry.New(registry.Options{
		Store:               p.store,
		Workers:             p.cfg.Worker,
		WorkersFile:         p.cfg.WorkersFile,
		Sources:             sources,
		EgressAllow:         p.cfg.EgressPrefixes(),
		ReportInterval:      p.cfg.ReportInterval,
		StaleAfter:          p.cfg.StaleAfter,
		Lease:               p.cfg.Lease,
		CallTimeout:         p.cfg.RegistrationTimeout,
		ReportAddress:       address,
		ReportPort:          func() uint16 { return uint16(p.ingestPort.Load()) },
		OriginOnly:          p.cfg.Identity == config.IdentityOrigin,
		ReporterPort:        p.cfg.ReporterPort,
		Registration:        registrationRules[p.cfg.Registration],
		MaxReportsPerSecond: float64(p.cfg.MaxReportsPerSecond),
		MaxLeasesPerAddress: p.cfg.MaxLeasesPerAddress,
		Exempt:              p.cfg.Exempt,
		TokenFile:           p.cfg.EngineTokenFile,
		CAFile:              p.cfg.EngineCA,
		MaxWorkers:          p.cfg.MaxWorkers,
		Dialers:             dialers,
		Prober:              prober,
		Registerer:          p.gatherer,
		Logger:              p.logger,
	})
	if err != nil {
		return config.Errorf("%w", err)
	}
	return nil
}

// dialers speak the dialects in which the plane dials engines.
func (p *parts) dialers() (map[store.Dialect]registry.Dialer, error) {
	poller, errPoll := poll.New(poll.Options{
		Clock: p.clock, Timeout: p.cfg.PollTimeout, StaleAfter: p.cfg.StaleAfter, MaxRanks: p.cfg.MaxRanks,
		Registerer: p.gatherer, Logger: p.logger,
	})
	monitors, errMonitor := monitor.New(monitor.Options{
		Clock: p.clock, StaleAfter: p.cfg.StaleAfter, MaxRanks: p.cfg.MaxRanks, CallTimeout: p.cfg.RegistrationTimeout,
		Registerer: p.gatherer, Logger: p.logger,
	})
	subscriber, errLoadstat := loadstat.New(loadstat.Options{
		Clock: p.clock, StaleAfter: p.cfg.StaleAfter, MaxRanks: p.cfg.MaxRanks, Registerer: p.gatherer, Logger: p.logger,
	})
	return map[store.Dialect]registry.Dialer{
		store.DialectMonitor: monitors, store.DialectLoadstat: subscriber, store.DialectPoll: poller,
	}, errors.Join(errPoll, errMonitor, errLoadstat)
}

func (p *parts) wireIngest(Options) error {
	opts := ingest.ServerOptions{
		MaxStreamsPerConnection: p.cfg.MaxStreamsPerConnection,
		Exempt:                  p.cfg.Exempt,
		Registerer:              p.gatherer,
		Logger:                  p.logger,
	}
	// Engines that push know neither TLS nor tokens, so plaintext ingest asks
	// for none.
	if p.cfg.TLS(config.Ingest) {
		opts.Credentials = grpccreds.NewTLS(p.access.TLSConfig(p.access.CertificateOnly(), "h2"))
		opts.Authorize = p.guard(config.Ingest).GRPC
	}
	var err error
	if p.ingest, err = ingest.NewServer(opts); err != nil {
		return err
	}
	pushed, err := push.New(push.Options{
		Registry: p.registry, Clock: p.clock, MaxRanks: p.cfg.MaxRanks, Interval: p.cfg.ReportInterval,
		Registerer: p.gatherer,
	})
	if err != nil {
		return err
	}
	reporters, err := native.New(native.Options{
		Registry: p.registry, Clock: p.clock, MaxRanks: p.cfg.MaxRanks, Registerer: p.gatherer, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	pushed.Register(p.ingest.Registrar())
	reporters.Register(p.ingest.Registrar())
	return nil
}

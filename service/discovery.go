package service

import (
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/dns"
	"github.com/loadplane/loadplane/registry/kube"
	"github.com/loadplane/loadplane/service/access"
	"github.com/loadplane/loadplane/service/admin"
	"github.com/loadplane/loadplane/service/config"
)

// maxAdmins bounds the connections to the admin socket.
const maxAdmins = 32

// sources are those of discovery beside the lists, each after those that win
// over it.
func (p *parts) sources() (all []registry.Source, err error) {
	if p.cfg.Kubernetes {
		s, err := kube.New(kube.Options{
			Kubeconfig: p.cfg.Kubeconfig, Namespaces: p.cfg.KubernetesNamespaces,
			Services: p.cfg.KubernetesServices, Selector: p.cfg.KubernetesSelector,
			Port: string(p.cfg.KubernetesPort), Scheme: p.cfg.KubernetesScheme,
			Registerer: p.gatherer, Logger: p.logger,
		})
		if err != nil {
			return nil, config.Errorf("%w", err)
		}
		all = append(all, s)
	}
	if len(p.cfg.DNS) > 0 {
		s, err := p.dns()
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (p *parts) dns() (*dns.Source, error) {
	opts := dns.Options{
		MinTTL: p.cfg.DNSMinTTL, MaxTTL: p.cfg.DNSMaxTTL, Servers: p.cfg.DNSServer,
		Registerer: p.gatherer, Logger: p.logger,
	}
	if len(opts.Servers) == 0 {
		opts.Servers = nil // Those of the system.
	}
	for _, v := range p.cfg.DNS {
		r, err := dns.ParseRecord(v)
		if err != nil {
			return nil, config.Errorf("dns: %w", err)
		}
		opts.Records = append(opts.Records, r)
	}
	s, err := dns.New(opts)
	if err != nil {
		return nil, config.Errorf("%w", err)
	}
	return s, nil
}

func (p *parts) wireAdmin(Options) (err error) {
	if p.cfg.AdminSocket == "" {
		return nil
	}
	p.adminServer, err = admin.NewServer(admin.Options{
		Registry: p.registry, Store: p.store, Registerer: p.gatherer, Logger: p.logger,
	})
	return err
}

// listenAdmin binds the admin socket where there is to be one.
func (s *Service) listenAdmin() error {
	if s.cfg.AdminSocket == "" {
		return nil
	}
	ln, err := admin.Listen(s.cfg.AdminSocket)
	if err != nil {
		return config.Errorf("admin_socket: %w; choose another path with --admin-socket", err)
	}
	s.adminLn = s.access.Limit(ln, "admin", access.Limits{Total: maxAdmins})
	return nil
}

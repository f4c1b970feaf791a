package service

import (
	"net"

	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/service/scaler"
	grpccreds "google.golang.org/grpc/credentials"
)

func (p *parts) wireScaler(Options) (err error) {
	if p.cfg.ScalerListen == "" {
		return nil
	}
	opts := scaler.Options{Snapshots: p.snapshots, Registerer: p.gatherer, Logger: p.logger}
	// KEDA knows client certificates and no tokens, so plaintext asks for none.
	if p.cfg.TLS(config.Scaler) {
		opts.Credentials = grpccreds.NewTLS(p.access.TLSConfig(p.access.CertificateOnly(), "h2"))
		opts.Authorize = p.guard(config.Scaler).GRPC
	}
	p.scaler, err = scaler.New(opts)
	return err
}

// listenScaler binds the listener of autoscalers where there is to be one.
func (s *Service) listenScaler() (err error) {
	if s.scaler == nil {
		return nil
	}
	s.scalerLn, err = s.listen(config.Scaler)
	return err
}

// ScalerAddr returns the bound address that autoscalers ask, with its real
// port; nil where there is none.
func (s *Service) ScalerAddr() net.Addr {
	if s.scalerLn == nil {
		return nil
	}
	return s.scalerLn.Addr()
}

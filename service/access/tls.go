package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure an Access.
type Options struct {
	// TokenFile holds the bearer token; empty for none.
	TokenFile string
	// ClientCA holds the PEM certificates that client certificates are
	// verified by; empty for none.
	ClientCA string
	// Cert and Key hold the PEM certificate chain and key of the listeners;
	// both empty for none.
	Cert, Key string
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Access holds the credentials of a plane. It is safe for concurrent use.
type Access struct {
	logger  *slog.Logger
	metrics *metrics
	// Those that are not configured are nil.
	token   *reloading[Secret]
	keyPair *reloading[*tls.Certificate]
	clients *reloading[*x509.CertPool]
}

// New reads the files for the first time. Its error names the setting and the
// file.
func New(opts Options) (*Access, error) {
	a := &Access{logger: opts.Logger, metrics: newMetrics(opts.Registerer)}
	if a.logger == nil {
		a.logger = slog.Default()
	}
	for _, read := range []func(Options) error{a.readToken, a.readClients, a.readKeyPair} {
		if err := read(opts); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *Access) readToken(opts Options) (err error) {
	if opts.TokenFile == "" {
		return nil
	}
	a.token, err = newReloading(credentialFiles[Secret]{"api_token_file", []string{opts.TokenFile},
		func(b [][]byte) (Secret, error) { return parseToken(b[0]) }}, a)
	return err
}

func (a *Access) readClients(opts Options) (err error) {
	if opts.ClientCA == "" {
		return nil
	}
	a.clients, err = newReloading(credentialFiles[*x509.CertPool]{"client_ca", []string{opts.ClientCA}, parsePool}, a)
	return err
}

func (a *Access) readKeyPair(opts Options) (err error) {
	if opts.Cert == "" {
		return nil
	}
	a.keyPair, err = newReloading(credentialFiles[*tls.Certificate]{"tls_cert", []string{opts.Cert, opts.Key},
		func(b [][]byte) (*tls.Certificate, error) { return parseKeyPair(opts.Key, b, a.metrics) }}, a)
	return err
}

// CertificateOnly says that a client certificate is the only credential.
func (a *Access) CertificateOnly() bool { return a.clients != nil && a.token == nil }

func parsePool(contents [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return nil, errors.New("the file holds no PEM certificate")
	}
	return pool, nil
}

func parseKeyPair(keyPath string, contents [][]byte, m *metrics) (*tls.Certificate, error) {
	if err := checkPrivate(keyPath); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		return nil, errors.New("the certificate has expired")
	}
	m.certNotAfter.Set(float64(pair.Leaf.NotAfter.Unix()))
	return &pair, nil
}

// TLSConfig returns the TLS settings of a listener; there must be a Cert.
// Client certificates are asked for where there is a ClientCA; required tells
// to end the handshake without one. protocols are those of ALPN.
func (a *Access) TLSConfig(required bool, protocols ...string) *tls.Config {
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             protocols,
		SessionTicketsDisabled: a.clients != nil,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.keyPair.get(), nil
		},
	}
	if a.clients == nil {
		return base
	}
	base.ClientAuth = tls.VerifyClientCertIfGiven
	if required {
		base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	template := base.Clone()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := template.Clone()
		current.ClientCAs = a.clients.get()
		return current, nil
	}
	return base
}

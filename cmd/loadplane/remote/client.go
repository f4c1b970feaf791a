package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/spf13/pflag"
)

// DefaultServer is where serve listens by default.
const DefaultServer = "http://127.0.0.1:7400"

// maxAnswer bounds one message of the plane, bytes.
const maxAnswer = 256 << 20

// Flags say how to reach a running plane. Register fills them; they are a
// plain value.
type Flags struct {
	server    string
	tokenFile string
	ca        string
	cert, key string
	timeout   time.Duration
}

// UsageError is a fault of the command line. It is immutable.
type UsageError struct{ err error }

// Error returns what is wrong with which flag.
func (e *UsageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.err }

// Usagef returns a UsageError, with the text of fmt.Errorf.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Register adds the flags to fs.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.server, "server", DefaultServer, "URL of the plane's API")
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token")
	fs.StringVar(&f.ca, "ca", "", "PEM file with the CAs of the plane; default: those of the system")
	fs.StringVar(&f.cert, "cert", "", "PEM file with a client certificate")
	fs.StringVar(&f.key, "key", "", "PEM file with the key of --cert")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "bound of connecting and of a call that is no watch")
}

// Client talks to a running plane. It is immutable and safe for concurrent
// use.
type Client struct {
	flags     Flags
	snapshots loadplanev1connect.SnapshotServiceClient
	workers   loadplanev1connect.WorkerServiceClient
	// http and base are for what has no service.
	http  *http.Client
	base  string
	close func()
}

// Connect checks the flags, reads the files they name and returns a client.
// It dials nothing.
func (f Flags) Connect() (*Client, error) {
	u, err := url.Parse(f.server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return nil, Usagef("--server: want http://HOST:PORT or https://HOST:PORT")
	}
	if f.timeout <= 0 {
		return nil, Usagef("--timeout: want more than 0")
	}
	tlsConfig, err := f.tlsConfig()
	if err != nil {
		return nil, err
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: f.timeout}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: f.timeout,
		ForceAttemptHTTP2:   true,
	}
	hc := &http.Client{
		Transport: bearer{token: token, next: transport},
		// The token is for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	base := strings.TrimSuffix(f.server, "/")
	limit := connect.WithReadMaxBytes(maxAnswer)
	return &Client{
		flags:     f,
		snapshots: loadplanev1connect.NewSnapshotServiceClient(hc, base, limit),
		workers:   loadplanev1connect.NewWorkerServiceClient(hc, base, limit),
		http:      hc,
		base:      base,
		close:     transport.CloseIdleConnections,
	}, nil
}

func (f Flags) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, &UsageError{fmt.Errorf("--ca: %w", err)}
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, Usagef("--ca: %s holds no PEM certificate", f.ca)
		}
	}
	if f.cert == "" && f.key == "" {
		return cfg, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, &UsageError{fmt.Errorf("--cert, --key: %w", err)}
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}

func (f Flags) token() (string, error) {
	if f.tokenFile == "" {
		return "", nil
	}
	content, err := os.ReadFile(f.tokenFile)
	if err != nil {
		return "", &UsageError{fmt.Errorf("--token-file: %w", err)}
	}
	token := strings.TrimRight(string(content), "\r\n")
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", Usagef("--token-file: %s does not hold one token of visible ASCII", f.tokenFile)
	}
	return token, nil
}

// bearer adds a token to every request. It is immutable and safe for
// concurrent use.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip sends the request with the token, if there is one.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// Close gives idle connections back.
func (c *Client) Close() { c.close() }

// bounded returns ctx with the time that a call may take.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.flags.timeout)
}

// explain adds to an error what to do about it.
func (c *Client) explain(err error) error {
	server := c.flags.server
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch code := connect.CodeOf(err); {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s; is loadplane serving there? Start it with: loadplane serve, or name another plane with --server", server)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %s is signed by an unknown authority; name its CA with --ca", server)
	case errors.As(err, &record) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS; use http:// in --server", server)
	case strings.Contains(err.Error(), "certificate required"):
		return fmt.Errorf("%s wants a client certificate; give one with --cert and --key", server)
	case code == connect.CodeUnauthenticated && c.flags.tokenFile == "":
		return fmt.Errorf("%s wants a credential; give the token with --token-file: %w", server, err)
	case code == connect.CodeUnauthenticated:
		return fmt.Errorf("%s does not accept the token in %s: %w", server, c.flags.tokenFile, err)
	case code == connect.CodeUnimplemented:
		return fmt.Errorf("%s is not the API of a plane, or an older one; check the port in --server: %w", server, err)
	case code == connect.CodeDeadlineExceeded:
		return fmt.Errorf("%s did not answer within %v; a longer --timeout may help: %w", server, c.flags.timeout, err)
	}
	return fmt.Errorf("%s: %w", server, err)
}

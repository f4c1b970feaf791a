package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// secure serves a plane over TLS on a loopback port, and says which protocol
// it was asked in.
func secure(t *testing.T, change func(s *httptest.Server)) (s *httptest.Server, protocol *atomic.Value) {
	t.Helper()
	p := newNetwork().newPlane(t, "a", "l")
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(p))
	protocol = new(atomic.Value)
	s = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol.Store(r.Proto)
		mux.ServeHTTP(w, r)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if change != nil {
		change(s)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, protocol
}

// connects runs a watcher until its first view, or the first error.
func connects(t *testing.T, o Options) error {
	t.Helper()
	w, err := NewWatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan struct{})
	fail := sync.OnceFunc(func() { close(failed) })
	w.random = func(n int64) int64 { // asked for the wait after a failure, too
		if w.Status().LastError != nil {
			fail()
		}
		return n - 1
	}
	_, stale := w.View()
	defer run(t, w)()
	select {
	case <-stale:
		return nil
	case <-failed:
		return w.Status().LastError
	}
}

func trusted(s *httptest.Server) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
}

func TestTLS(t *testing.T) {
	s, protocol := secure(t, nil)
	if err := connects(t, Options{Addresses: []string{s.URL}, TLS: trusted(s)}); err != nil || protocol.Load() != "HTTP/2.0" {
		t.Errorf("%v, over %v", err, protocol.Load())
	}
	var unknown x509.UnknownAuthorityError
	if err := connects(t, Options{Addresses: []string{s.URL}}); !errors.As(err, &unknown) {
		t.Errorf("an unknown CA: %v", err)
	}
	if err := connects(t, Options{Addresses: []string{"http://" + s.Listener.Addr().String()}}); err == nil {
		t.Error("plaintext to a TLS port")
	}
}

func TestMutualTLS(t *testing.T) {
	s, _ := secure(t, func(s *httptest.Server) { s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert} })
	if err := connects(t, Options{Addresses: []string{s.URL}, TLS: trusted(s)}); err == nil {
		t.Error("connected without a certificate")
	}
	config := trusted(s)
	config.Certificates = s.TLS.Certificates
	if err := connects(t, Options{Addresses: []string{s.URL}, TLS: config}); err != nil {
		t.Error(err)
	}
}

// A proxy that speaks HTTP/1.1 only is good enough behind TLS.
func TestTLSWithHTTP1(t *testing.T) {
	s, protocol := secure(t, func(s *httptest.Server) { s.EnableHTTP2 = false })
	if err := connects(t, Options{Addresses: []string{s.URL}, TLS: trusted(s)}); err != nil || protocol.Load() != "HTTP/1.1" {
		t.Errorf("%v, over %v", err, protocol.Load())
	}
}

func TestOwnHTTPClient(t *testing.T) {
	s, _ := secure(t, nil)
	own := s.Client()
	own.Timeout = 1 // would end every request at once
	if err := connects(t, Options{Addresses: []string{s.URL}, HTTPClient: own}); err != nil {
		t.Error(err)
	}
	if own.Timeout != 1 || own.CheckRedirect != nil {
		t.Error("the client was changed")
	}
}

// A plane that redirects is not followed, whoever made the client: the token
// would go where nobody configured.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Bool
	other, _ := secure(t, func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) })
	})
	s, _ := secure(t, func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		})
	})
	token := func(context.Context) (string, error) { return "secret", nil }
	for name, o := range map[string]Options{
		"own client": {Addresses: []string{s.URL}, TLS: trusted(s), Token: token},
		"a user's":   {Addresses: []string{s.URL}, HTTPClient: s.Client(), Token: token},
	} {
		if err := connects(t, o); err == nil || asked.Load() {
			t.Errorf("%s: %v, the other server was asked: %t", name, err, asked.Load())
		}
	}
}

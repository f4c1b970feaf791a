package service

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/externalscaler"
	"github.com/loadplane/loadplane/service/access"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/service/internal/testcert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccreds "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// askScaler asks the listener of autoscalers for a metric's name, by a
// connection of its own.
func (p *plane) askScaler(creds grpccreds.TransportCredentials, token string) codes.Code {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.ScalerAddr().String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	_, err = pb.NewExternalScalerClient(conn).GetMetricSpec(ctx, &pb.ScaledObjectRef{
		ScalerMetadata: map[string]string{"metric": "total_requests", "target": "8"},
	})
	return status.Code(err)
}

func TestScalerIsOffByDefault(t *testing.T) {
	p := startPlane(t, testConfig())
	if addr := p.ScalerAddr(); addr != nil {
		t.Errorf("it listens on %s", addr)
	}
	// It is to run before it is told to stop.
	if code, _, _ := p.get(httpClient(t, nil, false), config.Ops, "/livez"); code != 200 {
		t.Errorf("livez: %d", code)
	}
}

func TestScalerAuthenticatesWhereItIsTLS(t *testing.T) {
	server, clients := testcert.NewAuthority(t, "server"), testcert.NewAuthority(t, "clients")
	f := testcert.NewFiles(t, server, clients)
	anybody := grpccreds.NewTLS(&tls.Config{RootCAs: server.Pool()})
	keda := grpccreds.NewTLS(&tls.Config{RootCAs: server.Pool(), Certificates: []tls.Certificate{clients.Pair("keda")}})
	start := func(t *testing.T, change func(*config.Config)) *plane {
		cfg := testConfig()
		cfg.TLSCert, cfg.TLSKey, cfg.ScalerListen = f.Cert, f.Key, "127.0.0.1:0"
		change(&cfg)
		return startPlane(t, cfg)
	}
	t.Run("certificate or token", func(t *testing.T) {
		p := start(t, func(c *config.Config) { c.ClientCA, c.APITokenFile = f.CA, f.Token })
		for _, c := range []struct {
			name, token string
			creds       grpccreds.TransportCredentials
			want        codes.Code
		}{
			{"certificate", "", keda, codes.OK},
			{"token", testcert.Token, anybody, codes.OK},
			{"nothing", "", anybody, codes.Unauthenticated},
			{"wrong token", "wrong", anybody, codes.Unauthenticated},
		} {
			if got := p.askScaler(c.creds, c.token); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		if !provoked(p, config.Scaler, string(access.ReasonNoCredential)) {
			t.Error("the refusal was not counted")
		}
	})
	t.Run("certificate alone", func(t *testing.T) {
		p := start(t, func(c *config.Config) { c.ClientCA = f.CA })
		if got := p.askScaler(keda, ""); got != codes.OK {
			t.Errorf("with one: %s", got)
		}
		if got := p.askScaler(anybody, ""); got != codes.Unavailable {
			t.Errorf("without one the handshake does not end: %s", got)
		}
	})
	t.Run("plaintext", func(t *testing.T) {
		p := start(t, func(c *config.Config) {
			c.APITokenFile, c.InsecureAllowPlaintext = f.Token, []string{"scaler"}
		})
		if got := p.askScaler(insecure.NewCredentials(), ""); got != codes.OK {
			t.Errorf("KEDA has no token: %s", got)
		}
	})
}

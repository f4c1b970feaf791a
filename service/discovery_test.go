package service

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/service/admin"
	"github.com/loadplane/loadplane/service/config"
)

// kubeconfig is the path of a file that leads to an API server.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
		"clusters: [{name: c, cluster: {server: '" + url + "'}}]\ncontexts: [{name: c, context: {cluster: c, namespace: inference}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Sources that deliver nothing are named by readiness and by the list of
// workers, in the order in which they win, and the plane waits for them.
func TestUnsyncedSourcesAreNamed(t *testing.T) {
	cfg := testConfig()
	cfg.Worker = []string{"http://127.0.0.1:1,dialect=none"}
	cfg.DNS, cfg.DNSServer = []string{"engines.example:30000"}, []string{"127.0.0.1:1"}
	cfg.Kubernetes, cfg.KubernetesServices, cfg.Kubeconfig = true, []string{"engines"}, kubeconfig(t, "http://127.0.0.1:1")
	cfg.AdminSocket = filepath.Join(t.TempDir(), "s")
	p := startPlane(t, cfg)
	plain := httpClient(t, nil, false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	list := loadplanev1connect.NewWorkerServiceClient(httpClient(t, nil, true), p.url(config.API))
	for {
		answer, err := list.ListWorkers(ctx, &pb.ListWorkersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		sources := answer.GetSources()
		if len(sources) == 4 && sources[2].Error != nil && sources[1].Error != nil {
			for i, name := range []string{"flag", "kubernetes", "dns", "registration"} {
				if s := sources[i]; s.GetName() != name || i != 3 && s.GetSynced() != (i == 0) {
					t.Errorf("source %d: %v, want %s", i, s, name)
				}
			}
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("sources %v", sources)
		}
	}
	code, body, _ := p.get(plain, config.Ops, "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, `{"name":"kubernetes","synced":false,"error":"no list yet: `) ||
		!strings.Contains(body, `{"name":"dns","synced":false,"error":"no list yet: `) {
		t.Errorf("readyz: %d %s", code, body)
	}
	if !strings.Contains(body, `{"name":"flag","synced":true,"listed_age_ms":`) {
		t.Errorf("readyz does not say that a source delivered: %s", body)
	}
}

func TestAdminSocketComesAndGoesWithTheService(t *testing.T) {
	cfg := testConfig()
	cfg.AdminSocket = filepath.Join(t.TempDir(), "s")
	p := startPlane(t, cfg)
	if _, err := New(cfg, Options{Logger: testLogger(p.log)}); err == nil || !strings.Contains(err.Error(), "admin_socket: another process answers at "+cfg.AdminSocket) {
		t.Errorf("a second service: error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if answer, err := admin.NewClient(cfg.AdminSocket).Add(ctx, "http://127.0.0.1:1,dialect=none"); err != nil || answer.DiscoveredBy != "admin" {
		t.Errorf("answer %+v, error %v", answer, err)
	}
	plain := httpClient(t, nil, false)
	if _, body, _ := p.get(plain, config.Ops, "/metrics"); !strings.Contains(body, `loadplane_admin_requests_total{operation="add",result="ok"} 1`) {
		t.Error("the request is not counted")
	}
	p.stop()
	if err := p.waitDone(10 * time.Second); err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := os.Lstat(cfg.AdminSocket); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
	requireOrder(t, p.log.String(), `"draining"`, `"component":"admin"`, `"component":"registry"`)
}

// A service that never runs gives its socket back, and a check makes none.
func TestAdminSocketIsGivenBack(t *testing.T) {
	cfg := testConfig()
	cfg.AdminSocket = filepath.Join(t.TempDir(), "s")
	if err := Check(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(cfg.AdminSocket); !os.IsNotExist(err) {
		t.Errorf("a check made the socket: %v", err)
	}
	s, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Lstat(cfg.AdminSocket); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
}

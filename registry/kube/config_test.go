package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/registry/kube/kubetest"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

func TestNewRefuses(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	cfg := kubetest.New().Config()
	cases := []struct {
		name, mention string
		opts          Options
	}{
		{"nothing to read", "kubernetes_services or kubernetes_selector", Options{Config: cfg}},
		{"both", "exclude each other", Options{Config: cfg, Services: []string{"a"}, Selector: "a=b"}},
		{"bug 49: selector without a comma", "kubernetes_selector", Options{Config: cfg, Selector: "a=b c=d"}},
		{"selector of nothing", "kubernetes_selector", Options{Config: cfg, Selector: " "}},
		{"selector with a bad value", "kubernetes_selector", Options{Config: cfg, Selector: "a=b/c"}},
		{"service", "kubernetes_services", Options{Config: cfg, Services: []string{"a,b"}}},
		{"namespace", "kubernetes_namespaces", Options{Config: cfg, Selector: "a=b", Namespaces: []string{"A"}}},
		{"scheme", "kubernetes_scheme", Options{Config: cfg, Selector: "a=b", Scheme: "ftp"}},
		{"port", "kubernetes_port", Options{Config: cfg, Selector: "a=b", Namespaces: []string{"a"}, Port: "0"}},
		{"port name", "kubernetes_port", Options{Config: cfg, Selector: "a=b", Namespaces: []string{"a"}, Port: "http/1"}},
		{"negative time", "relist", Options{Config: cfg, Selector: "a=b", Relist: -1}},
		{"kubeconfig", "kubeconfig", Options{Kubeconfig: filepath.Join(t.TempDir(), "none"), Selector: "a=b"}},
		{"no cluster", "no kubeconfig is set", Options{Selector: "a=b"}},
		{"no namespace", "kubernetes_namespaces", Options{Config: cfg, Selector: "a=b"}},
		{"server", "kubernetes", Options{Config: badHost(cfg), Selector: "a=b", Namespaces: []string{"a"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := New(c.opts); err == nil || !strings.Contains(err.Error(), c.mention) {
				t.Errorf("got %v, want mention of %q", err, c.mention)
			}
		})
	}
}

func badHost(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Host = "http://a b"
	return cfg
}

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: engines}}]
clusters: [{name: k, cluster: {server: "http://10.0.0.1:1"}}]
users: [{name: u, user: {token: secret}}]
`

func TestKubeconfigNamesTheNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Kubeconfig: path, Services: []string{"llm"}})
	if err != nil || len(s.namespaces) != 1 || s.namespaces[0] != "engines" || s.Name() != "kubernetes" {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestNamespaceOfThePod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "namespace")
	for text, want := range map[string]string{"engines\n": "engines", "": "", "a/b": ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readNamespace(path); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	opts := Options{Config: kubetest.New().Config(), Selector: "a=b", Namespaces: []string{"a"}, Registerer: prometheus.NewRegistry()}
	if _, err := New(opts); err != nil {
		t.Fatal(err)
	}
	if _, err := New(opts); err == nil {
		t.Error("metrics were registered twice")
	}
}

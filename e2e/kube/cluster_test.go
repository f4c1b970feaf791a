package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// shipped is the folder of the manifests.
var shipped = filepath.Join("..", "..", "deploy", "kubernetes")

// The names that the manifests use.
const (
	planeNS  = "loadplane"
	engineNS = "inference"
	account  = "loadplane"
)

// stranger is an account to which nothing is granted.
const stranger = "stranger"

// The two ways of discovery, as rbac.yaml labels them.
const (
	byServices = "services"
	byPods     = "pods"
)

// cluster is the content of an API server for one test: empty namespaces of the
// plane and the engines, and the rights of one way of discovery.
type cluster struct {
	t      *testing.T
	server *apiServer

	// Clients that may do everything.
	core      corev1client.CoreV1Interface
	discovery discoveryv1client.DiscoveryV1Interface
	rbac      rbacv1client.RbacV1Interface
	dynamic   dynamic.Interface
}

// newCluster makes the namespaces and applies rbac.yaml as its head says. What a
// test before left is gone.
func newCluster(t *testing.T, s *apiServer, way string) *cluster {
	t.Helper()
	admin := s.config(adminToken)
	c := &cluster{
		t: t, server: s,
		core: corev1client.NewForConfigOrDie(admin), discovery: discoveryv1client.NewForConfigOrDie(admin),
		rbac: rbacv1client.NewForConfigOrDie(admin), dynamic: dynamic.NewForConfigOrDie(admin),
	}
	c.makeNamespace(planeNS)
	c.makeNamespace(engineNS)
	c.makeAccount(stranger)
	for _, doc := range documents(t, "rbac.yaml") {
		if label := doc.GetLabels()["loadplane.dev/discovery"]; label == "" || label == way {
			c.create(doc)
		}
	}
	t.Cleanup(c.clear)
	return c
}

func (c *cluster) makeNamespace(name string) {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.core.Namespaces().Create(c.t.Context(), ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
}

// resources are the kinds that the manifests have and those that tests write.
var resources = map[string]schema.GroupVersionResource{
	"Pod":            {Version: "v1", Resource: "pods"},
	"EndpointSlice":  {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	"ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
	"Secret":         {Version: "v1", Resource: "secrets"},
	"Service":        {Version: "v1", Resource: "services"},
	"Deployment":     {Group: "apps", Version: "v1", Resource: "deployments"},
	"NetworkPolicy":  {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	"Role":           {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
}

// create makes an object, among the engines where it names no namespace. The
// server refuses a field that it does not know.
func (c *cluster) create(obj *unstructured.Unstructured) {
	c.t.Helper()
	if obj.GetNamespace() == "" {
		obj.SetNamespace(engineNS)
	}
	gvr, ok := resources[obj.GetKind()]
	if !ok {
		c.t.Fatalf("a %s", obj.GetKind())
	}
	_, err := c.dynamic.Resource(gvr).Namespace(obj.GetNamespace()).
		Create(c.t.Context(), obj, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		c.t.Fatalf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
	}
}

// clear removes all that a test may have made, at once.
func (c *cluster) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, gvr := range resources {
		for _, ns := range []string{planeNS, engineNS} {
			if err := c.dynamic.Resource(gvr).Namespace(ns).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
				c.t.Errorf("clearing %s: %v", gvr.Resource, err)
			}
		}
	}
}

// documents returns the objects of a shipped file.
func documents(t *testing.T, name string) (objects []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, name))
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		obj := &unstructured.Unstructured{}
		if err := d.Decode(&obj.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, obj)
	}
}

// setVerbs changes what the shipped role of a way of discovery allows.
func (c *cluster) setVerbs(way string, verbs ...string) {
	c.t.Helper()
	roles := c.rbac.Roles(engineNS)
	role, err := roles.Get(c.t.Context(), "loadplane-"+way, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	role.Rules[0].Verbs = verbs
	if _, err := roles.Update(c.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// makeAccount makes an account beside the plane's, or that one anew.
func (c *cluster) makeAccount(name string) {
	c.t.Helper()
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.core.ServiceAccounts(planeNS).Create(c.t.Context(), a, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// token returns a token of the plane's account.
func (c *cluster) token() string {
	c.t.Helper()
	return c.tokenOf(account)
}

func (c *cluster) tokenOf(name string) string {
	c.t.Helper()
	ask := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
	got, err := c.core.ServiceAccounts(planeNS).CreateToken(c.t.Context(), name, ask, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return got.Status.Token
}

// access is what a plane reaches the API server by: a kubeconfig that names a
// token file.
type access struct {
	kubeconfig, tokenFile string
}

// access writes a kubeconfig with a new token of the plane's account. The server
// is reached at url.
func (c *cluster) access(url string) access {
	c.t.Helper()
	folder := c.t.TempDir()
	a := access{kubeconfig: filepath.Join(folder, "kubeconfig"), tokenFile: filepath.Join(folder, "token")}
	a.write(c.t, c.token())
	cfg := api.NewConfig()
	cfg.Clusters["test"] = &api.Cluster{Server: url, CertificateAuthority: c.server.ca()}
	cfg.AuthInfos["plane"] = &api.AuthInfo{TokenFile: a.tokenFile}
	cfg.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "plane", Namespace: planeNS}
	cfg.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*cfg, a.kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	return a
}

// write replaces the token as the kubelet does: by a rename.
func (a access) write(t *testing.T, token string) {
	t.Helper()
	next := a.tokenFile + ".next"
	if err := os.WriteFile(next, []byte(strings.TrimSpace(token)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, a.tokenFile); err != nil {
		t.Fatal(err)
	}
}

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/loadplane/loadplane/registry/kube/kubeapi"
)

// namespaceFile holds the namespace of the Pod that reads it.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// serviceLabel is the label of an EndpointSlice that names its Service.
const serviceLabel = "kubernetes.io/service-name"

// validate checks what does not depend on a cluster and returns the kind and
// the label selector of what is read.
func (o *Options) validate() (kind kubeapi.Kind, selector string, err error) {
	if scheme := cmp.Or(o.Scheme, "http"); scheme != "http" && scheme != "https" {
		return 0, "", fmt.Errorf("kubernetes_scheme: %q is not http or https", o.Scheme)
	}
	if o.Relist < 0 || o.Silence < 0 {
		return 0, "", errors.New("kubernetes: relist and silence must not be negative")
	}
	for _, n := range o.Namespaces {
		if problems := validation.IsDNS1123Label(n); problems != nil {
			return 0, "", fmt.Errorf("kubernetes_namespaces: %q: %s", n, problems[0])
		}
	}
	for _, n := range o.Services {
		if problems := validation.IsDNS1123Label(n); problems != nil {
			return 0, "", fmt.Errorf("kubernetes_services: %q: %s", n, problems[0])
		}
	}
	switch {
	case len(o.Services) == 0 && o.Selector == "":
		return 0, "", errors.New("kubernetes: either kubernetes_services or kubernetes_selector is needed")
	case len(o.Services) > 0 && o.Selector != "":
		return 0, "", errors.New("kubernetes: kubernetes_services and kubernetes_selector exclude each other")
	case o.Selector == "":
		names := slices.Compact(slices.Sorted(slices.Values(o.Services)))
		return kubeapi.EndpointSlices, serviceLabel + " in (" + strings.Join(names, ",") + ")", nil
	}
	parsed, err := labels.Parse(o.Selector)
	if err != nil {
		return 0, "", fmt.Errorf("kubernetes_selector: %w", err)
	}
	if parsed.Empty() {
		return 0, "", errors.New("kubernetes_selector: selects everything")
	}
	return kubeapi.Pods, parsed.String(), nil
}

// connect returns how to reach the API server, and the namespaces to read.
func (o *Options) connect() (cfg *rest.Config, namespaces []string, err error) {
	own := func() (string, error) { return readNamespace(namespaceFile) }
	switch {
	case o.Config != nil:
		cfg = o.Config
	case o.Kubeconfig != "":
		loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig}, &clientcmd.ConfigOverrides{})
		if cfg, err = loaded.ClientConfig(); err != nil {
			return nil, nil, fmt.Errorf("kubeconfig: %w; --kubeconfig names the file", err)
		}
		own = func() (string, error) {
			n, _, err := loaded.Namespace()
			return n, err
		}
	default:
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, nil, fmt.Errorf("kubernetes: no kubeconfig is set (--kubeconfig FILE), and there is no service account of a Pod (is its token mounted?): %w", err)
		}
	}
	if len(o.Namespaces) > 0 {
		return cfg, slices.Compact(slices.Sorted(slices.Values(o.Namespaces))), nil
	}
	n, err := own()
	if err != nil {
		return nil, nil, fmt.Errorf("kubernetes_namespaces: set --kubernetes-namespaces, as none is known: %w", err)
	}
	return cfg, []string{n}, nil
}

// readNamespace reads a namespace from a file.
func readNamespace(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	n := strings.TrimSpace(string(data))
	if problems := validation.IsDNS1123Label(n); problems != nil {
		return "", fmt.Errorf("%s: %s", path, problems[0])
	}
	return n, nil
}

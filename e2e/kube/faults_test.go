package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// TestManifestsAreAccepted has the API server check what the plane's tests do
// not: that every field exists and every value is valid.
func TestManifestsAreAccepted(t *testing.T) {
	for _, name := range []string{"loadplane.yaml", "sidecar-sglang.yaml", "sidecar-vllm.yaml"} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, shared, byServices)
			for _, doc := range documents(t, name) {
				c.create(doc)
			}
		})
	}
}

// ways are the two ways of discovery, with the settings of each and the right
// that it needs.
var ways = map[string]struct{ flag, value, resource string }{
	byPods:     {"--selector", selector, "pods"},
	byServices: {"--services", "sglang", "endpointslices.discovery.k8s.io"},
}

// TestShippedRights lists all that the plane's account may do, as "kubectl auth
// can-i --list" does.
func TestShippedRights(t *testing.T) {
	for way, w := range ways {
		t.Run(way, func(t *testing.T) {
			c := newCluster(t, shared, way)
			c.awaitRights(engineNS, "list "+w.resource, "watch "+w.resource)
			for _, ns := range []string{planeNS, "kube-system", "default"} {
				c.awaitRights(ns)
			}
		})
	}
}

// awaitRights waits until the plane's account has these rights in a namespace and
// no others, but those that Kubernetes gives every account.
func (c *cluster) awaitRights(ns string, want ...string) {
	c.t.Helper()
	c.await("rights in "+ns, func() (bool, string) {
		common, err := c.rights(stranger, ns)
		if err != nil {
			return false, err.Error()
		}
		got, err := c.rights(account, ns)
		if err != nil {
			return false, err.Error()
		}
		got = slices.DeleteFunc(got, func(r string) bool { return slices.Contains(common, r) })
		return slices.Equal(got, want), fmt.Sprintf("%q, want %q", got, want)
	})
}

// rights returns what an account may do in a namespace as words, sorted.
func (c *cluster) rights(name, ns string) ([]string, error) {
	own := authorizationv1client.NewForConfigOrDie(c.server.config(c.tokenOf(name)))
	ask := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: ns}}
	answer, err := own.SelfSubjectRulesReviews().Create(c.t.Context(), ask, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for _, r := range answer.Status.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					set[strings.TrimSuffix(verb+" "+resource+"."+group, ".")] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set)), nil
}

// await asks until the answer is yes; the reason why not ends the test else.
func (c *cluster) await(what string, ask func() (ok bool, why string)) {
	c.t.Helper()
	limit := time.After(time.Minute)
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		ok, why := ask()
		if ok {
			return
		}
		select {
		case <-retry.C:
		case <-limit:
			c.t.Fatalf("%s: %s", what, why)
		}
	}
}

// TestOneVerbLessIsRefused takes each verb from the shipped role: what is left
// is not enough, and the status says what is missing. Given back, it is enough
// without a restart.
func TestOneVerbLessIsRefused(t *testing.T) {
	for way, w := range ways {
		for verb, left := range map[string]string{"list": "watch", "watch": "list"} {
			t.Run(way+" without "+verb, func(t *testing.T) {
				c := newCluster(t, shared, way)
				c.pod("a", "10.1.0.1", nil)
				c.slice("sglang-1", "sglang", endpoint("a", "10.1.0.1", discoveryv1.EndpointConditions{}))
				c.setVerbs(way, left)
				c.awaitRights(engineNS, left+" "+w.resource)

				l := list(t, c.access(c.server.url()), w.flag, w.value)
				resource, _, _ := strings.Cut(w.resource, ".")
				l.awaitError("cannot "+verb+" "+resource+" in namespace "+engineNS, "forbidden", "deploy/kubernetes/rbac.yaml")
				c.setVerbs(way, "list", "watch")
				l.awaitList(worker("a"))
			})
		}
	}
}

// TestTokenRotation has the token of a running plane revoked. It keeps its list
// and says why it has no news, until the file has another token.
func TestTokenRotation(t *testing.T) {
	c := newCluster(t, shared, byPods)
	c.pod("a", "10.1.0.1", nil)
	way := newProxy(t, c.server)
	a := c.access(way.url())
	old := c.token()
	a.write(t, old)
	l := list(t, a, "--selector", selector)
	l.awaitList(worker("a"))

	// Tokens of an account end with it; one of the same name is another.
	accounts := c.core.ServiceAccounts(planeNS)
	if err := accounts.Delete(t.Context(), account, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.makeAccount(account)
	c.awaitRevoked(old)
	way.cut() // an open watch outlives its token
	way.restore()
	l.awaitError("nauthorized")

	c.pod("b", "10.1.0.2", nil)
	a.write(t, c.token())
	began := time.Now()
	l.awaitList(worker("a"), worker("b"))
	t.Logf("the new token was used after %.1f s", time.Since(began).Seconds())
	l.noneEmpty()
}

// awaitRevoked waits until the server has forgotten that a token was good.
func (c *cluster) awaitRevoked(token string) {
	c.t.Helper()
	core := corev1client.NewForConfigOrDie(c.server.config(token))
	c.await("the old token", func() (bool, string) {
		_, err := core.Pods(engineNS).List(c.t.Context(), metav1.ListOptions{Limit: 1})
		return apierrors.IsUnauthorized(err), fmt.Sprintf("answer %v", err)
	})
}

// TestServerRestarts stops the API server and starts it on the same port with
// the same data. Its cache of what changed is empty then, so the version that the
// plane has seen last is too old to go on from: it has to list again to see what
// went meanwhile.
func TestServerRestarts(t *testing.T) {
	for name, end := range map[string]func(*apiServer){"stopped": (*apiServer).stop, "killed": (*apiServer).kill} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, ownServer(t), byPods)
			c.pod("stays", "10.1.0.1", nil)
			c.pod("goes", "10.1.0.2", nil)
			way := newProxy(t, c.server)
			l := list(t, c.access(way.url()), "--selector", selector)
			l.awaitList(worker("stays"), worker("goes"))

			way.cut()
			c.remove("goes")
			c.pod("comes", "10.1.0.3", nil)
			end(c.server)
			l.awaitError()
			if err := c.server.start(); err != nil {
				t.Fatal(err)
			}
			way.restore()
			l.awaitList(worker("stays"), worker("comes"))
			l.noneEmpty()

			c.remove("stays") // the watch goes on
			l.awaitList(worker("comes"))
		})
	}
}

// TestCutWatch cuts the plane off while an engine goes and another comes.
func TestCutWatch(t *testing.T) {
	c := newCluster(t, shared, byServices)
	c.slice("sglang-1", "sglang", endpoint("a", "10.1.0.1", discoveryv1.EndpointConditions{}))
	way := newProxy(t, c.server)
	l := list(t, c.access(way.url()), "--services", "sglang")
	l.awaitList(worker("a"))
	way.cut()
	c.slice("sglang-1", "sglang", endpoint("b", "10.1.0.2", discoveryv1.EndpointConditions{}))
	l.awaitError()
	way.restore()
	l.awaitList(worker("b"))
	l.noneEmpty()
}

package kube

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsComeAndGo(t *testing.T) {
	c := newCluster(t, shared, byPods)
	first := c.pod("a", "10.1.0.1", map[string]string{
		"loadplane.dev/role": "prefill", "loadplane.dev/model": "qwen3", "loadplane.dev/zone": "z1",
		"loadplane.dev/reporter-port": "31000", "loadplane.dev/label.team": "search",
	})
	l := list(t, c.access(c.server.url()), "--selector", selector)

	got := *l.awaitList(worker("a")).find(worker("a"))
	if got.URL != "http://10.1.0.1:30000" || got.UID != string(first) || !got.Guarded {
		t.Errorf("listed %+v, UID %s", got, first)
	}
	if got.Role != "prefill" || len(got.Models) != 1 || got.Models[0] != "qwen3" || got.Zone != "z1" ||
		got.ReporterPort != 31000 || got.Labels["team"] != "search" {
		t.Errorf("the annotations are not all taken: %+v", got)
	}

	c.pod("b", "10.1.0.2", nil)
	l.awaitList(worker("a"), worker("b"))
	c.terminate("a")
	l.await("a draining", func(v listing) bool {
		w := v.find(worker("a"))
		return w != nil && w.Draining && !v.find(worker("b")).Draining
	})
	c.remove("a")
	l.awaitList(worker("b"))

	// The next pod of that name and address is another one.
	second := c.pod("a", "10.1.0.1", nil)
	got = *l.awaitList(worker("a"), worker("b")).find(worker("a"))
	if second == first || got.UID != string(second) || got.Draining || got.Role == "prefill" {
		t.Errorf("listed %+v, UID %s after %s", got, second, first)
	}

	c.remove("a")
	c.remove("b")
	l.awaitList()
}

func TestEndpointSlicesComeAndGo(t *testing.T) {
	c := newCluster(t, shared, byServices)
	unknown := discoveryv1.EndpointConditions{}
	c.slice("sglang-1", "sglang", endpoint("a", "10.1.0.1", unknown), endpoint("b", "10.1.0.2", unknown))
	c.slice("other-1", "other", endpoint("x", "10.1.0.9", unknown))
	l := list(t, c.access(c.server.url()), "--services", "sglang")

	got := *l.awaitList(worker("a"), worker("b")).find(worker("a"))
	if got.URL != "http://10.1.0.1:30000" || got.UID != "uid-of-a" || got.Zone != "zone-a" || got.Role != "decode" {
		t.Errorf("listed %+v", got)
	}

	// The same endpoint in a second slice is still one worker.
	c.slice("sglang-2", "sglang", endpoint("b", "10.1.0.2", unknown), endpoint("c", "10.1.0.3", unknown))
	l.awaitList(worker("a"), worker("b"), worker("c"))
	c.removeSlice("sglang-1")
	l.awaitList(worker("b"), worker("c"))

	terminating := discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	unready := discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
	c.slice("sglang-2", "sglang", endpoint("b", "10.1.0.2", terminating), endpoint("c", "10.1.0.3", unready))
	l.await("b draining and c gone", func(v listing) bool { return v.has(worker("b")) && v.find(worker("b")).Draining })

	c.slice("sglang-2", "sglang") // scaled to zero: no endpoints
	l.awaitList()
}

func TestSeveralNamespaces(t *testing.T) {
	c := newCluster(t, shared, byPods)
	c.pod("a", "10.1.0.1", nil)
	// The second namespace has no role yet.
	l := list(t, c.access(c.server.url()), "--namespaces", planeNS, "--selector", selector)
	l.awaitError("cannot list pods in namespace "+planeNS, "forbidden")
	for _, doc := range documents(t, "rbac.yaml") {
		if doc.GetLabels()["loadplane.dev/discovery"] == byPods {
			doc.SetNamespace(planeNS)
			c.create(doc)
		}
	}
	l.awaitList(worker("a"))
}

// TestThousandPods logs figures and holds the list alone.
func TestThousandPods(t *testing.T) {
	const n = 1000
	c := newCluster(t, shared, byPods)
	began := time.Now()
	c.makePods(n, nil)
	t.Logf("%d pods made in %.1f s", n, time.Since(began).Seconds())

	began = time.Now()
	l := list(t, c.access(c.server.url()), "--selector", selector)
	l.await("all pods", func(v listing) bool { return len(v.Workers) == n })
	t.Logf("first list of %d workers %.2f s after the start of the process, %d MiB at most", n, time.Since(began).Seconds(), l.peakMiB())

	began = time.Now()
	c.each(n/2, func(i int) error { return c.removeNow(fmt.Sprintf("engine-%d", i)) })
	gone := time.Now()
	v := l.await("half of them", func(v listing) bool { return len(v.Workers) == n/2 })
	t.Logf("%d pods removed in %.1f s, listed so %.2f s later, %d MiB at most", n/2, gone.Sub(began).Seconds(), time.Since(gone).Seconds(), l.peakMiB())
	for i := n / 2; i < n; i++ {
		if id := worker(fmt.Sprintf("engine-%d", i)); v.find(id) == nil {
			t.Errorf("%s is not listed", id)
		}
	}

	began = time.Now()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := c.core.Pods(engineNS).DeleteCollection(t.Context(), now, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	l.awaitList()
	t.Logf("all removed at once, listed so after %.2f s", time.Since(began).Seconds())
}

// makePods makes n pods with names from engine-0 on.
func (c *cluster) makePods(n int, annotations map[string]string) {
	c.t.Helper()
	c.each(n, func(i int) error {
		_, err := c.makePod(fmt.Sprintf("engine-%d", i), fmt.Sprintf("10.2.%d.%d", i/250, 1+i%250), annotations)
		return err
	})
}

// each calls fn with 0 to n-1, a few at a time.
func (c *cluster) each(n int, fn func(int) error) {
	c.t.Helper()
	var work errgroup.Group
	work.SetLimit(8)
	for i := range n {
		work.Go(func() error { return fn(i) })
	}
	if err := work.Wait(); err != nil {
		c.t.Fatal(err)
	}
}

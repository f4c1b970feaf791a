package kube

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plane is a running "loadplane serve".
type plane struct {
	t        *testing.T
	said     output
	api, ops string // host:port
	pid      int
}

// serve starts a plane that discovers in Kubernetes, and waits until it listens.
// It ends with the test.
func serve(t *testing.T, a access, args ...string) *plane {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "loadplane"), append([]string{
		"serve", "--log-format=json", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0",
		"--kubernetes", "--kubeconfig", a.kubeconfig, "--kubernetes-namespaces", engineNS,
	}, args...)...)
	p := &plane{t: t}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	lines := bufio.NewScanner(io.TeeReader(stderr, &p.said))
	lines.Buffer(nil, 1<<20)
	for (p.api == "" || p.ops == "") && lines.Scan() {
		p.noteListener(lines.Bytes())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&p.said, stderr)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	if p.api == "" || p.ops == "" {
		t.Fatalf("the plane does not listen; it said:\n%s", p.said.tail())
	}
	return p
}

func (p *plane) noteListener(line []byte) {
	var said struct{ Msg, Listener, Address string }
	if err := json.Unmarshal(line, &said); err != nil || said.Msg != "listening" {
		return
	}
	switch said.Listener {
	case "api":
		p.api = said.Address
	case "ops":
		p.ops = said.Address
	}
}

// status is the answer of ListWorkers, as far as these tests read it.
type status struct {
	Workers []struct {
		Worker struct {
			WorkerID string `json:"workerId"`
			URL      string `json:"url"`
			Role     string `json:"role"`
			Draining bool   `json:"draining"`
		} `json:"worker"`
		DiscoveredBy string `json:"discoveredBy"`
	} `json:"workers"`
	Sources []struct {
		Name   string `json:"name"`
		Synced bool   `json:"synced"`
		Error  string `json:"error"`
	} `json:"sources"`
}

// ids returns the workers that Kubernetes alone lists, sorted.
func (s *status) ids() (ids []string) {
	for i := range s.Workers {
		if s.Workers[i].DiscoveredBy == "kubernetes" {
			ids = append(ids, s.Workers[i].Worker.WorkerID)
		}
	}
	return ids
}

// failure returns whether Kubernetes was listed once, and why it cannot be now.
func (s *status) failure() (synced bool, failure string) {
	for _, source := range s.Sources {
		if source.Name == "kubernetes" {
			return source.Synced, source.Error
		}
	}
	return false, "no such source"
}

func (p *plane) status() (s status, err error) {
	resp, err := http.Post("http://"+p.api+"/loadplane.v1.WorkerService/ListWorkers", "application/json", strings.NewReader("{}"))
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	err = json.NewDecoder(resp.Body).Decode(&s)
	return s, err
}

// ready returns the code and the text of /readyz.
func (p *plane) ready() (code int, text string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.ops + "/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// await asks for the status until match accepts it.
func (p *plane) await(what string, match func(*status) bool) status {
	p.t.Helper()
	limit := time.After(2 * time.Minute)
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		s, err := p.status()
		if err == nil && match(&s) {
			return s
		}
		select {
		case <-retry.C:
		case <-limit:
			p.t.Fatalf("%s: last status %+v, error %v; it said:\n%s", what, s, err, p.said.tail())
		}
	}
}

// awaitWorkers waits until Kubernetes lists these and nothing is wrong with it.
func (p *plane) awaitWorkers(ids ...string) status {
	p.t.Helper()
	return p.await(strings.Join(ids, " "), func(s *status) bool {
		synced, failure := s.failure()
		return synced && failure == "" && fmt.Sprint(s.ids()) == fmt.Sprint(ids)
	})
}

// unasked keeps the plane from dialling an engine that is not there.
var unasked = map[string]string{"loadplane.dev/dialect": "none", "loadplane.dev/role": "decode"}

func TestServe(t *testing.T) {
	c := newCluster(t, shared, byPods)
	c.pod("a", "10.1.0.1", unasked)
	p := serve(t, c.access(c.server.url()), "--kubernetes-selector", selector)
	s := p.awaitWorkers(worker("a"))
	if w := s.Workers[0].Worker; w.URL != "http://10.1.0.1:30000" || w.Role != "ROLE_DECODE" {
		t.Errorf("listed %+v", w)
	}
	if code, text := p.ready(); code != http.StatusOK {
		t.Errorf("not ready: %d %s", code, text)
	}
	c.pod("b", "10.1.0.2", unasked)
	p.awaitWorkers(worker("a"), worker("b"))
	c.terminate("a")
	p.await("a draining", func(s *status) bool {
		return len(s.Workers) == 2 && s.Workers[0].Worker.Draining && !s.Workers[1].Worker.Draining
	})
	c.remove("a")
	p.awaitWorkers(worker("b"))
}

// TestServeWithoutRights has a plane that may not list. It is not ready and says
// why, and goes on by itself once it may.
func TestServeWithoutRights(t *testing.T) {
	c := newCluster(t, shared, byPods)
	c.pod("a", "10.1.0.1", unasked)
	c.setVerbs(byPods, "watch")
	c.awaitRights(engineNS, "watch pods")
	p := serve(t, c.access(c.server.url()), "--kubernetes-selector", selector)
	p.await("the missing right", func(s *status) bool {
		synced, failure := s.failure()
		return !synced && strings.Contains(failure, "cannot list pods in namespace "+engineNS)
	})
	if code, text := p.ready(); code == http.StatusOK || !strings.Contains(text, "kubernetes") {
		t.Errorf("ready says %d %q", code, text)
	}
	c.setVerbs(byPods, "list", "watch")
	p.awaitWorkers(worker("a"))
}

// TestServeKeepsItsList ends the API server under a plane.
func TestServeKeepsItsList(t *testing.T) {
	c := newCluster(t, ownServer(t), byPods)
	c.pod("a", "10.1.0.1", unasked)
	c.pod("b", "10.1.0.2", unasked)
	p := serve(t, c.access(c.server.url()), "--kubernetes-selector", selector)
	p.awaitWorkers(worker("a"), worker("b"))
	c.server.kill()
	s := p.await("the failing server", func(s *status) bool {
		synced, failure := s.failure()
		return synced && failure != ""
	})
	if len(s.ids()) != 2 {
		t.Errorf("keeps %q", s.ids())
	}
	if code, text := p.ready(); code != http.StatusOK {
		t.Errorf("a plane with a list is not ready: %d %s", code, text)
	}
	if err := c.server.start(); err != nil {
		t.Fatal(err)
	}
	c.remove("a")
	p.awaitWorkers(worker("b"))
}

// TestServeThousandPods logs figures and holds the list alone.
func TestServeThousandPods(t *testing.T) {
	const n = 1000
	c := newCluster(t, shared, byPods)
	c.makePods(n, unasked)
	began := time.Now()
	p := serve(t, c.access(c.server.url()), "--kubernetes-selector", selector)
	p.await("all pods", func(s *status) bool { return len(s.ids()) == n })
	t.Logf("%d workers listed %.2f s after the start of the process, %d MiB at most", n, time.Since(began).Seconds(), peakMiB(t, p.pid))

	began = time.Now()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := c.core.Pods(engineNS).DeleteCollection(t.Context(), now, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	p.awaitWorkers()
	t.Logf("all removed, listed so after %.2f s, %d MiB at most", time.Since(began).Seconds(), peakMiB(t, p.pid))
}

package metrics

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	clientmetrics "github.com/loadplane/loadplane/client/metrics"
	"github.com/loadplane/loadplane/service"
	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/sim"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ranks is the DP size of engines that have ranks.
const ranks = 8

// fleets are engines of two models, three roles and four dialects.
func fleets() []sim.Options {
	return []sim.Options{
		{
			Engines: 5, Ranks: ranks, Seed: 1, Model: "model-a", Mixed: true,
			Kinds: []sim.Kind{sim.KindSGLang, sim.KindSGLangMonitor, sim.KindSGLangLoadStat, sim.KindSGLangPoll, sim.KindVLLM},
		},
		{Engines: 2, Ranks: ranks, Seed: 2, Model: "model-b", Kinds: []sim.Kind{sim.KindSGLang, sim.KindTGI}},
	}
}

// engines is how many there are.
func engines() (n int) {
	for _, o := range fleets() {
		n += o.Engines
	}
	return n
}

// runFleets starts the engines and returns the flags by which a plane lists
// them.
func runFleets(t *testing.T) (flags []string) {
	t.Helper()
	for _, o := range fleets() {
		o.Logger = slog.New(slog.DiscardHandler)
		f, err := sim.New(o)
		if err != nil {
			t.Fatal(err)
		}
		run(t, f.Run)
		for _, w := range f.Workers() {
			flags = append(flags, w.Flag())
		}
	}
	return flags
}

// run runs a component until the test ends.
func run(t *testing.T, component func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- component(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// pages starts a plane for the workers and returns its /metrics once all are
// fresh, and that of a router that follows it.
func pages(t *testing.T, workers []string) (plane, router string) {
	t.Helper()
	cfg := config.Default()
	cfg.APIListen, cfg.IngestListen, cfg.OpsListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Worker, cfg.MetricsWorkers = workers, 100
	s, err := service.New(cfg, service.Options{Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s.Run)
	api, _, ops := s.Addrs()
	w, err := client.NewWatcher(client.Options{Addresses: []string{"http://" + api.String()}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, w.Run)
	awaitFresh(t, w, len(workers))
	reg := prometheus.NewRegistry()
	reg.MustRegister(clientmetrics.New(w))
	return get(t, "http://"+ops.String()+"/metrics"), expose(t, reg)
}

// awaitFresh waits until n workers are fresh.
func awaitFresh(t *testing.T, w *client.Watcher, n int) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for {
		view, stale := w.View()
		if view != nil && view.CountValid(time.Now()) == n {
			return
		}
		select {
		case <-stale:
		case <-ctx.Done():
			t.Fatalf("%d workers were not fresh in time: %+v", n, w.Status())
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v", url, res.StatusCode, err)
	}
	return string(body)
}

// expose returns the page of a registry.
func expose(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	page := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return page.Body.String()
}

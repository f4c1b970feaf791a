package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/service"
	"github.com/loadplane/loadplane/service/config"
)

// inProcess starts a service in this process, whose epoch is that of a clock
// that shows now, and returns its API's address and what stops it.
func inProcess(t *testing.T, listen, workers string, now time.Time) (api string, stop func()) {
	t.Helper()
	cfg := config.Default()
	cfg.APIListen, cfg.IngestListen, cfg.OpsListen = listen, "127.0.0.1:0", "127.0.0.1:0"
	cfg.WorkersFile, cfg.ReportInterval, cfg.StaleAfter = workers, 250*time.Millisecond, time.Second
	s, err := service.New(cfg, service.Options{Logger: slog.New(slog.DiscardHandler), Epoch: uint64(now.UnixMilli())})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the service ended with %v", err)
		}
	})
	t.Cleanup(stop)
	address, _, _ := s.Addrs()
	return address.String(), stop
}

// A plane restarts while its wall clock is an hour behind: its epoch is lower
// than the one before, and its versions begin anew. The watcher takes it as
// another lineage, and not before it knows the workers.
func TestRestartWithTheClockSetBack(t *testing.T) {
	const engines = 3
	_, workers := fleet(t, fmt.Sprintf("--engines=%d", engines), "--ranks=2")
	began := time.Now()
	api, stop := inProcess(t, "127.0.0.1:0", workers, began)
	watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://" + api}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = watcher.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	f := &followed{T: t, Watcher: watcher}
	first := f.until("all workers of the first plane", func(v *client.View) bool {
		return !v.Warming() && v.CountValid(time.Now()) == engines && v.Version() > 5
	})
	stop()
	_, stop = inProcess(t, api, workers, began.Add(-time.Hour))
	second := f.until("all workers of the second plane", func(v *client.View) bool {
		return v.Lineage() != first.Lineage() && v.CountValid(time.Now()) == engines
	})
	if first.Epoch() != uint64(began.UnixMilli()) || second.Epoch() != uint64(began.Add(-time.Hour).UnixMilli()) {
		t.Errorf("epochs %d and %d", first.Epoch(), second.Epoch())
	}
	if want := []string{first.Lineage(), second.Lineage()}; !slices.Equal(f.lineages, want) || watcher.Status().Adoptions != 1 {
		t.Errorf("lineages %v, want %v; %d adoptions", f.lineages, want, watcher.Status().Adoptions)
	}
	f.until("changes of the second plane", func(v *client.View) bool {
		return v.Lineage() == second.Lineage() && v.Version() > second.Version()
	})
	stop()
}

// followed sees the views of a watcher, in the order in which it has them.
type followed struct {
	*testing.T
	*client.Watcher
	lineages []string
}

// until returns the first view that ok accepts. Only a plane that begins may
// show no workers on the way.
func (f *followed) until(what string, ok func(*client.View) bool) *client.View {
	f.Helper()
	limit := time.After(30 * time.Second)
	for {
		v, changed := f.View()
		if v != nil {
			if !slices.Contains(f.lineages, v.Lineage()) {
				f.lineages = append(f.lineages, v.Lineage())
			}
			if len(v.Workers()) == 0 && (len(f.lineages) > 1 || !v.Warming()) {
				f.Errorf("a view without workers: %s %d", v.Lineage(), v.Version())
			}
			if ok(v) {
				return v
			}
		}
		select {
		case <-changed:
		case <-limit:
			f.Fatalf("no view with %s; status %+v", what, f.Status())
		}
	}
}

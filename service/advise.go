package service

import (
	"context"
	"net/url"
	"time"

	"github.com/loadplane/loadplane/service/config"
	"github.com/loadplane/loadplane/store"
)

// adviceInterval is how often standing advice is repeated in the log.
const adviceInterval = time.Hour

// advise repeats what an operator should not forget, until ctx ends.
func (s *Service) advise(ctx context.Context) error {
	for _, l := range config.Listeners() {
		s.metrics.listener(l, s.cfg.Insecure(l))
	}
	s.adviseInsecure()
	if !s.awaitWorkers(ctx) {
		return nil
	}
	s.adviseUnreachable()
	ticker := time.NewTicker(adviceInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			s.adviseInsecure()
			s.adviseUnreachable()
		}
	}
}

// awaitWorkers waits until a worker is listed; false when ctx ended first.
func (s *Service) awaitWorkers(ctx context.Context) bool {
	for {
		state, stale := s.store.Current()
		if len(state.Entries) > 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-stale:
		}
	}
}

func (s *Service) adviseInsecure() {
	for _, l := range config.Listeners() {
		if s.cfg.Insecure(l) && s.cfg.Address(l) != "" {
			s.logger.Warn("listener is plaintext by --insecure-allow-plaintext; keep it behind a network policy", "listener", string(l))
		}
	}
}

// adviseUnreachable warns of workers on other hosts that cannot reach an
// ingest listener on loopback.
func (s *Service) adviseUnreachable() {
	if !bound(s.ingestLn).Addr().IsLoopback() {
		return
	}
	state, _ := s.store.Current()
	for _, e := range state.Entries {
		if e.Worker.Dialect == store.DialectPush && remote(e.Worker.URL) {
			s.logger.Warn("worker is on another host and cannot report to an ingest listener on loopback; set --ingest-listen",
				"worker", e.Worker.ID, "ingest", s.ingestLn.Addr().String())
			return
		}
	}
}

// remote says that a URL names a host that is not plainly this one.
func remote(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Hostname() != "" && !config.LoopbackHost(u.Hostname())
}

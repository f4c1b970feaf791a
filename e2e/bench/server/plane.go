package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/ingest/push"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	settle     = 10 * time.Millisecond
	staleAfter = 3 * time.Second
	lease      = time.Hour
)

// plane is the plane's parts, wired as the service wires them.
type plane struct {
	store   *store.Store
	metrics *tap
	polling bool
}

// openPlane wires and starts a plane of the workers in a file.
func openPlane(p *Process, spec Spec) error {
	pl := &plane{metrics: &tap{Registry: prometheus.NewRegistry()}, polling: spec.Kind == Polling}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	clock := store.NewClock()
	var err error
	pl.store, err = store.New(store.Options{
		Lineage: "bench", Epoch: uint64(time.Now().UnixMilli()), Clock: clock,
		StaleAfter: staleAfter, Settle: settle, ReportInterval: spec.Interval, Discovery: true,
		Registerer: pl.metrics, Logger: logger,
	})
	if err != nil {
		return err
	}
	reg, err := pl.registry(spec, logger)
	if err != nil {
		return err
	}
	in, err := ingest.NewServer(ingest.ServerOptions{Registerer: pl.metrics, Logger: logger})
	if err != nil {
		return err
	}
	pushed, err := push.New(push.Options{
		Registry: reg, Clock: clock, Interval: spec.Interval, Registerer: pl.metrics,
	})
	if err != nil {
		return err
	}
	pushed.Register(in.Registrar())
	handler, err := pl.api(logger)
	if err != nil {
		return err
	}
	p.plane = pl
	p.count = pl.accepted
	p.start(pl.store.Run)
	p.start(reg.Run)
	return errors.Join(p.ingest(in.Run), p.serveHTTP(api.NewHTTPServer(handler, nil, logger)))
}

// registry wires discovery and, where engines are polled, what dials them.
func (pl *plane) registry(spec Spec, logger *slog.Logger) (*registry.Registry, error) {
	o := registry.Options{
		Store: pl.store, WorkersFile: spec.WorkersFile, ReportInterval: spec.Interval, StaleAfter: staleAfter, Lease: lease,
		ReportPort: func() uint16 { return 1 }, MaxWorkers: maxWorkers, Registerer: pl.metrics, Logger: logger,
	}
	if !pl.polling {
		return registry.New(o)
	}
	clock := pl.store.Options().Clock
	poller, err := poll.New(poll.Options{Clock: clock, StaleAfter: staleAfter, Registerer: pl.metrics, Logger: logger})
	if err != nil {
		return nil, err
	}
	prober, err := probe.New(probe.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	o.Dialers, o.Prober = map[store.Dialect]registry.Dialer{store.DialectPoll: poller}, prober
	return registry.New(o)
}

// accepted counts the reports, or polls, that reached the store.
func (pl *plane) accepted() uint64 {
	if pl.polling {
		return pl.metrics.sum("loadplane_poll_polls_total", func(result string) bool { return result == "ok" })
	}
	return pl.metrics.sum("loadplane_push_reports_accepted_total", all)
}

// refused counts those that did not.
func (pl *plane) refused() uint64 {
	if pl.polling {
		return pl.metrics.sum("loadplane_poll_polls_total", func(result string) bool { return result != "ok" })
	}
	return pl.metrics.sum("loadplane_push_reports_refused_total", all)
}

func all(string) bool { return true }

func (pl *plane) api(logger *slog.Logger) (http.Handler, error) {
	a, err := api.New(api.Options{
		Snapshots: snapshot.New(pl.store), ServerID: "bench", Version: "bench",
		Registerer: pl.metrics, Gatherer: pl.metrics, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	return a.Handler(), nil
}

// await waits until a number of workers are listed, and a number of them heard.
func (pl *plane) await(ctx context.Context, wanted, heard int) error {
	for {
		state, stale := pl.store.Current()
		listed, fresh := len(state.Entries), 0
		for _, l := range state.Live {
			if l != nil {
				fresh++
			}
		}
		if listed == wanted && fresh >= heard {
			return nil
		}
		select {
		case <-stale:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workers are listed, %d of %d heard: %w", listed, wanted, fresh, heard, ctx.Err())
		}
	}
}

// tap is a registry that also reads a single metric without gathering all.
type tap struct {
	*prometheus.Registry
	seen []prometheus.Collector
}

// Register keeps the collector at hand.
func (t *tap) Register(c prometheus.Collector) error {
	t.seen = append(t.seen, c)
	return t.Registry.Register(c)
}

// sum adds up the counters of a name whose first label, empty without one, is
// as wanted.
func (t *tap) sum(name string, want func(label string) bool) uint64 {
	total := 0.0
	for _, c := range t.seen {
		if !describes(c, name) {
			continue
		}
		values := make(chan prometheus.Metric, 64)
		go func() {
			c.Collect(values)
			close(values)
		}()
		for v := range values {
			var m dto.Metric
			if v.Write(&m) == nil && want(firstLabel(&m)) {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return uint64(total)
}

func firstLabel(m *dto.Metric) string {
	if len(m.GetLabel()) == 0 {
		return ""
	}
	return m.GetLabel()[0].GetValue()
}

func describes(c prometheus.Collector, name string) bool {
	descs := make(chan *prometheus.Desc, 64)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		if strings.Contains(d.String(), `fqName: "`+name+`"`) {
			return true
		}
	}
	return false
}

func (p *Process) serveHTTP(srv *http.Server) error {
	return p.listen(&p.Addresses.API, func(ctx context.Context, ln net.Listener) error {
		context.AfterFunc(ctx, func() { _ = srv.Close() })
		return srv.Serve(ln)
	})
}

package browser

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/api"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

// plane is a store behind an API in this process, which a test fills itself.
type plane struct {
	t     *testing.T
	addr  string
	clock *store.Clock
	store *store.Store
	slots []*store.Slot
	runs  sync.WaitGroup
}

// startPlane starts a plane whose engines report at an interval.
func startPlane(t *testing.T, interval time.Duration) *plane {
	t.Helper()
	quiet, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	p := &plane{t: t, clock: store.NewClock()}
	var err error
	p.store, err = store.New(store.Options{
		Lineage: "browser", Epoch: uint64(time.Now().UnixMilli()), Clock: p.clock, StaleAfter: 10 * interval,
		Settle: 10 * time.Millisecond, ReportInterval: interval, Discovery: true,
		SleptFor: func() time.Duration { return 0 }, Registerer: reg, Logger: quiet,
	})
	p.must(err)
	served, err := api.New(api.Options{
		Snapshots: snapshot.New(p.store), ServerID: "browser", Version: "test", Registerer: reg, Gatherer: reg, Logger: quiet,
	})
	p.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	p.addr = ln.Addr().String()
	server := api.NewHTTPServer(served.Handler(), nil, quiet)
	ctx, cancel := context.WithCancel(context.Background())
	p.runs.Go(func() {
		if err := p.store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	p.runs.Go(func() { _ = server.Serve(ln) })
	t.Cleanup(func() {
		_ = server.Close()
		cancel()
		p.runs.Wait()
	})
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// add lists workers, to each of which a stream is bound.
func (p *plane) add(workers ...*store.Worker) {
	d := store.Discovery{Synced: true}
	for _, w := range workers {
		slot := p.store.NewSlot(w)
		slot.Bind(store.Stream{Source: source(len(p.slots)), Peer: "127.0.0.1:9", Generation: 1})
		p.slots = append(p.slots, slot)
		d.Added = append(d.Added, slot)
	}
	p.store.Apply(d)
}

func source(worker int) string { return fmt.Sprint("source-", worker) }

// named is a worker that pushes.
func named(id string) *store.Worker {
	return &store.Worker{
		ID: id, URL: "http://engine:30000", Origin: "engine:30000", Role: store.RoleRegular, Models: []string{"sim-model"},
		Dialect: store.DialectPush, Interval: time.Second, DiscoveredBy: "flag",
	}
}

// report offers a report of a worker.
func (p *plane) report(worker int, sequence uint64, ranks int) {
	now := time.Now().UnixMilli()
	l := &store.Load{
		Source: source(worker), Sequence: sequence, Status: store.StatusHealthy,
		ReportUnixMs: now, Received: p.clock.Now(), ReceivedUnixMs: now,
	}
	for i := range ranks {
		l.Ranks = append(l.Ranks, rank(i, (uint64(worker)*7919+uint64(i)*104729+sequence*31)%1000))
		l.Samples = append(l.Samples, store.Sample{
			TimeUnixMs: now, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1,
		})
	}
	p.slots[worker].Offer(1, l)
}

// rank is used by n in 1000.
func rank(i int, n uint64) store.Rank {
	const tokens = 131_072
	r := store.Rank{DPRank: int32(i)}
	for f, info := range store.Fields {
		switch {
		case !info.Core:
		case info.Float:
			r.SetFloat(store.Field(f), float64(n)/1000)
		default:
			r.SetCount(store.Field(f), int64(n))
		}
	}
	r.SetCount(store.NumUsedTokens, int64(n)*tokens/1000)
	r.SetCount(store.MaxTotalNumTokens, tokens)
	r.SetCount(store.MaxRunningRequests, 1000)
	return r
}

// feed reports for every worker once an interval, in slices, until the test
// ends.
func (p *plane) feed(interval time.Duration, ranks int) {
	const slices = 20
	ctx, stop := context.WithCancel(context.Background())
	p.t.Cleanup(stop)
	p.runs.Go(func() {
		ticks := time.NewTicker(interval / slices)
		defer ticks.Stop()
		for n := slices; ; n++ {
			for i := n % slices; i < len(p.slots); i += slices {
				p.report(i, uint64(n/slices)+1, ranks)
			}
			select {
			case <-ticks.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

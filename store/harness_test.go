package store_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	settle     = 10 * time.Millisecond
)

// plane is a running store in a bubble of fake time.
type plane struct {
	*store.Store
	t     *testing.T
	clock *store.Clock
	reg   *prometheus.Registry
	slept atomic.Int64 // nanoseconds
}

// run starts a store with one discovery source inside a bubble.
func run(t *testing.T, body func(p *plane)) {
	t.Helper()
	runWith(t, func(*store.Options) {}, body)
}

func runWith(t *testing.T, change func(*store.Options), body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{t: t, clock: store.NewClock(), reg: prometheus.NewRegistry()}
		opts := store.Options{
			Lineage: "test", Epoch: 1, Clock: p.clock, StaleAfter: staleAfter, Settle: settle,
			ReportInterval: interval, Discovery: true, Registerer: p.reg,
			SleptFor: func() time.Duration { return time.Duration(p.slept.Load()) },
		}
		change(&opts)
		st, err := store.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		p.Store = st
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- st.Run(ctx) }()
		synctest.Wait()
		body(p)
		if err := st.Check(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error("Run:", err)
		}
	})
}

// after lets d pass.
func (p *plane) after(d time.Duration) {
	<-time.After(d) // the bubble's clock jumps there
	synctest.Wait()
}

// settled lets the queued input be committed.
func (p *plane) settled() { p.after(settle) }

func worker(id string) *store.Worker {
	return &store.Worker{
		ID: id, URL: "http://" + id + ":30000", Origin: id + ":30000", Role: store.RoleRegular,
		Models: []string{"m"}, Dialect: store.DialectPush, Interval: interval, DiscoveredBy: "flag",
	}
}

// discover adds workers and reports discovery as synced.
func (p *plane) discover(ids ...string) []*store.Slot {
	var d store.Discovery
	for _, id := range ids {
		d.Added = append(d.Added, p.NewSlot(worker(id)))
	}
	d.Synced = true
	p.Apply(d)
	p.settled()
	for _, sl := range d.Added {
		sl.Bind(store.Stream{Source: "s1", Generation: 1})
	}
	return d.Added
}

// load is a healthy report with the given running requests on one rank.
func (p *plane) load(seq uint64, running int64) *store.Load {
	return p.loadOf(seq, rank(0, running))
}

func (p *plane) loadOf(seq uint64, ranks ...store.Rank) *store.Load {
	return &store.Load{
		Source: "s1", Sequence: seq, Status: store.StatusHealthy, Ranks: ranks, ReportUnixMs: 1000 + int64(seq),
		Samples: unknownSamples(len(ranks)), Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
}

func unknownSamples(n int) []store.Sample {
	samples := make([]store.Sample, n)
	for i := range samples {
		samples[i] = store.Sample{TimeUnixMs: -1, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1}
	}
	return samples
}

// rank has every core field.
func rank(dp int32, running int64) store.Rank {
	r := store.Rank{DPRank: dp}
	for f, info := range store.Fields {
		switch f := store.Field(f); {
		case !info.Core:
		case info.Float:
			r.SetFloat(f, 0.5)
		default:
			r.SetCount(f, 10)
		}
	}
	r.SetCount(store.NumRunningReqs, running)
	r.SetCount(store.MaxRunningRequests, 100)
	r.SetCount(store.MaxTotalNumTokens, 1000)
	return r
}

// entry returns a worker of the current state, and its receipt.
func (p *plane) entry(id string) (*store.Entry, *store.Live) {
	p.t.Helper()
	st, _ := p.Current()
	for i, e := range st.Entries {
		if e.Worker.ID == id {
			return e, st.Live[i]
		}
	}
	p.t.Fatalf("no worker %q in version %d", id, st.Version)
	return nil, nil
}

func (p *plane) version() uint64 {
	st, _ := p.Current()
	return st.Version
}

// is compares a worker's judgement with "freshness/reason".
func (p *plane) is(id, want string) {
	p.t.Helper()
	e, _ := p.entry(id)
	if got := fmt.Sprintf("%v/%v", e.Freshness, e.Reason); got != want {
		p.t.Errorf("%s is %s, want %s", id, got, want)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

package scaler

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/externalscaler"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const staleAfter = 3 * time.Second

// plane is a running store behind a server, in fake time.
type plane struct {
	*testing.T
	store  *store.Store
	clock  *store.Clock
	server *Server
	reg    *prometheus.Registry
	pb.ExternalScalerClient
	// drain ends the server and waits for it.
	drain func()
}

// run has body on a plane in a bubble; nil changes nothing.
func run(t *testing.T, change func(*Options), body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{T: t, clock: store.NewClock(), reg: prometheus.NewRegistry()}
		var err error
		p.store, err = store.New(store.Options{
			Lineage: "line", Epoch: 1, Clock: p.clock, StaleAfter: staleAfter, Settle: time.Millisecond,
			ReportInterval: time.Second, Discovery: true, SleptFor: func() time.Duration { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(background(t, "store", p.store.Run))
		opts := Options{
			Snapshots: snapshot.New(p.store), Registerer: p.reg, Logger: slog.New(slog.DiscardHandler),
		}
		if change != nil {
			change(&opts)
		}
		if p.server, err = New(opts); err != nil {
			t.Fatal(err)
		}
		listener := bufconn.Listen(64 << 10)
		p.drain = background(t, "server", func(ctx context.Context) error { return p.server.Run(ctx, listener) })
		t.Cleanup(p.drain)
		conn, err := grpc.NewClient("passthrough:///plane", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		p.ExternalScalerClient = pb.NewExternalScalerClient(conn)
		body(p)
	})
}

// background runs a part until the function that it returns is called, which
// may be twice.
func background(t *testing.T, name string, part func(context.Context) error) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := part(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// engine is a worker that reports.
type engine struct {
	plane *plane
	slot  *store.Slot
	seq   uint64
}

// add lists workers of model m.
func (p *plane) add(ids ...string) (all []*engine) {
	d := store.Discovery{Synced: true}
	for _, id := range ids {
		slot := p.store.NewSlot(&store.Worker{
			ID: id, URL: "http://" + id, Origin: id, Role: store.RoleDecode, Models: []string{"m"}, Dialect: store.DialectPush, Interval: time.Second,
		})
		d.Added = append(d.Added, slot)
		all = append(all, &engine{plane: p, slot: slot})
	}
	p.store.Apply(d)
	for _, e := range all {
		e.slot.Bind(store.Stream{Source: "src", Generation: 1})
	}
	p.after(2 * time.Millisecond)
	return all
}

// load is what an engine with one rank reports of its queues; below 0 for
// unknown.
type load struct{ running, waiting int64 }

// generated is what such an engine generates, tokens a second.
const generated = 100

func (e *engine) report(l load) { e.reportAt(l, generated) }

// reportAt is report with another throughput.
func (e *engine) reportAt(l load, throughput float64) {
	r := store.Rank{}
	set := func(f store.Field, v int64) {
		if v >= 0 {
			r.SetCount(f, v)
		}
	}
	set(store.NumRunningReqs, l.running)
	set(store.NumWaitingReqs, l.waiting)
	set(store.NumWaitingUncachedTokens, 600)
	set(store.NumUsedTokens, 50*l.running)
	set(store.NumTotalTokens, 800)
	set(store.MaxTotalNumTokens, 1000)
	set(store.MaxRunningRequests, 16)
	r.SetFloat(store.TokenUsage, 0.05*float64(l.running))
	r.SetFloat(store.GenThroughput, throughput)
	r.SetFloat(store.PrefillThroughput, 300)
	e.seq++
	e.slot.Offer(1, &store.Load{
		Source: "src", Sequence: e.seq, Status: store.StatusHealthy, Received: e.plane.clock.Now(),
		Ranks: []store.Rank{r}, Samples: make([]store.Sample, 1),
	})
	e.plane.after(2 * time.Millisecond)
}

// warm lets the plane stop waiting for workers that are silent.
func (p *plane) warm() { p.after(11 * time.Second) }

// of returns the metadata of a trigger on the pool of model m.
func of(metric string, more ...string) map[string]string {
	m := map[string]string{"scalerAddress": "plane:7403", "model": "m", "role": "decode", "metric": metric, "target": "10"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func ref(m map[string]string) *pb.ScaledObjectRef {
	return &pb.ScaledObjectRef{Name: "decode", Namespace: "inference", ScalerMetadata: m}
}

// value asks for the value of a trigger's metric as KEDA does: the name is the
// one of the specification.
func (p *plane) value(m map[string]string) (*pb.MetricValue, error) {
	p.Helper()
	spec, err := p.GetMetricSpec(p.Context(), ref(m))
	if err != nil {
		return nil, err
	}
	name := spec.GetMetricSpecs()[0].GetMetricName()
	got, err := p.GetMetrics(p.Context(), &pb.GetMetricsRequest{ScaledObjectRef: ref(m), MetricName: name})
	if err != nil {
		return nil, err
	}
	if values := got.GetMetricValues(); len(values) != 1 || values[0].GetMetricName() != name {
		p.Fatalf("asked for %s, got %v", name, values)
	}
	return got.GetMetricValues()[0], nil
}

// answer writes an answer of IsActive in a word.
func answer(r *pb.IsActiveResponse, err error) string {
	switch {
	case err != nil:
		return status.Code(err).String()
	case r.GetResult():
		return "active"
	}
	return "inactive"
}

// counted returns a counter or gauge of the registry by its name and the value
// of its label, if it has one.
func (p *plane) counted(name, label string) float64 {
	p.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

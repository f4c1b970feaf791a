package keda

import (
	"fmt"
	"testing"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestPolled has what a trigger of type external asks.
func TestPolled(t *testing.T) {
	e := startEngine(t)
	e.running.Store(6)
	e.waiting.Store(3)
	p := serve(t, e)
	total := ref("total_requests")
	await(t, "requests", "9", func() string { return p.valueOrCode(total) })
	for metric, want := range map[string]string{"waiting_requests": "3", "running_requests": "6", "max_rank_token_usage": "0.25"} {
		if got := p.valueOrCode(ref(metric)); got != want {
			t.Errorf("%s: %s, want %s", metric, got, want)
		}
	}
	if got := p.active(total); got != "true" {
		t.Errorf("active: %s", got)
	}
	spec, err := p.GetMetricSpec(p.context(), total)
	if err != nil || len(spec.GetMetricSpecs()) != 1 {
		t.Fatalf("specification %v, %v", spec, err)
	}
	if s := spec.GetMetricSpecs()[0]; s.GetMetricName() != "loadplane-total-requests" || s.GetTargetSizeFloat() != 2.5 || s.GetTargetSize() != 3 {
		t.Errorf("specification %v", s)
	}
	e.running.Store(0)
	e.waiting.Store(0)
	await(t, "no request", "0", func() string { return p.valueOrCode(total) })
	await(t, "no demand", "false", func() string { return p.active(total) })
}

// TestEngineIsSilent: what is not known is an error, so that KEDA keeps the
// replicas that there are.
func TestEngineIsSilent(t *testing.T) {
	e := startEngine(t)
	p := serve(t, e)
	total := ref("total_requests")
	await(t, "no request", "0", func() string { return p.valueOrCode(total) })
	e.broken.Store(true)
	await(t, "silent", unavailable, func() string { return p.valueOrCode(total) })
	if got := p.active(total); got != unavailable {
		t.Errorf("active: %s", got)
	}
	if got := p.active(ref("total_requests", "unknown", "active")); got != "true" {
		t.Errorf("active where unknown is demand: %s", got)
	}
	e.broken.Store(false)
	await(t, "back", "0", func() string { return p.valueOrCode(total) })
}

func TestMistakes(t *testing.T) {
	p := serve(t, startEngine(t))
	await(t, "ready", "0", func() string { return p.valueOrCode(ref("total_requests")) })
	for _, c := range []struct {
		name string
		ref  *pb.ScaledObjectRef
		want codes.Code
	}{
		{"unknown metric", ref("free_tokens"), codes.InvalidArgument},
		{"unknown key", ref("total_requests", "treshold", "5"), codes.InvalidArgument},
		{"bad target", ref("total_requests", "target", "five"), codes.InvalidArgument},
		{"other model", ref("total_requests", "model", "n"), codes.NotFound},
		{"other role", ref("total_requests", "role", "prefill"), codes.NotFound},
	} {
		if got := p.valueOrCode(c.ref); got != c.want.String() {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	_, err := p.GetMetrics(p.context(), &pb.GetMetricsRequest{ScaledObjectRef: ref("total_requests"), MetricName: "s0-loadplane-total-requests"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a metric with KEDA's index: %v", err)
	}
}

// TestPushed has what a trigger of type external-push asks beside that.
func TestPushed(t *testing.T) {
	e := startEngine(t)
	p := serve(t, e)
	activity, err := p.StreamIsActive(p.context(), ref("waiting_requests"))
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		got, err := activity.Recv()
		if err != nil {
			return status.Code(err).String()
		}
		return fmt.Sprint(got.GetResult())
	}
	if got := next(); got != "false" {
		t.Fatalf("at first: %s", got)
	}
	e.waiting.Store(4)
	if got := next(); got != "true" {
		t.Fatalf("with demand: %s", got)
	}
	specs, err := p.StreamMetricSpec(p.context(), ref("waiting_requests"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := specs.Recv(); err != nil || got.GetMetricSpecs()[0].GetTargetSizeFloat() != 2.5 {
		t.Fatalf("specification %v, %v", got, err)
	}
	p.terminate()
	if got := next(); got != unavailable {
		t.Errorf("activity at the end: %s", got)
	}
	if _, err := specs.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("specification at the end: %v", err)
	}
	select {
	case <-p.exited:
	case <-time.After(limit):
		t.Error("the service goes on")
	}
}

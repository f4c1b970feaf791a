package keda

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// limit bounds every wait.
const limit = 20 * time.Second

// bin has the program that "make build" made.
var bin = filepath.Join("..", "..", "bin")

// engine shows the metrics of a vLLM engine.
type engine struct {
	*httptest.Server
	running, waiting atomic.Int64
	broken           atomic.Bool
}

func startEngine(t *testing.T) *engine {
	e := &engine{}
	e.Server = httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" || e.broken.Load() {
		http.NotFound(w, r)
		return
	}
	for _, g := range []struct {
		name  string
		value float64
	}{
		{"vllm:num_requests_running", float64(e.running.Load())},
		{"vllm:num_requests_waiting", float64(e.waiting.Load())},
		{"vllm:kv_cache_usage_perc", 0.25},
	} {
		fmt.Fprintf(w, "# TYPE %s gauge\n%s{engine=\"0\",model_name=\"m\"} %v\n", g.name, g.name, g.value)
	}
}

// plane is a running "loadplane serve" that KEDA's client is connected to.
type plane struct {
	pb.ExternalScalerClient
	t   *testing.T
	cmd *exec.Cmd
	// exited closes when the process ended.
	exited chan struct{}
}

// serve starts a plane that reads one engine. It ends with the test.
func serve(t *testing.T, e *engine) *plane {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "loadplane"), "serve", "--log-format=json",
		"--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--scaler-listen=127.0.0.1:0",
		"--report-interval=200ms", "--stale-after=1s", "--worker="+e.URL+",dialect=poll,model=m,role=decode")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; make test-keda builds it", err)
	}
	p := &plane{t: t, cmd: cmd, exited: make(chan struct{})}
	address := make(chan string, 1)
	go func() {
		defer close(p.exited)
		follow(stderr, address)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.exited
	})
	select {
	case a := <-address:
		p.connect(a)
	case <-p.exited:
		t.Fatal("the service ended")
	case <-time.After(limit):
		t.Fatal("the service does not listen for autoscalers")
	}
	return p
}

// follow reads the log to its end, and sends the address of the scaler's
// listener.
func follow(log io.Reader, address chan<- string) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Msg, Listener, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" && line.Listener == "scaler" {
			address <- line.Address
		}
	}
}

// connect dials with the settings of KEDA's own connections.
func (p *plane) connect(address string) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	p.ExternalScalerClient = pb.NewExternalScalerClient(conn)
}

// terminate ends the service as Kubernetes does.
func (p *plane) terminate() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) context() context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	p.t.Cleanup(cancel)
	return ctx
}

// ref is what KEDA sends for a trigger, its own keys among the others.
func ref(metric string, more ...string) *pb.ScaledObjectRef {
	m := map[string]string{"scalerAddress": "plane:7403", "model": "m", "role": "decode", "metric": metric, "target": "2.5"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return &pb.ScaledObjectRef{Name: "decode", Namespace: "inference", ScalerMetadata: m}
}

// value asks for a metric as KEDA's scaler does.
func (p *plane) value(r *pb.ScaledObjectRef) (float64, error) {
	spec, err := p.GetMetricSpec(p.context(), r)
	if err != nil {
		return 0, err
	}
	got, err := p.GetMetrics(p.context(), &pb.GetMetricsRequest{ScaledObjectRef: r, MetricName: spec.GetMetricSpecs()[0].GetMetricName()})
	if err != nil {
		return 0, err
	}
	if len(got.GetMetricValues()) != 1 {
		return 0, fmt.Errorf("%d values", len(got.GetMetricValues()))
	}
	v := got.GetMetricValues()[0]
	if v.GetMetricValueFloat() > 0 {
		return v.GetMetricValueFloat(), nil
	}
	return float64(v.GetMetricValue()), nil
}

// await asks until an answer is the wanted one: the engine is read on a timer.
func await[T comparable](t *testing.T, what string, want T, ask func() T) {
	t.Helper()
	deadline := time.Now().Add(limit)
	got := ask()
	for ; got != want && time.Now().Before(deadline); got = ask() {
		<-time.After(20 * time.Millisecond)
	}
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// valueOrCode writes an answer of GetMetrics.
func (p *plane) valueOrCode(r *pb.ScaledObjectRef) string {
	v, err := p.value(r)
	if err != nil {
		return status.Code(err).String()
	}
	return fmt.Sprint(v)
}

func (p *plane) active(r *pb.ScaledObjectRef) string {
	got, err := p.IsActive(p.context(), r)
	if err != nil {
		return status.Code(err).String()
	}
	return fmt.Sprint(got.GetResult())
}

var unavailable = codes.Unavailable.String()

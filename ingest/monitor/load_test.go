package monitor

import (
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
)

// BenchmarkSessions says what a session costs that stands: memory and
// goroutines of both ends, of which the engine's is a plain server.
func BenchmarkSessions(b *testing.B) {
	const sessions = 200
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterLoadMonitorServiceServer(server, &engine{source: "process-1", behave: honest(true)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for b.Loop() {
		before, goroutines := heap(), runtime.NumGoroutine()
		p := newPlane(b, func(r *registry.Options, o *Options) {
			r.Workers, o.Dial = nil, nil
			for i := range sessions {
				r.Workers = append(r.Workers, "http://127.0.0.1:"+strconv.Itoa(1+i)+",dialect=monitor,reporter_port="+port)
			}
		})
		p.run()
		tick := time.NewTicker(10 * time.Millisecond)
		for range 3000 {
			if testutil.ToFloat64(p.monitor.metrics.accepted) >= 2*sessions {
				break
			}
			<-tick.C
		}
		tick.Stop()
		if n := testutil.ToFloat64(p.monitor.metrics.sessions); n != sessions {
			b.Errorf("%v sessions stand", n)
		}
		b.ReportMetric(float64(heap()-before)/sessions, "B/session")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/sessions, "goroutines/session")
		p.stop()
		p.runs.Wait()
	}
	server.Stop()
	<-served
}

// heap returns the live bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

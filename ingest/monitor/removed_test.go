package monitor

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
)

// TestBug20RemovedWorkerLeavesNoSeries scrapes a plane before a worker is there,
// while it reports, when it was removed, and after late reports of it. It runs
// in real time over TCP, as a watched file needs.
func TestBug20RemovedWorkerLeavesNoSeries(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pb.RegisterLoadMonitorServiceServer(server, &engine{source: "process-1", behave: honest(true)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	path := filepath.Join(t.TempDir(), "workers.yaml")
	list := func(workers string) {
		if err := os.WriteFile(path, []byte("workers: ["+workers+"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list("")
	p := newPlane(t, func(r *registry.Options, o *Options) {
		r.Workers, r.WorkersFile, o.Dial = nil, path, nil
	})
	p.run()
	const host = "127.0.0.1:9"
	_, port, _ := net.SplitHostPort(l.Addr().String())
	const synced = "loadplane_registry_source_synced source="
	empty := map[string]float64{}
	eventually(t, func() bool {
		empty = p.gauges()
		return empty[synced+"file"]+empty[synced+"registration"] == 2
	})
	list("{url: 'http://" + host + "', dialect: monitor, reporter_port: " + port + "}")
	reports := func() bool {
		return p.gauges()["loadplane_monitor_sessions"] == 1 && p.gauges()["loadplane_registry_streams_bound"] == 1
	}
	if !eventually(t, reports) {
		t.Fatalf("the worker does not report: %v", p.gauges())
	}
	list("")
	gone := func() bool { return maps.Equal(p.gauges(), empty) }
	if !eventually(t, gone) {
		t.Errorf("after the removal %v\nbefore %v", p.gauges(), empty)
	}
	peer := netip.MustParseAddrPort(l.Addr().String())
	if _, err := p.served.Open("process-1", peer, p.load("process-1", 1000)); err == nil {
		t.Error("a late report of the session was taken")
	}
	if _, err := p.registry.Bind(registry.Claim{Addr: "http://" + host, Source: "process-1", Peer: peer}, p.load("process-1", 1001)); err == nil {
		t.Error("a late report of a stream was taken")
	}
	if !gone() {
		t.Errorf("after late reports %v\nbefore %v", p.gauges(), empty)
	}
	p.each(func(name string, m *dto.Metric) {
		if text := m.String(); strings.Contains(text, host) || strings.Contains(text, "process-1") {
			t.Errorf("%s has the series %s", name, text)
		}
	})
	p.stop()
	p.runs.Wait()
	server.Stop()
	<-served
}

// each scrapes the plane.
func (p *plane) each(do func(name string, m *dto.Metric)) {
	families, err := p.scrapes.Gather()
	if err != nil {
		p.t.Error(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			do(f.GetName(), m)
		}
	}
}

// gauges scrapes the gauges that are not 0 and not an age, by name and labels.
func (p *plane) gauges() map[string]float64 {
	values := map[string]float64{}
	p.each(func(name string, m *dto.Metric) {
		if m.GetGauge().GetValue() == 0 || strings.HasSuffix(name, "_age_seconds") {
			return
		}
		for _, l := range m.GetLabel() {
			name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
		}
		values[name] = m.GetGauge().GetValue()
	})
	return values
}

package push

import (
	"errors"
	"fmt"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Options configure a Service.
type Options struct {
	// Registry decides who may speak. Required.
	Registry *registry.Registry
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// Interval is the report interval that is granted; 0 for one second.
	// Reports faster than twice that are counted.
	Interval time.Duration
	// MaxRanks bounds the ranks of a report; 0 for ingest.DefaultMaxRanks, at
	// most ingest.HardMaxRanks.
	MaxRanks int
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
}

func (o *Options) complete() error {
	switch {
	case o.Registry == nil:
		return errors.New("push: Registry is missing")
	case o.Clock == nil:
		return errors.New("push: Clock is missing")
	case o.Interval < 0:
		return fmt.Errorf("push: Interval %s is negative", o.Interval)
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("push: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.MaxRanks == 0 {
		o.MaxRanks = ingest.DefaultMaxRanks
	}
	return nil
}

// Service serves router.loadmonitor.v1.LoadMonitorService. It is safe for
// concurrent use.
type Service struct {
	opts    Options
	metrics *metrics
	sources loadreport.Sources
}

// New checks the options. It starts nothing.
func New(opts Options) (*Service, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	return &Service{opts: opts, metrics: m}, nil
}

// Register adds the service to a server. The server's codec must hand raw
// bytes to messages that decode themselves, as that of ingest.Server does.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "router.loadmonitor.v1.LoadMonitorService",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    "Report",
			Handler:       func(_ any, conn grpc.ServerStream) error { return s.report(conn) },
			ClientStreams: true,
		}},
		Metadata: "router/loadmonitor/v1/load_monitor.proto",
	}, s)
}

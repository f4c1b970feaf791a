package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

// Lines about new leases: so many at first, and then one in each interval.
const (
	arrivalLines = 50
	arrivalEach  = time.Second / 5
)

// Options configure a Service.
type Options struct {
	// Registry gives the leases and decides who may speak. Required.
	Registry *registry.Registry
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// MaxRanks bounds the ranks of a report; 0 for ingest.DefaultMaxRanks, at
	// most ingest.HardMaxRanks.
	MaxRanks int
	// Authorize is asked at every registration and renewal, after what the server
	// asks at every call; ctx has the peer and its metadata. An error refuses it
	// as ingest.ReasonUnauthorized; its text goes to the log, not to the peer. It
	// must not keep the request. Nil allows all.
	Authorize func(ctx context.Context, r *loadplanev1.RegisterRequest) error
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

func (o *Options) complete() error {
	switch {
	case o.Registry == nil:
		return errors.New("native: Registry is missing")
	case o.Clock == nil:
		return errors.New("native: Clock is missing")
	case o.MaxRanks < 0 || o.MaxRanks > ingest.HardMaxRanks:
		return fmt.Errorf("native: MaxRanks %d is not within 0 to %d", o.MaxRanks, ingest.HardMaxRanks)
	}
	if o.MaxRanks == 0 {
		o.MaxRanks = ingest.DefaultMaxRanks
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

// Service serves loadplane.v1.RegistrationService and
// loadplane.v1.ReportService. It is safe for concurrent use.
type Service struct {
	opts    Options
	metrics *metrics
	// arrivals bounds the lines about new leases.
	arrivals rate.Sometimes
}

// New checks the options. It starts nothing.
func New(opts Options) (*Service, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("native: %w", err)
	}
	return &Service{opts: opts, metrics: m, arrivals: rate.Sometimes{First: arrivalLines, Interval: arrivalEach}}, nil
}

// Register adds both services to a server. The server's codec must hand raw
// bytes to messages that decode themselves, as that of ingest.Server does.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	registration, report := loadplanev1.RegistrationService_ServiceDesc, loadplanev1.ReportService_ServiceDesc
	// The generated handlers decode before the server has asked who calls.
	registration.HandlerType, report.HandlerType = (*any)(nil), (*any)(nil)
	registration.Methods = []grpc.MethodDesc{
		method(s, "Register", s.begin),
		method(s, "Deregister", s.deregister),
	}
	report.Streams = []grpc.StreamDesc{{
		StreamName:    "Report",
		Handler:       func(_ any, conn grpc.ServerStream) error { return s.report(conn) },
		ServerStreams: true,
		ClientStreams: true,
	}}
	r.RegisterService(&registration, s)
	r.RegisterService(&report, s)
}

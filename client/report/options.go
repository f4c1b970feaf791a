package report

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/loadplane/loadplane/client/internal/link"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Options say what a Reporter reports, and to which plane. They are a plain
// value; what they point to must not be changed once they were given to New.
type Options struct {
	// Address is the base URL of the plane's ingest listener, http or https,
	// such as "http://10.0.0.7:7401". It speaks HTTP/2 only.
	Address string
	// Registration is the engine as the plane is to know it; Url is required. The
	// lease_id is filled in by the Reporter.
	Registration *pb.RegisterRequest
	// Report returns the load of the engine when a report is due, at now; nil
	// where there is nothing to send. It is called from one goroutine at a time,
	// must not block, and must not change a report that it returned. A report of
	// another source instance than the one before begins a new stream. Required.
	Report func(now time.Time) *pb.EngineReport
	// Planned is told when the reports that are due begin to go by other times:
	// the next one goes at a time, those after it at an interval. Late is told how
	// late such a one is made. Both are called by one goroutine at a time and must
	// not block; nil for not to be told.
	Planned func(next time.Time, interval time.Duration)
	Late    func(by time.Duration)
	// Inherited says at the end of Run that another reporter of the engine takes
	// the lease over, so that it is not given back; nil for none.
	Inherited func() bool
	// Token returns the bearer token of a call; an error counts as a failed one.
	// It must heed its context. Nil: no token is sent.
	Token func(ctx context.Context) (string, error)
	// TLS is for an https address; nil trusts the CAs of the system. A client
	// certificate for mTLS goes here.
	TLS *tls.Config
	// Logger gets a line when reporting begins and ends, and when reports begin to
	// be refused; nil for none.
	Logger *slog.Logger
}

func (o *Options) validate() error {
	if err := link.CheckAddress(o.Address); err != nil {
		return fmt.Errorf("option Address: %w", err)
	}
	if o.Registration.GetUrl() == "" {
		return errors.New("option Registration: a URL is needed")
	}
	if o.Report == nil {
		return errors.New("option Report: it is needed")
	}
	return nil
}

// cloned returns a copy of a registration that shares nothing, with a lease.
func cloned(r *pb.RegisterRequest, lease string) *pb.RegisterRequest {
	return &pb.RegisterRequest{
		Url: r.GetUrl(), Role: r.GetRole(), Models: slices.Clone(r.GetModels()), Zone: r.GetZone(),
		Labels: maps.Clone(r.GetLabels()), LeaseId: lease, LeaseTtlMs: r.GetLeaseTtlMs(),
		ReportIntervalMs: r.GetReportIntervalMs(), Engine: r.GetEngine(), EngineVersion: r.GetEngineVersion(),
	}
}

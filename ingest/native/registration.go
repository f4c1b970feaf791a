package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Limits of the texts of a registration beside those of a report. They are those
// of a worker that a flag names.
const (
	maxListed      = 64
	maxLeaseBytes  = 128
	maxLabelBytes  = 64
	maxEngineBytes = 64
)

// bounded is a message that is not decoded where it is too large.
type bounded struct {
	message proto.Message
	fault   *registry.Refusal
}

// DecodeWire decodes the message. A fault is left to the caller.
func (m *bounded) DecodeWire(b []byte) error {
	switch {
	case len(b) > ingest.MaxMessageBytes:
		m.fault = ingest.Refuse(ingest.ReasonMessageTooLarge, "the message is above 64 KiB")
	case proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m.message) != nil:
		m.fault = ingest.Refuse(ingest.ReasonMalformed, "the bytes are no message of this call")
	}
	return nil
}

// method returns a call of the registration service. Its message is decoded
// once the server's guard has let the call through.
func method[Request any, Response proto.Message](s *Service, name string, call func(context.Context, *Request) (Response, error)) grpc.MethodDesc {
	path := "/" + loadplanev1.RegistrationService_ServiceDesc.ServiceName + "/" + name
	handler := func(srv any, ctx context.Context, decode func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
		handle := func(ctx context.Context, _ any) (any, error) {
			req := new(Request)
			message, _ := any(req).(proto.Message)
			m := bounded{message: message}
			if err := decode(&m); err != nil {
				return nil, err
			}
			if m.fault != nil {
				return nil, s.deny(ctx, "", m.fault)
			}
			return call(ctx, req)
		}
		if guard == nil {
			return handle(ctx, nil)
		}
		return guard(ctx, nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: path}, handle)
	}
	return grpc.MethodDesc{MethodName: name, Handler: handler}
}

// begin begins a lease or renews it.
func (s *Service) begin(ctx context.Context, r *loadplanev1.RegisterRequest) (*loadplanev1.RegisterResponse, error) {
	if refusal := s.checkRegistration(ctx, r); refusal != nil {
		return nil, s.deny(ctx, r.GetUrl(), refusal)
	}
	lease, err := s.opts.Registry.Register(ctx, registry.Registration{
		LeaseID: r.GetLeaseId(),
		Spec: registry.WorkerSpec{
			URL: r.GetUrl(), Role: store.Role(r.GetRole()), Models: r.GetModels(), Zone: r.GetZone(), Labels: r.GetLabels(),
		},
		TTL: milliseconds(r.GetLeaseTtlMs()), Interval: milliseconds(r.GetReportIntervalMs()),
		Engine: r.GetEngine(), Version: r.GetEngineVersion(),
		Peer: ingest.Peer(ctx),
	})
	if err != nil {
		return nil, s.failed(err)
	}
	outcome := outcomeRenewed
	if r.GetLeaseId() != lease.ID {
		outcome = outcomeBegun
		s.arrivals.Do(func() {
			s.opts.Logger.Info("reporter registered", slog.String("worker", lease.WorkerID), slog.Any("peer", ingest.Peer(ctx)))
		})
	}
	count(s.metrics.registrations, outcome)
	return &loadplanev1.RegisterResponse{LeaseId: lease.ID, WorkerId: lease.WorkerID, Grant: grantOf(lease.Grant)}, nil
}

// deregister ends a lease.
func (s *Service) deregister(ctx context.Context, r *loadplanev1.DeregisterRequest) (*loadplanev1.DeregisterResponse, error) {
	if refusal := checkText("lease_id", r.GetLeaseId(), maxLeaseBytes); refusal != nil {
		return nil, s.deny(ctx, "", refusal)
	}
	if err := s.opts.Registry.Deregister(r.GetLeaseId(), ingest.Peer(ctx)); err != nil {
		return nil, s.failed(err)
	}
	count(s.metrics.registrations, outcomeEnded)
	return &loadplanev1.DeregisterResponse{}, nil
}

// deny tells the registry of a refusal that is not its own, and returns what the
// peer is told.
func (s *Service) deny(ctx context.Context, url string, refusal *registry.Refusal) error {
	s.opts.Registry.Refuse(nil, registry.Claim{Addr: url, Peer: ingest.Peer(ctx)}, refusal)
	return s.failed(refusal)
}

// failed counts the error of a call and returns what the peer is told.
func (s *Service) failed(err error) error {
	var refusal *registry.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	count(s.metrics.denied, string(refusal.Reason))
	return ingest.Status(refusal)
}

// checkRegistration holds a registration against the limits, and asks the hook.
func (s *Service) checkRegistration(ctx context.Context, r *loadplanev1.RegisterRequest) *registry.Refusal {
	if refusal := checkTexts(r); refusal != nil {
		return refusal
	}
	if role := r.GetRole(); role < loadplanev1.Role_ROLE_UNSPECIFIED || role > loadplanev1.Role_ROLE_DECODE {
		return ingest.Refuse(ingest.ReasonBadRole, fmt.Sprintf("role %d is not known", role))
	}
	if s.opts.Authorize == nil {
		return nil
	}
	if err := s.opts.Authorize(ctx, r); err != nil {
		refusal := ingest.Refuse(ingest.ReasonUnauthorized, "the registration is not allowed")
		refusal.Detail = err.Error()
		return refusal
	}
	return nil
}

func checkTexts(r *loadplanev1.RegisterRequest) *registry.Refusal {
	if n := max(len(r.GetModels()), len(r.GetLabels())); n > maxListed {
		return ingest.Refuse(ingest.ReasonStringTooLong, fmt.Sprintf("%d models or labels, at most %d are allowed", n, maxListed))
	}
	texts := []struct {
		name, text string
		limit      int
	}{
		{"url", r.GetUrl(), ingest.MaxAddrBytes},
		{"zone", r.GetZone(), ingest.MaxZoneBytes},
		{"lease_id", r.GetLeaseId(), maxLeaseBytes},
		{"engine", r.GetEngine(), maxEngineBytes},
		{"engine_version", r.GetEngineVersion(), ingest.MaxSourceBytes},
	}
	for _, t := range texts {
		if refusal := checkText(t.name, t.text, t.limit); refusal != nil {
			return refusal
		}
	}
	for _, model := range r.GetModels() {
		if refusal := checkText("model", model, ingest.MaxModelBytes); refusal != nil {
			return refusal
		}
	}
	for name, value := range r.GetLabels() {
		if refusal := checkText("label name", name, maxLabelBytes); refusal != nil {
			return refusal
		}
		if refusal := checkText("label", value, ingest.MaxModelBytes); refusal != nil {
			return refusal
		}
	}
	return nil
}

// checkText holds a text against its limit, and demands that it can be printed.
// The registry says which may not be empty.
func checkText(name, text string, limit int) *registry.Refusal {
	if len(text) > limit {
		return ingest.Refuse(ingest.ReasonStringTooLong, fmt.Sprintf("%s has %d bytes, at most %d are allowed", name, len(text), limit))
	}
	if !utf8.ValidString(text) {
		return ingest.Refuse(ingest.ReasonMalformed, name+" is not UTF-8")
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return ingest.Refuse(ingest.ReasonMalformed, name+" cannot be printed")
		}
	}
	return nil
}

func milliseconds(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// grantOf returns a grant as it is sent.
func grantOf(g registry.Grant) *loadplanev1.Grant {
	return &loadplanev1.Grant{
		ReportIntervalMs: uint32(g.Interval.Milliseconds()),
		LeaseTtlMs:       uint32(g.TTL.Milliseconds()),
		RenewAfterMs:     uint32(g.RenewAfter.Milliseconds()),
	}
}

package scaler

import (
	"context"
	"time"

	pb "github.com/loadplane/loadplane/proto/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The methods, as metrics and log lines name them.
const (
	methodIsActive         = "IsActive"
	methodStreamIsActive   = "StreamIsActive"
	methodGetMetricSpec    = "GetMetricSpec"
	methodGetMetrics       = "GetMetrics"
	methodStreamMetricSpec = "StreamMetricSpec"
)

// minPush is the least time between two looks at the view for a stream. The
// view may change a hundred times a second, and a Deployment does not.
const minPush = time.Second

// errDraining ends the streams at a shutdown.
var errDraining = status.Error(codes.Unavailable, "the plane is shutting down")

// scaler is externalscaler.ExternalScaler.
type scaler struct {
	pb.UnimplementedExternalScalerServer
	*Server
}

// IsActive says whether the pool has demand.
func (s scaler) IsActive(ctx context.Context, ref *pb.ScaledObjectRef) (*pb.IsActiveResponse, error) {
	s.metrics.asked(methodIsActive)
	t, refused := parse(ref.GetScalerMetadata())
	if refused != nil {
		return nil, s.refuse(methodIsActive, refused)
	}
	view, _ := s.opts.Snapshots.Fresh(ctx)
	active, refused := t.active(view)
	if refused != nil {
		return nil, s.refuse(methodIsActive, refused)
	}
	return &pb.IsActiveResponse{Result: active}, nil
}

// GetMetricSpec names the metric and its target.
func (s scaler) GetMetricSpec(_ context.Context, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	s.metrics.asked(methodGetMetricSpec)
	t, refused := parse(ref.GetScalerMetadata())
	if refused != nil {
		return nil, s.refuse(methodGetMetricSpec, refused)
	}
	return t.spec(), nil
}

func (t trigger) spec() *pb.GetMetricSpecResponse {
	return &pb.GetMetricSpecResponse{MetricSpecs: []*pb.MetricSpec{{
		MetricName: t.name(), TargetSize: whole(t.target), TargetSizeFloat: t.target,
	}}}
}

// GetMetrics returns the value of the metric over the fresh workers.
func (s scaler) GetMetrics(ctx context.Context, req *pb.GetMetricsRequest) (*pb.GetMetricsResponse, error) {
	s.metrics.asked(methodGetMetrics)
	t, refused := parse(req.GetScaledObjectRef().GetScalerMetadata())
	if refused == nil && req.GetMetricName() != t.name() {
		refused = refuse(ReasonOtherMetric, "there is no metric %.64q; the metadata names %s", req.GetMetricName(), t.name())
	}
	if refused != nil {
		return nil, s.refuse(methodGetMetrics, refused)
	}
	view, _ := s.opts.Snapshots.Fresh(ctx)
	v, refused := t.value(view)
	if refused != nil {
		return nil, s.refuse(methodGetMetrics, refused)
	}
	return &pb.GetMetricsResponse{MetricValues: []*pb.MetricValue{{
		MetricName: t.name(), MetricValue: whole(v), MetricValueFloat: v,
	}}}, nil
}

// StreamIsActive says whether the pool has demand, at once and whenever that
// changes. What is not known is not sent: the last answer holds.
func (s scaler) StreamIsActive(ref *pb.ScaledObjectRef, out grpc.ServerStreamingServer[pb.IsActiveResponse]) error {
	t, refused := s.enter(methodStreamIsActive, ref)
	if refused != nil {
		return s.refuse(methodStreamIsActive, refused)
	}
	defer s.leave()
	ctx := out.Context()
	for sent, last := false, false; ; {
		view, stale := s.opts.Snapshots.Fresh(ctx)
		active, unknown := t.active(view)
		if unknown == nil && (!sent || active != last) {
			if err := out.Send(&pb.IsActiveResponse{Result: active}); err != nil {
				return err
			}
			sent, last = true, active
		}
		if err := s.await(ctx, stale); err != nil {
			return err
		}
	}
}

// await waits until the view is superseded, and for minPush at the least.
func (s *Server) await(ctx context.Context, stale <-chan struct{}) error {
	least := time.NewTimer(minPush)
	defer least.Stop()
	for pause := least.C; stale != nil || pause != nil; {
		select {
		case <-stale:
			stale = nil
		case <-pause:
			pause = nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.draining:
			return errDraining
		}
	}
	return nil
}

// StreamMetricSpec returns what GetMetricSpec does, once: a trigger's metadata
// alone decides it. The stream stays open, so that KEDA does not ask again.
func (s scaler) StreamMetricSpec(ref *pb.ScaledObjectRef, out grpc.ServerStreamingServer[pb.GetMetricSpecResponse]) error {
	t, refused := s.enter(methodStreamMetricSpec, ref)
	if refused != nil {
		return s.refuse(methodStreamMetricSpec, refused)
	}
	defer s.leave()
	if err := out.Send(t.spec()); err != nil {
		return err
	}
	return s.await(out.Context(), make(chan struct{}))
}

// enter gives a stream a place and reads its trigger.
func (s *Server) enter(method string, ref *pb.ScaledObjectRef) (trigger, *refusal) {
	s.metrics.asked(method)
	t, refused := parse(ref.GetScalerMetadata())
	if refused != nil {
		return trigger{}, refused
	}
	if s.open.Add(1) > int64(s.opts.MaxStreams) {
		s.open.Add(-1)
		return trigger{}, refuse(ReasonTooManyScalers, "there are %d streams already", s.opts.MaxStreams)
	}
	s.metrics.streams.Inc()
	return t, nil
}

func (s *Server) leave() {
	s.open.Add(-1)
	s.metrics.streams.Dec()
}

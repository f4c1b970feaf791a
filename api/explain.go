package api

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/api/explain"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store/snapshot"
)

// maxWorkerName bounds the name of a worker in a question, bytes.
const maxWorkerName = 1024

// ExplainWorker returns all that is known of one worker, its ranks included,
// check by check.
func (s workerService) ExplainWorker(ctx context.Context, req *pb.ExplainWorkerRequest) (*pb.ExplainWorkerResponse, error) {
	name := req.GetWorkerId()
	if name == "" || len(name) > maxWorkerName {
		s.metrics.refused.of(ReasonBadParameter).Inc()
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("worker_id: give the id or the base URL of a worker"))
	}
	view, _ := s.opts.Snapshots.Fresh(ctx)
	i, err := explain.Find(view.Entries, name)
	if err != nil {
		return nil, connect.NewError(connect.CodeNotFound, err)
	}
	res, err := s.explained(view, i)
	if err != nil {
		s.faults.Do(func() {
			s.opts.Logger.Error("worker could not be encoded", "worker", view.Workers[i].Worker.ID, "error", err)
		})
		return nil, connect.NewError(connect.CodeInternal, errors.New("the worker could not be encoded"))
	}
	return res, nil
}

// explained explains the worker at a place of the view.
func (s workerService) explained(view *snapshot.View, i int) (*pb.ExplainWorkerResponse, error) {
	w, now := view.Workers[i], s.clock.Now()
	info, err := s.info(w, view.Receipts[i])
	if err != nil {
		return nil, err
	}
	f := explain.Facts{Entry: w.Entry, Plane: explain.Plane{
		Now: now, StaleAfter: s.stale, Warming: view.Warming, Sources: s.store.Sources(),
	}}
	if r := view.Receipts[i]; r != nil {
		f.Live = r.Live
	}
	f.Stream, f.Diagnostics, _ = s.store.Inspect(w.Row)
	checks := explain.Checks(f)
	return &pb.ExplainWorkerResponse{
		Worker: info, Checks: checks, Summary: explain.Summary(checks),
		Diagnostics: explain.Happenings(f.Diagnostics.Happenings), ServerClockMs: now.Milliseconds(),
	}, nil
}

package api

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/cespare/xxhash/v2"
	"github.com/loadplane/loadplane/api/frame"
	"github.com/loadplane/loadplane/api/query"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/proto"
)

// snapshotService is loadplane.v1.SnapshotService.
type snapshotService struct{ *API }

// WatchSnapshots sends the view and its changes until either side ends it.
func (s snapshotService) WatchSnapshots(ctx context.Context, req *pb.WatchSnapshotsRequest, stream *connect.ServerStream[pb.WatchSnapshotsResponse]) error {
	q, err := query.Watch(req)
	if err != nil {
		return s.refuse(err).rpc()
	}
	leave, refused := s.admit(ctx, s.clientOf(ctx, q.ClientID))
	if refused != nil {
		return refused.rpc()
	}
	defer leave()
	w := s.newWatch(ctx, q)
	defer w.feed.Release()
	w.fullOnly = req.GetFullOnly()
	w.encode = func(u update) error { return s.sendChunks(stream.Conn(), u) }
	w.resume(req.GetResume())
	return rpcError(w.run(ctx))
}

func rpcError(err error) error {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return refused.rpc()
	case errors.Is(err, errCut):
		return connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

// GetSnapshot returns what the first message of a watch would carry.
func (s snapshotService) GetSnapshot(ctx context.Context, req *pb.GetSnapshotRequest) (*pb.GetSnapshotResponse, error) {
	q, err := query.Selection(req.GetFilter(), req.GetDetail())
	if err != nil {
		s.metrics.requests.of(class4xx).Inc()
		return nil, s.refuse(err).rpc()
	}
	if refused := s.beginWhole(ctx); refused != nil {
		s.metrics.requests.of(class4xx).Inc()
		s.metrics.refused.of(refused.reason).Inc()
		return nil, refused.rpc()
	}
	feed := s.feeds.Take(q.Filter)
	defer feed.Release()
	view, _ := feed.Fresh(ctx)
	u := update{kind: kindFull, view: view, feed: feed, brief: q.Brief, heartbeat: s.grant(0)}
	m, err := s.frame(u, feed.Change(view.Snapshot, frame.Change{Brief: q.Brief})[0]).Message()
	if err != nil {
		s.metrics.requests.of(class5xx).Inc()
		s.faults.Do(func() { s.opts.Logger.Error("snapshot could not be encoded", "error", err) })
		return nil, connect.NewError(connect.CodeInternal, errors.New("the snapshot could not be encoded"))
	}
	s.metrics.requests.of(class2xx).Inc()
	return &pb.GetSnapshotResponse{Snapshot: m}, nil
}

// refuse refuses a request that could not be read, and counts it.
func (a *API) refuse(err error) *refusal {
	refused := refuseQuery(err)
	a.metrics.refused.of(refused.reason).Inc()
	return refused
}

// maxChunk is the size at which the event of a message is cut in chunks,
// bytes. What cannot be cut, one worker, may be larger, and the receipts come on
// top of the last chunk.
const maxChunk = 2 << 20

// sendChunks sends u, an event of several chunks in as many messages: nothing
// else comes between them, and the last one carries the receipts.
func (a *API) sendChunks(conn connect.StreamingHandlerConn, u update) error {
	if !u.kind.data() {
		return conn.Send(a.frame(u, nil))
	}
	chunks := u.feed.Change(u.view.Snapshot, frame.Change{Base: u.base, Limit: a.chunk, Brief: u.brief})
	for _, c := range chunks[:len(chunks)-1] {
		if err := conn.Send(&frame.Frame{Head: a.head(u), Event: c}); err != nil {
			return err
		}
		a.metrics.sent.of(u.kind).Inc()
	}
	return conn.Send(a.frame(u, chunks[len(chunks)-1]))
}

// frame encodes u around an event, nil where u has none that is shared. Only
// the head is its own.
func (a *API) frame(u update, event *frame.Chunk) *frame.Frame {
	f := &frame.Frame{Head: a.head(u), Liveness: u.feed.Receipts(u.view, u.since), Event: event}
	switch u.kind {
	case kindHeartbeat:
		f.Head.Event = &pb.WatchSnapshotsResponse_Heartbeat{Heartbeat: &pb.Heartbeat{}}
	case kindGoAway:
		f.Head.Event = &pb.WatchSnapshotsResponse_GoAway{GoAway: &pb.GoAway{
			ReconnectWithinMs: uint32(reconnectWithin.Milliseconds()), Reason: u.why,
		}}
	}
	return f
}

func (a *API) head(u update) *pb.WatchSnapshotsResponse {
	v := u.view
	return &pb.WatchSnapshotsResponse{
		Cursor:          &pb.Cursor{Lineage: v.Lineage, Epoch: v.Epoch, Version: v.Version, FilterHash: selection(v, u.brief)},
		Warming:         v.Warming,
		PublishedUnixMs: v.Published.UnixMilli(),
		ServerUnixMs:    time.Now().UnixMilli(),
		// Rounded up, while valid_until_ms is rounded down: what is left is
		// never more than it is.
		ServerClockMs:       a.clock.Now().Add(time.Millisecond - 1).Milliseconds(),
		MinIntervalMs:       uint32((u.minInterval + time.Millisecond - 1).Milliseconds()),
		HeartbeatIntervalMs: uint32(u.heartbeat.Milliseconds()),
		Digest:              v.Digest,
		StaleAfterMs:        uint32(a.stale.Milliseconds()),
		ServerId:            a.opts.ServerID,
	}
}

// selection returns what cursors name a filter and a detail by: the hash of the
// filter, and another where the ranks are left out. 0 is the whole view.
func selection(v *snapshot.View, brief bool) uint64 {
	if !brief {
		return v.FilterHash
	}
	return max(xxhash.Sum64(binary.LittleEndian.AppendUint64([]byte("brief"), v.FilterHash)), 1)
}

// workerService is loadplane.v1.WorkerService.
type workerService struct{ *API }

// ListWorkers returns the discovered workers and the state of the way to them.
func (s workerService) ListWorkers(ctx context.Context, _ *pb.ListWorkersRequest) (*pb.ListWorkersResponse, error) {
	if refused := s.beginWhole(ctx); refused != nil {
		s.metrics.refused.of(refused.reason).Inc()
		return nil, refused.rpc()
	}
	view, _ := s.opts.Snapshots.Fresh(ctx)
	res := &pb.ListWorkersResponse{Workers: make([]*pb.WorkerInfo, 0, len(view.Workers))}
	for i, w := range view.Workers {
		info, err := s.info(w, view.Receipts[i])
		if err != nil {
			s.faults.Do(func() { s.opts.Logger.Error("worker could not be encoded", "worker", w.Worker.ID, "error", err) })
			return nil, connect.NewError(connect.CodeInternal, errors.New("a worker could not be encoded"))
		}
		info.Worker.Ranks = nil
		res.Workers = append(res.Workers, info)
	}
	res.DiscoveryError = known(s.store.DiscoveryError())
	res.Sources = s.sources()
	res.ServerClockMs = s.clock.Now().Milliseconds()
	return res, nil
}

// sources returns how the sources of discovery are.
func (s workerService) sources() (list []*pb.DiscoverySource) {
	for _, src := range s.store.Sources() {
		m := &pb.DiscoverySource{Name: src.Name, Synced: src.Synced, Error: known(src.Error)}
		if src.Synced {
			m.Workers = proto.Uint32(uint32(src.Workers))
		}
		if src.Listed != 0 {
			m.ListedAgeMs = proto.Uint64(uint64(max(0, s.clock.Now().Sub(src.Listed).Milliseconds())))
		}
		list = append(list, m)
	}
	return list
}

// info returns a worker, its ranks included, and the state of the way to it.
func (s workerService) info(w *snapshot.Worker, r *snapshot.Receipt) (*pb.WorkerInfo, error) {
	m := new(pb.Worker)
	if err := proto.Unmarshal(w.Encoded, m); err != nil {
		return nil, err
	}
	info := &pb.WorkerInfo{Worker: m, DiscoveredBy: w.Worker.DiscoveredBy}
	s.addWay(info, w.Row)
	if r == nil {
		return info, nil
	}
	info.AgeMs = proto.Uint64(uint64(max(0, s.clock.Now().Sub(r.Received).Milliseconds())))
	if r.ReportUnixMs >= 0 {
		info.ClockSkewMs = proto.Int64(r.ReportUnixMs - r.ReceivedUnixMs)
	}
	return info, nil
}

// addWay adds what the streams and diagnostics tables say of a worker.
func (s workerService) addWay(info *pb.WorkerInfo, row uint32) {
	stream, diag, ok := s.store.Inspect(row)
	if !ok {
		return
	}
	info.Registration = diag.Registration
	info.RegistrationError = known(diag.RegistrationError)
	info.Peer = known(stream.Peer)
	info.Refused = diag.Refused
	info.LastRefusal = known(string(diag.LastRefusal))
	info.LastRefusalDetail = known(diag.LastRefusalDetail)
	info.RegistrationHttpStatus = known(uint32(diag.RegistrationStatus))
	info.NextRegistrationMs = known(diag.NextRegistration.Milliseconds())
	info.LeaseExpiresMs = known(diag.LeaseExpires.Milliseconds())
	info.Engine = known(diag.Engine)
	info.EngineVersion = known(diag.EngineVersion)
	info.DialectWhy = known(diag.DialectWhy)
	info.PollIntervalMs = known(uint32(diag.PollInterval.Milliseconds()))
}

// known returns nil for the zero value, which stands for unknown.
func known[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

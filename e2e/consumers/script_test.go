package consumers

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"google.golang.org/protobuf/proto"
)

type message = pb.WatchSnapshotsResponse

// act is what a plane says on one stream. It then holds the stream, or closes
// it.
type act struct {
	says   []*message
	closes bool
}

// stage is a plane that plays one act after the other, a stream each. It holds
// the last one.
type stage struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
	acts []act
	// cue closes when the second message may be sent; nil for at once.
	cue chan struct{}

	mu sync.Mutex
	// resumes are the versions that the streams were opened with, 0 for none.
	resumes []uint64
}

func (s *stage) WatchSnapshots(ctx context.Context, r *pb.WatchSnapshotsRequest, out *connect.ServerStream[message]) error {
	act, ok := s.next(r.GetResume().GetVersion())
	if !ok {
		return connect.NewError(connect.CodeInternal, nil)
	}
	for i, m := range act.says {
		if i == 1 && s.cue != nil {
			select {
			case <-s.cue:
			case <-ctx.Done():
			}
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
	if !act.closes {
		<-ctx.Done()
	}
	return nil
}

// next returns the act of a new stream; false when there is none left.
func (s *stage) next(resume uint64) (act, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumes = append(s.resumes, resume)
	if len(s.resumes) > len(s.acts) {
		return act{}, false
	}
	return s.acts[len(s.resumes)-1], true
}

// lines plays as the JSON watch, of which every stream begins with a full.
func (s *stage) lines(w http.ResponseWriter, r *http.Request) {
	act, ok := s.next(0)
	if !ok {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	for i, m := range act.says {
		if i == 0 && m.GetHeartbeat() != nil {
			continue // where a watch resumes
		}
		if err := json.NewEncoder(w).Encode(jsonOf(m)); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
	if !act.closes {
		<-r.Context().Done()
	}
}

// jsonOf returns a message as a line has it.
func jsonOf(m *message) map[string]any {
	of := func(list []*pb.Worker) []any {
		out := []any{}
		for _, w := range list {
			out = append(out, map[string]any{
				"worker_id": w.GetWorkerId(), "freshness": freshnessOf(w), "draining": false, "valid_for_ms": 60_000,
				"aggregate": map[string]any{"total_requests": requestsOf(w)},
			})
		}
		return out
	}
	line := map[string]any{
		"type": client.EventName(m), "lineage": m.GetCursor().GetLineage(), "epoch": m.GetCursor().GetEpoch(),
		"version": m.GetCursor().GetVersion(), "warming": m.GetWarming(), "liveness": []any{},
	}
	switch e := m.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		line["workers"] = of(e.Full.GetWorkers())
	case *pb.WatchSnapshotsResponse_Delta:
		line["workers"], line["base_version"] = of(e.Delta.GetWorkers()), e.Delta.GetBaseVersion()
		gone := []string{}
		for _, r := range e.Delta.GetRemoved() {
			gone = append(gone, r.GetWorkerId())
		}
		line["removed"] = gone
	case *pb.WatchSnapshotsResponse_GoAway:
		line["reason"], line["reconnect_within_ms"] = e.GoAway.GetReason(), e.GoAway.GetReconnectWithinMs()
	}
	return line
}

// open serves the stage and returns its host:port.
func (s *stage) open(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(s))
	mux.HandleFunc("GET /v1/load_monitor/watch", s.lines)
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return strings.TrimPrefix(server.URL, "http://")
}

// clock is what the plane's clock shows, for as long as a script runs.
const clock = 60_000

// content is a list of workers.
type content []*pb.Worker

// someone is a fresh worker. Its row is its hash, too, so that a digest cannot
// be right by accident.
func someone(row uint32, id string, requests int64) *pb.Worker {
	return &pb.Worker{
		Row: row, WorkerId: id, Freshness: pb.Freshness_FRESHNESS_FRESH, ContentHash: 1<<63 + uint64(row)<<8 + uint64(requests),
		Aggregate: &pb.Aggregate{TotalRequests: &requests},
	}
}

// says makes a message of lineage "a" that leaves a client with content; all
// its workers were just heard, and stay valid for a minute.
func says(version uint64, all content, event *message) *message {
	m := proto.CloneOf(event)
	m.Cursor = &pb.Cursor{Lineage: "a", Epoch: 1, Version: version}
	m.ServerId, m.ServerClockMs, m.StaleAfterMs, m.HeartbeatIntervalMs = "p", clock, 60_000, 10_000
	m.Liveness = &pb.Liveness{}
	for _, w := range all {
		m.Digest += w.GetContentHash()
		m.Liveness.Workers = append(m.Liveness.Workers, &pb.WorkerLiveness{Row: w.GetRow(), ReceivedMs: clock, ValidUntilMs: clock + 60_000})
	}
	return m
}

func fullOf(workers content) *message {
	return &message{Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers}}}
}

func full(version uint64, all content) *message { return says(version, all, fullOf(all)) }

func delta(version uint64, all content, d *pb.Delta) *message {
	return says(version, all, &message{Event: &pb.WatchSnapshotsResponse_Delta{Delta: d}})
}

func heartbeat(version uint64, all content) *message {
	return says(version, all, &message{Event: &pb.WatchSnapshotsResponse_Heartbeat{Heartbeat: &pb.Heartbeat{}}})
}

// with changes a message.
func with(m *message, change func(*message)) *message {
	change(m)
	return m
}

func ofLineage(lineage string, warming bool, m *message) *message {
	return with(m, func(m *message) { m.Cursor.Lineage, m.Warming = lineage, warming })
}

func chunkOf(number, count uint32, m *message) *message {
	return with(m, func(m *message) {
		if f := m.GetFull(); f != nil {
			f.Chunk, f.Chunks = number, count
		}
		if d := m.GetDelta(); d != nil {
			d.Chunk, d.Chunks = number, count
		}
	})
}

// script is a play, and what a consumer must make of it.
type script struct {
	name string
	acts []act
	// resumes are the versions that the streams must be opened with.
	resumes []uint64
	// never is what no line may be; nil for nothing.
	never func(line) bool
	// want is what a line must be in the end.
	want func(line) bool
	// late sends the second message a moment after the first was taken.
	late bool
	// binary says that lines of JSON cannot tell it.
	binary bool
}

// play runs a script.
func (s script) play(t *testing.T, c consumer) {
	plane := &stage{acts: s.acts}
	if s.late {
		plane.cue = make(chan struct{})
	}
	f := c.start(t, plane.open(t))
	if s.late {
		f.until("the first message", func(l line) bool { return l.Version > 0 })
		time.AfterFunc(300*time.Millisecond, func() { close(plane.cue) })
	}
	f.until("the end of the script", s.want)
	plane.mu.Lock()
	defer plane.mu.Unlock()
	if len(plane.resumes) != len(s.resumes) {
		t.Fatalf("%d streams, opened with %d; want %d", len(plane.resumes), plane.resumes, s.resumes)
	}
	for i, want := range s.resumes {
		if c.resumes && plane.resumes[i] != want {
			t.Errorf("stream %d was opened with version %d, want %d", i, plane.resumes[i], want)
		}
	}
	for _, l := range f.seen {
		if s.never != nil && s.never(l) {
			t.Errorf("the consumer says %+v", l)
		}
	}
}

package history

import (
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Watcher records what one client is told. It keeps a ledger of its own of
// what the messages say, so that the record does not depend on the client
// under test. It is for one goroutine.
type Watcher struct {
	recorder *Recorder
	client   string
	stream   int
	rows     map[uint32]row
	// parts are the chunks of an event that is not whole yet.
	parts []*pb.WatchSnapshotsResponse
}

// row is what the ledger has of a worker.
type row struct {
	id, source   string
	hash         uint64
	fresh, heard bool
	until        uint64 // server clock, milliseconds
}

// Watcher returns a recorder for one client.
func (r *Recorder) Watcher(client string) *Watcher {
	return &Watcher{recorder: r, client: client, rows: map[uint32]row{}}
}

// Open records that the client opens a watch, with the cursor it sends.
func (w *Watcher) Open(resume *pb.Cursor) {
	w.stream++
	w.parts = nil
	open := Open{Client: w.client, Stream: w.stream}
	if resume != nil {
		c := cursorOf(resume)
		open.Resume = &c
	}
	w.recorder.add(Line{Open: &open})
}

// Message records a message as it was received.
func (w *Watcher) Message(m *pb.WatchSnapshotsResponse) {
	line := Message{
		Client: w.client, Stream: w.stream, Cursor: cursorOf(m.GetCursor()),
		Digest: m.GetDigest(), ServerClockMs: m.GetServerClockMs(),
	}
	switch e := m.GetEvent().(type) {
	case *pb.WatchSnapshotsResponse_Full:
		line.Event, line.Chunk, line.Chunks = EventFull, e.Full.GetChunk(), e.Full.GetChunks()
	case *pb.WatchSnapshotsResponse_Delta:
		line.Event, line.Chunk, line.Chunks = EventDelta, e.Delta.GetChunk(), e.Delta.GetChunks()
		line.Base = e.Delta.GetBaseVersion()
	case *pb.WatchSnapshotsResponse_Heartbeat:
		line.Event = EventHeartbeat
	case *pb.WatchSnapshotsResponse_GoAway:
		line.Event = EventGoAway
	}
	w.parts = append(w.parts, m)
	if line.Chunks == 0 || line.Chunk+1 == line.Chunks {
		w.apply(&line)
		w.receive(m, &line)
		w.sum(&line)
		w.parts = nil
	}
	w.recorder.add(Line{Message: &line})
}

func cursorOf(c *pb.Cursor) Cursor {
	return Cursor{Lineage: c.GetLineage(), Epoch: c.GetEpoch(), Version: c.GetVersion()}
}

// apply brings the ledger to the content of the chunks, removals first.
func (w *Watcher) apply(line *Message) {
	if line.Event == EventFull {
		w.rows = map[uint32]row{}
	}
	for _, part := range w.parts {
		for _, gone := range part.GetDelta().GetRemoved() {
			line.Gone = append(line.Gone, gone.GetWorkerId())
			delete(w.rows, gone.GetRow())
		}
	}
	for _, part := range w.parts {
		w.put(part.GetFull().GetWorkers())
		w.put(part.GetDelta().GetWorkers())
	}
}

func (w *Watcher) put(workers []*pb.Worker) {
	for _, worker := range workers {
		r := w.rows[worker.GetRow()]
		r.id, r.source, r.hash = worker.GetWorkerId(), worker.GetSourceInstanceId(), worker.GetContentHash()
		r.fresh = worker.GetFreshness() == pb.Freshness_FRESHNESS_FRESH
		w.rows[worker.GetRow()] = r
	}
}

// receive takes the receipts.
func (w *Watcher) receive(m *pb.WatchSnapshotsResponse, line *Message) {
	receipts := m.GetLiveness().GetWorkers()
	if len(receipts) > 0 {
		line.Receipts = make(map[string]Receipt, len(receipts))
	}
	for _, l := range receipts {
		r, known := w.rows[l.GetRow()]
		if !known {
			continue
		}
		r.heard, r.until = true, l.GetValidUntilMs()
		w.rows[l.GetRow()] = r
		line.Receipts[r.id] = Receipt{Source: r.source, Sequence: l.GetSequenceId()}
	}
}

// sum adds up the ledger.
func (w *Watcher) sum(line *Message) {
	line.Workers = len(w.rows)
	for _, r := range w.rows {
		line.Sum += r.hash
		if !r.fresh {
			continue
		}
		line.Fresh++
		switch {
		case r.heard && r.until > line.ServerClockMs:
			line.Valid++
		case line.ServerClockMs > r.until:
			line.OverdueMs = max(line.OverdueMs, line.ServerClockMs-r.until)
		}
	}
}

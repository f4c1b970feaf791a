package history

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines builds histories; every line is a second after the one before.
type lines []Line

func (ls *lines) add(l Line) {
	l.At = int64(len(*ls)) * int64(time.Second)
	*ls = append(*ls, l)
}

func (ls *lines) report(worker, source string, sequence uint64) {
	ls.add(Line{Report: &Report{worker, source, sequence}})
}

func (ls *lines) open(client string, stream int, resume *Cursor) {
	ls.add(Line{Open: &Open{client, stream, resume}})
}

func (ls *lines) message(m Message) { ls.add(Line{Message: &m}) }

func (ls *lines) quiet(from, within time.Duration) {
	ls.add(Line{Quiet: &Quiet{From: from.Nanoseconds(), Within: within.Nanoseconds()}})
}

func at(version uint64) Cursor { return Cursor{"l", 1, version} }

// good is a history of two clients, one of which reconnects twice, over a
// takeover and a removal.
func good() lines {
	var ls lines
	msg := func(client string, stream int, version uint64, event string, base uint64, receipts map[string]Receipt) {
		m := Message{Client: client, Stream: stream, Cursor: at(version), Event: event, Base: base, Receipts: receipts}
		m.Digest, m.Sum, m.Workers, m.Fresh, m.Valid = 100+version, 100+version, 2, 1, 1
		ls.message(m)
	}
	ls.report("w1", "s", 1)                                               // 1
	ls.open("a", 1, nil)                                                  // 2
	msg("a", 1, 2, EventFull, 0, map[string]Receipt{"w1": {"s", 1}})      // 3
	ls.open("b", 1, nil)                                                  // 4
	msg("b", 1, 2, EventFull, 0, map[string]Receipt{"w1": {"s", 1}})      // 5
	ls.report("w1", "s", 2)                                               // 6
	ls.report("w1", "s", 4)                                               // 7
	ls.report("w2", "t", 9)                                               // 8
	msg("a", 1, 3, EventDelta, 2, map[string]Receipt{"w1": {"s", 2}})     // 9
	msg("a", 1, 3, EventHeartbeat, 0, map[string]Receipt{"w2": {"t", 9}}) // 10
	msg("b", 1, 4, EventDelta, 2, map[string]Receipt{"w1": {"s", 4}})     // 11: skips a version
	ls.open("a", 2, &Cursor{"l", 1, 3})                                   // 12
	msg("a", 2, 4, EventDelta, 3, map[string]Receipt{"w1": {"s", 4}})     // 13
	ls.open("a", 3, &Cursor{"l", 1, 4})                                   // 14
	msg("a", 3, 4, EventHeartbeat, 0, map[string]Receipt{"w2": {"t", 9}}) // 15
	msg("b", 1, 4, EventHeartbeat, 0, map[string]Receipt{"w2": {"t", 9}}) // 16
	ls.report("w1", "new", 1)                                             // 17
	msg("a", 3, 5, EventDelta, 4, map[string]Receipt{"w1": {"new", 1}})   // 18
	msg("b", 1, 5, EventDelta, 4, map[string]Receipt{"w1": {"new", 1}})   // 19
	ls.quiet(5*time.Second, time.Second)                                  // 20
	chunk := Message{Client: "a", Stream: 3, Cursor: at(6), Event: EventFull, Chunks: 2}
	ls.message(chunk) // 21
	chunk.Chunk, chunk.Digest, chunk.Sum, chunk.Workers = 1, 106, 106, 2
	ls.message(chunk)                                                                            // 22
	ls.open("b", 2, nil)                                                                         // 23
	msg("b", 2, 5, EventFull, 0, nil)                                                            // 24: a full of what it had
	ls.message(Message{Client: "b", Stream: 2, Cursor: Cursor{"other", 1, 1}, Event: EventFull}) // 25: another lineage
	return ls
}

func (ls lines) check(t *testing.T) Summary {
	t.Helper()
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for _, l := range ls {
		if err := enc.Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Check(&text, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGoodHistory(t *testing.T) {
	s := good().check(t)
	if s.Broken != 0 {
		t.Fatalf("%d violations: %v", s.Broken, s.Violations)
	}
	want := Summary{
		Lines: 25, Reports: 5, Streams: 5, Resumed: 2, Quiets: 1,
		Messages: 13, Fulls: 5, Deltas: 5, Heartbeats: 3, Versions: 6,
	}
	s.Violations = nil
	if got, want := mustJSON(t, s), mustJSON(t, want); got != want {
		t.Errorf("summary\n%s, want\n%s", got, want)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestBrokenHistories breaks the good history in one line each.
func TestBrokenHistories(t *testing.T) {
	message := func(line int, change func(m *Message)) func(ls *lines) {
		return func(ls *lines) { change((*ls)[line-1].Message) }
	}
	cases := []struct {
		name   string
		rule   Rule
		line   int
		breaks func(ls *lines)
	}{
		{"a delta goes back", Ordered, 13, message(13, func(m *Message) { m.Version, m.Digest, m.Sum = 2, 102, 102 })},
		{"a delta repeats its version", Ordered, 18, message(18, func(m *Message) { m.Version, m.Digest, m.Sum = 4, 104, 104 })},
		{"a new stream leads back", Ordered, 24, message(24, func(m *Message) { m.Version, m.Digest, m.Sum = 4, 104, 104 })},
		{"an epoch goes back", Ordered, 24, message(24, func(m *Message) { m.Epoch = 0 })},
		{"two contents of a version", Unique, 19, message(19, func(m *Message) { m.Digest, m.Sum = 7, 7 })},
		{"a torn view", Atomic, 11, message(11, func(m *Message) { m.Sum++ })},
		{"a chunk is missing", Atomic, 22, message(22, func(m *Message) { m.Chunk, m.Chunks = 2, 3 })},
		{"chunks of two versions", Atomic, 22, message(22, func(m *Message) { m.Version, m.Digest, m.Sum = 7, 107, 107 })},
		{"a report goes back", Reliable, 18, message(18, func(m *Message) { m.Receipts = map[string]Receipt{"w1": {"s", 1}} })},
		{"a report that nobody sent", Reliable, 11, message(11, func(m *Message) { m.Receipts["w1"] = Receipt{"s", 3} })},
		{"a report of another worker", Reliable, 11, message(11, func(m *Message) { m.Receipts["w1"] = Receipt{"t", 9} })},
		{"a report from the future", Reliable, 9, message(9, func(m *Message) { m.Receipts["w1"] = Receipt{"new", 1} })},
		{"the last report is lost", Reliable, 20, message(19, func(m *Message) { m.Receipts = nil })},
		{"a worker is never shown", Reliable, 20, func(ls *lines) { (*ls)[9].Message.Receipts, (*ls)[14].Message.Receipts = nil, nil }},
		{"a removed worker is due", Reliable, 20, message(18, func(m *Message) { m.Gone = []string{"w2"} })},
		{"a resumed stream has a gap", Resumable, 13, message(13, func(m *Message) { m.Base = 4 })},
		{"a stream has a gap", Resumable, 18, message(18, func(m *Message) { m.Base = 3 })},
		{"a delta over epochs", Resumable, 18, message(18, func(m *Message) { m.Epoch = 2 })},
		{"a delta without a cursor", Resumable, 5, message(5, func(m *Message) { m.Event, m.Base = EventDelta, 1 })},
		{"a heartbeat without a cursor", Resumable, 5, message(5, func(m *Message) { m.Event = EventHeartbeat })},
		{"a cursor that was not told", Resumable, 12, func(ls *lines) { (*ls)[11].Open.Resume.Version = 2 }},
		{"a message of an old stream", Resumable, 18, message(18, func(m *Message) { m.Stream = 2 })},
		{"a heartbeat runs ahead", Bookmarked, 10, message(10, func(m *Message) { m.Version, m.Digest, m.Sum = 4, 104, 104 })},
		{"a resumed heartbeat runs ahead", Bookmarked, 15, message(15, func(m *Message) { m.Version, m.Digest, m.Sum = 5, 105, 105 })},
		{"an old report is called fresh", Valid, 16, message(16, func(m *Message) { m.OverdueMs = 1 })},
		{"more valid than fresh", Valid, 16, message(16, func(m *Message) { m.Valid = 2 })},
	}
	rules := map[Rule]bool{}
	for _, c := range cases {
		rules[c.rule] = true
		t.Run(c.name, func(t *testing.T) {
			ls := good()
			c.breaks(&ls)
			s := ls.check(t)
			found := func(v Violation) bool { return v.Rule == c.rule && v.Line == c.line }
			if !slices.ContainsFunc(s.Violations, found) {
				t.Errorf("no violation of %s at line %d in %v", c.rule, c.line, s.Violations)
			}
		})
	}
	for _, r := range []Rule{Ordered, Unique, Atomic, Reliable, Resumable, Bookmarked, Valid} {
		if !rules[r] {
			t.Errorf("no history breaks %s", r)
		}
	}
}

func TestViolationsAreBounded(t *testing.T) {
	c := NewChecker(Limits{MaxViolations: 2})
	for range 5 {
		c.Add(Line{Message: &Message{Client: "a", Event: EventFull, Sum: 1}})
	}
	if s := c.Summary(); s.Broken < 5 || len(s.Violations) != 2 {
		t.Errorf("%d violations, %d kept", s.Broken, len(s.Violations))
	}
}

func TestReadRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no line":       `{"at":1}`,
		"two things":    `{"at":1,"quiet":{},"open":{}}`,
		"unknown field": `{"at":1,"quite":{}}`,
		"not JSON":      `{"at":`,
	} {
		err := Read(strings.NewReader(`{"at":0,"quiet":{"from":0,"within":0}}`+"\n"+text), func(Line) {})
		if err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v, want an error that names line 2", name, err)
		}
	}
}

// TestRecorder records messages as the plane sends them, chunks and removals
// included.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		r := NewRecorder(&text)
		r.Report(Report{"w1", "s", 5})
		w := r.Watcher("a")
		w.Open(nil)
		<-time.After(time.Second)
		full := func(chunk uint32, workers ...*pb.Worker) *pb.WatchSnapshotsResponse {
			return &pb.WatchSnapshotsResponse{
				Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: 2}, Digest: 30, ServerClockMs: 4000,
				Event: &pb.WatchSnapshotsResponse_Full{Full: &pb.Full{Workers: workers, Chunk: chunk, Chunks: 2}},
			}
		}
		worker := func(row uint32, id string, hash uint64) *pb.Worker {
			return &pb.Worker{Row: row, WorkerId: id, SourceInstanceId: "s", ContentHash: hash, Freshness: pb.Freshness_FRESHNESS_FRESH}
		}
		w.Message(full(0, worker(1, "w1", 10)))
		last := full(1, worker(2, "w2", 20))
		last.Liveness = &pb.Liveness{Workers: []*pb.WorkerLiveness{{Row: 1, SequenceId: 5, ValidUntilMs: 4001}, {Row: 9}}}
		w.Message(last)
		w.Message(&pb.WatchSnapshotsResponse{
			Cursor: &pb.Cursor{Lineage: "l", Epoch: 1, Version: 3}, Digest: 10, ServerClockMs: 4101,
			Event: &pb.WatchSnapshotsResponse_Delta{Delta: &pb.Delta{BaseVersion: 2, Removed: []*pb.RemovedWorker{{Row: 2, WorkerId: "w2"}}}},
		})
		w.Open(&pb.Cursor{Lineage: "l", Epoch: 1, Version: 3})
		r.Quiet(time.Now().Add(-time.Second), time.Millisecond)
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
		var got []Line
		if err := Read(&text, func(l Line) { got = append(got, l) }); err != nil {
			t.Fatal(err)
		}
		second := time.Second.Nanoseconds()
		message := func(m Message) Line {
			m.Client, m.Stream, m.Lineage, m.Epoch = "a", 1, "l", 1
			return Line{At: second, Message: &m}
		}
		want := []Line{
			{Report: &Report{"w1", "s", 5}},
			{Open: &Open{Client: "a", Stream: 1}},
			message(Message{Cursor: Cursor{Version: 2}, Event: EventFull, Chunks: 2, Digest: 30, ServerClockMs: 4000}),
			message(Message{
				Cursor: Cursor{Version: 2}, Event: EventFull, Chunk: 1, Chunks: 2, Digest: 30, Sum: 30, Workers: 2, Fresh: 2, Valid: 1,
				OverdueMs: 4000, Receipts: map[string]Receipt{"w1": {"s", 5}}, ServerClockMs: 4000,
			}),
			message(Message{
				Cursor: Cursor{Version: 3}, Event: EventDelta, Base: 2, Digest: 10, Sum: 10, Workers: 1, Gone: []string{"w2"},
				Fresh: 1, OverdueMs: 100, ServerClockMs: 4101,
			}),
			{At: second, Open: &Open{"a", 2, &Cursor{"l", 1, 3}}},
			{At: second, Quiet: &Quiet{0, time.Millisecond.Nanoseconds()}},
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || mustJSON(t, got[i]) != mustJSON(t, want[i]) {
				t.Fatalf("line %d of\n%s, want\n%s", i+1, mustJSON(t, got), mustJSON(t, want))
			}
		}
	})
}

func TestRecorderKeepsTheFirstError(t *testing.T) {
	r := NewRecorder(failing{})
	for range 3000 {
		r.Report(Report{Worker: "w", Source: "s"})
	}
	if err := r.Flush(); err == nil {
		t.Error("Flush returned nil")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

func FuzzCheck(f *testing.F) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for _, l := range good() {
		if err := enc.Encode(l); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(text.String())
	f.Fuzz(func(t *testing.T, text string) {
		s, _ := Check(strings.NewReader(text), Limits{MaxViolations: 3})
		if len(s.Violations) > 3 || len(s.Violations) > s.Broken {
			t.Errorf("%d violations kept of %d", len(s.Violations), s.Broken)
		}
	})
}

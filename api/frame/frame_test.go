package frame

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/proto"
)

func testView(n int) *snapshot.View {
	v := &snapshot.View{
		Snapshot: &snapshot.Snapshot{Lineage: "l", Content: &store.Content{Version: 3}},
		Tick:     9,
	}
	for i := range n {
		id := string(rune('a' + i))
		encoded, _ := proto.Marshal(&pb.Worker{Row: uint32(i + 1), WorkerId: id})
		v.Workers = append(v.Workers, &snapshot.Worker{Encoded: encoded})
		receipt, _ := proto.Marshal(&pb.WorkerLiveness{Row: uint32(i + 1), SequenceId: 5})
		v.Receipts = append(v.Receipts, &snapshot.Receipt{Live: &store.Live{Tick: uint64(i + 1)}, Encoded: receipt})
	}
	v.Receipts = append(v.Receipts, nil)
	encoded, _ := proto.Marshal(&pb.Pool{Key: &pb.PoolKey{Model: "m"}})
	v.Pools = []*snapshot.Pool{{Encoded: encoded}}
	return v
}

func testFrame(v *snapshot.View) *Frame {
	return &Frame{
		Head:     &pb.WatchSnapshotsResponse{ServerId: "s", Cursor: &pb.Cursor{Version: v.Version}},
		Liveness: encodeLiveness(v, Since{Tick: 1}),
		Event:    new(Cache).Change(v.Snapshot, Change{})[0],
	}
}

func TestFrameIsTheMessage(t *testing.T) {
	f := testFrame(testView(3))
	b, err := protoCodec{}.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var m pb.WatchSnapshotsResponse
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.GetFull().GetWorkers()) != 3 || len(m.GetFull().GetPools()) != 1 || m.GetServerId() != "s" {
		t.Errorf("decoded: %v", &m)
	}
	if got := m.GetLiveness().GetWorkers(); len(got) != 2 || got[0].GetRow() != 2 {
		t.Errorf("receipts after tick 1: %v", got)
	}
	lazy, err := f.Message()
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(lazy, &m) {
		t.Errorf("as a message: %v\nas bytes: %v", lazy, &m)
	}
}

func TestCodecHandsOutNoSharedBytes(t *testing.T) {
	f := testFrame(testView(2))
	before := bytes.Clone(f.Event.bytes)
	for _, dst := range [][]byte{nil, make([]byte, 0, 4096), []byte("kept")} {
		b, err := protoCodec{}.MarshalAppend(dst, f)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(b, dst) {
			t.Error("what was in the slice is gone")
		}
		clear(b[:cap(b)])
	}
	if !bytes.Equal(before, f.Event.bytes) {
		t.Error("the shared bytes changed")
	}
}

func TestCodecRefusesWhatIsNoMessage(t *testing.T) {
	for _, c := range []interface {
		Marshal(any) ([]byte, error)
		Unmarshal([]byte, any) error
	}{protoCodec{}, jsonCodec{}} {
		if _, err := c.Marshal("text"); err == nil {
			t.Errorf("%T wrote a string", c)
		}
		if err := c.Unmarshal(nil, new(string)); err == nil {
			t.Errorf("%T read into a string", c)
		}
	}
}

// countingWriter counts what reaches the server.
type countingWriter struct {
	http.ResponseWriter
	writes  []int
	flushes int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes = append(w.writes, len(p))
	return len(p), nil
}

func (w *countingWriter) Flush() { w.flushes++ }

func TestWriterJoinsWrites(t *testing.T) {
	for _, c := range []struct {
		name         string
		parts, wants []int
	}{
		{"prefix and payload", []int{5, 10_000}, []int{10_005}},
		{"just small enough", []int{5, maxJoined - 5}, []int{maxJoined}},
		{"too large to copy", []int{5, maxJoined}, []int{5, maxJoined}},
		{"nothing", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			under := &countingWriter{ResponseWriter: httptest.NewRecorder()}
			w := NewWriter(under, new(Buffers))
			total := 0
			for _, n := range c.parts {
				if _, err := w.Write(make([]byte, n)); err != nil {
					t.Fatal(err)
				}
				total += n
			}
			w.Flush()
			if got := under.writes; len(got) != len(c.wants) || len(got) > 0 && got[0] != c.wants[0] {
				t.Errorf("writes of %v bytes, want %v", got, c.wants)
			}
			if under.flushes != 1 || w.Sent() != total || w.kept() != 0 {
				t.Errorf("%d flushes, %d bytes counted, %d kept", under.flushes, w.Sent(), w.kept())
			}
		})
	}
}

// TestLateIsMeasuredFromTheFirstWrite checks that a message has one deadline,
// however many writes it takes.
func TestLateIsMeasuredFromTheFirstWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &countingWriter{ResponseWriter: httptest.NewRecorder()}
		w := NewWriter(under, new(Buffers))
		w.Stream(time.Second)
		if w.Late() {
			t.Error("late before anything was written")
		}
		_, _ = w.Write(make([]byte, 2*maxJoined))
		<-time.After(600 * time.Millisecond)
		_, _ = w.Write(make([]byte, 2*maxJoined))
		<-time.After(399 * time.Millisecond)
		if w.Late() {
			t.Error("late before the time is over")
		}
		<-time.After(time.Millisecond)
		if !w.Late() {
			t.Error("the second write moved the deadline")
		}
		w.Flush()
		_, _ = w.Write(make([]byte, 2*maxJoined))
		if w.Late() {
			t.Error("the next message has no deadline of its own")
		}
	})
}

// TestBuffersAreReusedEmpty sends messages through buffers that were used
// before.
func TestBuffersAreReusedEmpty(t *testing.T) {
	under := httptest.NewRecorder()
	w := NewWriter(under, new(Buffers))
	var want bytes.Buffer
	for i := range 50 {
		message := bytes.Repeat([]byte{byte('a' + i%26)}, 1+i)
		want.Write(message)
		if _, err := w.Write(message); err != nil {
			t.Fatal(err)
		}
		w.Flush()
	}
	if got := under.Body.Bytes(); !bytes.Equal(got, want.Bytes()) || w.Sent() != want.Len() {
		t.Errorf("sent %d bytes, counted %d, want %d: %q", len(got), w.Sent(), want.Len(), got)
	}
}

// TestViewBehindTheCacheKeepsItsReceipts asks for the receipts of a view after
// those of a newer one.
func TestViewBehindTheCacheKeepsItsReceipts(t *testing.T) {
	var cache Cache
	behind, next := testView(1), testView(2)
	next.Tick++
	cache.Receipts(next, Since{})
	if got := cache.Receipts(behind, Since{}); !bytes.Equal(got, encodeLiveness(behind, Since{})) {
		t.Errorf("got %x, want the receipts of the view itself", got)
	}
}

// TestReceiptsOfWhatEntered are sent although they are older than the tick.
func TestReceiptsOfWhatEntered(t *testing.T) {
	v := testView(3)
	for i, w := range v.Workers {
		w.Entry = &store.Entry{Version: uint64(i + 1)}
	}
	for _, c := range []struct {
		since Since
		rows  []uint32
	}{
		{Since{}, []uint32{1, 2, 3}},
		{Since{Tick: 2}, []uint32{3}},
		{Since{Tick: 9}, nil},
		{Since{Tick: 9, Entered: 1}, []uint32{2, 3}},
		{Since{Tick: 2, Entered: 3}, []uint32{3}},
	} {
		var cache Cache
		m := new(pb.WatchSnapshotsResponse)
		if err := proto.Unmarshal(cache.Receipts(v, c.since), m); err != nil {
			t.Fatal(err)
		}
		var rows []uint32
		for _, r := range m.GetLiveness().GetWorkers() {
			rows = append(rows, r.GetRow())
		}
		if !slices.Equal(rows, c.rows) {
			t.Errorf("%+v: rows %v, want %v", c.since, rows, c.rows)
		}
	}
}

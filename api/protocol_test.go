package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// steady discovers three workers, of which two report, and waits until the
// view will stand still.
func (p *plane) steady() *store.State {
	p.Helper()
	listed := newWorker("c:30000")
	listed.Dialect = store.DialectNone
	p.add(newWorker("a:30000"), newWorker("b:30000"), listed)
	p.report("a:30000", 1, 3, 2)
	p.report("b:30000", 1, 4, 4)
	return p.until("two fresh workers, not warming", func(s *store.State) bool { return fresh(2)(s) && !s.Warming })
}

// same returns what all protocols must agree on.
func same(m *pb.WatchSnapshotsResponse) *pb.WatchSnapshotsResponse {
	m = proto.CloneOf(m)
	m.ServerUnixMs, m.ServerClockMs = 0, 0
	return m
}

func TestEveryProtocolSeesTheSame(t *testing.T) {
	onLoopback(t, nil, func(p *plane) {
		p.steady()
		want := same(p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}).full())
		if n := len(want.GetFull().GetWorkers()); n != 3 || len(want.GetLiveness().GetWorkers()) != 2 || want.GetDigest() == 0 {
			t.Fatalf("%d workers, want 3, two of them heard: %v", n, want)
		}
		for name, get := range firsts(p) {
			t.Run(name, func(t *testing.T) {
				got := get(t)
				if _, err := new(client.Replica).Apply(got, time.Now()); err != nil {
					t.Error(err)
				}
				if got.GetServerUnixMs() == 0 || got.GetServerClockMs() == 0 {
					t.Error("the message carries no server clock")
				}
				if got := same(got); !proto.Equal(got, want) {
					t.Errorf("got  %v\nwant %v", got, want)
				}
			})
		}
	})
}

type first func(t *testing.T) *pb.WatchSnapshotsResponse

// firsts returns how each protocol gets the view.
func firsts(p *plane) map[string]first {
	watch := func(http2 bool, opts ...connect.ClientOption) first {
		return func(*testing.T) *pb.WatchSnapshotsResponse {
			c := loadplanev1connect.NewSnapshotServiceClient(p.client(http2), p.url, opts...)
			s := p.watch(c, &pb.WatchSnapshotsRequest{Resume: &pb.Cursor{Lineage: "lineage-0", Epoch: 7, Version: 2}})
			defer s.end()
			return proto.CloneOf(s.full())
		}
	}
	get := func(http2 bool, opts ...connect.ClientOption) first {
		return func(t *testing.T) *pb.WatchSnapshotsResponse {
			c := loadplanev1connect.NewSnapshotServiceClient(p.client(http2), p.url, opts...)
			res, err := c.GetSnapshot(t.Context(), &pb.GetSnapshotRequest{Detail: pb.Detail_DETAIL_RANKS})
			if err != nil {
				t.Fatal(err)
			}
			return res.GetSnapshot()
		}
	}
	return map[string]first{
		"connect, h2c":                  watch(true),
		"connect, HTTP/1.1":             watch(false),
		"connect JSON, h2c":             watch(true, connect.WithProtoJSON()),
		"connect JSON, HTTP/1.1":        watch(false, connect.WithProtoJSON()),
		"gRPC by connect":               watch(true, connect.WithGRPC()),
		"gRPC JSON by connect":          watch(true, connect.WithGRPC(), connect.WithProtoJSON()),
		"gRPC-Web, HTTP/1.1":            watch(false, connect.WithGRPCWeb()),
		"gRPC-Web, h2c":                 watch(true, connect.WithGRPCWeb()),
		"GetSnapshot, connect":          get(true),
		"GetSnapshot, connect JSON":     get(false, connect.WithProtoJSON()),
		"GetSnapshot, gRPC":             get(true, connect.WithGRPC()),
		"GetSnapshot, HTTP GET":         get(false, connect.WithHTTPGet()),
		"GetSnapshot, JSON by HTTP GET": get(false, connect.WithHTTPGet(), connect.WithProtoJSON()),
		"gRPC by grpc-go":               func(t *testing.T) *pb.WatchSnapshotsResponse { return byGRPC(t, p) },
		"GetSnapshot as curl posts it":  func(t *testing.T) *pb.WatchSnapshotsResponse { return byCurl(t, p) },
		"GetSnapshot as curl gets it":   func(t *testing.T) *pb.WatchSnapshotsResponse { return byCurlGet(t, p) },
	}
}

func byGRPC(t *testing.T, p *plane) *pb.WatchSnapshotsResponse {
	conn, err := grpc.NewClient("passthrough:///plane",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := pb.NewSnapshotServiceClient(conn).WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func byCurl(t *testing.T, p *plane) *pb.WatchSnapshotsResponse {
	path := p.url + loadplanev1connect.SnapshotServiceGetSnapshotProcedure
	a := p.read(p.client(false).Post(path, "application/json", strings.NewReader("{}")))
	return fromJSON(t, a)
}

func byCurlGet(t *testing.T, p *plane) *pb.WatchSnapshotsResponse {
	query := url.Values{
		"connect": {"v1"}, "encoding": {"json"}, "base64": {"1"},
		"message": {base64.RawURLEncoding.EncodeToString([]byte("{}"))},
	}
	return fromJSON(t, p.do(p.client(false), http.MethodGet, loadplanev1connect.SnapshotServiceGetSnapshotProcedure+"?"+query.Encode()))
}

func fromJSON(t *testing.T, a answer) *pb.WatchSnapshotsResponse {
	t.Helper()
	if a.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", a.StatusCode, a.body)
	}
	if !strings.Contains(a.body, `"draining":false`) && !strings.Contains(a.body, `"draining": false`) {
		t.Error("JSON leaves a known false out")
	}
	res := new(pb.GetSnapshotResponse)
	if err := protojson.Unmarshal([]byte(a.body), res); err != nil {
		t.Fatal(err)
	}
	return res.GetSnapshot()
}

func TestSharedFramesAreNotCorrupted(t *testing.T) {
	const versions = 60
	onLoopback(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.report("a:30000", 1, 1000, 32)
		p.until("fresh", fresh(1))
		var watchers sync.WaitGroup
		for i := range 8 {
			var opts []connect.ClientOption
			if i%4 == 3 {
				opts = append(opts, connect.WithProtoJSON())
			}
			s := p.watch(p.snapshots(opts...), &pb.WatchSnapshotsRequest{HeartbeatIntervalMs: 100})
			s.full()
			watchers.Go(func() { follow(t, s, 1000+versions) })
		}
		for n := range uint64(versions) {
			state, stale := p.store.Current()
			p.report("a:30000", n+2, int64(1000+n+1), 32)
			<-stale
			if after, _ := p.store.Current(); after.Version <= state.Version {
				t.Fatal("the version stands still")
			}
		}
		watchers.Wait()
	})
}

// follow reads until the view says that n requests run, and checks that each
// message continues those before it.
func follow(t *testing.T, s *stream, n int64) {
	for s.Receive() {
		v, err := s.replica.Apply(s.Msg(), time.Now())
		if err != nil {
			t.Error(err)
			return
		}
		for _, w := range v.Workers() {
			for _, r := range w.GetRanks() {
				if r.GetNumRunningReqs() != w.GetRanks()[0].GetNumRunningReqs() {
					t.Errorf("ranks of two reports in one message: %v", w)
					return
				}
				if r.GetNumRunningReqs() == n {
					return
				}
			}
		}
	}
	t.Error("the stream ended:", s.Err())
}

func TestRequestsThatCostMoreThanTheyMay(t *testing.T) {
	for name, ask := range map[string]func(p *plane){
		"compressed": func(p *plane) {
			_, err := p.snapshots(connect.WithSendGzip()).GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
			wantCode(p, err, connect.CodeUnimplemented)
		},
		"message of 100 KiB": func(p *plane) {
			s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{ClientId: strings.Repeat("x", 100<<10)})
			if s.Receive() {
				p.Fatal("served")
			}
			wantCode(p, s.Err(), connect.CodeResourceExhausted)
		},
		"endless message": func(p *plane) {
			endless := &countingReader{}
			res, err := p.client(true).Post(p.url+loadplanev1connect.SnapshotServiceWatchSnapshotsProcedure, "application/connect+proto", endless)
			if err == nil {
				_ = res.Body.Close()
			}
			if n := endless.n.Load(); n > 10<<20 {
				p.Fatalf("%d bytes were read", n)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.add(newWorker("a:30000"))
				p.after(settle)
				ask(p)
			})
		})
	}
}

// countingReader claims a message of 4 GiB and never ends.
type countingReader struct{ n atomic.Int64 }

func (r *countingReader) Read(b []byte) (int, error) {
	clear(b)
	if r.n.Load() == 0 {
		copy(b, []byte{0, 0xff, 0xff, 0xff, 0xff})
	}
	r.n.Add(int64(len(b)))
	return len(b), nil
}

func wantCode(p *plane, err error, want connect.Code) {
	p.Helper()
	if got := connect.CodeOf(err); err == nil || got != want {
		p.Fatalf("got %v (%v), want %v", got, err, want)
	}
}

func TestListWorkers(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"), newWorker("b:30000"))
		p.slots["a:30000"].Diagnose(func(d *store.Diagnostics) {
			d.Registration, d.RegistrationStatus, d.Refused = "registered", 200, 3
			d.LastRefusal, d.NextRegistration = "sequence_jump", store.Instant(1_234e6)
		})
		p.slots["b:30000"].Diagnose(func(d *store.Diagnostics) {
			d.Registration, d.RegistrationError = "retrying", "connection refused"
		})
		p.report("a:30000", 1, 3, 2)
		p.store.NoteSources([]store.SourceStatus{
			{Name: "file", Synced: true, Workers: 2, Listed: p.store.Options().Clock.Now()},
			{Name: "kubernetes", Error: "no list yet: forbidden"}, {Name: "registration", Synced: true},
		})
		p.after(settle + 240e6)

		c := loadplanev1connect.NewWorkerServiceClient(p.client(true), p.url)
		res, err := c.ListWorkers(p.Context(), &pb.ListWorkersRequest{})
		if err != nil {
			p.Fatal(err)
		}
		if n := len(res.GetWorkers()); n != 2 {
			p.Fatalf("%d workers, want 2", n)
		}
		sources := &pb.ListWorkersResponse{Sources: []*pb.DiscoverySource{
			{Name: "file", Synced: true, Workers: proto.Uint32(2), ListedAgeMs: proto.Uint64(250)},
			{Name: "kubernetes", Error: proto.String("no list yet: forbidden")},
			{Name: "registration", Synced: true, Workers: proto.Uint32(0)},
		}}
		if got := (&pb.ListWorkersResponse{Sources: res.GetSources()}); !proto.Equal(got, sources) {
			p.Errorf("sources\n got %v\nwant %v", got, sources)
		}
		if got := res.GetDiscoveryError(); got != "kubernetes: no list yet: forbidden" {
			p.Errorf("discovery error %q", got)
		}
		heard, silent := res.GetWorkers()[0], res.GetWorkers()[1]
		if w := heard.GetWorker(); w.GetWorkerId() != "a:30000" || len(w.GetRanks()) != 0 || w.GetAggregate().GetRankCount() != 2 {
			p.Error("worker:", w)
		}
		heard.Worker, silent.Worker = nil, nil
		want := &pb.WorkerInfo{
			DiscoveredBy: "flag", Registration: "registered", RegistrationHttpStatus: proto.Uint32(200),
			NextRegistrationMs: proto.Uint64(1234), Peer: proto.String("127.0.0.1:9"), AgeMs: proto.Uint64(250),
			Refused: 3, LastRefusal: proto.String("sequence_jump"), ClockSkewMs: proto.Int64(25),
		}
		if !proto.Equal(heard, want) {
			p.Errorf("heard worker\n got %v\nwant %v", heard, want)
		}
		want = &pb.WorkerInfo{
			DiscoveredBy: "flag", Registration: "retrying", RegistrationError: proto.String("connection refused"),
			Peer: proto.String("127.0.0.1:9"),
		}
		if !proto.Equal(silent, want) {
			p.Errorf("silent worker\n got %v\nwant %v", silent, want)
		}
	})
}

// TestJSONAgreesWithProto compares the JSON snapshot number by number with
// what GetSnapshot returns.
func TestJSONAgreesWithProto(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyInBubble()
		res, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
		if err != nil {
			p.Fatal(err)
		}
		want := res.GetSnapshot()
		got := decode(p, p.do(p.client(false), http.MethodGet, "/v1/load_monitor/snapshot").body)
		if got["version"] != float64(want.GetCursor().GetVersion()) || got["lineage"] != want.GetCursor().GetLineage() ||
			got["epoch"] != float64(want.GetCursor().GetEpoch()) || got["server_id"] != want.GetServerId() {
			p.Errorf("top: got %v, want %v", got, want.GetCursor())
		}
		workers := got["workers"].([]any)
		if len(workers) != len(want.GetFull().GetWorkers()) {
			p.Fatalf("%d workers, want %d", len(workers), len(want.GetFull().GetWorkers()))
		}
		for i, w := range want.GetFull().GetWorkers() {
			compareWorker(p, workers[i].(map[string]any), w)
		}
		pools := got["pools"].([]any)
		for i, w := range want.GetFull().GetPools() {
			pool := pools[i].(map[string]any)
			comparePresent(p, pool, asMap(p, w))
			comparePresent(p, pool["aggregate"].(map[string]any), asMap(p, w.GetAggregate()))
		}
	})
}

func (p *plane) steadyInBubble() {
	p.add(newWorker("a:30000"), newWorker("b:30000"))
	p.report("a:30000", 1, 3, 2)
	l := p.newLoad("b:30000", 1, 4, 3)
	for i := range l.Ranks {
		l.Ranks[i].SetCount(store.DecodePreallocReqs, 5)
		l.Ranks[i].SetFloat(store.PrefillThroughput, 12.25)
	}
	p.slots["b:30000"].Offer(1, l)
	p.after(settle)
}

func compareWorker(p *plane, got map[string]any, want *pb.Worker) {
	p.Helper()
	if got["worker_id"] != want.GetWorkerId() || got["url"] != want.GetUrl() ||
		got["source_instance_id"] != want.GetSourceInstanceId() || got["freshness"] != "fresh" {
		p.Errorf("worker: got %v, want %v", got, want)
	}
	comparePresent(p, got["aggregate"].(map[string]any), asMap(p, want.GetAggregate()))
	ranks := got["ranks"].([]any)
	if len(ranks) != len(want.GetRanks()) {
		p.Fatalf("%d ranks, want %d", len(ranks), len(want.GetRanks()))
	}
	for i, r := range want.GetRanks() {
		comparePresent(p, ranks[i].(map[string]any), asMap(p, r))
	}
}

// asMap returns the numbers of m by their names; a 64-bit integer is a string
// in protobuf JSON.
func asMap(p *plane, m proto.Message) map[string]any {
	p.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		p.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		p.Fatal(err)
	}
	return out
}

// comparePresent compares the numbers of want with got, and wants null for
// those that want has not.
func comparePresent(p *plane, got, want map[string]any) {
	p.Helper()
	for name, v := range got {
		switch v.(type) {
		case nil, float64:
			w, known := want[name]
			if name == "snapshot_time_unix_ms" {
				continue // not in the proto content
			}
			if known != (v != nil) || known && fmt.Sprint(w) != fmt.Sprint(v) {
				p.Errorf("%s: got %v, want %v", name, v, w)
			}
		}
	}
	for name, v := range want {
		if _, there := got[name]; !there && name != "key" {
			p.Errorf("%s is missing, want %v", name, v)
		}
	}
}

package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// realClient calls engines over real sockets.
func realClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// info is what discovery reads of /server_info.
type info struct {
	Version      string
	DPSize       int  `json:"dp_size"`
	ReporterPort *int `json:"load_reporter_port"`
	KVEvents     struct {
		Host     string `json:"endpoint_host"`
		DPSize   int    `json:"dp_size"`
		LoadPort *int   `json:"load_endpoint_port_base"`
		Topic    string `json:"load_topic"`
	} `json:"kv_events"`
}

func (b *bench) info(engine int) (i info) {
	b.t.Helper()
	b.json(engine, "/server_info", &i)
	return i
}

func TestServerInfoTellsTheWayOfEachKind(t *testing.T) {
	versions := map[Kind]string{KindSGLang: "0.5.18", KindSGLangMonitor: "0.5.18", KindSGLangLoadStat: "0.5.19", KindSGLangPoll: "0.5.15"}
	for kind, version := range versions {
		inBubble(t, Options{Kinds: []Kind{kind}, Ranks: 3}, func(b *bench) {
			i := b.info(0)
			reporter, load := i.ReporterPort != nil, i.KVEvents.LoadPort != nil
			if reporter != (kind == KindSGLangMonitor) || load != (kind == KindSGLangLoadStat) || load != (i.KVEvents.Topic == "load") ||
				i.Version != version || i.DPSize != 3 || i.KVEvents.DPSize != 3 || i.KVEvents.Host != "*" {
				t.Errorf("%s: %+v", kind, i)
			}
		})
	}
}

// dialMonitor opens a session and returns its first frames: ack and report.
func (b *bench) dialMonitor(port int) (stream grpc.BidiStreamingClient[monitorpb.RouterFrame, monitorpb.WorkerFrame], first *monitorpb.LoadReport) {
	b.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+fmt.Sprintf("127.0.0.1:%d", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(b.net.dial))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	stream, err = monitorpb.NewLoadMonitorServiceClient(conn).Monitor(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	r := &monitorpb.RegisterRequest{RouterId: "r", ReportIntervalMs: 1000, LeaseTtlMs: 60_000}
	if err := stream.Send(&monitorpb.RouterFrame{Payload: &monitorpb.RouterFrame_Register{Register: r}}); err != nil {
		b.t.Fatal(err)
	}
	for range 2 {
		f, err := stream.Recv()
		if err != nil {
			b.t.Fatal(err)
		}
		first = f.GetReport()
	}
	return stream, first
}

func TestLivesOfAMonitor(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindSGLangMonitor}, Ranks: 2}, func(b *bench) {
		synctest.Wait()
		e, port := b.engine(), *b.info(0).ReporterPort
		ended := func(stream grpc.BidiStreamingClient[monitorpb.RouterFrame, monitorpb.WorkerFrame]) {
			b.t.Helper()
			for {
				if _, err := stream.Recv(); err != nil {
					if status.Code(err) != codes.Unavailable {
						b.t.Errorf("the stream ended with %v", err)
					}
					return
				}
			}
		}
		first, r := b.dialMonitor(port)
		source := e.Source()
		if want := fmt.Sprintf("127.0.0.1:%d", port); e.Monitors() != 1 || r.GetSourceInstanceId() != source || len(r.GetRanks()) != 2 || r.GetWorker().GetWorkerAddr() != want {
			b.t.Errorf("%d monitors, report %v", e.Monitors(), r)
		}
		e.Restart()
		ended(first)
		b.pass(0)
		second, r := b.dialMonitor(port)
		if r.GetSourceInstanceId() == source || r.GetSourceInstanceId() != e.Source() || r.GetSequenceId() != 1 || e.Monitors() != 1 {
			b.t.Errorf("after a restart: %d monitors, report %v", e.Monitors(), r)
		}
		if err := e.Rerank(5); err != nil {
			b.t.Fatal(err)
		}
		ended(second)
		b.pass(0)
		if got := b.info(0); got.DPSize != 5 || *got.ReporterPort != port {
			b.t.Errorf("after a rerank: %+v", got)
		}
		third, r := b.dialMonitor(port)
		if len(r.GetRanks()) != 5 || e.Ranks() != 5 {
			b.t.Errorf("after a rerank: report %v", r)
		}
		e.SetFault(Fault{Kind: FaultDown})
		ended(third)
		b.pass(0)
		if conn, err := b.net.dial(b.t.Context(), fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = conn.Close()
			b.t.Error("the reporter of an engine that is down is reached")
		}
		e.ClearFault(FaultDown)
		b.pass(0)
		_, r = b.dialMonitor(port)
		if r.GetSourceInstanceId() != e.Source() || r.GetSequenceId() != 2 {
			b.t.Errorf("after it was down: report %v", r)
		}
	})
}

// rank subscribes to a rank and returns the sequence and the rank of the first
// message.
func (b *bench) rank(port int) (sequence uint64, rank string) {
	b.t.Helper()
	raw, err := b.net.dial(b.t.Context(), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := zmq4.Open(raw, null.Security(), zmq4.Sub, nil, false, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SendMsg(zmq4.NewMsgString("\x01load")); err != nil {
		b.t.Fatal(err)
	}
	m, err := conn.RecvMsg()
	if err != nil || len(m.Frames) != 3 {
		b.t.Fatalf("%v, %v", m, err)
	}
	var values []any
	if err := msgpack.Unmarshal(m.Frames[2], &values); err != nil || len(values) != 11 {
		b.t.Fatalf("%v, %v", values, err)
	}
	return binary.BigEndian.Uint64(m.Frames[1]), fmt.Sprint(values[5])
}

func TestLivesOfAPublisher(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindSGLangLoadStat}, Ranks: 2}, func(b *bench) {
		synctest.Wait()
		e := b.engine()
		check := func(when string, ranks int, first uint64) int {
			b.t.Helper()
			i := b.info(0)
			base := *i.KVEvents.LoadPort
			if i.DPSize != ranks || i.KVEvents.DPSize != ranks || e.Ranks() != ranks {
				b.t.Errorf("%s: %+v", when, i)
			}
			for r := range ranks {
				sequence, rank := b.rank(base + r)
				if rank != fmt.Sprint(r) || r == 0 && sequence != first {
					b.t.Errorf("%s: rank %d publishes %s as number %d, want %d", when, r, rank, sequence, first)
				}
			}
			return base
		}
		base := check("at first", 2, 0)
		e.Restart()
		b.pass(0)
		if got := check("after a restart", 2, 0); got != base {
			b.t.Errorf("a restart moves it from port %d to %d", base, got)
		}
		e.SetFault(Fault{Kind: FaultDown})
		b.pass(0)
		if conn, err := b.net.dial(b.t.Context(), fmt.Sprintf("127.0.0.1:%d", base)); err == nil {
			_ = conn.Close()
			b.t.Error("a socket of an engine that is down is open")
		}
		if err := e.Rerank(4); err != nil {
			b.t.Fatal(err)
		}
		e.ClearFault(FaultDown)
		b.pass(0)
		check("after a rerank while it was down", 4, 0)
		if err := e.Rerank(1); err != nil {
			b.t.Fatal(err)
		}
		b.pass(0)
		check("after a rerank", 1, 0)
		if got := len(b.net.listeners); got != 2 {
			b.t.Errorf("%d listeners are open, want that of HTTP and one", got)
		}
	})
}

func TestRerank(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench, kind Kind) {
		source, want := b.engine().Source(), 1
		if kind.ranked() {
			want = 7
		}
		if err := b.engine().Rerank(7); err != nil {
			t.Fatal(err)
		}
		s, err := b.engine().reporting().Sample()
		if err != nil || len(s.Ranks) != want || b.engine().Ranks() != want || b.engine().Source() == source {
			t.Errorf("%d ranks, %v, source %s", len(s.Ranks), err, b.engine().Source())
		}
		if page := b.get(0, loadPage[kind]).Body.String(); kind.sglang() && strings.Count(page, `"dp_rank"`) != 7 {
			t.Errorf("page %s", page)
		}
		for _, bad := range []int{0, -1, maxRanks + 1} {
			if err := b.engine().Rerank(bad); err == nil || b.engine().Ranks() != want {
				t.Errorf("%d ranks: %v", bad, err)
			}
		}
	})
}

func TestRerankByFault(t *testing.T) {
	faults := []Fault{{Kind: FaultRerank, Engine: 1, After: 2 * time.Second, Ranks: 4}}
	inBubble(t, Options{Engines: 2, Ranks: 8, Kinds: []Kind{KindSGLangLoadStat}, Faults: faults}, func(b *bench) {
		for _, step := range []struct {
			pass        time.Duration
			first, next int
		}{{1999 * ms, 8, 8}, {2 * ms, 8, 4}} {
			b.pass(step.pass)
			if got := [2]int{b.info(0).DPSize, b.info(1).DPSize}; got != [2]int{step.first, step.next} {
				t.Errorf("at %v the engines have %v ranks", time.Since(b.start), got)
			}
		}
	})
}

// TestRerankWithoutPorts leaves the engine as it is.
func TestRerankWithoutPorts(t *testing.T) {
	inBubble(t, Options{Kinds: []Kind{KindSGLangLoadStat}, Ranks: 1}, func(b *bench) {
		e := b.engine()
		source := e.Source()
		e.mu.Lock()
		e.net.listen = func(string) (net.Listener, error) { return nil, context.DeadlineExceeded }
		e.mu.Unlock()
		if err := e.Rerank(2); err == nil || e.Source() != source || e.Ranks() != 1 {
			t.Errorf("%v, %d ranks", err, e.Ranks())
		}
		e.SetFault(Fault{Kind: FaultRerank, Ranks: 2})
		if e.Source() != source {
			t.Error("it restarted")
		}
	})
}

// TestPortsBesideHTTPAreFree has the first free ports among those of HTTP.
func TestPortsBesideHTTPAreFree(t *testing.T) {
	n := newMemNet()
	n.next = 30_001
	f, err := newFleet(Options{
		Engines: 4, Ranks: 3, BasePort: 30_000, Kinds: []Kind{KindSGLangMonitor, KindSGLangLoadStat}, Logger: quiet(),
	}, n.network())
	if err != nil {
		t.Fatal(err)
	}
	if got := len(n.listeners); got != 4+1+3+1+3 {
		t.Errorf("%d listeners", got)
	}
	discarded(t, f)
	if got := len(n.listeners); got != 0 {
		t.Errorf("%d listeners are left", got)
	}
}

func TestAFleetWithoutFreePortsGivesItsListenersBack(t *testing.T) {
	n := newMemNet()
	scarce := n.network()
	scarce.listen = func(address string) (net.Listener, error) {
		if address == "127.0.0.1:0" && len(n.listeners) == 3 {
			return nil, errors.New("too many open files")
		}
		return n.listen(address)
	}
	_, err := newFleet(Options{Engines: 2, Ranks: 3, BasePort: 30_000, Kinds: []Kind{KindSGLangMonitor, KindSGLangLoadStat}, Logger: quiet()}, scarce)
	if err == nil || !strings.Contains(err.Error(), "engine 1 has no ports") || len(n.listeners) != 0 {
		t.Errorf("%v, %d listeners are left", err, len(n.listeners))
	}
}

func discarded(t *testing.T, f *Fleet) {
	t.Helper()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Run(ended); err != nil {
		t.Fatal(err)
	}
}

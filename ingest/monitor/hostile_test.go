package monitor

import (
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// hostile are engines that do not keep to the protocol, and the reason for
// which their sessions end.
var hostile = []struct {
	name   string
	reason store.Reason
	behave behaviour
	raw    peer
}{
	{"never reads a byte", ReasonAckTimeout, nil, func(_ net.Conn, over <-chan struct{}) { <-over }},
	{"half-open", ReasonAckTimeout, nil, swallow},
	{"closes at once", registry.ReasonConnectFailed, nil, func(net.Conn, <-chan struct{}) {}},
	{"speaks HTTP/1", registry.ReasonConnectFailed, nil, func(c net.Conn, _ <-chan struct{}) {
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
		swallow(c, nil)
	}},
	{"never reads a frame", ReasonAckTimeout, func(_ *engine, s pb.LoadMonitorService_MonitorServer) error {
		<-s.Context().Done()
		return nil
	}, nil},
	{"never acks", ReasonAckTimeout, (*engine).drain, nil},
	{"acks and is silent", ReasonReporterSilent, sends(), nil},
	{"reports before it acks", ReasonUnexpectedFrame, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		_ = s.Send(report(e.next(1)))
		return e.drain(s)
	}, nil},
	{"empty frame first", ReasonUnexpectedFrame, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		_ = s.Send(&pb.WorkerFrame{})
		return e.drain(s)
	}, nil},
	{"empty frame later", ReasonUnexpectedFrame, sends(&pb.WorkerFrame{}), nil},
	{"acks twice", ReasonUnexpectedFrame, sends(registered(15_000, 5_000)), nil},
	{"refuses", ReasonSessionRefused, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		_ = s.Send(refusing("INVALID_ARGUMENT", "router_id is blank"))
		return nil
	}, nil},
	{"error frame later", ReasonSessionRefused, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		return s.Send(refusing(string(make([]byte, 1000)), "x"))
	}, nil},
	{"ends at once", ReasonSessionEnded, func(*engine, pb.LoadMonitorService_MonitorServer) error { return nil }, nil},
	{"ends with UNAVAILABLE", registry.ReasonConnectFailed, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		_, _ = e.accept(s)
		return status.Error(codes.Unavailable, "shutting down")
	}, nil},
	{"4 MiB", ingest.ReasonMessageTooLarge, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		r := e.next(1)
		r.LastError = proto.String(string(make([]byte, 4<<20)))
		_ = s.Send(report(r))
		return e.drain(s)
	}, nil},
	{"announces 4 MiB", ingest.ReasonMessageTooLarge, nil, announcing(4 << 20)},
	{"reports and never reads again", registry.ReasonConnectFailed, nil, deaf},
	{"ends with RESOURCE_EXHAUSTED", registry.ReasonEngineError, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		_, _ = e.accept(s)
		return status.Error(codes.ResourceExhausted, "too many routers")
	}, nil},
	{"a bad report each second", ingest.ReasonTooManyRefused, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for {
			r := e.next(1)
			r.Ranks[0].NumRunningReqs = -1
			if err := s.Send(report(r)); err != nil {
				return err
			}
			select {
			case <-time.After(time.Second):
			case <-s.Context().Done():
				return nil
			}
		}
	}, nil},
	{"no source", ingest.ReasonMissingSource, sends(report(sample("", 1, 1))), nil},
	{"flood at 10 kHz", ReasonReportFlood, flooding(100 * time.Microsecond), nil},
	{"flood as fast as it goes", ReasonReportFlood, flooding(0), nil},
}

// flooding sends reports without a pause, or with one.
func flooding(pause time.Duration) behaviour {
	return func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for {
			if err := s.Send(report(e.next(2))); err != nil {
				return err
			}
			if pause > 0 {
				<-time.After(pause)
			}
		}
	}
}

// announcing opens the stream as a server does and announces a frame of a size
// that never comes.
func announcing(size uint32) peer {
	return func(c net.Conn, over <-chan struct{}) {
		go swallow(c, nil)
		w := wire{c}
		w.open()
		_ = w.data(size, nil)
		<-over
	}
}

// deaf answers the registration, sends reports, and reads nothing any more.
func deaf(c net.Conn, over <-chan struct{}) {
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	go swallow(c, nil)
	w := wire{c}
	w.open()
	// Of one process, the later connection goes on where the one before ended.
	for seq := uint64(time.Now().UnixMilli()); ; seq++ {
		b, _ := proto.Marshal(report(sample("process-1", seq, 1)))
		if w.data(uint32(len(b)), b) != nil {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-over:
			return
		}
	}
}

// wire is a connection on which a test writes the frames of HTTP/2 itself.
type wire struct{ net.Conn }

func (w wire) send(kind, flags byte, stream uint32, payload []byte) error {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	_, err := w.Write(append(head, payload...))
	return err
}

// open opens the first stream and answers the registration.
func (w wire) open() {
	const headers, settings, ended, acked = 1, 4, 4, 1
	_ = w.send(settings, 0, 0, nil)
	_ = w.send(settings, acked, 0, nil)
	<-time.After(100 * time.Millisecond)
	// ":status: 200", then the content type without an index.
	_ = w.send(headers, ended, 1, []byte("\x88\x00\x0ccontent-type\x10application/grpc"))
	ack, _ := proto.Marshal(registered(15_000, 5_000))
	_ = w.data(uint32(len(ack)), ack)
}

// data sends a message of an announced size.
func (w wire) data(size uint32, b []byte) error {
	return w.send(0, 0, 1, append(binary.BigEndian.AppendUint32([]byte{0}, size), b...))
}

// TestHostileEnginesCostTheirOwnSession: whatever an engine does, its session
// ends with the reason that says it, and is opened again; another worker keeps
// its interval and its lease, and at the end nothing is left.
func TestHostileEnginesCostTheirOwnSession(t *testing.T) {
	for _, tt := range hostile {
		t.Run(tt.name, func(t *testing.T) {
			inBubbleWith(t, func(r *registry.Options, _ *Options) {
				r.Workers = []string{testWorker + asMonitor, otherOne + asMonitor}
			}, func(p *plane) {
				if tt.raw != nil {
					p.net.addRaw(testPort, tt.raw)
				} else {
					p.net.add(testPort, tt.behave)
				}
				healthy := p.net.add(otherPort, honest(true))
				p.run()
				after(35 * time.Second)
				if p.failed(tt.reason) < 2 {
					_, _, d := p.entry(testWorker)
					t.Errorf("%d sessions ended as %s; shown %s: %s", p.failed(tt.reason), tt.reason, d.Registration, d.RegistrationError)
				}
				p.wantHealthy(healthy, 35)
				if n := p.net.open(); n > 2 {
					t.Errorf("%d connections are open", n)
				}
				if ends := p.ended(); len(ends) != 0 {
					t.Errorf("returned %q", ends)
				}
			})
		})
	}
}

// wantHealthy checks that the other worker kept its interval and its lease.
func (p *plane) wantHealthy(e *engine, seconds uint64) {
	p.t.Helper()
	got, live, _ := p.entry(otherOne)
	if got.Freshness != store.Fresh || live.Sequence < seconds || live.Sequence > seconds+2 {
		p.t.Errorf("the other worker is %s at %d", got.Freshness, live.Sequence)
	}
	if n := len(e.arrivals(isKeepAlive)); n != int(seconds)/5 && n != int(seconds)/5-1 || e.opened() != 1 {
		p.t.Errorf("the other worker got %d keep-alives in %d sessions", n, e.opened())
	}
}

// TestReasonsAreProvoked holds the words of this package against the tests: a
// word that nothing provokes is found.
func TestReasonsAreProvoked(t *testing.T) {
	provoked := map[store.Reason]bool{}
	for _, tt := range hostile {
		provoked[tt.reason] = true
	}
	// Those that no engine provokes are provoked here.
	for _, provoke := range []func(t *testing.T) *fault{portless, stuck, crashed} {
		if why := provoke(t); why != nil {
			provoked[why.reason] = true
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	words := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if word, _ := strconv.Unquote(lit.Value); word != "github.com/loadplane/loadplane/store" {
				words++
				if !provoked[store.Reason(word)] {
					t.Errorf("nothing provokes %s", word)
				}
			}
		}
		return true
	})
	if words == 0 {
		t.Error("reason.go declares nothing")
	}
}

// TestFloodIsCoalesced: of reports above the rate the newest is taken, at the
// rate that the registry was to see at most.
func TestFloodIsCoalesced(t *testing.T) {
	for name, every := range map[string]time.Duration{"20 Hz": 50 * time.Millisecond, "200 Hz": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, flooding(every), func(p *plane, e *engine) {
				const span = 20
				after(span*time.Second + time.Millisecond)
				accepted := testutil.ToFloat64(p.monitor.metrics.accepted)
				if accepted < 2*span || accepted > 2*span+rateBurst+1 || e.opened() != 1 {
					t.Errorf("%v reports were looked at in %d sessions", accepted, e.opened())
				}
				_, live, _ := p.entry(testWorker)
				e.mu.Lock()
				sent := e.seq
				e.mu.Unlock()
				// It is half a second old at most, with the time of its receipt.
				if late := time.Duration(sent-live.Sequence) * every; late > 500*time.Millisecond+2*every {
					t.Errorf("the newest report is %s old", late)
				}
				over := testutil.ToFloat64(p.monitor.metrics.overRate)
				if want := float64(sent) - accepted; over < want {
					t.Errorf("%v of %d reports were over the rate", over, sent)
				}
			})
		})
	}
}

// TestLastReportOfAFloodIsTaken: the report that waits is not lost when none
// follows it.
func TestLastReportOfAFloodIsTaken(t *testing.T) {
	var frames []*pb.WorkerFrame
	for seq := range uint64(20) {
		frames = append(frames, report(sample("process-1", seq+1, 1)))
	}
	inBubble(t, sends(frames...), func(p *plane, _ *engine) {
		after(100 * time.Millisecond)
		p.want(store.Fresh, rateBurst)
		after(500 * time.Millisecond)
		p.want(store.Fresh, 20)
		_, live, _ := p.entry(testWorker)
		if age := time.Now().UnixMilli() - live.ReceivedUnixMs; age < 500 {
			t.Errorf("the report that waited is said to be %d ms old", age)
		}
	})
}

// TestRefusedReportsAreDropped: the session goes on.
func TestRefusedReportsAreDropped(t *testing.T) {
	bad := func(change func(r *pb.LoadReport)) *pb.WorkerFrame {
		r := sample("process-1", 2, 1)
		change(r)
		return report(r)
	}
	for _, tt := range []struct {
		reason store.Reason
		frame  *pb.WorkerFrame
	}{
		{ingest.ReasonNoRanks, bad(func(r *pb.LoadReport) { r.Ranks = nil })},
		{ingest.ReasonBadStatus, bad(func(r *pb.LoadReport) { r.Status = 7 })},
		{ingest.ReasonDuplicateRank, bad(func(r *pb.LoadReport) { r.Ranks = append(r.Ranks, r.Ranks[0]) })},
		{ingest.ReasonTooManyRanks, report(sample("process-1", 2, 513))},
		{ingest.ReasonMessageTooLarge, bad(func(r *pb.LoadReport) { r.LastError = proto.String(string(make([]byte, 80<<10))) })},
		{registry.ReasonSequenceJump, bad(func(r *pb.LoadReport) { r.SequenceId = 1 << 60 })},
	} {
		t.Run(string(tt.reason), func(t *testing.T) {
			one, three := report(sample("process-1", 1, 1)), report(sample("process-1", 3, 2))
			inBubble(t, sends(one, tt.frame, three), func(p *plane, e *engine) {
				after(time.Second)
				p.want(store.Fresh, 3)
				if p.refused(tt.reason) != 1 || e.opened() != 1 {
					t.Errorf("%d refused as %s, %d sessions", p.refused(tt.reason), tt.reason, e.opened())
				}
				if _, _, d := p.entry(testWorker); d.Refused != 1 {
					t.Errorf("%d refused reports are shown with the worker", d.Refused)
				}
			})
		})
	}
}

// TestBug22OldSequencesChangeNothing: 10, 9, 10, 11 are 10 and 11.
func TestBug22OldSequencesChangeNothing(t *testing.T) {
	running := func(seq uint64, n int64) *pb.WorkerFrame {
		r := sample("process-1", seq, 1)
		r.Ranks[0].NumRunningReqs = n
		return report(r)
	}
	inBubble(t, sends(running(10, 1), running(9, 2), running(10, 3)), func(p *plane, e *engine) {
		after(time.Second)
		got, live, _ := p.entry(testWorker)
		if v, _ := got.Ranks[0].Count(store.NumRunningReqs); v != 1 || live.Sequence != 10 || e.opened() != 1 {
			t.Errorf("running is %d at %d, %d sessions", v, live.Sequence, e.opened())
		}
	})
}

// TestSequenceBackForGood: a source that begins again with its old name is not
// believed, and ages.
func TestSequenceBackForGood(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		after(10500 * time.Millisecond)
		e.set(func(e *engine) { e.seq = 0 })
		after(5 * time.Second)
		p.want(store.Stale, 11)
		// It is opened again meanwhile, which does not help.
		_, _, d := p.entry(testWorker)
		if n := p.failed(ReasonReporterSilent); n != 1 || !strings.Contains(d.RegistrationError, "a newer sequence") {
			t.Errorf("%d sessions ended as silent; shown %s: %q", n, d.Registration, d.RegistrationError)
		}
		after(10 * time.Second)
		if e, live, _ := p.entry(testWorker); e.Freshness != store.Fresh || live.Sequence <= 11 {
			t.Errorf("%s at %d", e.Freshness, live.Sequence)
		}
	})
}

// TestSequenceThatCannotAdvance is told of, and the session is opened anew.
func TestSequenceThatCannotAdvance(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		e.set(func(e *engine) { e.seq = 1<<62 - 2 })
		after(1500 * time.Millisecond)
		e.set(func(e *engine) { e.seq = 0 })
		after(30 * time.Second)
		got, _, d := p.entry(testWorker)
		if p.failed(ReasonReporterSilent) < 3 || got.Freshness != store.Stale ||
			d.Registration != string(registry.StateFailing) || !strings.Contains(d.RegistrationError, "a newer sequence") {
			t.Errorf("%d sessions ended as silent, %s; shown %s: %q", p.failed(ReasonReporterSilent), got.Freshness, d.Registration, d.RegistrationError)
		}
	})
}

// TestSourceChangesBetweenSessionsOnly: another instance within a session ends
// it; the next session is of the new one.
func TestSourceChangesBetweenSessionsOnly(t *testing.T) {
	inBubble(t, honest(false), func(p *plane, e *engine) {
		after(2500 * time.Millisecond)
		e.set(func(e *engine) { e.source, e.seq = "process-2", 0 })
		after(1500 * time.Millisecond)
		if n := p.failed(registry.ReasonClaimChanged); n != 1 || e.opened() != 2 || p.refused(registry.ReasonClaimChanged) != 1 {
			t.Errorf("%d sessions ended as %s of %d", n, registry.ReasonClaimChanged, e.opened())
		}
		if st := p.stream(testWorker); st.Source != "process-2" || len(st.Retired) != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestFlappingSourceIsHeldOff: a retired instance is refused while the other is
// heard, so that two engines behind one address do not take turns.
func TestFlappingSourceIsHeldOff(t *testing.T) {
	var turn int
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		e.mu.Lock()
		turn++
		e.source = fmt.Sprintf("process-%d", turn%2)
		e.mu.Unlock()
		return s.Send(report(e.next(1)))
	}, func(p *plane, _ *engine) {
		after(10 * time.Second)
		if p.failed(registry.ReasonRetired) == 0 {
			t.Error("no session ended as retired")
		}
		if ends := p.ended(); len(ends) != 0 {
			t.Errorf("returned %q", ends)
		}
	})
}

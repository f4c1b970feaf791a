package monitor

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// bench is a server in a bubble.
type bench struct {
	t       *testing.T
	process *reporter.Process
	faults  *reporter.Faults
	slow    atomic.Int64
	server  *Server
	stop    func()
	client  monitorpb.LoadMonitorServiceClient
}

// inBubble serves an engine of a role with two ranks, for a router that dials
// half an interval of 100 ms after the engine's epoch.
func inBubble(t *testing.T, role pb.WorkerType, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, faults: &reporter.Faults{}}
		b.process = reporter.New(reporter.Config{Role: role, Model: "m", Ranks: 2, Seed: 1, Warm: true, Faults: b.faults})
		b.server = New(Config{
			Process: b.process, Role: role, Model: "m", Faults: b.faults,
			Slow: func() time.Duration { return time.Duration(b.slow.Load()) },
		})
		l := bufconn.Listen(256 << 10)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.server.Run(ctx, l); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		b.stop = func() { cancel(); running.Wait() }
		conn, err := grpc.NewClient("passthrough:///engine",
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = conn.Close()
			b.stop()
			b.process.Close()
		}()
		b.client = monitorpb.NewLoadMonitorServiceClient(conn)
		<-time.After(50 * ms)
		f(b)
	})
}

// dialled is a router's end of a session that keeps what arrives.
type dialled struct {
	b      *bench
	stream grpc.BidiStreamingClient[monitorpb.RouterFrame, monitorpb.WorkerFrame]
	cancel context.CancelFunc
	start  time.Time

	mu     sync.Mutex
	frames []*monitorpb.WorkerFrame
	at     []time.Duration
	err    error // how it ended; io.EOF for OK
}

// dial opens a stream and sends frames on it.
func (b *bench) dial(frames ...*monitorpb.RouterFrame) *dialled {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	stream, err := b.client.Monitor(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	s := &dialled{b: b, stream: stream, cancel: cancel, start: time.Now()}
	b.t.Cleanup(cancel)
	for _, f := range frames {
		s.send(f)
	}
	go func() {
		for {
			f, err := stream.Recv()
			s.mu.Lock()
			if err != nil {
				s.err = err
				s.mu.Unlock()
				return
			}
			s.frames, s.at = append(s.frames, f), append(s.at, time.Since(s.start))
			s.mu.Unlock()
		}
	}()
	synctest.Wait()
	return s
}

func (s *dialled) send(f *monitorpb.RouterFrame) {
	s.b.t.Helper()
	if err := s.stream.Send(f); err != nil {
		s.b.t.Fatal(err)
	}
	synctest.Wait()
}

// reports returns the reports and when they came.
func (s *dialled) reports() (reports []*monitorpb.LoadReport, at []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, f := range s.frames {
		if r := f.GetReport(); r != nil {
			reports, at = append(reports, r), append(at, s.at[i])
		}
	}
	return reports, at
}

// last returns the last report.
func (s *dialled) last() *monitorpb.LoadReport {
	reports, _ := s.reports()
	if len(reports) == 0 {
		s.b.t.Fatal("there is no report")
	}
	return reports[len(reports)-1]
}

// ended returns how the session ended: nil while it did not.
func (s *dialled) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func register(id string, interval, lease int64) *monitorpb.RouterFrame {
	r := &monitorpb.RegisterRequest{RouterId: id, ReportIntervalMs: interval, LeaseTtlMs: lease}
	return &monitorpb.RouterFrame{Payload: &monitorpb.RouterFrame_Register{Register: r}}
}

func update(interval, lease *int64) *monitorpb.RouterFrame {
	u := &monitorpb.UpdateConfigRequest{ReportIntervalMs: interval, LeaseTtlMs: lease}
	return &monitorpb.RouterFrame{Payload: &monitorpb.RouterFrame_UpdateConfig{UpdateConfig: u}}
}

func keepAlive() *monitorpb.RouterFrame {
	return &monitorpb.RouterFrame{Payload: &monitorpb.RouterFrame_KeepAlive{KeepAlive: &monitorpb.KeepAlive{}}}
}

func stopFrame() *monitorpb.RouterFrame {
	return &monitorpb.RouterFrame{Payload: &monitorpb.RouterFrame_Stop{Stop: &monitorpb.StopRequest{}}}
}

func TestASessionBeginsWithTheAckAndAReport(t *testing.T) {
	for lease, renew := range map[int64]int64{15_000: 5000, 2: 1, 10: 3, math.MaxInt64: math.MaxInt64 / 3} {
		inBubble(t, pb.WorkerType_WORKER_TYPE_DECODE, func(b *bench) {
			s := b.dial(register("r", 100, lease))
			if len(s.frames) != 2 || s.at[1] != 0 {
				t.Fatalf("%v at %v", s.frames, s.at)
			}
			if ack := s.frames[0].GetRegistered(); ack.GetLeaseTtlMs() != lease || ack.GetRenewAfterMs() != renew {
				t.Errorf("ack %v, want %d and %d", ack, lease, renew)
			}
			r := s.last()
			w := r.GetWorker()
			if r.GetSourceInstanceId() != b.process.Source() || r.GetSequenceId() != 1 || r.GetStatus() != monitorpb.ReportStatus_REPORT_STATUS_HEALTHY ||
				r.LastError != nil || w.GetWorkerAddr() != "bufconn" || w.GetWorkerType() != monitorpb.WorkerType_WORKER_TYPE_DECODE ||
				w.GetModel() != "m" || w.Zone != nil || len(r.GetRanks()) != 2 {
				t.Errorf("report %v", r)
			}
			if b.server.Sessions() != 1 {
				t.Errorf("%d sessions", b.server.Sessions())
			}
		})
	}
}

func TestReportsHaveTheLoadOfTheProcess(t *testing.T) {
	for role, runs := range map[pb.WorkerType]bool{pb.WorkerType_WORKER_TYPE_REGULAR: true, pb.WorkerType_WORKER_TYPE_PREFILL: false} {
		inBubble(t, role, func(b *bench) {
			sample, err := b.process.Sample()
			for err == nil && (sample.Ranks[0].NumRunningReqs == 0 || sample.Ranks[1].NumRunningReqs == 0) {
				b.pass(50 * ms)
				sample, err = b.process.Sample()
			}
			if err != nil {
				t.Error(err)
				return
			}
			s := b.dial(register("r", 100, 15_000))
			for i, r := range s.last().GetRanks() {
				want := sample.Ranks[i]
				if (r.GetNumRunningReqs() == want.NumRunningReqs) != runs || runs == (r.GetNumRunningReqs() == 0) || r.GetDpRank() != int32(i) || r.GetSnapshotTimeUnixMs() != want.SnapshotTimeUnixMs ||
					r.GetNumWaitingReqs() != want.NumWaitingReqs || r.GetNumUsedTokens() != want.NumUsedTokens || r.GetNumTotalTokens() != want.NumTotalTokens ||
					r.GetNumWaitingUncachedTokens() != want.NumWaitingUncachedTokens || r.GetMaxTotalNumTokens() != want.MaxTotalNumTokens ||
					r.GetMaxRunningRequests() != want.MaxRunningRequests || r.GetTokenUsage() != want.TokenUsage || r.GetGenThroughput() != want.GenThroughput ||
					r.GetCacheHitRate() != want.CacheHitRate || r.GetUtilization() != want.Utilization || r.GetPrefillThroughput() != 0 {
					t.Errorf("%v: rank %d is %v, sampled was %v", role, i, r, want)
				}
			}
		})
	}
}

func TestEqualIntervalsShareReports(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		one := b.dial(register("one", 100, 15_000))
		b.pass(20 * ms)
		other := b.dial(register("other", 100, 15_000))
		slow := b.dial(register("slow", 300, 15_000))
		b.pass(400 * ms) // it is 470 ms after the epoch
		_, at := one.reports()
		if want := []time.Duration{0, 50 * ms, 150 * ms, 250 * ms, 350 * ms}; !slices.Equal(at, want) {
			t.Errorf("reports came at %v, want %v", at, want)
		}
		mine, _ := one.reports()
		others, at := other.reports()
		if want := []time.Duration{0, 30 * ms, 130 * ms, 230 * ms, 330 * ms}; !slices.Equal(at, want) {
			t.Fatalf("reports of the second came at %v, want %v", at, want)
		}
		for i := range others[1:] {
			if mine[i+1].GetSequenceId() != others[i+1].GetSequenceId() {
				t.Errorf("report %d has the sequences %d and %d", i, mine[i+1].GetSequenceId(), others[i+1].GetSequenceId())
			}
		}
		if _, at := slow.reports(); !slices.Equal(at, []time.Duration{0, 230 * ms}) {
			t.Errorf("reports of the third came at %v", at)
		}
		if got := b.process.Sequence(); got != 7 {
			t.Errorf("%d reports were built, want 3 first ones and 4", got)
		}
	})
}

func TestOnlyTheIntervalMovesReports(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		s := b.dial(register("r", 200, 1000)) // at 50 ms
		for range 30 {
			b.pass(40 * ms)
			s.send(keepAlive())
		}
		_, at := s.reports()
		if want := []time.Duration{0, 150 * ms, 350 * ms, 550 * ms, 750 * ms, 950 * ms, 1150 * ms}; !slices.Equal(at, want) {
			t.Errorf("reports came at %v, want %v", at, want)
		}
		interval, lease := int64(500), int64(300)
		s.send(update(&interval, nil)) // at 1250 ms
		b.pass(260 * ms)
		s.send(register("r", 500, 60_000))
		b.pass(500 * ms)
		_, at = s.reports()
		if want := []time.Duration{1450 * ms, 1950 * ms}; !slices.Equal(at[7:], want) {
			t.Errorf("later reports came at %v, want %v", at[7:], want)
		}
		acks := 0
		for _, f := range s.frames {
			if f.GetRegistered() != nil {
				acks++
			}
		}
		if acks != 1 {
			t.Errorf("%d acks", acks)
		}
		s.send(update(nil, &lease))
		b.pass(299 * ms)
		if s.ended() != nil {
			t.Error("the session ended before its lease")
		}
		b.pass(1 * ms)
		if !errors.Is(s.ended(), io.EOF) {
			t.Errorf("at the end of its lease it ended with %v", s.ended())
		}
	})
}

// TestEndsOfASession ends all of them as OK but the last, of the server.
func TestEndsOfASession(t *testing.T) {
	negative := int64(-1)
	tests := []struct {
		name  string
		first *monitorpb.RouterFrame // nil for a good one
		then  func(b *bench, s *dialled)
		code  string // of an error frame
		want  codes.Code
	}{
		{"lease", nil, func(b *bench, _ *dialled) { b.pass(1000 * ms) }, "", codes.OK},
		{"stop", nil, func(_ *bench, s *dialled) { s.send(stopFrame()) }, "", codes.OK},
		{"half-close", nil, func(_ *bench, s *dialled) { _ = s.stream.CloseSend() }, "", codes.OK},
		{"replaced", nil, func(b *bench, _ *dialled) { b.dial(register("r", 100, 1000)) }, "", codes.OK},
		{"first frame is keep_alive", keepAlive(), nil, codeFirstFrame, codes.OK},
		{"first frame is empty", &monitorpb.RouterFrame{}, nil, codeFirstFrame, codes.OK},
		{"blank id", register(" ", 100, 1000), nil, codeArgument, codes.OK},
		{"interval of 0", register("r", 0, 1000), nil, codeArgument, codes.OK},
		{"negative lease", register("r", 100, -1), nil, codeArgument, codes.OK},
		{"update to a negative interval", nil, func(_ *bench, s *dialled) { s.send(update(&negative, nil)) }, codeArgument, codes.OK},
		{"register without a lease", nil, func(_ *bench, s *dialled) { s.send(register("r", 100, 0)) }, codeArgument, codes.OK},
		{"empty frame", nil, func(_ *bench, s *dialled) { s.send(&monitorpb.RouterFrame{}) }, codeArgument, codes.OK},
		{"shutdown", nil, func(b *bench, _ *dialled) { b.stop() }, "", codes.Unavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
				first := tt.first
				if first == nil {
					first = register("r", 100, 1000)
				}
				s := b.dial(first)
				if tt.then != nil {
					if s.ended() != nil {
						t.Fatalf("it ended early: %v", s.ended())
					}
					tt.then(b, s)
				}
				synctest.Wait()
				err := s.ended()
				if got := status.Code(err); err == nil || errors.Is(err, io.EOF) != (tt.want == codes.OK) || tt.want != codes.OK && got != tt.want {
					t.Errorf("ended with %v", err)
				}
				if got := s.frames[len(s.frames)-1].GetError(); got.GetCode() != tt.code || tt.code != "" && got.GetMessage() == "" {
					t.Errorf("error frame %v, want %q", got, tt.code)
				}
			})
		})
	}
}

func TestASessionThatIsReplacedLeavesTheOtherAlone(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		old, other := b.dial(register("r", 100, 5000)), b.dial(register("x", 100, 5000))
		now := b.dial(register("r", 100, 5000))
		b.pass(1000 * ms)
		if old.ended() == nil || other.ended() != nil || now.ended() != nil || b.server.Sessions() != 2 {
			t.Errorf("ends are %v, %v and %v, %d sessions", old.ended(), other.ended(), now.ended(), b.server.Sessions())
		}
		if r, _ := now.reports(); len(r) != 11 {
			t.Errorf("%d reports", len(r))
		}
	})
}

func TestACancelledSessionIsForgotten(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		b.dial(register("r", 100, 5000)).cancel()
		synctest.Wait()
		if got := b.server.Sessions(); got != 0 {
			t.Errorf("%d sessions", got)
		}
	})
}

func TestFaultsOfReports(t *testing.T) {
	tests := []struct {
		name string
		set  func(b *bench)
		text string // of last_error; empty for a healthy report
	}{
		{"fail", func(b *bench) { b.faults.Fail.Store(true) }, "simulated sampling failure"},
		{"nan", func(b *bench) { b.faults.NaN.Store(true) }, "rank 0: token_usage is not finite"},
		{"zero capacity", func(b *bench) { b.faults.ZeroCapacity.Store(true) }, ""},
		{"a second", func(b *bench) { b.slow.Store(int64(time.Second)) }, "load sample timed out after 1.0 s"},
		{"half a second", func(b *bench) { b.slow.Store(int64(time.Second / 2)) }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
				s := b.dial(register("r", 100, 60_000))
				tt.set(b)
				b.pass(1200 * ms)
				r := s.last()
				want, ranks := monitorpb.ReportStatus_REPORT_STATUS_HEALTHY, 2
				if tt.text != "" {
					want, ranks = monitorpb.ReportStatus_REPORT_STATUS_UNREACHABLE, 0
				}
				if r.GetStatus() != want || r.GetLastError() != tt.text || len(r.GetRanks()) != ranks {
					t.Errorf("report %v", r)
				}
				if tt.name == "zero capacity" && (r.GetRanks()[0].GetMaxTotalNumTokens() != 0 || r.GetRanks()[1].GetMaxRunningRequests() != 0) {
					t.Errorf("ranks %v", r.GetRanks())
				}
			})
		})
	}
}

func TestSilenceLeavesTheStreamOpen(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		s := b.dial(register("r", 100, 60_000))
		b.faults.Silent.Store(true)
		b.pass(1000 * ms)
		if r, _ := s.reports(); len(r) != 1 || s.ended() != nil || b.process.Sequence() != 1 {
			t.Errorf("%d reports, end %v, sequence %d", len(r), s.ended(), b.process.Sequence())
		}
		b.faults.Silent.Store(false)
		b.pass(100 * ms)
		if r, _ := s.reports(); len(r) != 2 {
			t.Errorf("%d reports after the silence", len(r))
		}
	})
}

func TestRunEndsWhileARouterReadsNothing(t *testing.T) {
	inBubble(t, pb.WorkerType_WORKER_TYPE_REGULAR, func(b *bench) {
		stream, err := b.client.Monitor(b.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(register("r", 1, 600_000)); err != nil {
			t.Fatal(err)
		}
		b.pass(30 * time.Second) // far more reports than the stream has room for
		healthy := b.dial(register("x", 100, 600_000))
		b.pass(1000 * ms)
		if r, _ := healthy.reports(); len(r) != 11 {
			t.Errorf("another router has %d reports", len(r))
		}
		begun := time.Now()
		b.stop()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("ending took %v", took)
		}
	})
}

func TestTheNewestReportWaits(t *testing.T) {
	s := &session{out: make(chan *monitorpb.WorkerFrame, 1)}
	for i := range uint64(3) {
		s.offer(&monitorpb.WorkerFrame{Payload: &monitorpb.WorkerFrame_Report{Report: &monitorpb.LoadReport{SequenceId: i}}})
	}
	if got := (<-s.out).GetReport().GetSequenceId(); got != 2 || len(s.out) != 0 {
		t.Errorf("report %d waits, and %d more", got, len(s.out))
	}
}

package sim

import (
	"io"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const ms = time.Millisecond

func TestReportsAtOnceThenAtAFixedRate(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 15_000)
		b.pass(3500 * ms)
		want := []time.Duration{0, 1000 * ms, 2000 * ms, 3000 * ms}
		if got := b.offsets(p); !reflect.DeepEqual(got, want) {
			t.Errorf("reports at %v, want %v", got, want)
		}
		for i, a := range p.reports() {
			if a.report.SequenceId != uint64(i+1) {
				t.Errorf("report %d has sequence %d", i, a.report.SequenceId)
			}
		}
	})
}

func TestFirstReportSaysWhatTheEngineIs(t *testing.T) {
	inBubble(t, Options{Ranks: 3, Model: "m", Zones: []string{"z"}}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 15_000)
		b.pass(0)
		r := p.reports()[0].report
		if r.Worker.WorkerAddr != "http://engine:1" || r.Worker.WorkerType != pb.WorkerType_WORKER_TYPE_REGULAR ||
			r.Worker.GetModel() != "m" || r.Worker.GetZone() != "z" {
			t.Errorf("worker is %v", r.Worker)
		}
		if r.Status != pb.ReportStatus_REPORT_STATUS_HEALTHY || r.LastError != nil || len(r.Ranks) != 3 {
			t.Errorf("status %v, error %v, %d ranks", r.Status, r.LastError, len(r.Ranks))
		}
		if r.SourceInstanceId != b.engine().Source() || len(r.SourceInstanceId) != 36 {
			t.Errorf("source %q", r.SourceInstanceId)
		}
		if r.ReportTimeUnixMs != b.start.UnixMilli() || r.Ranks[2].DpRank != 2 {
			t.Errorf("report time %d, rank %d", r.ReportTimeUnixMs, r.Ranks[2].DpRank)
		}
	})
}

func TestReportsBeforeTheFirstSampleAreUnreachable(t *testing.T) {
	inBubble(t, Options{FirstSample: 1500 * ms}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 15_000)
		b.pass(2500 * ms)
		for i, a := range p.reports() {
			r := a.report
			unreachable := r.Status == pb.ReportStatus_REPORT_STATUS_UNREACHABLE && len(r.Ranks) == 0 &&
				r.GetLastError() == "no successful load sample"
			if unreachable != (i < 2) {
				t.Errorf("report %d: %v, %d ranks, %q", i, r.Status, len(r.Ranks), r.GetLastError())
			}
		}
	})
}

func TestRenewalReanchorsTheSchedule(t *testing.T) {
	tests := []struct {
		name   string
		renew  []time.Duration // after the registration
		expect []time.Duration // up to 2 s
	}{
		{"one renewal moves the next report", []time.Duration{400 * ms}, []time.Duration{0, 700 * ms, 1000 * ms, 1300 * ms, 1600 * ms, 1900 * ms}},
		{"renewing faster than the interval silences", every(100*ms, 2000*ms), []time.Duration{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, Options{}, func(b *bench) {
				p := b.plane(7401, nil)
				b.register(7401, 300, 15_000)
				for _, at := range tt.renew {
					b.pass(at - time.Since(b.start))
					b.register(7401, 300, 15_000)
				}
				b.pass(2000*ms - time.Since(b.start))
				got := b.offsets(p)
				// the report at 300 ms comes before the renewal at 400 ms
				want := tt.expect
				if len(tt.renew) == 1 {
					want = slices.Insert(slices.Clone(want), 1, 300*ms)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("reports at %v, want %v", got, want)
				}
			})
		})
	}
}

func every(step, until time.Duration) []time.Duration {
	var all []time.Duration
	for at := step; at < until; at += step {
		all = append(all, at)
	}
	return all
}

func TestRenewalReplacesIntervalAndLease(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 1500)
		b.pass(500 * ms)
		b.register(7401, 200, 1000)
		b.pass(3000 * ms)
		want := []time.Duration{0, 700 * ms, 900 * ms, 1100 * ms, 1300 * ms}
		got := b.offsets(p)
		if len(got) == 6 && got[5] == 1500*ms {
			got = got[:5] // a report due when the lease ends may win
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("reports at %v, want %v", got, want)
		}
	})
}

func TestLeaseEndCancelsTheCall(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 1500)
		b.pass(1499 * ms)
		if len(p.ends()) != 0 || b.engine().Monitors() != 1 {
			t.Fatalf("before the end: ends %v, %d monitors", p.ends(), b.engine().Monitors())
		}
		b.pass(1 * ms)
		if got := p.ends(); !slices.Equal(got, []codes.Code{codes.Canceled}) {
			t.Errorf("stream ended with %v, want Canceled", got)
		}
		if b.engine().Monitors() != 0 {
			t.Errorf("%d monitors after the lease", b.engine().Monitors())
		}
		b.register(7401, 1000, 1500)
		b.pass(0)
		reports := p.reports()
		if got := reports[len(reports)-1].report; got.SequenceId != 3 || got.SourceInstanceId != b.engine().Source() {
			t.Errorf("after registering again: sequence %d, want 3", got.SequenceId)
		}
	})
}

func TestReactionToTheStatusOfTheStream(t *testing.T) {
	const again, wait, over = "reconnects", "waits for a registration", "ends"
	tests := map[codes.Code]string{
		codes.Unavailable: again, codes.DeadlineExceeded: again, codes.ResourceExhausted: again,
		codes.InvalidArgument: wait, codes.Unauthenticated: wait, codes.PermissionDenied: wait, codes.Unimplemented: wait,
		codes.OK: over, codes.Aborted: over, codes.AlreadyExists: over, codes.FailedPrecondition: over,
		codes.NotFound: over, codes.Internal: over, codes.Unknown: over, codes.Canceled: over,
		codes.OutOfRange: over, codes.DataLoss: over,
	}
	for code, reaction := range tests {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, Options{}, func(b *bench) {
				p := b.plane(7401, endFirst(code))
				b.register(7401, 1000, 15_000)
				b.pass(190 * ms)
				if p.opened() != 1 {
					t.Fatalf("%d streams before any backoff", p.opened())
				}
				wantMonitors := 1
				if reaction == over {
					wantMonitors = 0
				}
				if got := b.engine().Monitors(); got != wantMonitors {
					t.Errorf("%d monitors, want %d", got, wantMonitors)
				}
				b.pass(120 * ms)
				if got := p.opened() == 2; got != (reaction == again) {
					t.Errorf("reconnected by itself: %v, but the engine %s", got, reaction)
				}
				b.register(7401, 1000, 15_000)
				b.pass(0)
				if p.opened() != 2 {
					t.Errorf("%d streams after registering again, want 2", p.opened())
				}
			})
		})
	}
}

// endFirst ends the first stream with code at its first report.
func endFirst(code codes.Code) func(int, *pb.LoadReport) error {
	return func(stream int, _ *pb.LoadReport) error {
		switch {
		case stream > 1:
			return nil
		case code == codes.OK:
			return io.EOF
		default:
			return status.Error(code, "said so")
		}
	}
}

func TestRejectedMonitorEndsWithItsLease(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, endFirst(codes.InvalidArgument))
		b.register(7401, 1000, 2000)
		b.pass(2000 * ms)
		if b.engine().Monitors() != 0 || p.opened() != 1 {
			t.Errorf("%d monitors, %d streams", b.engine().Monitors(), p.opened())
		}
	})
}

func TestRejectionShowsAsLastErrorOfOtherPlanes(t *testing.T) {
	inBubble(t, Options{FirstSample: time.Hour}, func(b *bench) {
		b.plane(7401, endFirst(codes.InvalidArgument))
		other := b.plane(7402, nil)
		b.register(7402, 1000, 15_000)
		b.register(7401, 1000, 15_000)
		b.pass(1000 * ms)
		reports := other.reports()
		if got := reports[len(reports)-1].report.GetLastError(); got != "router rejected report: said so" {
			t.Errorf("last_error %q", got)
		}
	})
}

func TestBackoffIsResetByAReadyChannel(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, func(int, *pb.LoadReport) error { return status.Error(codes.Unavailable, "no") })
		b.register(7401, 1000, 60_000)
		b.pass(10 * time.Second)
		// every stream had a ready channel: 10 s in steps of 0.2 to 0.3 s
		if n := p.opened(); n < 33 || n > 51 {
			t.Errorf("%d streams in 10 s, want 33 to 51", n)
		}
	})
}

func TestConnectsAgainAfterAnOutage(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		b.register(7401, 1000, 60_000)
		b.pass(20 * time.Second)
		if b.engine().Sequence() != 0 {
			t.Fatalf("%d reports built without a channel", b.engine().Sequence())
		}
		p := b.plane(7401, nil)
		b.pass(6100 * ms) // the longest backoff and a dial
		if p.opened() != 1 || len(p.reports()) == 0 {
			t.Errorf("%d streams, %d reports", p.opened(), len(p.reports()))
		}
		p.server.Stop()
		b.pass(500 * ms)
		again := b.plane(7401, nil)
		b.pass(4500 * ms)
		got := again.reports()
		if len(got) == 0 || got[0].report.SequenceId <= p.reports()[0].report.SequenceId {
			t.Errorf("%d reports after the second outage, or the sequence fell", len(got))
		}
	})
}

func TestTwoPlanesAreServedApart(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		fast, slow := b.plane(7401, nil), b.plane(7402, nil)
		b.register(7401, 100, 15_000)
		b.register(7402, 500, 15_000)
		b.pass(990 * ms)
		if f, s := len(fast.reports()), len(slow.reports()); f != 10 || s != 2 {
			t.Errorf("%d and %d reports, want 10 and 2", f, s)
		}
		seen := map[uint64]bool{}
		for _, a := range append(fast.reports(), slow.reports()...) {
			seen[a.report.SequenceId] = true
		}
		if len(seen) != 12 || !seen[12] {
			t.Errorf("%d distinct sequences of 12", len(seen))
		}
	})
}

func TestRestartIsANewSource(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 15_000)
		b.pass(1500 * ms)
		old := b.engine().Source()
		b.engine().Restart()
		b.pass(3 * time.Second)
		if got := p.ends(); !slices.Equal(got, []codes.Code{codes.Canceled}) {
			t.Errorf("streams ended with %v", got)
		}
		if b.engine().Monitors() != 0 || len(p.reports()) != 2 || b.engine().Source() == old {
			t.Errorf("%d monitors, %d reports, source kept: %v", b.engine().Monitors(), len(p.reports()), b.engine().Source() == old)
		}
		b.register(7401, 1000, 15_000)
		b.pass(0)
		r := p.reports()[2].report
		if r.SequenceId != 1 || r.SourceInstanceId != b.engine().Source() {
			t.Errorf("first report of the new life: sequence %d", r.SequenceId)
		}
	})
}

func TestFaultsOfReports(t *testing.T) {
	last := func(p *plane) *pb.LoadReport {
		r := p.reports()
		return r[len(r)-1].report
	}
	tests := []struct {
		kind  FaultKind
		after time.Duration
		check func(t *testing.T, p *plane, before *pb.LoadReport)
	}{
		{FaultFreeze, 2000 * ms, func(t *testing.T, p *plane, before *pb.LoadReport) {
			r := last(p)
			if r.SequenceId != before.SequenceId+2 || r.Ranks[0].SnapshotTimeUnixMs == before.Ranks[0].SnapshotTimeUnixMs {
				t.Error("reports or sample times stopped")
			}
			for i, rank := range r.Ranks {
				rank.SnapshotTimeUnixMs = before.Ranks[i].SnapshotTimeUnixMs
				if !proto.Equal(rank, before.Ranks[i]) {
					t.Errorf("rank %d moved", i)
				}
			}
		}},
		{FaultSilent, 5000 * ms, func(t *testing.T, p *plane, before *pb.LoadReport) {
			if last(p).SequenceId != before.SequenceId || len(p.ends()) != 0 {
				t.Error("a report came or the stream ended")
			}
		}},
		{FaultFail, 2000 * ms, func(t *testing.T, p *plane, before *pb.LoadReport) {
			if r := last(p); r.Status != pb.ReportStatus_REPORT_STATUS_HEALTHY || r.LastError != nil ||
				r.Ranks[0].SnapshotTimeUnixMs != before.Ranks[0].SnapshotTimeUnixMs {
				t.Errorf("%v with error %q", r.Status, r.GetLastError())
			}
		}},
		{FaultFail, 4000 * ms, func(t *testing.T, p *plane, _ *pb.LoadReport) {
			if r := last(p); r.Status != pb.ReportStatus_REPORT_STATUS_STALE || r.GetLastError() != "simulated sampling failure" || len(r.Ranks) == 0 {
				t.Errorf("%v with error %q", r.Status, r.GetLastError())
			}
		}},
		{FaultZeroCapacity, 1000 * ms, func(t *testing.T, p *plane, _ *pb.LoadReport) {
			if r := last(p); r.Status != pb.ReportStatus_REPORT_STATUS_HEALTHY || r.Ranks[3].MaxTotalNumTokens != 0 || r.Ranks[3].MaxRunningRequests != 0 {
				t.Errorf("%v, rank %v", r.Status, r.Ranks[3])
			}
		}},
		{FaultNaN, 1000 * ms, func(t *testing.T, p *plane, _ *pb.LoadReport) {
			if !math.IsNaN(last(p).Ranks[0].TokenUsage) {
				t.Error("no NaN")
			}
		}},
		{FaultIdle, 1000 * ms, func(t *testing.T, p *plane, _ *pb.LoadReport) {
			for _, r := range last(p).Ranks {
				want := &pb.RankLoad{DpRank: r.DpRank, SnapshotTimeUnixMs: r.SnapshotTimeUnixMs,
					MaxTotalNumTokens: reporter.CapacityTokens, MaxRunningRequests: reporter.MaxRunning}
				if !proto.Equal(r, want) {
					t.Errorf("idle rank %v", r)
				}
			}
		}},
	}
	for _, tt := range tests {
		t.Run(string(tt.kind), func(t *testing.T) {
			inBubble(t, Options{}, func(b *bench) {
				p := b.plane(7401, nil)
				b.register(7401, 1000, 60_000)
				b.pass(1500 * ms)
				before := last(p)
				b.engine().SetFault(Fault{Kind: tt.kind, Engine: AllEngines})
				b.pass(tt.after)
				tt.check(t, p, before)
				b.engine().ClearFault(tt.kind)
				b.pass(1000 * ms)
				r := last(p)
				if r.SequenceId <= before.SequenceId || r.Status != pb.ReportStatus_REPORT_STATUS_HEALTHY ||
					r.Ranks[0].NumUsedTokens == 0 || proto.Equal(r.Ranks[0], before.Ranks[0]) {
					t.Errorf("after the fault: %v", r)
				}
			})
		})
	}
}

func TestFailFromTheStartIsUnreachable(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		b.engine().SetFault(Fault{Kind: FaultFail})
		p := b.plane(7401, nil)
		b.register(7401, 1000, 60_000)
		b.pass(5 * time.Second)
		for _, a := range p.reports() {
			if r := a.report; r.Status != pb.ReportStatus_REPORT_STATUS_UNREACHABLE || len(r.Ranks) != 0 || r.GetLastError() == "" {
				t.Errorf("%v, %d ranks, %q", r.Status, len(r.Ranks), r.GetLastError())
			}
		}
	})
}

func TestSlowDelaysTheRegistration(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		p := b.plane(7401, nil)
		b.engine().SetFault(Fault{Kind: FaultSlow, Delay: 3 * time.Second})
		if code := b.register(7401, 1000, 60_000); code != 200 || time.Since(b.start) != 3*time.Second {
			t.Errorf("answered %d after %v", code, time.Since(b.start))
		}
		synctest.Wait()
		if got := b.offsets(p); len(got) != 1 || got[0] != 3*time.Second {
			t.Errorf("reports at %v", got)
		}
	})
}

func TestFaultsHappenAtTheirTimes(t *testing.T) {
	faults := []Fault{
		{Kind: FaultSilent, Engine: 0, After: 2500 * ms, For: 2000 * ms, Every: 5000 * ms},
		{Kind: FaultRestart, Engine: 1},
	}
	inBubble(t, Options{Engines: 2, Faults: faults}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 1000, 60_000)
		b.pass(10_500 * ms)
		want := []time.Duration{0, 1000 * ms, 2000 * ms, 5000 * ms, 6000 * ms, 7000 * ms, 10_000 * ms}
		if got := b.offsets(p); !reflect.DeepEqual(got, want) {
			t.Errorf("reports at %v, want %v", got, want)
		}
		if b.fleet.engines[1].lives != 2 || b.engine().lives != 1 {
			t.Errorf("lives %d and %d", b.engine().lives, b.fleet.engines[1].lives)
		}
	})
}

package monitor

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/monitor/frame"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// attentive is a stream whose engine takes every frame and sends none.
type attentive struct{ blocked }

func (attentive) SendMsg(any) error { return nil }

// standing runs body with a session that was registered, to whose intake the
// test hands the frames.
func standing(t *testing.T, body func(p *plane, s *session)) {
	t.Helper()
	captured(t, func(p *plane, e *registry.Engine) {
		s := p.begin(e, func(b blocked) grpc.ClientStream { return attentive{b} })
		body(p, s)
	})
}

// TestOwnStatusOfAnEngineIsNoReport: whatever an engine says when it ends a
// session, nothing was refused.
func TestOwnStatusOfAnEngineIsNoReport(t *testing.T) {
	for _, text := range []string{"too many routers", "grpc: received message larger than max (9 vs. 8)", "larger than max 1048576"} {
		t.Run(text, func(t *testing.T) {
			inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
				_, _ = e.accept(s)
				return status.Error(codes.ResourceExhausted, text)
			}, func(p *plane, _ *engine) {
				after(10 * time.Second)
				if n := p.refused(ingest.ReasonMessageTooLarge); n != 0 || p.failed(registry.ReasonEngineError) == 0 {
					t.Errorf("%d reports were refused", n)
				}
				if _, _, d := p.entry(testWorker); d.Refused != 0 {
					t.Errorf("%d refused reports are shown", d.Refused)
				}
			})
		})
	}
}

// TestPanicOfAReportThatWaited ends its session only, as one of a report that
// did not wait does.
func TestPanicOfAReportThatWaited(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.in.rate.AllowN(time.Now(), rateBurst)
		s.in.frame(p.bytes(report(sample("process-1", 1, 1))))
		s.in.message = nil // what decodes it panics
		why := s.run(p.t.Context())
		s.end(false)
		if why == nil || why.reason != ReasonSessionPanic || why.final || s.in.ended() != why {
			t.Errorf("ended by %+v", why)
		}
	})
}

// TestBadReportsAmongGoodOnes: only those in a row end a session.
func TestBadReportsAmongGoodOnes(t *testing.T) {
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		for i := 1; ; i++ {
			r := e.next(1)
			if i%ingest.MaxRefusedInRow != 0 {
				r.Ranks[0].NumRunningReqs = -1
			}
			if err := s.Send(report(r)); err != nil {
				return err
			}
			select {
			case <-time.After(time.Second):
			case <-s.Context().Done():
				return nil
			}
		}
	}, func(p *plane, e *engine) {
		after(time.Minute)
		if n := p.failed(ingest.ReasonTooManyRefused); n != 0 || e.opened() != 1 {
			t.Errorf("%d sessions of %d ended as %s", n, e.opened(), ingest.ReasonTooManyRefused)
		}
	})
}

// TestShortSessionsAreOpenedLessOften: that the registration was answered does
// not make an engine one that stays.
func TestShortSessionsAreOpenedLessOften(t *testing.T) {
	inBubble(t, func(e *engine, s pb.LoadMonitorService_MonitorServer) error {
		if _, err := e.accept(s); err != nil {
			return err
		}
		return s.Send(report(e.next(1)))
	}, func(_ *plane, e *engine) {
		after(time.Minute)
		// The mean of the waits is 2.5 s in the end.
		if n := e.opened(); n < 10 || n > 90 {
			t.Errorf("%d sessions in a minute", n)
		}
	})
}

// TestIntervalOfDiscoverySetsTheRate within a session.
func TestIntervalOfDiscoverySetsTheRate(t *testing.T) {
	standing(t, func(_ *plane, s *session) {
		// As if discovery had said ten seconds before.
		s.target.Interval = 10 * time.Second
		s.in.pace(s.target.Interval)
		if why := s.change(); why != nil {
			t.Errorf("ended by %+v", why)
		}
		if per := s.in.rate.Limit(); per != 2 {
			t.Errorf("%v reports a second are taken, 2 are to be", per)
		}
		if f := s.sender.next; f.GetUpdateConfig().GetReportIntervalMs() != 1000 {
			t.Errorf("the engine is told %v", f)
		}
		s.end(false)
	})
}

// TestKeepAliveTakesNoPlace: a change that waits is sent, and renews as well.
func TestKeepAliveTakesNoPlace(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.granted(<-s.in.acks)
		s.sender.post(frame.Update(2*time.Second, time.Minute))
		s.renew(time.Now())
		if f := s.sender.next; f.GetUpdateConfig().GetReportIntervalMs() != 2000 {
			t.Errorf("%v is sent next", f)
		}
		if n := testutil.ToFloat64(p.monitor.metrics.keepAlives); n != 0 {
			t.Errorf("%v keep-alives are counted", n)
		}
		s.end(false)
	})
}

// TestReportThatWaitsIsBounded in memory, and is refused for its size when it is
// due.
func TestReportThatWaitsIsBounded(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.in.rate.AllowN(time.Now(), rateBurst)
		r := sample("process-1", 1, 1)
		r.LastError = proto.String(string(make([]byte, 1<<20-4096)))
		s.in.frame(p.bytes(report(r)))
		if n := cap(s.in.waiting.bytes); n > 2*ingest.MaxMessageBytes {
			t.Errorf("a report that waits takes %d bytes", n)
		}
		<-time.After(time.Second)
		if why := s.in.flush(time.Now()); why != nil || p.refused(ingest.ReasonMessageTooLarge) != 1 {
			t.Errorf("%d refused, ended by %+v", p.refused(ingest.ReasonMessageTooLarge), why)
		}
		s.end(false)
	})
}

// TestReportThatWaitedWasReceivedWhenItCame: not when the one came whose place it
// took.
func TestReportThatWaitedWasReceivedWhenItCame(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.in.rate.AllowN(time.Now(), rateBurst)
		var last time.Time
		for seq := range uint64(4) {
			last = time.Now()
			s.in.frame(p.bytes(report(sample("process-1", seq+1, 1))))
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(time.Second)
		if why := s.in.flush(time.Now()); why != nil {
			t.Errorf("ended by %+v", why)
		}
		after(2 * testSettle)
		p.want(store.Fresh, 4)
		if _, live, _ := p.entry(testWorker); live != nil && live.ReceivedUnixMs != last.UnixMilli() {
			t.Errorf("received at %d, came at %d", live.ReceivedUnixMs, last.UnixMilli())
		}
		s.end(false)
	})
}

// TestLostRightEndsTheSession: another stream speaks for the worker.
func TestLostRightEndsTheSession(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.in.frame(p.bytes(report(sample("process-1", 1, 1))))
		ended := make(chan *fault, 1)
		go func() { ended <- s.run(p.t.Context()) }()
		after(100 * time.Millisecond)
		other, err := s.engine.Open("process-2", s.peer, p.load("process-2", 1))
		p.must(err)
		if why := <-ended; why == nil || why.reason != registry.ReasonSuperseded || !why.final {
			t.Errorf("ended by %+v", why)
		}
		s.end(true)
		if other.Err() != nil {
			t.Errorf("the other stream ended: %v", other.Err())
		}
		other.Close()
	})
}

// load is one of a rank.
func (p *plane) load(source string, sequence uint64) *store.Load {
	return &store.Load{
		Source: source, Sequence: sequence, Status: store.StatusHealthy, Received: p.monitor.opts.Clock.Now(),
		Ranks: []store.Rank{{}}, Samples: []store.Sample{{}},
	}
}

// TestEndedSessionSpeaksNoMore: it gives its right back, and what comes after
// is not looked at.
func TestEndedSessionSpeaksNoMore(t *testing.T) {
	standing(t, func(p *plane, s *session) {
		s.in.frame(p.bytes(report(sample("process-1", 1, 1))))
		s.end(false)
		if err := s.in.binding.Admit(p.load("process-1", 2)); err == nil {
			t.Error("the binding of a session that ended takes reports")
		}
		s.in.frame(p.bytes(report(sample("process-1", 3, 1))))
		after(2 * testSettle)
		p.want(store.Fresh, 1)
		if n := testutil.CollectAndCount(p.monitor.metrics.refused); n != 0 {
			t.Errorf("%d reasons of refusals after the end", n)
		}
	})
}

// TestRefusalsThatAreFinal: those that a further session cannot mend.
func TestRefusalsThatAreFinal(t *testing.T) {
	for reason, final := range map[store.Reason]bool{
		registry.ReasonSuperseded: true, registry.ReasonWorkerRemoved: true, registry.ReasonIdentityChanged: true,
		registry.ReasonShuttingDown: true, registry.ReasonRetired: false, registry.ReasonClaimChanged: false,
		registry.ReasonSequenceJump: false, ingest.ReasonTooManyRefused: false,
	} {
		if f := refusal(&registry.Refusal{Reason: reason}); f.final != final || f.reason != reason {
			t.Errorf("%s: %+v", reason, f)
		}
	}
	if f := refusal(status.Error(codes.Internal, "x")); f.final || f.reason != ingest.ReasonMalformed {
		t.Errorf("another error: %+v", f)
	}
}

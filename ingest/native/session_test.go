package native

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
)

// wish renews the lease with another wanted interval, which must be granted, and
// returns once the stream has heard of it.
func (r *reporter) wish(d time.Duration) {
	r.t.Helper()
	g := r.register(&loadplanev1.RegisterRequest{Url: testURL, ReportIntervalMs: uint32(d.Milliseconds())}).GetGrant()
	if g.GetReportIntervalMs() != uint32(d.Milliseconds()) {
		r.t.Fatalf("granted %v", g)
	}
	synctest.Wait()
}

func (p *plane) accepted() float64 { return testutil.ToFloat64(p.service.metrics.accepted) }

func (p *plane) merged() float64 { return testutil.ToFloat64(p.service.metrics.merged) }

// sequence is that of the report that is known.
func (p *plane) sequence() uint64 {
	p.t.Helper()
	p.settle()
	return p.entry(testURL).Load.Sequence
}

// A shorter interval is also a higher rate of what is taken.
func TestRateFollowsTheGrant(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		r.wish(100 * time.Millisecond)
		for i := range 50 {
			r.send(sample(uint64(i + 1)))
			<-time.After(100 * time.Millisecond)
		}
		if p.sequence() != 50 || p.merged() != 0 {
			t.Errorf("sequence %d, and %v merged at the granted rate", p.sequence(), p.merged())
		}
		r.wish(time.Second)
		for i := range 50 {
			r.send(sample(uint64(i + 51)))
			<-time.After(100 * time.Millisecond)
		}
		if got := p.merged(); got < 30 {
			t.Errorf("%v merged of 50 at ten times the granted rate", got)
		}
	})
}

// A report that is held back while a longer interval is granted waits for that.
func TestHeldReportWaitsForALongerInterval(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		r.wish(100 * time.Millisecond)
		for i := range rateBurst + 1 {
			r.send(sample(uint64(i + 1)))
		}
		synctest.Wait()
		r.wish(time.Second)
		<-time.After(100 * time.Millisecond) // twice as long as it was to be held
		if got := p.sequence(); got != rateBurst {
			t.Errorf("sequence %d before the longer interval allows another one", got)
		}
		<-time.After(500 * time.Millisecond)
		if got := p.sequence(); got != rateBurst+1 {
			t.Errorf("sequence %d once it does", got)
		}
	})
}

// A report that is held back is of no use once a newer one is taken.
func TestHeldReportIsDroppedForANewerOne(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		for i := range rateBurst + 1 {
			r.send(sample(uint64(i + 1)))
		}
		synctest.Wait()
		r.wish(10 * time.Millisecond)
		<-time.After(20 * time.Millisecond)
		r.send(sample(100))
		<-time.After(2 * time.Second)
		if p.sequence() != 100 || p.accepted() != rateBurst+1 {
			t.Errorf("sequence %d, %v reports were taken, want %d", p.sequence(), p.accepted(), rateBurst+1)
		}
	})
}

// The end of a stream ends its right to speak at once.
func TestEndOfTheStreamEndsTheBinding(t *testing.T) {
	for name, end := range map[string]func(*reporter){
		"closed": func(r *reporter) { _ = r.stream.CloseSend() }, "cancelled": func(r *reporter) { r.cancel() },
		"refused": func(r *reporter) { r.send(&loadplanev1.ReportRequest{LeaseId: "another"}) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				r := p.registered().send(sample(1))
				p.settle()
				row := p.entry(testURL).Row
				if st, _, _ := p.store.Inspect(row); st.Peer != testPeer {
					t.Fatalf("the bound peer is %q", st.Peer)
				}
				end(r)
				p.settle()
				if st, _, ok := p.store.Inspect(row); !ok || st.Peer != "" {
					t.Errorf("the bound peer is %q, %v", st.Peer, ok)
				}
			})
		})
	}
}

// A refusal names the report that it is about, whoever refuses it.
func TestRefusalNamesTheReport(t *testing.T) {
	for _, test := range []struct {
		reason store.Reason
		report *loadplanev1.EngineReport
	}{
		{ingest.ReasonNoRanks, change(42, func(r *loadplanev1.EngineReport) { r.Ranks = nil })},
		{registry.ReasonSequenceJump, change(1, func(r *loadplanev1.EngineReport) { r.Sequence = 1 << 63 })},
	} {
		t.Run(string(test.reason), func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				r := p.registered().send(sample(1), test.report)
				if got := r.refusal(); got.GetSequence() != test.report.GetSequence() || got.GetReason() != string(test.reason) {
					t.Errorf("refused: %v, want report %d", got, test.report.GetSequence())
				}
			})
		})
	}
}

// crashing is a connection that panics.
type crashing struct{ grpc.ServerStream }

func (crashing) Context() context.Context { return context.Background() }
func (crashing) RecvMsg(any) error        { panic("boom") }

// The server counts panics of handlers; one of the receiver's goroutine would
// end the process.
func TestPanicOfTheReceiverReachesTheHandler(t *testing.T) {
	s, err := New(Options{Registry: new(registry.Registry), Clock: store.NewClock()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "boom\n") {
			t.Errorf("panicked with %q", text)
		}
	}()
	t.Errorf("returned %v", s.report(crashing{}))
}

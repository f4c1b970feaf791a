package report

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/ingest"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// bubble runs body in fake time.
func bubble(t *testing.T, body func(t *testing.T, n *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { body(t, new(network)) })
}

// A reporter registers, reports at once and then at the granted interval, keeps
// its lease, and takes its worker with it.
func TestReporter(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p, begin := n.start(t, nil), time.Now()
		r := n.report(t, func(o *Options) { o.Registration.Models = []string{"m"} })
		settle()
		if e := p.entry(testURL); e == nil || e.Freshness != store.Fresh || e.Worker.Models[0] != "m" || e.Worker.Dialect != store.DialectNative {
			t.Fatalf("at first the plane has %+v", e)
		}
		<-time.After(time.Minute)
		settle()
		s := r.Status()
		if !s.Connected || s.WorkerID != testURL || s.Interval != time.Second || s.LeaseTTL != lease || s.RenewAfter != lease/3 {
			t.Errorf("status %+v", s)
		}
		if s.Sent != 61 || s.Skipped != 0 || s.Replaced != 0 || s.Refused != 0 || s.Registrations != 1 || s.Renewals != 12 || s.Streams != 1 || s.LastError != nil {
			t.Errorf("counted %+v", s)
		}
		for i, at := range r.engine.asked(begin) {
			if at != time.Duration(i)*time.Second {
				t.Fatalf("report %d is made after %v", i, at)
			}
		}
		if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Sequence != 61 {
			t.Errorf("%s, sequence %d", e.Freshness, e.Load.Sequence)
		}
		before := time.Now()
		r.stop()
		if took := time.Since(before); took > time.Second {
			t.Errorf("the end took %v", took)
		}
		settle()
		if p.entry(testURL) != nil {
			t.Error("the worker is left")
		}
		if s := r.Status(); s.Connected || s.WorkerID != "" {
			t.Errorf("at the end: %+v", s)
		}
	})
}

func TestNothingToReport(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		r := n.report(t, func(o *Options) { o.Report = func(time.Time) *pb.EngineReport { return nil } })
		<-time.After(time.Minute)
		if s := r.Status(); !s.Connected || s.Sent != 0 || s.Registrations != 1 {
			t.Errorf("status %+v", s)
		}
		if e := p.entry(testURL); e == nil || e.Freshness != store.Missing {
			t.Errorf("the plane has %+v", e)
		}
	})
}

// A plane that was started anew knows no lease: the reporter has another one at
// once, and its schedule goes on as it was.
func TestPlaneRestart(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p, begin := n.start(t, nil), time.Now()
		r := n.report(t, nil)
		<-time.After(10350 * time.Millisecond)
		p.stop()
		<-time.After(300 * time.Millisecond)
		p = n.start(t, nil)
		up := time.Now()
		for !p.fresh(testURL) {
			if time.Since(up) > time.Second {
				t.Fatalf("the worker is not back: %v", r.Status().LastError)
			}
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(10 * time.Second)
		if s := r.Status(); s.Registrations != 2 || s.Streams != 2 || !s.Connected {
			t.Errorf("status %+v", s)
		}
		atOnce := 0
		for _, at := range r.engine.asked(begin) {
			if at%time.Second != 0 {
				atOnce++ // the first one of the new stream
			}
		}
		if atOnce != 1 {
			t.Errorf("%d reports beside the schedule", atOnce)
		}
	})
}

// A reporter that is cut off loses its worker when its lease ends, and has it
// back soon after.
func TestLostNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		r := n.report(t, nil)
		<-time.After(10 * time.Second)
		n.lose()
		<-time.After(staleAfter + time.Second)
		if e := p.entry(testURL); e == nil || e.Freshness != store.Stale {
			t.Errorf("the plane has %+v", e)
		}
		<-time.After(lease)
		settle()
		if p.entry(testURL) != nil {
			t.Error("the worker is left after its lease")
		}
		if s := r.Status(); s.Connected || s.LastError == nil {
			t.Errorf("status %+v", s)
		}
		n.heal()
		// A dial that waits gets 3 s, the wait after it is 5 s at most.
		<-time.After(9 * time.Second)
		if !p.fresh(testURL) {
			t.Errorf("the worker is not back: %v", r.Status().LastError)
		}
	})
}

// Two reporters of one engine, by a copied configuration: one owns it, the other
// waits, and takes over when the first is gone. What they report is never mixed.
func TestBug23TwoReportersOfOneEngine(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		first := n.report(t, nil)
		<-time.After(1500 * time.Millisecond)
		second := n.report(t, nil)
		second.engine.set(func(e *engine) { e.source, e.sequence = "b", 1000 })
		for range 30 {
			<-time.After(time.Second)
			if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Source != "a" {
				t.Fatalf("%s, by %s", e.Freshness, e.Load.Source)
			}
		}
		s := second.Status()
		if s.Connected || connect.CodeOf(s.LastError) != connect.CodeAlreadyExists || first.Status().Registrations != 1 {
			t.Errorf("the second one shows %v", s.LastError)
		}
		first.stop()
		<-time.After(lastTurn + 2*testSettle)
		if e := p.entry(testURL); e == nil || e.Freshness != store.Fresh || e.Load.Source != "b" {
			t.Errorf("once the first one is gone: %+v", e)
		}
	})
}

// The plane grants a longer interval under load; the schedule follows.
func TestGrantChangesUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, func(r *registry.Options, _ *ingest.ServerOptions) { r.MaxReportsPerSecond = 20 })
		wish := func(url string) func(o *Options) {
			return func(o *Options) { o.Registration = &pb.RegisterRequest{Url: url, ReportIntervalMs: 100} }
		}
		r := n.report(t, wish(testURL))
		<-time.After(time.Second)
		if s := r.Status(); s.Interval != 100*time.Millisecond {
			t.Fatalf("granted %v", s.Interval)
		}
		var others []*running
		for i := range 9 {
			others = append(others, n.report(t, wish("http://"+net.JoinHostPort(testHost, strconv.Itoa(i+1)))))
		}
		<-time.After(5 * time.Second)
		slow := r.Status().Interval
		if slow < 450*time.Millisecond {
			t.Errorf("granted %v under load", slow)
		}
		begin := time.Now()
		<-time.After(10 * slow)
		if made := len(r.engine.asked(begin)); made < 9 || made > 11 {
			t.Errorf("%d reports in ten intervals", made)
		}
		for _, o := range others {
			o.stop()
		}
		<-time.After(time.Second)
		if s := r.Status(); s.Interval != 100*time.Millisecond || s.Streams != 1 || s.LastError != nil {
			t.Errorf("once the load is gone: %+v", s)
		}
		if !p.fresh(testURL) {
			t.Error("the worker is not fresh")
		}
	})
}

// A write that waits delays no sample; when it goes on, the newest is sent.
func TestBlockedSendDelaysNoSample(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p, begin := n.start(t, nil), time.Now()
		r := n.report(t, func(o *Options) { o.Registration.ReportIntervalMs = 100 })
		<-time.After(1050 * time.Millisecond)
		release := n.hold()
		<-time.After(3 * time.Second)
		settle()
		stuck := p.entry(testURL).Load.Sequence
		release()
		settle()
		if got := p.entry(testURL).Load.Sequence; stuck > 12 || got < 41 {
			t.Errorf("the plane had report %d, and then %d", stuck, got)
		}
		for i, at := range r.engine.asked(begin) {
			if at != time.Duration(i)*100*time.Millisecond {
				t.Fatalf("report %d is made after %v", i, at)
			}
		}
		if s := r.Status(); s.Replaced < 25 || s.Streams != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// A function that takes longer than the interval makes deadlines be skipped, not
// made up for.
func TestSlowReportSkips(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.start(t, nil)
		e := &engine{source: "a"}
		begin := time.Now()
		r := n.report(t, func(o *Options) {
			o.Report = func(now time.Time) *pb.EngineReport {
				<-time.After(2500 * time.Millisecond)
				return e.report(now)
			}
		})
		<-time.After(30 * time.Second)
		asked := e.asked(begin)
		for _, at := range asked {
			if at%time.Second != 0 {
				t.Errorf("off the grid: %v", at)
			}
		}
		if s := r.Status(); len(asked) < 9 || len(asked) > 10 || s.Skipped < 18 {
			t.Errorf("%d reports, %d skipped", len(asked), s.Skipped)
		}
	})
}

// Hurried reports come at once, several as one, beside the schedule, and within
// twice the granted rate.
func TestHurry(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p, begin := n.start(t, nil), time.Now()
		r := n.report(t, nil)
		<-time.After(10400 * time.Millisecond)
		r.Hurry()
		settle()
		want := []time.Duration{10 * time.Second, 10400 * time.Millisecond}
		if got := r.engine.asked(begin)[10:]; !slices.Equal(got, want) {
			t.Errorf("reports after %v, want %v", got, want)
		}
		if e := p.entry(testURL); e.Load.Sequence != 12 {
			t.Errorf("sequence %d", e.Load.Sequence)
		}
		<-time.After(time.Until(begin.Add(20 * time.Second)))
		hurry := time.Now()
		for time.Since(hurry) < 10*time.Second {
			r.Hurry()
			<-time.After(10 * time.Millisecond)
		}
		made := r.engine.asked(hurry)
		if len(made) < 19 || len(made) > 21+hurryBurst {
			t.Errorf("%d reports in 10 s of hurry", len(made))
		}
		for i := range 10 {
			if !slices.Contains(made, time.Duration(i)*time.Second) {
				t.Errorf("the report of second %d is not made", i)
			}
		}
		if s := r.Status(); s.Refused != 0 || s.Streams != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// Another process of the engine has a stream of its own, without a gap.
func TestSourceChanges(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		r := n.report(t, nil)
		<-time.After(10 * time.Second)
		r.engine.set(func(e *engine) { e.source, e.sequence = "b", 0 })
		<-time.After(1200 * time.Millisecond)
		e := p.entry(testURL)
		if e.Load.Source != "b" || e.Freshness != store.Fresh {
			t.Errorf("%s by %s", e.Freshness, e.Load.Source)
		}
		if s := r.Status(); s.Registrations != 1 || s.Streams != 2 || !errors.Is(s.LastError, ErrSourceChanged) {
			t.Errorf("status %+v", s)
		}
	})
}

func TestUpdate(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		r := n.report(t, nil)
		<-time.After(2 * time.Second)
		r.Update(&pb.RegisterRequest{Url: testURL, Models: []string{"m"}, Labels: map[string]string{"k": "v"}})
		r.Update(nil)
		r.Update(&pb.RegisterRequest{})
		settle()
		if e := p.entry(testURL); e.Worker.Labels["k"] != "v" || len(e.Worker.Models) != 1 || e.Freshness != store.Fresh {
			t.Errorf("the plane has %+v", e.Worker)
		}
		if s := r.Status(); s.Renewals != 1 || s.Streams != 1 {
			t.Errorf("status %+v", s)
		}
		const moved = "http://" + testHost + ":30001"
		r.Update(&pb.RegisterRequest{Url: moved})
		<-time.After(time.Second)
		if p.entry(testURL) != nil || !p.fresh(moved) {
			t.Errorf("after the URL changed: %+v, %+v", p.entry(testURL), p.entry(moved))
		}
		if s := r.Status(); s.WorkerID != moved || s.Registrations != 2 {
			t.Errorf("status %+v", s)
		}
		// While there is no plane, too.
		p.stop()
		<-time.After(time.Minute)
		r.Update(&pb.RegisterRequest{Url: testURL})
		p = n.start(t, nil)
		<-time.After(6 * time.Second)
		if p.entry(moved) != nil || !p.fresh(testURL) {
			t.Errorf("after the URL changed without a plane: %v", r.Status().LastError)
		}
	})
}

func TestRefusalsAreShown(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.start(t, nil)
		r := n.report(t, nil)
		<-time.After(1500 * time.Millisecond)
		r.engine.set(func(e *engine) {
			e.change = func(r *pb.EngineReport) *pb.EngineReport {
				r.Ranks[0].Load.NumRunningReqs = new(int64(-1))
				return r
			}
		})
		<-time.After(5 * time.Second)
		s := r.Status()
		if s.Refused != 5 || s.LastRefusal.Reason != string(ingest.ReasonCountOutOfRange) || s.LastRefusal.Sequence != 7 || s.LastRefusal.Message == "" || s.LastRefusal.At.IsZero() {
			t.Errorf("status %+v", s)
		}
		if s.Streams != 1 || s.LastError != nil {
			t.Errorf("the stream ended: %v", s.LastError)
		}
	})
}

func TestToken(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, func(_ *registry.Options, s *ingest.ServerOptions) {
			s.Authorize = func(ctx context.Context) error {
				if md, _ := metadata.FromIncomingContext(ctx); len(md["authorization"]) != 1 || md["authorization"][0] != "Bearer good" {
					return errors.New("no token")
				}
				return nil
			}
		})
		var token atomic.Value
		token.Store("bad")
		r := n.report(t, func(o *Options) {
			o.Token = func(context.Context) (string, error) {
				if token.Load() == "" {
					return "", errors.New("the file is gone")
				}
				return token.Load().(string), nil
			}
		})
		<-time.After(20 * time.Second)
		if s := r.Status(); connect.CodeOf(s.LastError) != connect.CodeUnauthenticated {
			t.Errorf("status %+v", s)
		}
		token.Store("")
		<-time.After(20 * time.Second)
		if s := r.Status(); s.LastError == nil || !strings.Contains(s.LastError.Error(), "the file is gone") {
			t.Errorf("status %+v", s)
		}
		token.Store("good")
		<-time.After(10 * time.Second)
		if !p.fresh(testURL) {
			t.Errorf("with the token: %v", r.Status().LastError)
		}
	})
}

// granted answers a registration.
func granted(*pb.RegisterRequest) (*pb.RegisterResponse, error) {
	return &pb.RegisterResponse{LeaseId: "x", WorkerId: "w", Grant: &pb.Grant{ReportIntervalMs: 1000, LeaseTtlMs: 15_000, RenewAfterMs: 5000}}, nil
}

// How often a plane is asked that refuses, whatever it says.
func TestRefusedRegistrations(t *testing.T) {
	for code, most := range map[codes.Code]int{
		codes.NotFound: 30, codes.AlreadyExists: 61, codes.PermissionDenied: 2, codes.Unauthenticated: 2,
		codes.InvalidArgument: 2, codes.Unimplemented: 2, codes.Unavailable: 30, codes.Internal: 30, codes.ResourceExhausted: 30,
	} {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				s := &script{register: func(*pb.RegisterRequest) (*pb.RegisterResponse, error) { return nil, status.Error(code, "no") }}
				n.script(t, s)
				begin := time.Now()
				r := n.report(t, nil)
				<-time.After(59 * time.Second)
				if got := s.called(begin); got > most || got < 2 {
					t.Errorf("asked %d times in a minute, at most %d are due", got, most)
				}
				s.mu.Lock()
				s.register = granted
				s.report = func(stream pb.ReportService_ReportServer) error { <-stream.Context().Done(); return nil }
				s.mu.Unlock()
				r.Update(&pb.RegisterRequest{Url: testURL}) // tries at once
				synctest.Wait()
				if got := r.Status().Registrations; got != 1 {
					t.Errorf("%d leases after the facts changed", got)
				}
			})
		})
	}
}

// How often a plane is asked that grants leases and ends streams.
func TestStreamsThatEnd(t *testing.T) {
	for code, most := range map[codes.Code]int{
		codes.OK: 40, codes.NotFound: 65, codes.Aborted: 40, codes.ResourceExhausted: 40, codes.InvalidArgument: 3,
	} {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				s := &script{register: granted, report: func(pb.ReportService_ReportServer) error { return status.Error(code, "no") }}
				n.script(t, s)
				begin := time.Now()
				n.report(t, nil)
				<-time.After(59 * time.Second)
				if got := s.called(begin); got > most || got < 2 {
					t.Errorf("asked %d times in a minute, at most %d are due", got, most)
				}
			})
		})
	}
}

// A plane that grants nonsense is not asked without a break.
func TestHostileGrants(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		s := &script{
			register: func(*pb.RegisterRequest) (*pb.RegisterResponse, error) {
				return &pb.RegisterResponse{LeaseId: "x", Grant: &pb.Grant{ReportIntervalMs: 1, LeaseTtlMs: 1, RenewAfterMs: 1}}, nil
			},
			report: func(stream pb.ReportService_ReportServer) error {
				for {
					if err := stream.Send(&pb.ReportResponse{Payload: &pb.ReportResponse_Grant{Grant: &pb.Grant{}}}); err != nil {
						return err
					}
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}
			},
		}
		n.script(t, s)
		begin := time.Now()
		r := n.report(t, nil)
		<-time.After(10 * time.Second)
		if got := s.called(begin); got > 102 {
			t.Errorf("asked %d times in 10 s", got)
		}
		if made := len(r.engine.asked(begin)); made > 1_002 {
			t.Errorf("%d reports in 10 s", made)
		}
	})
}

// A plane that answers the call but not the stream is left.
func TestSilentPlane(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		s := &script{register: granted, report: func(stream pb.ReportService_ReportServer) error { <-stream.Context().Done(); return nil }}
		n.script(t, s)
		r := n.report(t, nil)
		<-time.After(callTimeout + time.Second)
		if st := r.Status(); st.Connected || !errors.Is(st.LastError, ErrSilent) {
			t.Errorf("status %+v", st)
		}
	})
}

// A plane that is there, but does not answer, does not hold up the end.
func TestEndIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.start(t, nil)
		r := n.report(t, nil)
		<-time.After(2 * time.Second)
		n.lose()
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took > farewell {
			t.Errorf("the end took %v", took)
		}
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		p := n.start(t, nil)
		r := n.report(t, nil)
		synctest.Wait()
		if err := r.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("a second Run: %v", err)
		}
		r.stop()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		go func() { _ = r.Run(ctx) }()
		settle()
		if !p.fresh(testURL) {
			t.Error("it does not run again")
		}
		<-time.After(3 * time.Second)
	})
}

func TestNewRefusesOptions(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"no address":      func(o *Options) { o.Address = "" },
		"a host":          func(o *Options) { o.Address = "plane:7401" },
		"a password":      func(o *Options) { o.Address = "http://u:secret@plane:7401" },
		"no registration": func(o *Options) { o.Registration = nil },
		"no URL":          func(o *Options) { o.Registration = &pb.RegisterRequest{} },
		"no function":     func(o *Options) { o.Report = nil },
	} {
		o := Options{Address: "http://a", Registration: &pb.RegisterRequest{Url: testURL}, Report: new(engine).report}
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "option ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package report

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// book takes log lines.
type book struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func newBook() *book { return &book{Handler: slog.DiscardHandler} }

func (b *book) Enabled(context.Context, slog.Level) bool { return true }
func (b *book) WithAttrs([]slog.Attr) slog.Handler       { return b }

func (b *book) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, text)
	return nil
}

// with returns the lines that have a text.
func (b *book) with(text string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.lines), func(l string) bool { return !strings.Contains(l, text) })
}

// A plane that refuses for ever, and for other reasons each time, costs few
// lines and little work.
func TestRefusalsWithoutABreakAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.script(t, &script{register: granted, report: func(stream pb.ReportService_ReportServer) error {
			for i := 0; ; i++ {
				refusal := &pb.ReportRefusal{Reason: []string{"a", "b"}[i%2]}
				if err := stream.Send(&pb.ReportResponse{Payload: &pb.ReportResponse_Refusal{Refusal: refusal}}); err != nil {
					return err
				}
			}
		}})
		log := newBook()
		r := n.report(t, func(o *Options) { o.Logger = slog.New(log) })
		<-time.After(25 * time.Second)
		s := r.Status()
		if s.Refused < 100 || s.Refused > 25*100+2*answerBurst || s.Streams != 1 {
			t.Errorf("%d refusals are read in 25 s of %d streams", s.Refused, s.Streams)
		}
		lines := log.with("report refused")
		if len(lines) < 2 || len(lines) > lineBurst+3 {
			t.Errorf("%d lines about refusals in 25 s", len(lines))
		}
		if last := lines[len(lines)-1]; !strings.Contains(last, "left_out=") || strings.Contains(last, "left_out=0") {
			t.Errorf("%q does not say how many were left out", last)
		}
	})
}

// A lease that another reporter holds is asked for seldom, and told once.
func TestHeldLeaseIsAskedForSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		s := &script{register: func(*pb.RegisterRequest) (*pb.RegisterResponse, error) {
			return nil, status.Error(codes.AlreadyExists, "lease_held")
		}}
		n.script(t, s)
		log, begin := newBook(), time.Now()
		n.report(t, func(o *Options) { o.Logger = slog.New(log) })
		<-time.After(time.Minute)
		if got := s.called(begin); got < 12 || got > 20 {
			t.Errorf("asked %d times in a minute", got)
		}
		if lines := log.with("reporting ended"); len(lines) != 1 {
			t.Errorf("lines %q", lines)
		}
	})
}

func TestTurnsAreRandomAndBounded(t *testing.T) {
	var most int64
	u := &run{Reporter: &Reporter{random: func(n int64) int64 { most = n - 1; return 0 }}}
	for i, want := range []int64{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		if got := u.turn(); got != leastTurn || time.Duration(most).Milliseconds() != want {
			t.Errorf("turn %d is up to %v and at least %v", i, time.Duration(most), got)
		}
	}
	u.granted.ttl = time.Second
	if u.turn(); time.Duration(most) != time.Second {
		t.Errorf("a turn is up to %v with a lease of a second", time.Duration(most))
	}
}

// A lease that another reporter of the engine takes over is not given back, so
// that the worker stays.
func TestInheritedLeaseIsLeft(t *testing.T) {
	for _, inherited := range []bool{true, false} {
		bubble(t, func(t *testing.T, n *network) {
			p := n.start(t, nil)
			first := n.report(t, func(o *Options) { o.Inherited = func() bool { return inherited } })
			<-time.After(5 * time.Second)
			first.stop()
			settle()
			if e := p.entry(testURL); (e != nil) != inherited {
				t.Errorf("inherited %v: the plane has %+v", inherited, e)
			}
			n.report(t, nil)
			<-time.After(time.Second)
			if !p.fresh(testURL) {
				t.Error("the next reporter does not report")
			}
		})
	}
}

func TestGrantedIntervalIsBounded(t *testing.T) {
	log := newBook()
	u := &run{Reporter: &Reporter{log: slog.New(log)}}
	for _, c := range []struct {
		ms   uint32
		want time.Duration
		told int
	}{
		{0, defaultInterval, 0}, {10, 10 * time.Millisecond, 0}, {60_000, time.Minute, 0},
		{1, 10 * time.Millisecond, 1}, {1, 10 * time.Millisecond, 1}, {1<<32 - 1, time.Minute, 2},
	} {
		g := u.grantOf(&pb.Grant{ReportIntervalMs: c.ms})
		if lines := log.with("out of bounds"); g.interval != c.want || len(lines) != c.told {
			t.Errorf("%d ms is %v, with lines %q", c.ms, g.interval, lines)
		}
	}
}

// Who samples for the reports is told when they go, and whoever measures how late
// they are.
func TestPlannedTimesAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		n.start(t, nil)
		type plan struct{ next, interval time.Duration }
		var mu sync.Mutex
		var plans []plan
		var late []time.Duration
		begin := time.Now()
		r := n.report(t, func(o *Options) {
			o.Registration.ReportIntervalMs = 100
			o.Planned = func(next time.Time, interval time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				plans = append(plans, plan{next.Sub(begin), interval})
			}
			o.Late = func(by time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, by)
			}
		})
		<-time.After(1050 * time.Millisecond)
		r.Update(&pb.RegisterRequest{Url: testURL, ReportIntervalMs: 200})
		<-time.After(time.Second)
		mu.Lock()
		defer mu.Unlock()
		ms := time.Millisecond
		if want := []plan{{100 * ms, 100 * ms}, {1200 * ms, 200 * ms}}; !slices.Equal(plans, want) {
			t.Errorf("told %v, want %v", plans, want)
		}
		if len(late) != 15 || slices.Max(late) != 0 {
			t.Errorf("%d reports were due, and late by %v", len(late), late)
		}
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{connect.NewError(connect.CodeUnimplemented, errors.New("HTTP status 404")), "not an ingest listener of a plane, whose port is 7401 by default"},
		{connect.NewError(connect.CodeDeadlineExceeded, errors.New("late")), "did not answer in time"},
		{errors.New("other"), "other"},
	} {
		if got := advise(c.err); !strings.Contains(got.Error(), c.want) || !errors.Is(got, c.err) {
			t.Errorf("%v, want %q", got, c.want)
		}
	}
	bubble(t, func(t *testing.T, n *network) {
		n.script(t, &script{register: func(*pb.RegisterRequest) (*pb.RegisterResponse, error) {
			<-time.After(2 * callTimeout)
			return nil, errors.New("late")
		}})
		r := n.report(t, nil)
		<-time.After(callTimeout + time.Second)
		if err := r.Status().LastError; err == nil || !strings.Contains(err.Error(), "http://plane:7401: registration: ") {
			t.Errorf("error %v names no call", err)
		}
		r.stop()
		<-time.After(2 * callTimeout)
	})
}

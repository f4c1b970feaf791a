package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client/internal/retry"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestWatcherFollows(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		o := hosts("a")
		o.Filter = &pb.Filter{Models: []string{"m"}}
		o.Detail, o.ClientID = pb.Detail_DETAIL_WORKERS, "router-1"
		o.MinInterval, o.HeartbeatInterval = 50*time.Millisecond, 2*time.Second
		o.Token = func(context.Context) (string, error) { return "secret", nil }
		made := time.Now()
		watcher, err := NewWatcher(o)
		if err != nil {
			t.Fatal(err)
		}
		watcher.dial = n.dial
		v, stale := watcher.View()
		if s := watcher.Status(); v != nil || s.Connected() || !s.Since.Equal(made) || !s.LastMessage.IsZero() || s.LastError != nil || s.Reconnects() != 0 {
			t.Errorf("before Run: view %v, status %+v", v, s)
		}
		stop := run(t, watcher)
		<-stale
		v, stale = watcher.View()
		if v.Version() != 1 || len(v.Workers()) != 2 || !v.Valid(v.Worker("a"), time.Now()) {
			t.Errorf("first view %v of %v", v.cursor, ids(v))
		}
		p.change()
		<-stale
		if v, _ = watcher.View(); v.Version() != 2 || v.Worker("a").GetContentHash() != 1+2<<8 {
			t.Errorf("second view %v", v.cursor)
		}
		wait(10*beat + beat/2)
		s := watcher.Status()
		if s.Address != "http://a" || !s.Connected() || !s.Since.Equal(made) || time.Since(s.LastMessage) != beat/2 || s.LastError != nil {
			t.Errorf("status %+v", s)
		}
		if s.Messages["full"] != 1 || s.Messages["delta"] != 1 || s.Messages["heartbeat"] != 10 || s.Adoptions != 0 || s.Reconnects() != 0 {
			t.Errorf("counts %+v", s)
		}
		o1 := p.openings()[0]
		want := &pb.WatchSnapshotsRequest{
			Filter: o.Filter, Detail: o.Detail, ClientId: "router-1", MinIntervalMs: 50, HeartbeatIntervalMs: 2000,
		}
		if !proto.Equal(o1.WatchSnapshotsRequest, want) || o1.header.Get("Authorization") != "Bearer secret" {
			t.Errorf("request %v with %v", o1.WatchSnapshotsRequest, o1.header)
		}
		stop()
		if s := watcher.Status(); s.Connected() || len(s.Ended) != 0 || !s.Since.Equal(time.Now()) {
			t.Errorf("after Run: %+v", s)
		}
		if v, _ := watcher.View(); v.Version() != 2 {
			t.Error("the view did not stay")
		}
	})
}

func TestRunTwice(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		watcher, stop := n.watch(t, hosts("a"))
		wait(time.Second)
		if err := watcher.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("a second Run: %v", err)
		}
		stop()
		stop = run(t, watcher)
		wait(beat / 2)
		stop()
		opened := p.openings()
		if len(opened) != 2 || opened[1].GetResume().GetVersion() != 1 {
			t.Errorf("openings %v", opened)
		}
	})
}

// The service is gone for a minute. The view stays, every entry turns invalid
// at its own moment, and what comes then is no step back.
func TestOutageOfAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		watcher, _ := n.watch(t, hosts("a"))
		r := follow(t, watcher)
		wait(9500 * time.Millisecond)
		for range 4 {
			p.change()
		}
		wait(20 * time.Millisecond)
		stopped := time.Now()
		p.stop()
		v, stale := watcher.View()
		checkEdges(t, v, stopped)
		wait(time.Minute - time.Since(stopped))
		if got, _ := watcher.View(); got != v || got.CountValid(time.Now()) != 0 || len(got.Workers()) != 2 || got.Age(time.Now()) < 59*time.Second {
			t.Errorf("after the outage: view %v with %d valid workers of age %v", got.cursor, got.CountValid(time.Now()), got.Age(time.Now()))
		}
		s := watcher.Status()
		// Full jitter up to 5 s is a wait of 2.5 s on average.
		if tries := s.Ended[CauseUnreachable]; s.Connected() || tries < 12 || tries > 80 || s.LastCause != CauseUnreachable {
			t.Errorf("%d attempts in a minute, status %+v", tries, s)
		}
		p.up()
		<-stale
		wait(0)
		back := time.Since(stopped)
		if got, _ := watcher.View(); back > time.Minute+retry.LastWindow || got.Version() != 5 || got.CountValid(time.Now()) != 2 {
			t.Errorf("back after %v with view %v", back, got.cursor)
		}
		opened := p.openings()
		if last := opened[len(opened)-1]; last.GetResume().GetVersion() != 5 {
			t.Errorf("resumed from %v", last.GetResume())
		}
		r.stop()
		if r.views < 10 || len(r.lineages) != 1 {
			t.Errorf("%d views of lineages %v", r.views, r.lineages)
		}
	})
}

// checkEdges looks at every worker right before and at the end of its
// validity; the plane promised each a time of its own.
func checkEdges(t *testing.T, v *View, now time.Time) {
	t.Helper()
	edges := map[time.Time]bool{}
	for _, x := range v.Workers() {
		until, ok := v.ValidUntil(x)
		edges[until] = true
		received, heard := v.ReceivedAt(x)
		if !ok || !heard || until.Sub(received) != staleAfter || until.Before(now) || received.After(now) {
			t.Errorf("%s was received at %v and is valid until %v, now is %v", x.GetWorkerId(), received, until, now)
		}
		if !v.Valid(x, until.Add(-1)) || v.Valid(x, until) {
			t.Errorf("%s does not turn invalid at %v", x.GetWorkerId(), until)
		}
		if v.Freshness(x, until.Add(-1)) != pb.Freshness_FRESHNESS_FRESH || v.Freshness(x, until) != pb.Freshness_FRESHNESS_STALE {
			t.Errorf("%s is not stale at %v", x.GetWorkerId(), until)
		}
		if age, ok := v.ReportAge(x, until); !ok || age != staleAfter {
			t.Errorf("%s has a report of %v at the end", x.GetWorkerId(), age)
		}
	}
	if len(edges) != len(v.Workers()) {
		t.Errorf("%d edges of %d workers", len(edges), len(v.Workers()))
	}
}

// A plane restarts with its wall clock set back: its epoch is lower. While it
// is warming and has heard nobody, the old view stays.
func TestRestartWithTheClockSetBack(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		watcher, _ := n.watch(t, hosts("a"))
		r := follow(t, watcher)
		for range 40 {
			p.change()
		}
		wait(time.Second)
		p.stop()
		again := n.newPlane(t, "a", "m")
		again.epoch, again.zero, again.warming = 3, time.Now().Add(-time.Second), true
		for _, x := range again.workers {
			x.Freshness = pb.Freshness_FRESHNESS_MISSING
		}
		again.up()
		wait(time.Second)
		if v, _ := watcher.View(); v.Lineage() != "l" || v.CountValid(time.Now()) != 2 {
			t.Errorf("while the plane warms up: view %v with %d valid workers", v.cursor, v.CountValid(time.Now()))
		}
		if !watcher.Status().Connected() {
			t.Error("not connected to the new plane")
		}
		again.mu.Lock()
		again.workers = []*pb.Worker{again.workers[0], w(2, "b", 2)} // heard
		again.warming = false
		again.mu.Unlock()
		again.change()
		wait(beat / 10)
		if v, _ := watcher.View(); v.Lineage() != "m" || v.Epoch() != 3 || v.Version() != 2 || v.Worker("a").GetContentHash() != 1+2<<8 {
			t.Errorf("view %v", v.cursor)
		}
		again.stop()
		again.up()
		wait(time.Second)
		if s := watcher.Status(); s.Adoptions != 1 || !s.Connected() {
			t.Errorf("status %+v", s)
		}
		r.stop()
		if !slices.Equal(r.lineages, []string{"l", "m"}) {
			t.Errorf("lineages %v", r.lineages)
		}
	})
}

// Two planes know nothing of each other. The watcher takes the one that is
// there, and comes back only when it must.
func TestTwoPlanesOfDifferentLineage(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		planes := map[string]*plane{"http://a": n.newPlane(t, "a", "l").up(), "http://b": n.newPlane(t, "b", "m").up()}
		watcher, _ := n.watch(t, hosts("a", "b"))
		r := follow(t, watcher)
		var lineages []string
		for range 3 {
			wait(35 * time.Second) // healthy
			v, _ := watcher.View()
			lineages = append(lineages, v.Lineage())
			on := planes[watcher.Status().Address]
			if on == nil || v.Lineage() != on.lineage {
				t.Fatalf("view of %s, status %+v", v.Lineage(), watcher.Status())
			}
			on.stop()
			wait(retry.FirstWindow)
			if v, _ := watcher.View(); v.Lineage() == on.lineage || v.CountValid(time.Now()) != 2 {
				t.Errorf("%s is gone, and the view is %v", on.lineage, v.cursor)
			}
			on.up()
		}
		r.stop()
		if s := watcher.Status(); s.Adoptions != 3 || !slices.Equal(r.lineages[:3], lineages) || lineages[0] == lineages[1] {
			t.Errorf("lineages %v, %v, status %+v", lineages, r.lineages, s)
		}
	})
}

func TestRandomStart(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			n.newPlane(t, name, "l").up()
		}
		const watchers = 100
		for range watchers {
			_, stop := n.watch(t, hosts(names...))
			wait(time.Millisecond)
			stop()
		}
		dials := n.dialed()
		for _, name := range names {
			if got := dials[name+":80"]; got < 5 || got > 60 {
				t.Errorf("%d of %d watchers began at %s", got, watchers, name)
			}
		}
	})
}

// goAway sends a full and the request to reconnect.
func goAway(p *plane, after, within time.Duration, alternatives ...string) func(context.Context, opening, *sender) error {
	return func(_ context.Context, o opening, s *sender) error {
		m, _ := p.next(0)
		if err := s.Send(m); err != nil {
			return err
		}
		if o.number > 0 {
			after = time.Hour
		}
		wait := time.After(after)
		for range after / beat {
			<-time.After(beat)
			m, _ := p.next(1)
			if err := s.Send(m); err != nil {
				return err
			}
		}
		<-wait
		leave := p.head(message(1, sum(p.workers)))
		leave.Event = &pb.WatchSnapshotsResponse_GoAway{GoAway: &pb.GoAway{
			ReconnectWithinMs: uint32(within.Milliseconds()), Reason: "draining\n", Alternatives: alternatives,
		}}
		if err := s.Send(leave); err != nil {
			return err
		}
		return withRetry(connect.CodeUnavailable, time.Second)
	}
}

// withRetry is an error with a RetryInfo.
func withRetry(code connect.Code, after time.Duration) *connect.Error {
	err := connect.NewError(code, errors.New("later"))
	detail, _ := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	err.AddDetail(detail)
	return err
}

func TestGoAwaySpread(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		const watchers, within = 60, 2 * time.Second
		a, b := n.newPlane(t, "a", "l").up(), n.newPlane(t, "b", "l").up()
		a.answer(func(ctx context.Context, o opening, s *sender) error {
			o.number = 0
			return goAway(a, 3*beat, within)(ctx, o, s)
		})
		var all []*Watcher
		for range watchers {
			watcher, err := NewWatcher(hosts("a", "b"))
			if err != nil {
				t.Fatal(err)
			}
			watcher.dial = n.dial
			watcher.random = fromFirst(watcher.random)
			all = append(all, watcher)
			run(t, watcher)
		}
		wait(3 * beat)
		left := time.Now()
		wait(within + retry.FirstWindow)
		var waits []time.Duration
		for _, o := range b.openings() {
			waits = append(waits, o.at.Sub(left))
		}
		slices.Sort(waits)
		if len(waits) != watchers || waits[0] < 0 || waits[watchers-1] > within {
			t.Fatalf("%d watchers came after %v", len(waits), waits)
		}
		if early, late := waits[watchers/4], waits[watchers*3/4]; early < 50*time.Millisecond || early > time.Second || late < time.Second {
			t.Errorf("a quarter came within %v, three within %v", early, late)
		}
		for _, watcher := range all {
			s := watcher.Status()
			if s.Address != "http://b" || s.LastCause != CauseGoAway || !errors.Is(s.LastError, ErrGoAway) || s.Ended[CauseGoAway] != 1 || s.Messages["go_away"] != 1 {
				t.Fatalf("status %+v", s)
			}
			if text := s.LastError.Error(); !strings.Contains(text, `"draining\n"`) || strings.Contains(text, "\n") {
				t.Errorf("error %q", text)
			}
		}
	})
}

// fromFirst makes a watcher begin at its first address.
func fromFirst(random func(int64) int64) func(int64) int64 {
	first := true
	return func(n int64) int64 {
		if first {
			first = false
			return 0
		}
		return random(n)
	}
}

// What a plane names is preferred if it was configured, and never dialled if it
// was not.
func TestGoAwayAlternatives(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		a := n.newPlane(t, "a", "l").up()
		for _, name := range []string{"b", "c", "evil"} {
			n.newPlane(t, name, "l").up()
		}
		a.answer(goAway(a, beat/2, 0, "http://evil", "http://c/"))
		watcher, err := NewWatcher(hosts("a", "b", "c"))
		if err != nil {
			t.Fatal(err)
		}
		watcher.dial, watcher.random = n.dial, fromFirst(watcher.random)
		run(t, watcher)
		wait(2 * beat)
		if s := watcher.Status(); s.Address != "http://c" {
			t.Errorf("status %+v", s)
		}
		if dials := n.dialed(); dials["evil:80"] != 0 || dials["b:80"] != 0 {
			t.Errorf("dialled %v", dials)
		}
	})
}

// A plane that sends every client away at once does not make it spin.
func TestGoAwayAtOnceIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		p.answer(func(ctx context.Context, o opening, s *sender) error {
			o.number = 0
			return goAway(p, 0, 0)(ctx, o, s)
		})
		n.watch(t, hosts("a"))
		wait(time.Minute)
		if got := len(p.openings()); got < 12 || got > 80 {
			t.Errorf("%d attempts in a minute", got)
		}
	})
}

func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name string
		// echo is the heartbeat of the one message that comes; negative where none
		// does.
		echo, cut time.Duration
	}{
		{"nothing comes", -1, 5 * time.Second},
		{"by the echoed heartbeat", 400 * time.Millisecond, time.Second},
		{"none is echoed", 0, 2500 * time.Millisecond},
		{"a heartbeat too short to be true", time.Millisecond, 250 * time.Millisecond},
		{"a heartbeat too long to wait for", 1000 * time.Hour, 75 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				a, b := n.newPlane(t, "a", "l").up(), n.newPlane(t, "b", "l").up()
				a.answer(func(ctx context.Context, _ opening, s *sender) error {
					if c.echo >= 0 {
						m, _ := a.next(0)
						m.HeartbeatIntervalMs = uint32(c.echo.Milliseconds())
						if err := s.Send(m); err != nil {
							return err
						}
					}
					<-ctx.Done()
					return ctx.Err()
				})
				watcher, err := NewWatcher(hosts("a", "b"))
				if err != nil {
					t.Fatal(err)
				}
				watcher.dial, watcher.random = n.dial, fromFirst(watcher.random)
				began := time.Now()
				run(t, watcher)
				wait(c.cut - time.Millisecond)
				if len(b.openings()) != 0 {
					t.Fatal("cut too early")
				}
				wait(time.Millisecond + retry.FirstWindow)
				opened := b.openings()
				if len(opened) != 1 || opened[0].at.Sub(began) < c.cut || (opened[0].GetResume() != nil) != (c.echo >= 0) {
					t.Fatalf("openings %v", opened)
				}
				if s := watcher.Status(); s.Address != "http://b" || s.LastCause != CauseSilent || !errors.Is(s.LastError, ErrSilent) || s.Ended[CauseSilent] != 1 {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// A plane that has no room says when to come back.
func TestRetryInfo(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		// min and max are the bounds of the wait of a watcher that has no other
		// address.
		min, max time.Duration
		cause    Cause
	}{
		{"exhausted", withRetry(connect.CodeResourceExhausted, 7*time.Second), 7 * time.Second, 7*time.Second + retry.FirstWindow, CauseExhausted},
		{"unavailable", withRetry(connect.CodeUnavailable, 7*time.Second), 7 * time.Second, 7*time.Second + retry.FirstWindow, CauseUnreachable},
		{"too long to wait for", withRetry(connect.CodeResourceExhausted, time.Hour), time.Minute, time.Minute + retry.FirstWindow, CauseExhausted},
		{"exhausted without a time", connect.NewError(connect.CodeResourceExhausted, nil), time.Second, time.Second + retry.FirstWindow, CauseExhausted},
		{"unavailable without a time", connect.NewError(connect.CodeUnavailable, nil), 0, retry.FirstWindow, CauseUnreachable},
		{"a time before now", withRetry(connect.CodeUnavailable, -7*time.Second), 0, retry.FirstWindow, CauseUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				p := n.newPlane(t, "a", "l").up()
				p.answer(func(ctx context.Context, o opening, s *sender) error {
					if o.number == 0 {
						return c.err
					}
					return p.serve(ctx, o, s)
				})
				watcher, _ := n.watch(t, hosts("a"))
				wait(c.max + time.Millisecond)
				opened := p.openings()
				if len(opened) != 2 {
					t.Fatalf("%d attempts", len(opened))
				}
				if gap := opened[1].at.Sub(opened[0].at); gap < c.min || gap > c.max {
					t.Errorf("came back after %v, want %v to %v", gap, c.min, c.max)
				}
				if s := watcher.Status(); s.LastCause != c.cause || !s.Connected() {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// While one plane has no room, the other is asked.
func TestRetryInfoIsOfOneAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		a := n.newPlane(t, "a", "l").up().refuse(withRetry(connect.CodeResourceExhausted, 20*time.Second))
		n.newPlane(t, "b", "l").up()
		for range 8 {
			watcher, stop := n.watch(t, hosts("a", "b"))
			wait(retry.FirstWindow)
			if s := watcher.Status(); s.Address != "http://b" {
				t.Errorf("status %+v", s)
			}
			stop()
		}
		if len(a.openings()) > 8 {
			t.Errorf("%d attempts", len(a.openings()))
		}
	})
}

func TestPermanentErrors(t *testing.T) {
	for _, code := range []connect.Code{
		connect.CodeInvalidArgument, connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeUnimplemented,
	} {
		t.Run(code.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				p := n.newPlane(t, "a", "l").up().refuse(connect.NewError(code, errors.New("no "+strings.Repeat("é", maxText))))
				watcher, _ := n.watch(t, hosts("a"))
				wait(5 * time.Minute)
				opened := p.openings()
				for i := 1; i < len(opened); i++ {
					if gap := opened[i].at.Sub(opened[i-1].at); gap < 5*time.Second || gap > 30*time.Second {
						t.Errorf("attempt %d came after %v", i, gap)
					}
				}
				s := watcher.Status()
				if len(opened) < 10 || s.LastCause != CauseRefused || connect.CodeOf(s.LastError) != code || s.Connected() || s.Reconnects() != uint64(len(opened)) {
					t.Errorf("%d attempts, status %+v", len(opened), s)
				}
				if text := s.LastError.Error(); len(text) > maxText+3 || !strings.HasPrefix(text, "http://a: "+code.String()) {
					t.Errorf("error of %d bytes: %s", len(text), text)
				}
				// What was wrong is put right.
				p.answer(p.serve)
				wait(30 * time.Second)
				if !watcher.Status().Connected() {
					t.Error("not connected")
				}
			})
		})
	}
	t.Run("another address serves", func(t *testing.T) {
		inBubble(t, func(t *testing.T, n *network) {
			n.newPlane(t, "a", "l").up().refuse(connect.NewError(connect.CodeUnauthenticated, nil))
			n.newPlane(t, "b", "l").up()
			for range 8 {
				watcher, stop := n.watch(t, hosts("a", "b"))
				wait(retry.FirstWindow)
				if s := watcher.Status(); s.Address != "http://b" {
					t.Errorf("status %+v", s)
				}
				stop()
			}
		})
	})
}

func TestTokenFails(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		tokens := []string{"", "first", "second"}
		fault := errors.New("no such file")
		o := hosts("a")
		o.Token = func(context.Context) (string, error) {
			token := tokens[0]
			if tokens = tokens[1:]; token == "" {
				return "", fault
			}
			return token, nil
		}
		watcher, _ := n.watch(t, o)
		wait(time.Second)
		if s := watcher.Status(); !errors.Is(s.LastError, fault) || s.LastCause != CauseUnreachable || !s.Connected() {
			t.Errorf("status %+v", s)
		}
		p.stop()
		p.up()
		wait(time.Second)
		var got []string
		for _, o := range p.openings() {
			got = append(got, o.header.Get("Authorization"))
		}
		if !slices.Equal(got, []string{"Bearer first", "Bearer second"}) {
			t.Errorf("tokens %v", got)
		}
	})
}

// Nobody reads the views. The stream goes on, and who comes late has the newest.
func TestSlowReaderOfViews(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l").up()
		watcher, _ := n.watch(t, hosts("a"))
		_, first := watcher.View()
		wait(beat / 2)
		v, second := watcher.View()
		for range 500 {
			p.change()
			wait(time.Millisecond)
		}
		s := watcher.Status()
		if s.Messages["delta"] != 500 || s.Reconnects() != 0 {
			t.Errorf("status %+v", s)
		}
		for i, stale := range []<-chan struct{}{first, second} {
			select {
			case <-stale:
			default:
				t.Errorf("channel %d is not closed", i)
			}
		}
		if newest, _ := watcher.View(); newest.Version() != 501 || v.Version() != 1 {
			t.Errorf("newest view %v, first %v", newest.cursor, v.cursor)
		}
	})
}

// A plane that breaks the rules: the view stays, and the next stream begins
// with a full.
func TestHostileMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		want error
		// bad is what follows a full of version 1.
		bad func(p *plane) *pb.WatchSnapshotsResponse
	}{
		{"torn digest", ErrTorn, func(p *plane) *pb.WatchSnapshotsResponse {
			m, _ := p.next(1)
			m.Digest++
			return m
		}},
		{"gap", ErrGap, func(p *plane) *pb.WatchSnapshotsResponse {
			return p.head(delta(2, 3, 3, &pb.Delta{}))
		}},
		{"missing chunk", ErrGap, func(p *plane) *pb.WatchSnapshotsResponse {
			return p.head(delta(1, 2, 3, &pb.Delta{Chunk: 1, Chunks: 2}))
		}},
		{"backwards", ErrBackwards, func(p *plane) *pb.WatchSnapshotsResponse {
			return of(p.head(full(1, p.workers...)), func(c *pb.Cursor) { c.Epoch-- })
		}},
		{"another lineage", ErrMalformed, func(p *plane) *pb.WatchSnapshotsResponse {
			return of(p.head(full(2, p.workers...)), lineage("x"))
		}},
		{"two contents", ErrMalformed, func(p *plane) *pb.WatchSnapshotsResponse {
			return p.head(full(1, w(1, "a", 9)))
		}},
		{"no event", ErrMalformed, func(p *plane) *pb.WatchSnapshotsResponse { return p.head(message(1, 3)) }},
		{"empty message", ErrMalformed, func(*plane) *pb.WatchSnapshotsResponse { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				p := n.newPlane(t, "a", "l").up()
				p.answer(func(ctx context.Context, o opening, s *sender) error {
					if o.number > 0 {
						return p.serve(ctx, o, s)
					}
					m, _ := p.next(0)
					bad := c.bad(p)
					if bad == nil {
						bad = &pb.WatchSnapshotsResponse{}
					}
					if err := errors.Join(s.Send(m), s.Send(bad)); err != nil {
						return err
					}
					<-ctx.Done()
					return ctx.Err()
				})
				watcher, _ := n.watch(t, hosts("a"))
				r := follow(t, watcher)
				wait(retry.FirstWindow)
				opened := p.openings()
				if len(opened) != 2 || opened[1].GetResume() != nil {
					t.Fatalf("openings %v", opened)
				}
				s := watcher.Status()
				if s.LastCause != CauseBroken || !errors.Is(s.LastError, c.want) || s.Messages["full"] != 2 || !s.Connected() {
					t.Errorf("status %+v", s)
				}
				if torn := errors.Is(c.want, ErrTorn); (s.Torn == 1) != torn || s.Torn > 1 {
					t.Errorf("torn %d times", s.Torn)
				}
				r.stop()
				if v, _ := watcher.View(); v.Version() != 1 || v.Lineage() != "l" {
					t.Errorf("view %v", v.cursor)
				}
			})
		})
	}
}

// A plane that answers the next stream with an older state of the lineage is
// not believed, stream after stream, until it has what the view has.
func TestOlderStateIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		p := n.newPlane(t, "a", "l")
		p.version = 5
		p.up().answer(func(ctx context.Context, o opening, s *sender) error {
			switch o.number {
			case 0:
				m, _ := p.next(0)
				m.Digest++ // comes after a good one
				good, _ := p.next(0)
				return errors.Join(s.Send(good), s.Send(m))
			case 1, 2:
				return s.Send(p.head(full(4, p.workers...)))
			}
			return p.serve(ctx, o, s)
		})
		watcher, _ := n.watch(t, hosts("a"))
		r := follow(t, watcher)
		wait(7 * retry.FirstWindow)
		s := watcher.Status()
		if v, _ := watcher.View(); v.Version() != 5 || !s.Connected() || s.Ended[CauseBroken] != 3 || !errors.Is(s.LastError, ErrBackwards) {
			t.Errorf("view %v, status %+v", v.cursor, s)
		}
		r.stop()
		for i, o := range p.openings()[1:] {
			if o.GetResume() != nil {
				t.Errorf("stream %d resumes from %v", i+1, o.GetResume())
			}
		}
	})
}

// Reconnects are bounded whatever the plane does, and quick again once it was
// healthy.
func TestBoundedReconnectRate(t *testing.T) {
	for name, script := range map[string]func(p *plane) func(context.Context, opening, *sender) error{
		"refuses": func(*plane) func(context.Context, opening, *sender) error {
			return func(context.Context, opening, *sender) error { return connect.NewError(connect.CodeInternal, nil) }
		},
		"ends in order": func(*plane) func(context.Context, opening, *sender) error {
			return func(context.Context, opening, *sender) error { return nil }
		},
		"breaks after a message": func(p *plane) func(context.Context, opening, *sender) error {
			return func(_ context.Context, _ opening, s *sender) error {
				m, _ := p.next(0)
				return errors.Join(s.Send(m), errors.New("fault"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *network) {
				p := n.newPlane(t, "a", "l").up()
				p.answer(script(p))
				watcher, _ := n.watch(t, hosts("a"))
				wait(10 * time.Minute)
				if got := len(p.openings()); got < 120 || got > 500 {
					t.Errorf("%d attempts in 10 minutes", got)
				}
				p.answer(p.serve)
				wait(retry.LastWindow + retry.HealthyAfter + time.Second)
				if !watcher.Status().Connected() {
					t.Fatal("not connected")
				}
				p.stop()
				p.up()
				wait(retry.FirstWindow)
				if !watcher.Status().Connected() {
					t.Error("not back at once after a healthy stream")
				}
			})
		})
	}
}

func TestSeveralAddresses(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		n.newPlane(t, "c", "l").up()
		watcher, _ := n.watch(t, hosts("a", "b", "c", "d"))
		wait(7 * retry.FirstWindow) // the windows of three failures
		s := watcher.Status()
		if s.Address != "http://c" || s.Reconnects() > 3 {
			t.Errorf("status %+v", s)
		}
		for address, dials := range n.dialed() {
			if dials > 1 {
				t.Errorf("%s was dialled %d times", address, dials)
			}
		}
	})
}

func TestLog(t *testing.T) {
	inBubble(t, func(t *testing.T, n *network) {
		var text strings.Builder
		o := hosts("a")
		o.Logger = slog.New(slog.NewTextHandler(&text, nil))
		p := n.newPlane(t, "a", "l").up()
		_, stop := n.watch(t, o)
		wait(time.Second)
		p.stop()
		wait(time.Millisecond)
		stop()
		got := text.String()
		for _, want := range []string{"level=INFO msg=\"watch began\" address=http://a\n", "level=WARN msg=\"watch ended\" address=http://a cause=unreachable error="} {
			if !strings.Contains(got, want) {
				t.Errorf("log %q lacks %q", got, want)
			}
		}
	})
}

func TestStatusIsACopy(t *testing.T) {
	watcher, err := NewWatcher(hosts("a"))
	if err != nil {
		t.Fatal(err)
	}
	s := watcher.Status()
	s.Ended[CauseClosed], s.Messages["full"] = 7, 7
	if s := watcher.Status(); len(s.Ended) != 0 || len(s.Messages) != 0 {
		t.Errorf("status %+v", s)
	}
}

// Every cause and every event has a name that is listed.
func TestListedNames(t *testing.T) {
	for _, m := range list(full(1), delta(1, 2, 0, &pb.Delta{}), heartbeat(1, 0),
		&pb.WatchSnapshotsResponse{Event: &pb.WatchSnapshotsResponse_GoAway{}}) {
		if name := EventName(m); !slices.Contains(EventNames(), name) {
			t.Errorf("%q is not listed", name)
		}
	}
	for _, err := range []error{
		nil, ErrClosed, ErrSilent, ErrGoAway, connect.NewError(connect.CodeResourceExhausted, nil),
		connect.NewError(connect.CodeNotFound, nil), fmt.Errorf("x: %w", context.Canceled),
	} {
		if c := causeOf(err); !slices.Contains(Causes(), c) {
			t.Errorf("%q is not listed", c)
		}
	}
	if !slices.Contains(Causes(), CauseBroken) {
		t.Error("broken is not listed")
	}
}
